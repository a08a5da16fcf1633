//! Replicas: their threads, their state, and the context in which their steps run.

mod batch;
mod devices;
#[cfg(feature = "cuda")]
mod no_cuda;
mod open;
mod per_replica;
mod pipeline;
mod shared_update;

use std::{
    any::Any,
    cell::{Cell, RefCell},
    ops::{AddAssign, Range},
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Sender, channel},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use burn::tensor::Device;
use kiln_kernels::threads::share_threads;
use rand::rngs::StdRng;
use rayon::ThreadPoolBuilder;

use crate::{
    comm::{
        CrossDeviceOps, ExchangePrecision, GradientServer, ReduceOp, checks_replicas,
        polling::receive,
    },
    random::stream,
};

pub use batch::BatchInfo;
pub use devices::{chosen_devices, visible_devices};
pub(crate) use open::open_devices;
pub use per_replica::PerReplica;
pub use pipeline::Pipeline;
use shared_update::SharedUpdate;

pub use crate::device::{is_cpu, read_all, read_data, reads};

/// Per-replica state of the task `T`, created once and mirrored on every replica: losses, metrics, model and
/// optimizer.
pub trait ReplicaState<T>: Clone + Send + 'static {
    /// A copy of the state for the replica of this thread, on `device`.
    ///
    /// # Errors
    /// The state cannot be copied to `device`.
    fn mirror(self, _device: &Device) -> Result<Self> {
        Ok(self)
    }

    /// Registers the state for the replica of this thread.
    fn register(self);
}

/// The replica on which a step runs: its rank, device, batch, random numbers and collective operations.
///
/// Source: `tf.distribute.ReplicaContext`.
pub struct ReplicaContext {
    role: Role,
    rank: usize,
    /// Index among the replicas of this process, from 0.
    place: usize,
    num_replicas: usize,
    device: Device,
    shared_update: Option<Arc<SharedUpdate>>,
    /// Whether parameters are compared after each update.
    is_checked: bool,
    batch: Cell<Option<BatchInfo>>,
    random: RefCell<StdRng>,
    ops: Arc<dyn CrossDeviceOps>,
    gradient_server: RefCell<Option<Arc<dyn GradientServer>>>,
    pipeline: Option<Pipeline>,
    /// Micro-batches into which this replica's shard of the batch is split.
    parts: Cell<usize>,
    /// Whether random layers of the model draw from the generator of Burn.
    draws_from_burn: Cell<bool>,
    /// The precision of gradients sent to other replicas.
    exchange: Cell<ExchangePrecision>,
    /// Nanoseconds that replicas of this process spent reading examples that were not prefetched.
    reading: Arc<AtomicU64>,
    /// Examples and tokens that replicas of this process trained on.
    trained: Arc<[AtomicU64; 2]>,
}

/// Examples and tokens that the replicas of a process trained on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Examples.
    pub examples: usize,
    /// Their tokens; 0 if batches do not report tokens.
    pub tokens: usize,
}

impl AddAssign for Counted {
    fn add_assign(&mut self, other: Self) {
        self.examples += other.examples;
        self.tokens += other.tokens;
    }
}

thread_local! {
    static CONTEXT: RefCell<Option<Rc<ReplicaContext>>> = const { RefCell::new(None) };
}

/// The context of the replica that runs on this thread.
///
/// # Errors
/// No replica runs on this thread: the call must come from within `strategy.run`.
pub fn replica_context() -> Result<Rc<ReplicaContext>> {
    CONTEXT.with_borrow(|context| {
        context
            .clone()
            .context("no replica runs on this thread: call this from within `strategy.run`")
    })
}

