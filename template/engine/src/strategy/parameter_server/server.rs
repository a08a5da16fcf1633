//! The parameter server: applies updates on a thread of its own, and answers the requests of replicas.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use burn::tensor::Device;

use super::{
    message::{Answer, Request},
    staleness::Tickets,
};
use crate::{
    checkpoint::interrupt::Stop,
    comm::SharedMemory,
    erased::{self, LastUpdate, last_update},
    optim::{FlatGradients, step},
    precision,
    replica::{Part, ReplicaThreads, Role},
};

/// Sends the answer to a request.
pub type Reply = Box<dyn FnOnce(Answer) + Send>;

/// Updates the parameters of the calling thread.
pub type Update = fn(FlatGradients) -> Result<()>;

/// Owns the parameters and the optimizer on a thread of its own; applies updates in the order of requests.
pub struct Server {
    thread: ReplicaThreads,
    update: Update,
    max_staleness: usize,
    state: Mutex<State>,
}

struct State {
    tickets: Tickets,
    /// Updates claimed by replicas since the last join.
    claimed: usize,
    stop_after: Option<(usize, Stop)>,
    /// Replicas that wait for a ticket.
    waiting: VecDeque<(usize, Reply)>,
    /// Number of processes that have reached the next join.
    done: usize,
    failure: Option<String>,
    /// Time of the last request.
    heard: Instant,
}

impl State {
    fn new(max_staleness: usize) -> Self {
        State {
            tickets: Tickets::new(max_staleness),
            claimed: 0,
            stop_after: None,
            waiting: VecDeque::new(),
            done: 0,
            failure: None,
            heard: Instant::now(),
        }
    }
}

impl Server {
    /// Starts the thread of the server, with a replica's share of the cores.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        device: Device,
        sharing_cores: usize,
        max_staleness: usize,
        update: Update,
    ) -> Result<Self> {
        let part = Part {
            role: Role::Other("the parameter server"),
            first_rank: 0,
            replicas: 1,
            sharing_cores,
        };
        let ops = Arc::new(SharedMemory::new(1));
        Ok(Server {
            thread: ReplicaThreads::start_part(vec![device], part, ops)?,
            update,
            max_staleness,
            state: Mutex::new(State::new(max_staleness)),
        })
    }

    /// Takes over the parameters and the optimizer.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn begin(&self, training: Box<dyn erased::State>) -> Result<()> {
        *self.lock() = State::new(self.max_staleness);
        self.thread
            .run_on_first(move |replica| training.register_on(replica.device()))
    }

    /// The parameters and the optimizer after all requests so far.
    ///
    /// # Errors
    /// An update failed.
    pub fn training(&self) -> Result<Box<dyn erased::State>> {
        let training = self.thread.run_on_first(|_| erased::state())?;
        match &self.lock().failure {
            Some(failure) => bail!("{failure}"),
            None => Ok(training),
        }
    }

    /// The last update, after all requests so far.
    ///
    /// # Errors
    /// An update failed.
    pub fn last_update(&self) -> Result<LastUpdate> {
        let update = self.thread.run_on_first(|_| last_update(Vec::new()));
        match &self.lock().failure {
            Some(failure) => bail!("{failure}"),
            None => Ok(update?.0),
        }
    }

    /// The number of processes that have reached the next join.
    pub fn done(&self) -> usize {
        self.lock().done
    }

    /// The replica that has held its ticket for longer than `limit` while others wait, and for how long.
    pub fn overdue(&self, limit: Duration) -> Option<(usize, Duration)> {
        let state = self.lock();
        let oldest = state.tickets.oldest()?;
        (oldest.1 > limit && !state.waiting.is_empty()).then_some(oldest)
    }

    /// The time since the last request.
    pub fn silence(&self) -> Duration {
        self.lock().heard.elapsed()
    }

    /// Handles a request without blocking the caller. The answer comes now or later; some requests have
    /// none.
    pub fn handle(self: &Arc<Self>, request: Request, reply: Reply) {
        let mut state = self.lock();
        state.heard = Instant::now();
        match (request, &state.failure) {
            (Request::Done { .. }, _) => state.done += 1,
            (Request::Claim | Request::Pull { .. }, Some(failure)) => {
                reply(Answer::Failed(failure.clone()));
            }
            (Request::Claim, None) => reply(match state.stop_after {
                Some((after, reason)) => Answer::Stop { after, reason },
                None => {
                    state.claimed += 1;
                    Answer::Update(state.claimed - 1)
                }
            }),
            (Request::Stop(reason), _) => {
                let after = state.claimed;
                let (after, reason) = *state.stop_after.get_or_insert((after, reason));
                reply(Answer::Stop { after, reason });
            }
            (Request::Pull { replica }, None) => {
                state.waiting.push_back((replica, reply));
                drop(state);
                self.queue(|server| server.grant());
            }
            (Request::Release { replica }, _) => {
                state.tickets.release(replica);
                drop(state);
                self.queue(|server| server.grant());
            }
            (
                Request::Push {
                    replica, gradients, ..
                },
                _,
            ) => {
                drop(state);
                self.queue(move |server| server.push(replica, &gradients));
            }
        }
    }

    /// Queues `work` on the thread of the server.
    fn queue(self: &Arc<Self>, work: impl FnOnce(&Self) -> Result<()> + Send + 'static) {
        let server = Arc::clone(self);
        let done = {
            let server = Arc::clone(self);
            move |result: Result<()>| {
                if let Err(error) = result {
                    server.fail(&format!("{error:#}"));
                }
            }
        };
        if let Err(error) = self.thread.start_on(0, move |_| work(&server), done) {
            self.fail(&format!("{error:#}"));
        }
    }

    /// Grants tickets to waiting replicas, first come, first served.
    fn grant(&self) -> Result<()> {
        let mut answer = None;
        loop {
            let reply = {
                let mut state = self.lock();
                let Some((replica, _)) = state.waiting.front() else {
                    return Ok(());
                };
                let replica = *replica;
                if !state.tickets.grant(replica) {
                    return Ok(());
                }
                state.waiting.pop_front()
            };
            let answer = match &answer {
                Some(answer) => answer,
                None => answer.insert(Answer::Parameters {
                    step: step(),
                    loss_scale: precision::loss_scale().map_or(0.0, |state| state.scale),
                    values: erased::model_parameters()?,
                }),
            };
            if let Some((_, reply)) = reply {
                reply(answer.clone());
            }
        }
    }

    fn push(&self, replica: usize, gradients: &[f32]) -> Result<()> {
        if self.lock().failure.is_some() {
            return Ok(());
        }
        (self.update)(erased::gradients(gradients)?)?;
        self.lock().tickets.push(replica);
        self.grant()
    }

    /// Fails all waiting replicas with `reason`, and later requests with the first reason given.
    pub fn fail(&self, reason: &str) {
        let waiting = {
            let mut state = self.lock();
            state.failure.get_or_insert_with(|| reason.to_owned());
            std::mem::take(&mut state.waiting)
        };
        for (_, reply) in waiting {
            reply(Answer::Failed(reason.to_owned()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
