//! Asynchronous training: replicas pull parameters from a server and push gradients to it, each at
//! its own pace.

mod message;
mod server;
mod tickets;

use std::{
    any::Any,
    collections::{HashSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use burn::tensor::Device;

use self::{
    message::{Answer, Request},
    server::Server,
};
use super::{
    CrossDevice, FlatGradients, MultiWorkerMirroredStrategy, PerReplica, ReplicaContext,
    ReplicaState, ReplicaThreads, Strategy, Workers, load_parameters,
};
use crate::{
    checkpoint::interrupt::Stop,
    data::Shard,
    globals::{self, LastUpdate},
};

pub use server::Update;

/// Between two looks at whether all processes are there.
const POLL: Duration = Duration::from_millis(50);

/// Replicas that pull parameters from a server and push gradients to it without waiting for each
/// other. Each batch goes to the next replica that is free, and makes an update of its own.
///
/// The server keeps the optimizer, on a thread of the chief. It takes the parameters over when
/// training begins, and all replicas get them when anything else begins, such as a validation or a
/// checkpoint: between joins, this is [`MultiWorkerMirroredStrategy`].
///
/// Source: `tf.distribute.ParameterServerStrategy`; Li et al., Scaling Distributed Machine Learning
/// with the Parameter Server, OSDI 2014.
pub struct ParameterServerStrategy {
    mirrored: MultiWorkerMirroredStrategy,
    server: ParameterServer,
    timeout: Duration,
    flight: Mutex<Flight>,
}

/// How a parameter server works.
pub struct ParameterServerOptions {
    /// Updates by which gradients may be late [default: twice the replicas of all processes].
    pub max_staleness: Option<usize>,
    /// Updates the parameters of the thread that calls it.
    pub update: Update,
    /// A process counts as lost where others wait for it this long, unless it is zero.
    pub timeout: Duration,
}

/// What is computed between two joins.
struct Flight {
    running: bool,
    /// Updates that were scheduled, by this process or another.
    scheduled: usize,
    /// The next update that this process computes.
    claimed: Option<usize>,
    stop_after: Option<(usize, Stop)>,
    free: VecDeque<usize>,
    /// Who computes the batches of an update that is not complete yet.
    open: Option<usize>,
    sender: Sender<Finished>,
    finished: Receiver<Finished>,
    outputs: Vec<Box<dyn Any + Send>>,
    in_flight: usize,
}

/// What a replica made of a batch.
struct Finished {
    replica: usize,
    completes_update: bool,
    output: Result<Box<dyn Any + Send>>,
}

impl ParameterServerStrategy {
    /// One replica of this process for each of `devices`; the server of the chief is on the first.
    ///
    /// # Errors
    /// As [`MultiWorkerMirroredStrategy::new`].
    pub fn new(
        devices: Vec<Device>,
        workers: Arc<dyn Workers>,
        settings: &[(&str, String)],
        options: ParameterServerOptions,
    ) -> Result<Self> {
        let replicas = devices.len();
        let device = devices.first().context("a worker needs a device")?.clone();
        // What crosses between joins is small, and its replicas do not wait for each other in between.
        let host = Some(CrossDevice::Host);
        let workers_of = Arc::clone(&workers);
        let mirrored = MultiWorkerMirroredStrategy::new(devices, workers_of, settings, host)?;
        let staleness = options.max_staleness;
        let staleness = staleness.unwrap_or(2 * mirrored.num_replicas());
        let local = match workers.is_chief() {
            true => Some(Arc::new(Server::start(
                device,
                replicas,
                staleness,
                options.update,
            )?)),
            false => None,
        };
        if let Some(server) = &local
            && workers.count() > 1
        {
            let server = Arc::clone(server);
            workers.serve(Box::new(move |bytes, reply| {
                match Request::from_bytes(&bytes) {
                    Ok(request) => {
                        server.handle(request, Box::new(move |answer| reply(answer.into_bytes())));
                    }
                    Err(error) => server.fail(&format!("{error:#}")),
                }
            }))?;
        }
        let server = ParameterServer {
            local,
            workers,
            holding: Arc::default(),
        };
        let (sender, finished) = channel();
        let flight = Mutex::new(Flight {
            running: false,
            scheduled: 0,
            claimed: None,
            stop_after: None,
            free: VecDeque::new(),
            open: None,
            sender,
            finished,
            outputs: Vec::new(),
            in_flight: 0,
        });
        Ok(ParameterServerStrategy {
            mirrored,
            server,
            timeout: options.timeout,
            flight,
        })
    }

    /// Gives a batch to the next replica that is free, unless another process computes it. Returns
    /// what `step` returned for batches before.
    ///
    /// # Errors
    /// A batch before failed, or another process.
    pub(super) fn schedule<E: Send + 'static, O: Send + 'static>(
        &self,
        inputs: PerReplica<Shard<E>>,
        step: impl Fn(Shard<E>) -> Result<O> + Send + 'static,
    ) -> Result<Vec<O>> {
        let flight = &mut *self.lock();
        if !flight.running {
            self.begin(flight)?;
        }
        let shard = inputs.into_iter().next().context("a batch is empty")?;
        let completes_update = shard.info().completes_update;
        if let Some(replica) = self.who_computes(flight)? {
            flight.open = (!completes_update).then_some(replica);
            self.start(flight, replica, shard, step)?;
        }
        flight.scheduled += usize::from(completes_update);
        while let Ok(finished) = flight.finished.try_recv() {
            self.finish(flight, finished)?;
        }
        let outputs = flight.outputs.drain(..);
        let outputs = outputs.filter_map(|output| output.downcast::<O>().ok());
        Ok(outputs.map(|output| *output).collect())
    }

    /// Why training stops before the next update, if this process or another one has asked for it.
    ///
    /// # Errors
    /// As `schedule`.
    pub(super) fn stops(&self, this_one: Option<Stop>) -> Result<Option<Stop>> {
        let flight = &mut *self.lock();
        if let Some(reason) = this_one {
            self.note(flight, self.server.ask(Request::Stop(reason))?)?;
        }
        // Where the next update is claimed by any process, training goes on at least until then.
        self.claim(flight)?;
        let stop = flight.stop_after;
        let is_due = stop.filter(|(after, _)| flight.scheduled >= *after);
        Ok(is_due.map(|(_, reason)| reason))
    }

    /// Whether batches were scheduled since the last join.
    pub(super) fn is_running(&self) -> bool {
        self.lock().running
    }

    /// The last update of the server; nothing is known of one in another process.
    ///
    /// # Errors
    /// The server failed.
    pub(super) fn last_update(&self) -> Result<LastUpdate> {
        let server = self.server.local.as_ref();
        server.map_or_else(|| Ok(LastUpdate::default()), |server| server.last_update())
    }

    /// The replica for the next batch; `None` where another process computes it.
    fn who_computes(&self, flight: &mut Flight) -> Result<Option<usize>> {
        if flight.open.is_some() {
            return Ok(flight.open);
        }
        self.claim(flight)?;
        if flight.claimed != Some(flight.scheduled) {
            return Ok(None);
        }
        flight.claimed = None;
        Ok(flight.free.pop_front())
    }

    /// Claims an update, as soon as a replica is free for it.
    fn claim(&self, flight: &mut Flight) -> Result<()> {
        if flight.claimed.is_some() || flight.open.is_some() {
            return Ok(());
        }
        while flight.free.is_empty() {
            self.wait(flight)?;
        }
        self.note(flight, self.server.ask(Request::Claim)?)
    }

    fn note(&self, flight: &mut Flight, answer: Answer) -> Result<()> {
        match answer {
            Answer::Update(number) => flight.claimed = Some(number),
            Answer::Stop { after, reason } => flight.stop_after = Some((after, reason)),
            Answer::Parameters { .. } => bail!("the parameter server answers what was not asked"),
            Answer::Failed(reason) => bail!("{reason}"),
        }
        Ok(())
    }

    fn start<E: Send + 'static, O: Send + 'static>(
        &self,
        flight: &mut Flight,
        replica: usize,
        shard: Shard<E>,
        step: impl Fn(Shard<E>) -> Result<O> + Send + 'static,
    ) -> Result<()> {
        let completes_update = shard.info().completes_update;
        let server = self.server.clone();
        let work = move |context: &ReplicaContext| {
            server.pull(context.rank())?;
            let output = context.with_parameter_server(&server, || step(shard))?;
            if completes_update {
                server.release(context.rank())?;
            }
            Ok(output)
        };
        let sender = flight.sender.clone();
        let done = move |output: Result<O>| {
            // The receiver is gone only with the strategy.
            let _ = sender.send(Finished {
                replica,
                completes_update,
                output: output.map(|output| Box::new(output) as Box<dyn Any + Send>),
            });
        };
        flight.in_flight += 1;
        self.replicas().start_on(replica, work, done)
    }

    /// Waits until a replica has finished a batch.
    fn wait(&self, flight: &mut Flight) -> Result<()> {
        loop {
            match flight.finished.recv_timeout(POLL) {
                Ok(finished) => return self.finish(flight, finished),
                Err(_) => self.ensure_all_go_on()?,
            }
        }
    }

    fn finish(&self, flight: &mut Flight, finished: Finished) -> Result<()> {
        flight.in_flight -= 1;
        match finished.output {
            Ok(output) => flight.outputs.push(output),
            Err(error) => {
                // Those that wait for this replica's ticket.
                if let Some(server) = &self.server.local {
                    server.fail(&format!("{error:#}"));
                }
                return Err(error);
            }
        }
        if finished.completes_update {
            flight.free.push_back(finished.replica);
        }
        Ok(())
    }

    /// Makes sure that no process is lost, and that none keeps the others waiting.
    fn ensure_all_go_on(&self) -> Result<()> {
        let workers = &self.server.workers;
        workers.check()?;
        if let Some(server) = &self.server.local
            && workers.count() > 1
            && let Some((replica, age)) = server.overdue(self.limit())
        {
            bail!(
                "replica {replica}, of {}, has computed on one batch for {:.0} s while others wait \
                 for it: see what that process does, or allow more with --timeout",
                workers.name(replica / self.replicas().len()),
                age.as_secs_f64()
            );
        }
        Ok(())
    }

    /// So that the job ends within `timeout`.
    fn limit(&self) -> Duration {
        match self.timeout.is_zero() {
            true => Duration::MAX,
            false => self.timeout * 3 / 4,
        }
    }

    fn begin(&self, flight: &mut Flight) -> Result<()> {
        if let Some(server) = &self.server.local {
            let training = self
                .replicas()
                .run_on_first(|_| globals::training_state())?;
            server.begin(training)?;
        }
        // No request may come before the server has begun.
        let what = "the start of asynchronous training";
        self.server.workers.all_gather(what, Vec::new())?;
        let replicas = 0..self.replicas().len();
        flight.free = replicas
            .filter(|replica| flight.open != Some(*replica))
            .collect();
        flight.scheduled = 0;
        flight.claimed = None;
        flight.stop_after = None;
        flight.running = true;
        Ok(())
    }

    /// Waits for all batches of all processes, and gives the replicas the state of the server.
    ///
    /// # Errors
    /// As `schedule`.
    pub(super) fn join(&self) -> Result<()> {
        let flight = &mut *self.lock();
        if !flight.running {
            return Ok(());
        }
        while flight.in_flight > 0 {
            self.wait(flight)?;
        }
        flight.running = false;
        flight.outputs.clear();
        let workers = &self.server.workers;
        match &self.server.local {
            Some(server) => {
                self.wait_for_others(server)?;
                let training = server.training()?;
                let parameters = training.to_bytes();
                workers.broadcast("the parameters of the server", parameters)?;
                let each = self.replicas().ranks().map(|_| training.clone()).collect();
                self.replicas().run_in_turn(each, |training, replica| {
                    training.mirror(replica.device())?.register();
                    Ok(())
                })
            }
            None => {
                let worker = workers.index();
                self.server.tell(Request::Done { worker })?;
                let bytes = workers.broadcast("the parameters of the server", Vec::new())?;
                let each = self.replicas().ranks().map(|_| bytes.clone()).collect();
                self.replicas()
                    .run_in_turn(each, |bytes, _| globals::load_training(&bytes))
            }
        }
    }

    fn wait_for_others(&self, server: &Server) -> Result<()> {
        let workers = &self.server.workers;
        while server.done() + 1 < workers.count() {
            self.ensure_all_go_on()?;
            ensure!(
                server.silence() < self.limit(),
                "{} of {} processes have not come to the end of their batches for {:.0} s: see what \
                 they do, or allow more with --timeout",
                workers.count() - 1 - server.done(),
                workers.count(),
                server.silence().as_secs_f64()
            );
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Flight> {
        self.flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Strategy for ParameterServerStrategy {
    fn replicas(&self) -> &ReplicaThreads {
        self.mirrored.replicas()
    }

    fn num_replicas(&self) -> usize {
        self.mirrored.num_replicas()
    }

    fn num_replicas_in_sync(&self) -> usize {
        1
    }

    fn workers(&self) -> &dyn Workers {
        self.mirrored.workers()
    }

    fn parameter_server(&self) -> Option<&ParameterServerStrategy> {
        Some(self)
    }
}

/// The parameter server as a replica reaches it.
#[derive(Clone)]
pub struct ParameterServer {
    /// In the process of the server.
    local: Option<Arc<Server>>,
    workers: Arc<dyn Workers>,
    /// The replicas of this process that have pulled and not pushed yet.
    holding: Arc<Mutex<HashSet<usize>>>,
}

impl ParameterServer {
    /// Updates the parameters by the gradients of a replica, without waiting until that is done.
    ///
    /// # Errors
    /// The process of the server is lost.
    pub fn push(&self, replica: usize, gradients: &FlatGradients) -> Result<()> {
        self.holding().remove(&replica);
        let gradients = gradients.to_values()?;
        self.tell(Request::Push { replica, gradients })
    }

    /// Gives the replica of this thread the current parameters, unless it has pulled already.
    fn pull(&self, replica: usize) -> Result<()> {
        if !self.holding().insert(replica) {
            return Ok(());
        }
        match self.ask(Request::Pull { replica })? {
            Answer::Parameters { step, values } => {
                globals::set_step(step);
                globals::update_trainable(|mut trainable| {
                    trainable.model = load_parameters(trainable.model, &values)?;
                    Ok(trainable)
                })
            }
            Answer::Failed(reason) => bail!("{reason}"),
            _ => bail!("the parameter server answers what was not asked"),
        }
    }

    /// Ends a step that has pushed nothing.
    fn release(&self, replica: usize) -> Result<()> {
        match self.holding().remove(&replica) {
            true => self.tell(Request::Release { replica }),
            false => Ok(()),
        }
    }

    fn ask(&self, request: Request) -> Result<Answer> {
        let Some(server) = &self.local else {
            return Answer::from_bytes(&self.workers.ask(request.into_bytes())?);
        };
        let (sender, answer) = channel();
        let reply = move |answer| {
            // Nobody waits any more where the process has failed.
            let _ = sender.send(answer);
        };
        server.handle(request, Box::new(reply));
        loop {
            match answer.recv_timeout(POLL) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) => self.workers.check()?,
                Err(RecvTimeoutError::Disconnected) => bail!("the parameter server is gone"),
            }
        }
    }

    fn tell(&self, request: Request) -> Result<()> {
        match &self.local {
            Some(server) => server.handle(request, Box::new(drop)),
            None => self.workers.tell(request.into_bytes())?,
        }
        Ok(())
    }

    fn holding(&self) -> MutexGuard<'_, HashSet<usize>> {
        self.holding.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{
        cli::Args,
        dataset::{Example, create_datasets},
        distribute::{hash_parameters, replica_context},
        loss::create_loss_objects,
        metric::create_metrics,
        model::create_model_and_optimizer,
        strategy::create_strategy,
        train::{apply_gradients, train_step},
    };

    /// Schedules an epoch with `step` on two replicas; then gives the strategy, and what the steps
    /// returned.
    fn epoch<O: Send + 'static>(
        max_staleness: &str,
        step: fn(Shard<Example>) -> Result<O>,
    ) -> Result<(Arc<dyn Strategy>, Vec<O>)> {
        let words = ["test", "--strategy", "parameter-server", "--replicas", "2"];
        let options = ["--accumulate", "1", "--max-staleness", max_staleness];
        let args = Args::parse_from(words.into_iter().chain(options));
        let strategy = create_strategy(&args)?;
        globals::register_strategy(&strategy, args.batch_size)?;
        strategy.scope(|_| Ok(create_loss_objects()))?;
        strategy.scope(|_| Ok(create_metrics()))?;
        let settings = args.clone();
        strategy.scope(move |device| create_model_and_optimizer(&settings, device))?;
        let datasets = create_datasets(&args)?;
        let mut outputs = Vec::new();
        for inputs in datasets.train.epoch(1).take(10) {
            outputs.extend(strategy.schedule(inputs, step)?);
        }
        Ok((strategy, outputs))
    }

    /// On a thread of its own, as what is registered belongs to a thread.
    fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    #[test]
    fn replicas_get_the_parameters_of_the_server_when_all_have_pushed() {
        on_own_thread(|| {
            let step = |shard: Shard<Example>| {
                let batch = shard.load()?.context("a batch")?;
                apply_gradients(train_step(batch)?.1)
            };
            let (strategy, outputs) = epoch("4", step).unwrap();
            assert!(outputs.len() < 10, "some are still computed");
            let running = strategy.last_update().unwrap();
            assert!(strategy.parameter_server().unwrap().is_running());
            assert!(running.gradient_norm.is_some_and(|norm| norm > 0.0));
            assert!(running.learning_rates.iter().any(|(_, rate)| *rate > 0.0));
            let states = strategy.run_on_all(|_| {
                let hash = globals::with_model(hash_parameters)?;
                Ok((globals::step(), hash))
            });
            let states: Vec<_> = states.unwrap().into_iter().collect();
            assert_eq!(states[0].0, 10, "updates");
            assert_eq!(states[0], states[1]);
        });
    }

    #[test]
    fn a_replica_knows_the_updates_that_its_parameters_have() {
        on_own_thread(|| {
            let step = |shard: Shard<Example>| {
                let pulled = globals::step();
                let batch = shard.load()?.context("a batch")?;
                apply_gradients(train_step(batch)?.1)?;
                Ok(pulled)
            };
            // Without staleness, each pull follows the update of the one before. Of the last two batches,
            // which may still be computed, nothing is returned.
            let (_strategy, mut steps) = epoch("0", step).unwrap();
            steps.sort_unstable();
            let last = *steps.last().unwrap();
            assert!((6..10).contains(&last), "{steps:?}");
            let distinct = steps.windows(2).all(|pair| pair[0] < pair[1]);
            assert!(distinct, "{steps:?}");
        });
    }

    #[test]
    fn a_step_that_pushes_nothing_holds_nobody() {
        on_own_thread(|| {
            let (strategy, _) = epoch("0", |_| Ok(())).unwrap();
            let steps = strategy.run_on_all(|_| Ok(globals::step())).unwrap();
            assert_eq!(steps, PerReplica::from_iter([0, 0]));
        });
    }

    #[test]
    fn a_step_or_an_update_that_fails_ends_training() {
        let error = |step: fn(Shard<Example>) -> Result<()>| {
            on_own_thread(|| {
                let result = epoch("0", step).and_then(|(strategy, _)| {
                    strategy.run_on_all(|_| Ok(()))?;
                    Ok(())
                });
                format!("{:#}", result.unwrap_err())
            })
        };
        let message = error(|shard| match shard.info().position {
            0 => Ok(()),
            _ => bail!("no such example"),
        });
        assert!(message.contains("no such example"), "{message}");
        let message = error(|_| {
            let replica = replica_context()?;
            let server = replica.parameter_server().context("a server")?;
            server.tell(Request::Push {
                replica: replica.rank(),
                gradients: vec![0.0],
            })
        });
        assert!(
            message.contains("the parameter server failed")
                && message.contains(": 1 gradients came, and the model has "),
            "{message}"
        );
    }
}