impl ReplicaContext {
    /// Rank among the replicas of all processes, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn place(&self) -> usize {
        self.place
    }

    pub(crate) fn shared_update(&self) -> Option<&SharedUpdate> {
        self.shared_update.as_deref()
    }

    pub(crate) fn is_checked(&self) -> bool {
        self.is_checked
    }

    pub(crate) fn cross_device_ops(&self) -> &dyn CrossDeviceOps {
        &*self.ops
    }

    /// The number of replicas in all processes.
    pub fn num_replicas(&self) -> usize {
        self.num_replicas
    }

    /// The number of replicas whose gradients are summed for one update: all, or 1 if each pushes its own to a server.
    pub fn num_replicas_in_sync(&self) -> usize {
        match *self.gradient_server.borrow() {
            Some(_) => 1,
            None => self.num_replicas,
        }
    }

    /// The server to which this step pushes its gradients; `None` if they are all-reduced.
    pub fn gradient_server(&self) -> Option<Arc<dyn GradientServer>> {
        self.gradient_server.borrow().clone()
    }

    pub(crate) fn with_gradient_server<T>(
        &self,
        server: Arc<dyn GradientServer>,
        step: impl FnOnce() -> T,
    ) -> T {
        self.gradient_server.replace(Some(server));
        let output = step();
        self.gradient_server.replace(None);
        output
    }

    /// The device of the model, with autodiff.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The current global batch; `None` before the first.
    pub fn batch(&self) -> Option<BatchInfo> {
        self.batch.get()
    }

    /// The true number of examples in the current update, over all replicas: those of the global batch, or
    /// with `--accumulate` those of all accumulated batches.
    pub fn examples_in_update(&self) -> usize {
        self.batch().map_or(0, |batch| batch.examples_in_update)
    }

    /// The pipeline stages of this replica's model, under `model-parallel`.
    pub fn pipeline(&self) -> Option<&Pipeline> {
        self.pipeline.as_ref()
    }

    /// The number of losses summed for one update: one per replica with examples, batch and micro-batch.
    /// Accumulated batches with fewer examples than replicas have equal weights.
    pub fn losses_in_update(&self) -> usize {
        let replicas = self.num_replicas_in_sync();
        let Some(batch) = self.batch() else {
            return replicas;
        };
        replicas.min(batch.examples.max(1)) * batch.batches_in_update * self.parts.get()
    }

    /// Calls `draw` with this replica's random number generator, which is seeded at the start of each batch
    /// with the seed, the epoch, the batch and the rank.
    pub fn with_random<T>(&self, draw: impl FnOnce(&mut StdRng) -> T) -> T {
        draw(&mut self.random.borrow_mut())
    }

    fn describe(&self) -> String {
        self.role.describe(self.rank, self.num_replicas)
    }

    pub(crate) fn set_draws_from_burn(&self, draws: bool) {
        self.draws_from_burn.set(draws);
    }

    pub(crate) fn draws_from_burn(&self) -> bool {
        self.draws_from_burn.get()
    }

    pub(crate) fn set_exchange(&self, exchange: ExchangePrecision) {
        self.exchange.set(exchange);
    }

    /// The precision of gradients sent to other replicas and parameter servers.
    pub(crate) fn exchange(&self) -> ExchangePrecision {
        self.exchange.get()
    }

    pub(crate) fn begin_batch(&self, batch: BatchInfo) {
        self.parts.set(1);
        let [epoch, position, rank] =
            [batch.epoch, batch.position, self.rank].map(|number| number as u64);
        self.random
            .replace(stream("replica", &[batch.seed, epoch, position, rank]));
        self.batch.set(Some(batch));
    }

    pub(crate) fn add_reading_time(&self, time: Duration) {
        let nanoseconds = time.as_nanos() as u64;
        self.reading.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    pub(crate) fn add_trained(&self, counted: Counted) {
        let counts = [counted.examples, counted.tokens];
        for (sum, count) in self.trained.iter().zip(counts) {
            sum.fetch_add(count as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn begin_parts(&self, parts: usize) {
        self.parts.set(parts);
    }

    /// Reduces `values` elementwise over all replicas, in place, to bit-identical results on each.
    ///
    /// # Errors
    /// A replica failed, or has another number of values.
    pub fn all_reduce(&self, op: ReduceOp, values: &mut Vec<f32>) -> Result<()> {
        self.ops.all_reduce(self.rank, op, values)
    }

    /// As [`all_reduce`](Self::all_reduce) of each bucket; with several processes, summing one bucket
    /// within this process overlaps with the communication of another.
    ///
    /// # Errors
    /// As `all_reduce`.
    pub fn all_reduce_buckets(&self, op: ReduceOp, buckets: &mut [Vec<f32>]) -> Result<()> {
        self.ops.all_reduce_buckets(self.rank, op, buckets)
    }

    /// Checks that all replicas have the same `word`, such as a hash of their parameters.
    ///
    /// # Errors
    /// The word of a replica differs from that of the first one.
    pub fn check_equal(&self, what: &str, word: u64) -> Result<()> {
        let words = self.ops.all_gather(self.rank, word)?;
        match words.iter().position(|other| *other != words[0]) {
            None => Ok(()),
            Some(rank) => Err(anyhow!(
                "{what} of replica {rank} differ from those of replica 0 \
                 (hashes {:016x} and {:016x})",
                words[rank],
                words[0]
            )),
        }
    }
}

type Job = Box<dyn FnOnce(&ReplicaContext) + Send>;

/// The output of a step, of the type that it returns.
pub type Output = Box<dyn Any + Send>;

/// The step of one replica. All steps have this type, so that the code that runs them is compiled once, with the
/// engine, and not with the program for each step.
type Step = Box<dyn FnOnce(&ReplicaContext) -> Result<Output> + Send>;

/// The role of a thread in a strategy, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A replica, with the last stage of its model.
    Replica,
    /// A pipeline stage of a replica, other than the last one.
    Stage,
    /// A thread beside the replicas, by its name in messages.
    Other(&'static str),
}

impl Role {
    fn describe(self, rank: usize, count: usize) -> String {
        match self {
            Role::Replica => format!("replica {rank} of {count}"),
            Role::Stage => format!("thread {rank} of the {count} for stages"),
            Role::Other(name) => name.to_owned(),
        }
    }
}

/// The replicas of this process among those of all processes.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The role of each thread, for messages.
    pub role: Role,
    /// The rank of the first replica of this process.
    pub first_rank: usize,
    /// The number of replicas in all processes.
    pub replicas: usize,
    /// The number of threads that share the cores of this machine, including those of other processes.
    pub sharing_cores: usize,
}

/// The replicas of this process, each on a thread that lives as long as the strategy.
pub struct ReplicaThreads {
    first_rank: usize,
    jobs: Vec<Sender<Job>>,
    ops: Arc<dyn CrossDeviceOps>,
    readers: usize,
    reading: Arc<AtomicU64>,
    trained: Arc<[AtomicU64; 2]>,
}

impl ReplicaThreads {
    /// Starts a thread per device, for a job of one process.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(devices: Vec<Device>, ops: Arc<dyn CrossDeviceOps>) -> Result<Self> {
        let part = Part {
            role: Role::Replica,
            first_rank: 0,
            replicas: devices.len(),
            sharing_cores: devices.len(),
        };
        Self::start_part(devices, part, ops)
    }

    /// Starts a thread per device. The machine's cores are divided among them, so that CPU kernels stay
    /// within their replica's share.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start_part(
        devices: Vec<Device>,
        part: Part,
        ops: Arc<dyn CrossDeviceOps>,
    ) -> Result<Self> {
        let places = devices.into_iter().map(|device| (device, None));
        Self::start_places(places.collect(), part, ops)
    }

    /// As [`start_part`](Self::start_part), for replicas with several pipeline stages.
    pub(crate) fn start_pipelines(
        pipelines: Vec<Pipeline>,
        part: Part,
        ops: Arc<dyn CrossDeviceOps>,
    ) -> Result<Self> {
        let mut places = Vec::new();
        for pipeline in pipelines {
            let last = pipeline
                .devices()
                .last()
                .context("a stage needs a device")?;
            places.push((last.clone(), Some(pipeline)));
        }
        Self::start_places(places, part, ops)
    }

    fn start_places(
        places: Vec<(Device, Option<Pipeline>)>,
        part: Part,
        ops: Arc<dyn CrossDeviceOps>,
    ) -> Result<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let stages = |pipeline: &Pipeline| pipeline.devices().len();
        let threads = places
            .iter()
            .map(|(_, pipeline)| pipeline.as_ref().map_or(1, stages));
        let spare_cores = spare_cores(cores, threads.sum(), part.sharing_cores);
        // A prefetch thread would take a replica's core and stall the others. Threads of pipeline stages
        // and GPUs are often idle.
        let waits = |(device, pipeline): &(Device, Option<Pipeline>)| {
            *device != Device::flex() || pipeline.is_some()
        };
        let readers = spare_cores.max(usize::from(places.iter().any(waits)));
        let reading = Arc::new(AtomicU64::new(0));
        let trained = Arc::<[AtomicU64; 2]>::default();
        let of_all = (cores * places.len() / part.sharing_cores).max(1);
        // With collectives on the devices, each replica applies the update itself; with `--check-replicas`
        // too, to detect updates that would differ between GPUs.
        let is_checked = checks_replicas();
        let shared_update = if is_checked || ops.collective().is_some() {
            None
        } else {
            SharedUpdate::start(&places, of_all)?.map(Arc::new)
        };
        let cores = (cores / part.sharing_cores).max(1);
        let mut jobs = Vec::new();
        for (place, (device, pipeline)) in places.into_iter().enumerate() {
            let rank = part.first_rank + place;
            let (ops, shared_update) = (Arc::clone(&ops), shared_update.clone());
            let (reading, trained) = (Arc::clone(&reading), Arc::clone(&trained));
            let context = move || ReplicaContext {
                role: part.role,
                rank,
                place,
                num_replicas: part.replicas,
                device: device.autodiff(),
                shared_update,
                is_checked,
                batch: Cell::new(None),
                random: RefCell::new(stream("replica", &[rank as u64])),
                ops,
                gradient_server: RefCell::default(),
                pipeline,
                parts: Cell::new(1),
                draws_from_burn: Cell::new(false),
                exchange: Cell::default(),
                reading,
                trained,
            };
            jobs.push(start_thread(rank, cores, context)?);
        }
        Ok(ReplicaThreads {
            first_rank: part.first_rank,
            jobs,
            ops,
            readers,
            reading,
            trained,
        })
    }

    /// The default number of prefetch threads: this process's share of the cores without a replica or
    /// stage, but at least one if a replica is often idle, as on a GPU or in a pipeline.
    pub fn readers(&self) -> usize {
        self.readers
    }

    /// The time that replicas spent reading examples since the last call, averaged over replicas.
    pub fn take_reading_time(&self) -> Duration {
        let all = Duration::from_nanos(self.reading.swap(0, Ordering::Relaxed));
        all / self.jobs.len() as u32
    }

    /// Examples and tokens that the replicas trained on since the last call.
    pub fn take_counted(&self) -> Counted {
        let [examples, tokens] = &*self.trained;
        let take = |sum: &AtomicU64| sum.swap(0, Ordering::Relaxed) as usize;
        Counted {
            examples: take(examples),
            tokens: take(tokens),
        }
    }

    /// The number of replicas in this process.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether this process has no replicas.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// The ranks of the replicas of this process.
    pub fn ranks(&self) -> Range<usize> {
        self.first_rank..self.first_rank + self.jobs.len()
    }

    /// The collective operations between replicas.
    pub fn cross_device_ops(&self) -> &Arc<dyn CrossDeviceOps> {
        &self.ops
    }

    /// Runs `step` on all replicas in parallel and waits for all.
    ///
    /// # Errors
    /// The first failure, with the rank of its replica. A panic counts as a failure, and so does a reduction that
    /// only some replicas call.
    pub fn run<I: Send + 'static, O: Send + 'static>(
        &self,
        inputs: PerReplica<I>,
        step: impl Fn(I, &ReplicaContext) -> Result<O> + Clone + Send + 'static,
    ) -> Result<PerReplica<O>> {
        let steps = inputs.into_iter().map(|input| {
            let step = step.clone();
            erased(move |context| step(input, context))
        });
        let outputs = self.run_steps(steps.collect())?;
        Ok(outputs.into_iter().map(restored).collect())
    }

    fn run_steps(&self, steps: Vec<Step>) -> Result<Vec<Output>> {
        let (sender, results) = channel();
        self.ops.begin_step();
        for (replica, step) in steps.into_iter().enumerate() {
            let sender = sender.clone();
            self.send(replica, move |context| {
                // The receiver is gone only when the caller gave up already.
                let done = |result| drop(sender.send((replica, result)));
                let step = || {
                    let output = step(context)?;
                    context.ops.end_step(context.rank);
                    Ok(output)
                };
                guarded(context, step, done);
            })?;
        }
        drop(sender);
        let mut outputs: Vec<Option<Output>> = self.jobs.iter().map(|_| None).collect();
        let mut failures = Vec::new();
        for turn in 0..self.jobs.len() {
            // Steps are long, and all replicas end at about the same time.
            let ended = match turn {
                0 => results.recv(),
                _ => receive(&results),
            };
            match ended {
                Ok((replica, Ok(output))) => outputs[replica] = Some(output),
                Ok((_, Err(failure))) => failures.push(failure),
                Err(_) => break,
            }
        }
        // The first one to fail is the cause; the others were released by it.
        match failures.into_iter().next() {
            Some(failure) => Err(failure),
            None => outputs
                .into_iter()
                .map(|output| output.context("a replica is gone"))
                .collect(),
        }
    }

    /// Runs `step` on one replica after another.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_in_turn<I: Send + 'static>(
        &self,
        inputs: PerReplica<I>,
        step: impl Fn(I, &ReplicaContext) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        for (replica, input) in inputs.into_iter().enumerate() {
            let step = step.clone();
            self.run_on(replica, move |context| step(input, context))?;
        }
        Ok(())
    }

    /// Runs `step` on the first replica.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_on_first<O: Send + 'static>(
        &self,
        step: impl FnOnce(&ReplicaContext) -> Result<O> + Send + 'static,
    ) -> Result<O> {
        self.run_on(0, step)
    }

    /// Queues `step` on the replica with index `replica` in this process, which then calls `done` with the
    /// result.
    ///
    /// # Errors
    /// The thread of the replica is gone.
    pub(crate) fn start_on<O: Send + 'static>(
        &self,
        replica: usize,
        step: impl FnOnce(&ReplicaContext) -> Result<O> + Send + 'static,
        done: impl FnOnce(Result<O>) + Send + 'static,
    ) -> Result<()> {
        let done = move |output: Result<Output>| done(output.map(restored));
        self.start_step(replica, erased(step), Box::new(done))
    }

    fn start_step(
        &self,
        replica: usize,
        step: Step,
        done: Box<dyn FnOnce(Result<Output>) + Send>,
    ) -> Result<()> {
        self.send(replica, move |context| {
            guarded(context, || step(context), done);
        })
    }

    fn run_on<O: Send + 'static>(
        &self,
        replica: usize,
        step: impl FnOnce(&ReplicaContext) -> Result<O> + Send + 'static,
    ) -> Result<O> {
        self.run_step(replica, erased(step)).map(restored)
    }

    fn run_step(&self, replica: usize, step: Step) -> Result<Output> {
        let (sender, result) = channel();
        let done = move |output| drop(sender.send(output));
        self.start_step(replica, step, Box::new(done))?;
        result
            .recv()
            .with_context(|| format!("the thread of replica {replica} is gone"))?
    }

    fn send(
        &self,
        replica: usize,
        job: impl FnOnce(&ReplicaContext) + Send + 'static,
    ) -> Result<()> {
        let sent = self.jobs[replica].send(Box::new(job));
        sent.map_err(|_| anyhow!("the thread of replica {replica} is gone"))
    }
}

