use std::{
    any::Any,
    cell::{Cell, RefCell},
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    thread,
};

use anyhow::{Context, Result, anyhow};
use burn::tensor::Device;
use rand::rngs::StdRng;
use rayon::ThreadPoolBuilder;

use super::{CrossDeviceOps, PerReplica, ReduceOp};
use crate::data::{BatchInfo, stream};

/// What is made once and then kept by every replica: losses, metrics, model and optimizer.
pub trait ReplicaState: Clone + Send + 'static {
    /// The same state for a replica on `device`.
    fn mirror(self, _device: &Device) -> Self {
        self
    }

    /// Keeps the state for the replica of this thread.
    fn register(self);
}

/// What a step can ask about the replica that it runs on.
///
/// Source: `tf.distribute.ReplicaContext`.
pub struct ReplicaContext {
    rank: usize,
    num_replicas_in_sync: usize,
    device: Device,
    batch: Cell<Option<BatchInfo>>,
    random: RefCell<StdRng>,
    ops: Arc<dyn CrossDeviceOps>,
}

thread_local! {
    static CONTEXT: RefCell<Option<Rc<ReplicaContext>>> = const { RefCell::new(None) };
}

/// The replica of this thread.
///
/// # Errors
/// The thread is not one of a replica: the call must come from within `strategy.run`.
pub fn replica_context() -> Result<Rc<ReplicaContext>> {
    CONTEXT.with_borrow(|context| {
        context
            .clone()
            .context("this thread is no replica's: call this from within `strategy.run`")
    })
}

impl ReplicaContext {
    /// Position among all replicas, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn num_replicas_in_sync(&self) -> usize {
        self.num_replicas_in_sync
    }

    /// The device of the model, which records for gradients.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The current global batch; `None` before the first.
    pub fn batch(&self) -> Option<BatchInfo> {
        self.batch.get()
    }

    /// The true number of examples in the current update, over all replicas: those of the global
    /// batch, or with `--accumulate` of all batches that make the update.
    pub fn examples_in_update(&self) -> usize {
        self.batch().map_or(0, |batch| batch.examples_in_update)
    }

    /// Gives `draw` this replica's stream of random numbers, which depends on the seed, the epoch,
    /// the batch and the rank, and on what was drawn since the batch began.
    pub fn with_random<T>(&self, draw: impl FnOnce(&mut StdRng) -> T) -> T {
        draw(&mut self.random.borrow_mut())
    }

    pub(crate) fn begin_batch(&self, batch: BatchInfo) {
        let [epoch, position, rank] =
            [batch.epoch, batch.position, self.rank].map(|number| number as u64);
        self.random
            .replace(stream("replica", &[batch.seed, epoch, position, rank]));
        self.batch.set(Some(batch));
    }

    /// Reduces `values` elementwise over all replicas, in place, to the same bits on each.
    ///
    /// # Errors
    /// A replica failed, or brought another number of values.
    pub fn all_reduce(&self, op: ReduceOp, values: &mut Vec<f32>) -> Result<()> {
        self.ops.all_reduce(self.rank, op, values)
    }

    /// Makes sure that all replicas hold the same `word`, such as a hash of their parameters.
    ///
    /// # Errors
    /// A replica's differs from the first one's.
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

/// The replicas of this process: a thread each, for as long as the strategy lives.
pub struct ReplicaThreads {
    first_rank: usize,
    jobs: Vec<Sender<Job>>,
    ops: Arc<dyn CrossDeviceOps>,
}

impl ReplicaThreads {
    /// Starts a thread for each device. The machine's cores are divided among them, so that
    /// kernels on the CPU keep to their own replica's share.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(devices: Vec<Device>, ops: Arc<dyn CrossDeviceOps>) -> Result<Self> {
        let replicas = devices.len();
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let mut jobs = Vec::new();
        for (rank, device) in devices.into_iter().enumerate() {
            let ops = Arc::clone(&ops);
            let context = move || ReplicaContext {
                rank,
                num_replicas_in_sync: replicas,
                device: device.autodiff(),
                batch: Cell::new(None),
                random: RefCell::new(stream("replica", &[rank as u64])),
                ops,
            };
            jobs.push(start_thread(rank, (cores / replicas).max(1), context)?);
        }
        Ok(ReplicaThreads {
            first_rank: 0,
            jobs,
            ops,
        })
    }

    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// The ranks of these replicas among those of all processes.
    pub fn ranks(&self) -> Range<usize> {
        self.first_rank..self.first_rank + self.jobs.len()
    }

    pub fn cross_device_ops(&self) -> &Arc<dyn CrossDeviceOps> {
        &self.ops
    }

    /// Calls `step` on every replica at once and waits for all.
    ///
    /// # Errors
    /// The first failure, with the replica's rank. A panic counts as one.
    pub fn run<I: Send + 'static, O: Send + 'static>(
        &self,
        inputs: PerReplica<I>,
        step: impl Fn(I, &ReplicaContext) -> Result<O> + Clone + Send + 'static,
    ) -> Result<PerReplica<O>> {
        let (sender, results) = channel();
        for (replica, input) in inputs.into_iter().enumerate() {
            let (sender, step) = (sender.clone(), step.clone());
            self.send(replica, move |context| {
                // The receiver is gone only when the caller gave up already.
                let _ = sender.send((replica, guarded(context, || step(input, context))));
            })?;
        }
        drop(sender);
        let mut outputs: Vec<Option<O>> = self.jobs.iter().map(|_| None).collect();
        let mut failures = Vec::new();
        for (replica, result) in results {
            match result {
                Ok(output) => outputs[replica] = Some(output),
                Err(failure) => failures.push(failure),
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

    /// Calls `step` on one replica after the other.
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

    /// Calls `step` on the first replica.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_on_first<O: Send + 'static>(
        &self,
        step: impl FnOnce(&ReplicaContext) -> Result<O> + Send + 'static,
    ) -> Result<O> {
        self.run_on(0, step)
    }

    fn run_on<O: Send + 'static>(
        &self,
        replica: usize,
        step: impl FnOnce(&ReplicaContext) -> Result<O> + Send + 'static,
    ) -> Result<O> {
        let (sender, result) = channel();
        self.send(replica, move |context| {
            let _ = sender.send(guarded(context, || step(context)));
        })?;
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

/// Starts the thread of a replica, which works on its jobs until the strategy is dropped.
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
            // Burn's CPU kernels run on the pool of the thread that calls them.
            let pool = ThreadPoolBuilder::new()
                .num_threads(cores)
                .use_current_thread()
                .build();
            let failed = pool.is_err();
            let _ = ready.send(pool.map(drop));
            if failed {
                return;
            }
            let context = Rc::new(context());
            CONTEXT.set(Some(Rc::clone(&context)));
            for job in jobs {
                job(&context);
            }
        })?;
    started
        .recv()?
        .with_context(|| format!("cannot start the threads of replica {rank}"))?;
    Ok(sender)
}

/// Calls `step`; where it fails or panics, releases the other replicas and names this one.
fn guarded<O>(context: &ReplicaContext, step: impl FnOnce() -> Result<O>) -> Result<O> {
    let result = catch_unwind(AssertUnwindSafe(step))
        .unwrap_or_else(|panic| Err(anyhow!("it panicked: {}", panic_message(&*panic))));
    result
        .inspect_err(|error| {
            context
                .ops
                .abort(&format!("replica {} failed: {error:#}", context.rank));
        })
        .with_context(|| {
            format!(
                "replica {} of {} failed",
                context.rank, context.num_replicas_in_sync
            )
        })
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}
