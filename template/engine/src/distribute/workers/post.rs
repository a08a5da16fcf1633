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

/// The number of a request that wants no answer.
const NO_ANSWER: u64 = 0;

/// Messages from one process to another, beside the operations that all take part in. The thread of
/// MPI carries them; others put them in and wait for answers.
#[derive(Default)]
pub struct Post {
    open: AtomicBool,
    last: AtomicU64,
    outgoing: Mutex<VecDeque<Letter>>,
    arrived: Mutex<VecDeque<Letter>>,
    /// Who waits for the answer to which request.
    waiting: Mutex<HashMap<u64, Sender<Vec<u8>>>>,
    handler: Mutex<Option<Handler>>,
}

struct Letter {
    /// The process that it goes to, or comes from.
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
    /// Whether the thread of MPI must look for letters.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Opens the post; false where it was open.
    pub fn open(&self) -> bool {
        !self.open.swap(true, Ordering::AcqRel)
    }

    /// Has `handler` handle the requests that come.
    pub fn serve(&self, handler: Handler) {
        *lock(&self.handler) = Some(handler);
    }

    /// Puts a request to the chief in; where it wants an answer, that comes through what is returned.
    ///
    /// # Errors
    /// It is too long for a message of MPI.
    pub fn request(&self, bytes: Vec<u8>, wants_answer: bool) -> Result<Option<Receiver<Vec<u8>>>> {
        ensure!(
            i32::try_from(bytes.len() + size_of::<u64>()).is_ok(),
            "{} bytes are too long for a message of MPI: a model with fewer parameters is needed, \
             or --strategy multi-worker-mirrored",
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

    /// Sends, receives and hands over all letters that there are.
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

    /// Sends a letter and receives others meanwhile: their senders do the same, so nobody waits for
    /// one who waits.
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
                // Nobody waits any more where the job has failed.
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