/// `step` as a [`Step`].
fn erased<O: Send + 'static>(
    step: impl FnOnce(&ReplicaContext) -> Result<O> + Send + 'static,
) -> Step {
    Box::new(move |context| Ok(Box::new(step(context)?)))
}

/// The output of a step that returns `O`.
fn restored<O: 'static>(output: Output) -> O {
    *output.downcast().expect("the output of this step")
}

/// The share of `threads` in the cores left over when each of `sharing_cores` threads has one.
fn spare_cores(cores: usize, threads: usize, sharing_cores: usize) -> usize {
    cores.saturating_sub(sharing_cores) * threads / sharing_cores
}

/// Starts the thread of a replica, which runs jobs until the strategy is dropped.
fn start_thread(
    rank: usize,
    cores: usize,
    context: impl FnOnce() -> ReplicaContext + Send + 'static,
) -> Result<Sender<Job>> {
    let (sender, jobs) = channel::<Job>();
    let (ready, started) = channel();
    thread::Builder::new()
        .name(format!("replica-{rank}"))
        .spawn(move || {
            // Burn's CPU kernels run on the pool of the thread that calls them. Its other threads end
            // with this variable.
            let pool = ThreadPoolBuilder::new()
                .num_threads(cores)
                .use_current_thread()
                .build();
            let _pool = match pool {
                Ok(pool) => pool,
                Err(error) => return drop(ready.send(Err(error))),
            };
            let _ = ready.send(Ok(()));
            let context = Rc::new(context());
            if let Some(shared) = &context.shared_update {
                share_threads(Arc::clone(&shared.threads));
            }
            CONTEXT.set(Some(Rc::clone(&context)));
            while let Ok(job) = receive(&jobs) {
                job(&context);
            }
        })?;
    started
        .recv()?
        .with_context(|| format!("cannot start the threads of replica {rank}"))?;
    Ok(sender)
}

