//! Requests and responses between processes, beside their collective operations.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use anyhow::{Result, ensure};
use mpi::{
    point_to_point::{Destination, MatchedReceiveVec, Source},
    request,
    topology::SimpleCommunicator,
    traits::Communicator,
};

use super::Handler;

/// The number of a request without response.
const NO_ANSWER: u64 = 0;

/// Point-to-point requests and responses, beside the collective operations. The MPI thread sends and
/// receives them; other threads queue requests and wait for responses.
#[derive(Default)]
pub struct Post {
    open: AtomicBool,
    last: AtomicU64,
    outgoing: Mutex<VecDeque<Letter>>,
    arrived: Mutex<VecDeque<Letter>>,
    /// The receiver of each pending response, by request number.
    waiting: Mutex<HashMap<u64, Sender<Vec<u8>>>>,
    handler: Mutex<Option<Handler>>,
}

struct Letter {
    /// Rank of the receiver, or of the sender.
    process: i32,
    kind: Kind,
    request: u64,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Request = 1,
    Answer = 2,
}

impl Post {
    /// True if the MPI thread must poll for messages.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Enables polling; false if it was enabled.
    pub fn open(&self) -> bool {
        !self.open.swap(true, Ordering::AcqRel)
    }

    /// Sets the handler of incoming requests.
    pub fn serve(&self, handler: Handler) {
        *lock(&self.handler) = Some(handler);
    }

    /// Queues a request to the chief; returns the receiver of its response, if it wants one.
    ///
    /// # Errors
    /// The request is too long for an MPI message.
    pub fn request(&self, bytes: Vec<u8>, wants_answer: bool) -> Result<Option<Receiver<Vec<u8>>>> {
        ensure!(
            i32::try_from(bytes.len() + size_of::<u64>()).is_ok(),
            "{} bytes are too long for an MPI message: use a model with fewer parameters, or \
             --strategy multi-worker-mirrored",
            bytes.len()
        );
        let (request, answer) = match wants_answer {
            false => (NO_ANSWER, None),
            true => {
                let request = self.last.fetch_add(1, Ordering::Relaxed) + 1;
                let (sender, answer) = channel();
                lock(&self.waiting).insert(request, sender);
                (request, Some(answer))
            }
        };
        lock(&self.outgoing).push_back(Letter {
            process: 0,
            kind: Kind::Request,
            request,
            bytes,
        });
        Ok(answer)
    }

    /// Sends and receives all pending messages.
    pub fn carry(self: &Arc<Self>, world: &SimpleCommunicator) {
        loop {
            let letter = lock(&self.outgoing).pop_front();
            match letter {
                Some(letter) => self.send(world, letter),
                None => break,
            }
        }
        self.receive(world);
        loop {
            let letter = lock(&self.arrived).pop_front();
            match letter {
                Some(letter) => self.hand_over(letter),
                None => break,
            }
        }
    }

    /// Sends a message and receives others meanwhile. Senders do the same, so they cannot deadlock.
    fn send(&self, world: &SimpleCommunicator, letter: Letter) {
        let mut bytes = letter.request.to_le_bytes().to_vec();
        bytes.extend(letter.bytes);
        let process = world.process_at_rank(letter.process);
        request::scope(|scope| {
            let mut sent =
                process.immediate_send_with_tag(scope, &bytes[..], letter.kind as mpi::Tag);
            while let Err(pending) = sent.test() {
                sent = pending;
                self.receive(world);
                thread::yield_now();
            }
        });
    }

    fn receive(&self, world: &SimpleCommunicator) {
        while let Some(message) = world.any_process().immediate_matched_probe() {
            let (bytes, status) = message.matched_receive_vec::<u8>();
            let Some((request, bytes)) = bytes.split_first_chunk() else {
                continue;
            };
            lock(&self.arrived).push_back(Letter {
                process: status.source_rank(),
                kind: match status.tag() == Kind::Answer as mpi::Tag {
                    true => Kind::Answer,
                    false => Kind::Request,
                },
                request: u64::from_le_bytes(*request),
                bytes: bytes.to_vec(),
            });
        }
    }

    fn hand_over(self: &Arc<Self>, letter: Letter) {
        let Letter {
            process, request, ..
        } = letter;
        if letter.kind == Kind::Answer {
            if let Some(waiting) = lock(&self.waiting).remove(&request) {
                // The receiver is gone if the job has failed.
                let _ = waiting.send(letter.bytes);
            }
            return;
        }
        let post = Arc::clone(self);
        let reply = move |bytes| {
            if request != NO_ANSWER {
                lock(&post.outgoing).push_back(Letter {
                    process,
                    kind: Kind::Answer,
                    request,
                    bytes,
                });
            }
        };
        if let Some(handler) = &*lock(&self.handler) {
            handler(letter.bytes, Box::new(reply));
        }
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
