//! Asynchronous data parallelism with a parameter server.

mod message;
mod server;
mod staleness;

use std::{
    collections::{HashSet, VecDeque},
    mem, slice,
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
use super::{Asynchronous, Job, MultiWorkerMirroredStrategy, Output, Strategy};
use crate::{
    checkpoint::interrupt::Stop,
    comm::{CrossDevice, ExchangePrecision, GradientServer},
    globals::{self, LastUpdate, erased},
    precision,
    replica::{ReplicaContext, ReplicaThreads},
    workers::Workers,
};

pub use server::Update;

/// Polling interval for lost processes.
const POLL: Duration = Duration::from_millis(50);

/// Asynchronous data parallelism: replicas pull parameters from a server and push gradients to it without
/// waiting for each other. Each batch goes to the next free replica and is an update.
///
/// The server runs the optimizer on a thread of the chief. It takes over the parameters when training
/// begins. Before anything else, such as a validation or a checkpoint, a join gives them to all replicas;
/// outside of training, this strategy is [`MultiWorkerMirroredStrategy`].
///
/// Source: `tf.distribute.ParameterServerStrategy`; Li et al., Scaling Distributed Machine Learning
/// with the Parameter Server, OSDI 2014.
pub struct ParameterServerStrategy {
    mirrored: MultiWorkerMirroredStrategy,
    server: ParameterServer,
    timeout: Duration,
    flight: Mutex<Flight>,
}

/// Options of a parameter server.
pub struct ParameterServerOptions {
    /// Maximum staleness of a gradient, in updates [default: twice the number of replicas in all
    /// processes].
    pub max_staleness: Option<usize>,
    /// Updates the parameters of the calling thread.
    pub update: Update,
    /// Time after which a process counts as lost if others wait for it; zero disables this.
    pub timeout: Duration,
}

/// The state of asynchronous training between two joins.
struct Flight {
    running: bool,
    /// Updates scheduled so far, by any process.
    scheduled: usize,
    /// The next update that this process computes.
    claimed: Option<usize>,
    stop_after: Option<(usize, Stop)>,
    free: VecDeque<usize>,
    /// The replica that computes the batches of an incomplete update.
    open: Option<usize>,
    sender: Sender<Finished>,
    finished: Receiver<Finished>,
    outputs: Vec<Output>,
    in_flight: usize,
}

/// The result of a batch.
struct Finished {
    replica: usize,
    completes_update: bool,
    output: Result<Output>,
}

impl ParameterServerStrategy {
    /// One replica per device of this process; the server, in the chief, is on its first device.
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
        // Through host memory: only small values are exchanged outside of asynchronous training.
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

    /// The replica for the next batch; `None` if another process computes it.
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

    /// Claims an update as soon as a replica is free.
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
            Answer::Parameters { .. } => bail!("unexpected answer of the parameter server"),
            Answer::Failed(reason) => bail!("{reason}"),
        }
        Ok(())
    }

    fn start(
        &self,
        flight: &mut Flight,
        replica: usize,
        completes_update: bool,
        job: Job,
    ) -> Result<()> {
        let server = self.server.clone();
        let work = move |context: &ReplicaContext| {
            server.pull(context.rank())?;
            let output = context.with_gradient_server(Arc::new(server.clone()), job)?;
            if completes_update {
                server.release(context.rank())?;
            }
            Ok(output)
        };
        let sender = flight.sender.clone();
        let done = move |output: Result<Output>| {
            // The receiver is gone only with the strategy.
            let _ = sender.send(Finished {
                replica,
                completes_update,
                output,
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

    /// Checks that no process is lost, and that none keeps the others waiting for too long.
    fn ensure_all_go_on(&self) -> Result<()> {
        let workers = &self.server.workers;
        workers.check()?;
        if let Some(server) = &self.server.local
            && workers.count() > 1
            && let Some((replica, age)) = server.overdue(self.limit())
        {
            bail!(
                "replica {replica}, of {}, has computed on one batch for {:.0} s while others wait \
                 for it: see what that process does, or increase --timeout",
                workers.name(replica / self.replicas().len()),
                age.as_secs_f64()
            );
        }
        Ok(())
    }

    /// The longest wait for another process: less than `timeout`, so that the job ends within it.
    fn limit(&self) -> Duration {
        match self.timeout.is_zero() {
            true => Duration::MAX,
            false => self.timeout * 3 / 4,
        }
    }

    fn begin(&self, flight: &mut Flight) -> Result<()> {
        if let Some(server) = &self.server.local {
            let training = self.replicas().run_on_first(|_| erased::state())?;
            server.begin(training)?;
        }
        // Barrier: no request may precede the start of the server.
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

    fn wait_for_others(&self, server: &Server) -> Result<()> {
        let workers = &self.server.workers;
        while server.done() + 1 < workers.count() {
            self.ensure_all_go_on()?;
            ensure!(
                server.silence() < self.limit(),
                "{} of {} processes have not finished their batches for {:.0} s: see what they do, \
                 or increase --timeout",
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

    fn asynchronous(&self) -> Option<&dyn Asynchronous> {
        Some(self)
    }
}

impl Asynchronous for ParameterServerStrategy {
    fn schedule(&self, completes_update: bool, job: Job) -> Result<Vec<Output>> {
        let flight = &mut *self.lock();
        if !flight.running {
            self.begin(flight)?;
        }
        if let Some(replica) = self.who_computes(flight)? {
            flight.open = (!completes_update).then_some(replica);
            self.start(flight, replica, completes_update, job)?;
        }
        flight.scheduled += usize::from(completes_update);
        while let Ok(finished) = flight.finished.try_recv() {
            self.finish(flight, finished)?;
        }
        Ok(mem::take(&mut flight.outputs))
    }

    fn join(&self) -> Result<()> {
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
                let parameters = training.to_bytes()?;
                workers.broadcast("the parameters of the server", parameters)?;
                let each = self.replicas().ranks().map(|_| training.clone_state());
                self.replicas()
                    .run_in_turn(each.collect(), |training, replica| {
                        training.register_on(replica.device())
                    })
            }
            None => {
                let worker = workers.index();
                self.server.tell(Request::Done { worker })?;
                let bytes = workers.broadcast("the parameters of the server", Vec::new())?;
                let each = self.replicas().ranks().map(|_| bytes.clone()).collect();
                self.replicas()
                    .run_in_turn(each, |bytes, _| globals::load_state(&bytes))
            }
        }
    }

    fn is_running(&self) -> bool {
        self.lock().running
    }

    fn stops(&self, this_one: Option<Stop>) -> Result<Option<Stop>> {
        let flight = &mut *self.lock();
        if let Some(reason) = this_one {
            self.note(flight, self.server.ask(Request::Stop(reason))?)?;
        }
        // Training continues at least until the next update that any process has claimed.
        self.claim(flight)?;
        let stop = flight.stop_after;
        let is_due = stop.filter(|(after, _)| flight.scheduled >= *after);
        Ok(is_due.map(|(_, reason)| reason))
    }

    fn last_update(&self) -> Result<LastUpdate> {
        let server = self.server.local.as_ref();
        server.map_or_else(|| Ok(LastUpdate::default()), |server| server.last_update())
    }
}

/// A replica's handle to the parameter server.
#[derive(Clone)]
struct ParameterServer {
    /// The server, if it is in this process.
    local: Option<Arc<Server>>,
    workers: Arc<dyn Workers>,
    /// The replicas of this process with a ticket: they have pulled and not pushed yet.
    holding: Arc<Mutex<HashSet<usize>>>,
}

impl GradientServer for ParameterServer {
    fn push(
        &self,
        rank: usize,
        exchange: ExchangePrecision,
        mut gradients: Vec<f32>,
    ) -> Result<()> {
        self.holding().remove(&rank);
        exchange.round(slice::from_mut(&mut gradients));
        self.tell(Request::Push {
            replica: rank,
            exchange,
            gradients,
        })
    }
}

impl ParameterServer {
    /// Pulls the current parameters for the replica of this thread, unless it has done so already.
    fn pull(&self, replica: usize) -> Result<()> {
        if !self.holding().insert(replica) {
            return Ok(());
        }
        match self.ask(Request::Pull { replica })? {
            Answer::Parameters {
                step,
                loss_scale,
                values,
            } => {
                precision::follow(loss_scale);
                erased::load_at(step, &values)
            }
            Answer::Failed(reason) => bail!("{reason}"),
            _ => bail!("unexpected answer of the parameter server"),
        }
    }

    /// Returns the ticket of a step that pushed no gradients.
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
            // The receiver is gone if the process has failed.
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
    use super::*;
    use crate::{
        data::Shard,
        globals,
        loss::Losses,
        replica::{PerReplica, replica_context},
        test_task::{self, Line, datasets, set_up, train_step},
        training::{apply_gradients, train_shard},
    };

    /// Schedules an epoch with `step` on two replicas; returns the strategy and the outputs of the steps.
    fn epoch<O: Send + 'static>(
        max_staleness: &str,
        step: fn(Shard<f32>) -> Result<O>,
    ) -> Result<(Arc<dyn Strategy>, Vec<O>)> {
        let words = ["--strategy", "parameter-server", "--replicas", "2"];
        let options = ["--accumulate", "1", "--max-staleness", max_staleness];
        let options = test_task::options(&[words, options].concat());
        let strategy = set_up(&options)?;
        let datasets = datasets(&options, 200)?;
        let mut outputs = Vec::new();
        for inputs in datasets.train.epoch(1).take(10) {
            outputs.extend(strategy.schedule(inputs, step)?);
        }
        Ok((strategy, outputs))
    }

    /// Runs `work` on a separate thread, as the registry is per thread.
    fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    #[test]
    fn replicas_get_the_parameters_of_the_server_when_all_have_pushed() {
        on_own_thread(|| {
            let step = |shard| apply_gradients::<Line>(train_shard::<Line>(shard, train_step)?.1);
            let (strategy, outputs) = epoch("4", step).unwrap();
            assert!(outputs.len() < 10, "some are still computed");
            let running = strategy.last_update(&Losses::new()).unwrap();
            assert!(strategy.asynchronous().unwrap().is_running());
            assert!(running.gradient_norm.is_some_and(|norm| norm > 0.0));
            assert!(running.learning_rates.iter().any(|(_, rate)| *rate > 0.0));
            let states = strategy.run_on_all(|_| Ok((globals::step(), erased::hash()?)));
            let states: Vec<_> = states.unwrap().into_iter().collect();
            assert_eq!(states[0].0, 10, "updates");
            assert_eq!(states[0], states[1]);
        });
    }

    #[test]
    fn a_replica_knows_the_updates_that_its_parameters_have() {
        on_own_thread(|| {
            let step = |shard| {
                let pulled = globals::step();
                apply_gradients::<Line>(train_shard::<Line>(shard, train_step)?.1)?;
                Ok(pulled)
            };
            // Without staleness, each pull follows the update of the previous one. The last two batches may
            // still be running, so their outputs are missing.
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
        let error = |step: fn(Shard<f32>) -> Result<()>| {
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
            let server = replica.gradient_server().context("a server")?;
            server.push(replica.rank(), ExchangePrecision::Float32, vec![0.0])
        });
        assert!(
            message.contains("the parameter server failed")
                && message.contains(": 1 gradients came, and the model has "),
            "{message}"
        );
    }
}