/// Calls `done` with the result of `step`. A failure or panic names this replica and ends the waiting of
/// the others.
fn guarded(
    context: &ReplicaContext,
    step: impl FnOnce() -> Result<Output>,
    done: impl FnOnce(Result<Output>),
) {
    let result = without_panic("it", step);
    let name = context.describe();
    let failure = result.as_ref().err();
    let failure = failure.map(|error| format!("{name} failed: {error:#}"));
    // Report before releasing the other replicas, which then fail too: the first failure is the cause.
    done(result.with_context(|| format!("{name} failed{}", place(&context.device))));
    if let Some(failure) = failure {
        context.ops.abort(&failure);
    }
}

/// The device of a replica, for messages; empty for the CPU of this machine.
fn place(device: &Device) -> String {
    let device = device.clone().without_autodiff();
    match device == Device::flex() {
        true => String::new(),
        false => format!(" on {device:?}"),
    }
}

/// The result of `step`, whose panic becomes an error that calls it `name`; with advice if a GPU has no
/// memory or an old driver.
pub(crate) fn without_panic<O>(name: &str, step: impl FnOnce() -> Result<O>) -> Result<O> {
    let result = catch_unwind(AssertUnwindSafe(step));
    let panicked =
        |panic: Box<dyn Any + Send>| anyhow!("{name} panicked: {}", panic_message(&*panic));
    result
        .unwrap_or_else(|panic| Err(panicked(panic)))
        .map_err(devices::with_advice)
}

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_share_the_cores_that_are_left_over() {
        assert_eq!(spare_cores(8, 2, 2), 6);
        // Two processes with 2 replicas each.
        assert_eq!(spare_cores(8, 2, 4), 2);
        assert_eq!(spare_cores(8, 8, 8), 0);
        assert_eq!(spare_cores(2, 3, 3), 0);
    }
}
