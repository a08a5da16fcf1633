//! Communication over MPI.

use std::{
    mem,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use mpi::{
    Threading,
    collective::SystemOperation,
    datatype::PartitionMut,
    environment::{library_version, processor_name},
    topology::SimpleCommunicator,
    traits::{Communicator, CommunicatorCollectives, Equivalence, Root},
};

use super::{
    Handler, PendingSum, Workers, bfloat16,
    environment::Launcher,
    monitor::{Address, Collective, Meeting, Monitor, Waiting},
    post::Post,
};
use crate::comm::polling::{receive, receive_soon};

/// Maximum values per message, one GiB: MPI counts in C integers, so longer messages are split.
const MESSAGE_LEN: usize = 1 << 28;

/// Interval between checks of the monitor while MPI works.
const POLL: Duration = Duration::from_millis(50);

/// Interval between polls for requests.
const TICK: Duration = Duration::from_micros(100);

/// The processes of an MPI job.
///
/// A dedicated thread calls MPI, as long as the job lasts; other threads wait for it and check the monitor
/// meanwhile, because MPI would wait for a lost process forever. A blocking sum runs on the calling thread
/// if the MPI thread is idle: a handover takes as long as a short sum. If a process is lost during such a
/// sum, the monitor ends this process.
pub struct Mpi {
    index: usize,
    hosts: Vec<String>,
    turns: Arc<Turns>,
    jobs: Mutex<Option<Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    monitor: Option<Monitor>,
    /// The deadline while this process joins the job.
    joining: Option<Joining>,
    post: Arc<Post>,
    /// Buffers of finished sums, for reuse.
    spare: Mutex<Vec<Vec<f32>>>,
}

type Job = Box<dyn FnOnce(&SimpleCommunicator) + Send>;

impl Mpi {
    /// As [`join_workers`](super::join_workers).
    pub fn join(timeout: Duration) -> Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let (ready, started) = channel();
        let post = Arc::new(Post::default());
        let carried = Arc::clone(&post);
        let turns = Arc::<Turns>::default();
        let taken = Arc::clone(&turns);
        let work = move || {
            let Some((universe, threads)) = mpi::initialize_with_threading(Threading::Serialized)
            else {
                let _ = ready.send(None);
                return;
            };
            let world = universe.world();
            let is_serialized = threads >= Threading::Serialized;
            taken.any_thread.store(is_serialized, Ordering::Relaxed);
            let _ = ready.send(Some((world.rank() as usize, world.size() as usize)));
            loop {
                let job = match carried.is_open() {
                    true => queue.recv_timeout(TICK),
                    false => receive(&queue).map_err(RecvTimeoutError::from),
                };
                let _turn = lock(&taken.turn);
                // Before the next job, which may block processes that wait for a request.
                if carried.is_open() {
                    carried.carry(&world);
                }
                match job {
                    Ok(job) => {
                        job(&world);
                        taken.given.fetch_sub(1, Ordering::Release);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
            // Ends MPI, which waits for the others.
            drop(universe);
        };
        let thread = thread::Builder::new().name("mpi".to_owned()).spawn(work)?;
        let joining = Joining {
            since: Instant::now(),
            timeout,
        };
        let started = wait_for(&started, || joining.check())?;
        let started = started.context("MPI was started in this process before")?;
        let (index, processes) = started;
        let mut job = Mpi {
            index,
            hosts: vec![String::new(); processes],
            turns,
            jobs: Mutex::new(Some(jobs)),
            thread: Mutex::new(Some(thread)),
            monitor: None,
            joining: Some(joining),
            post,
            spare: Mutex::default(),
        };
        let library = library_version().unwrap_or_default();
        let library = library.split([',', '\n']).next().unwrap_or_default();
        Launcher::ensure_sees(Launcher::detect(), processes, library)?;
        let host = processor_name().context("the name of this host is not UTF-8")?;
        let hosts = job.all_gather("the exchange of host names", host.into_bytes())?;
        let hosts = hosts.into_iter().map(String::from_utf8);
        job.hosts = hosts
            .collect::<Result<_, _>>()
            .context("a host's name is not UTF-8")?;
        if processes > 1 && !timeout.is_zero() {
            job.monitor = Some(job.start_monitor(timeout)?);
        }
        job.joining = None;
        Ok(job)
    }

    fn start_monitor(&self, timeout: Duration) -> Result<Monitor> {
        const WHAT: &str = "the exchange of addresses";
        let hosts = self.hosts.clone();
        if self.index == 0 {
            let meeting = Meeting::open()?;
            self.broadcast(WHAT, serde_json::to_vec(&meeting.address()?)?)?;
            return Monitor::of_chief(&meeting, hosts, timeout);
        }
        let address: Address = serde_json::from_slice(&self.broadcast(WHAT, Vec::new())?)?;
        Monitor::of_worker(self.index, &address, hosts, timeout)
    }

    /// Runs `work` on the MPI thread and waits for the result.
    fn call<T: Send + 'static>(
        &self,
        collective: Collective,
        work: impl FnOnce(&SimpleCommunicator) -> T + Send + 'static,
    ) -> Result<T> {
        let _waiting = self.enter(collective);
        let (sender, result) = channel();
        let job: Job = Box::new(move |world| {
            // The receiver is gone if the job has failed.
            let _ = sender.send(work(world));
        });
        self.give(job)?;
        self.wait(&result)
    }

    /// Marks this process as within a collective operation until the guard is dropped.
    fn enter(&self, collective: Collective) -> Option<Waiting<'_>> {
        let monitor = self.monitor.as_ref();
        monitor.map(|monitor| monitor.enter(collective))
    }

    /// Permission to call MPI on this thread, if the MPI thread is idle.
    fn take_turn(&self) -> Option<MutexGuard<'_, ()>> {
        match self.post.is_open() {
            true => None,
            false => self.turns.take(),
        }
    }

    /// Sums on this thread, which must hold the turn.
    fn sum_here<T: Equivalence + Clone + Default>(
        &self,
        collective: Collective,
        own: &[T],
        sum: &mut Vec<T>,
    ) -> Result<()> {
        let monitor = self.monitor.as_ref();
        let _waiting = monitor
            .map(|monitor| monitor.enter_inside(collective))
            .transpose()?;
        sum.resize(own.len(), T::default());
        sum_into(&SimpleCommunicator::world(), own, sum);
        Ok(())
    }

    /// Starts a sum of `own` by `sum_into` on the MPI thread.
    fn start_sum(
        &self,
        own: Vec<f32>,
        sum_into: fn(&SimpleCommunicator, &[f32], &mut [f32]),
    ) -> Result<PendingSum> {
        let mut sum = lock(&self.spare).pop().unwrap_or_default();
        let len = own.len();
        let (sender, result) = channel();
        self.give(Box::new(move |world| {
            sum.resize(own.len(), 0.0);
            sum_into(world, &own, &mut sum);
            // The receiver is gone if the job has failed.
            let _ = sender.send((own, sum));
        }))?;
        Ok(PendingSum::Coming { len, result })
    }

    /// Queues a job for the MPI thread.
    fn give(&self, job: Job) -> Result<()> {
        self.turns.given.fetch_add(1, Ordering::Relaxed);
        let sent = lock(&self.jobs).as_ref().map(|jobs| jobs.send(job));
        ensure!(matches!(sent, Some(Ok(()))), "the thread of MPI is gone");
        Ok(())
    }

    /// Waits for a result while no process is lost.
    fn wait<T>(&self, result: &Receiver<T>) -> Result<T> {
        wait_for(result, || self.check())
    }

    fn open_post(&self) -> Result<()> {
        match self.post.open() {
            // Wake the MPI thread, which polls for requests from now on.
            true => self.give(Box::new(|_| {})),
            false => Ok(()),
        }
    }
}

impl Workers for Mpi {
    fn index(&self) -> usize {
        self.index
    }

    fn hosts(&self) -> &[String] {
        &self.hosts
    }

    fn start_sum_f32(&self, own: Vec<f32>) -> Result<PendingSum> {
        self.start_sum(own, sum_into)
    }

    fn start_sum_bf16(&self, own: Vec<f32>) -> Result<PendingSum> {
        self.start_sum(own, |world, own, sum| {
            for message in messages(own.len()) {
                bfloat16::sum_into(world, &own[message.clone()], &mut sum[message]);
            }
        })
    }

    fn finish_sum_f32(&self, sum: PendingSum) -> Result<Vec<f32>> {
        match sum {
            PendingSum::Ready(sum) => Ok(sum),
            PendingSum::Coming { len, result } => {
                let _waiting = self.enter(of_gradients(len));
                let (own, sum) = self.wait(&result)?;
                lock(&self.spare).push(own);
                Ok(sum)
            }
        }
    }

    fn sum_f32(&self, own: Vec<f32>) -> Result<Vec<f32>> {
        let Some(_turn) = self.take_turn() else {
            return self.finish_sum_f32(self.start_sum_f32(own)?);
        };
        let mut sum = lock(&self.spare).pop().unwrap_or_default();
        self.sum_here(of_gradients(own.len()), &own, &mut sum)?;
        lock(&self.spare).push(own);
        Ok(sum)
    }

    fn sum_f64(&self, values: &mut Vec<f64>) -> Result<()> {
        let own = mem::take(values);
        let collective = Collective::Sum {
            len: own.len(),
            of: "numbers",
        };
        if let Some(_turn) = self.take_turn() {
            return self.sum_here(collective, &own, values);
        }
        *values = self.call(collective, move |world| {
            let mut sum = vec![0.0; own.len()];
            sum_into(world, &own, &mut sum);
            sum
        })?;
        Ok(())
    }

    fn all_gather(&self, what: &'static str, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let len = i32::try_from(bytes.len());
        let len = len.map_err(|_| anyhow!("{what} is too long for an MPI message"))?;
        self.call(Collective::Other(what), move |world| {
            let mut lens = vec![0; world.size() as usize];
            world.all_gather_into(&len, &mut lens[..]);
            let total = lens.iter().map(|len| *len as usize).sum();
            let mut starts = Vec::with_capacity(lens.len());
            let mut end = 0;
            for len in &lens {
                starts.push(end);
                end += len;
            }
            if total == 0 {
                return vec![Vec::new(); lens.len()];
            }
            let mut all = vec![0_u8; total];
            let mut parts = PartitionMut::new(&mut all[..], lens.clone(), &starts[..]);
            world.all_gather_varcount_into(&bytes[..], &mut parts);
            let part =
                |(start, len): (&i32, &i32)| all[*start as usize..(start + len) as usize].to_vec();
            starts.iter().zip(&lens).map(part).collect()
        })
    }

    fn broadcast(&self, what: &'static str, mut bytes: Vec<u8>) -> Result<Vec<u8>> {
        self.call(Collective::Other(what), move |world| {
            let chief = world.process_at_rank(0);
            let mut len = bytes.len() as u64;
            chief.broadcast_into(&mut len);
            bytes.resize(len as usize, 0);
            for message in messages(bytes.len()) {
                chief.broadcast_into(&mut bytes[message]);
            }
            bytes
        })
    }

    fn check(&self) -> Result<()> {
        self.joining.as_ref().map_or(Ok(()), Joining::check)?;
        self.monitor.as_ref().map_or(Ok(()), Monitor::check)
    }

    fn serve(&self, handler: Handler) -> Result<()> {
        self.post.serve(handler);
        self.open_post()
    }

    fn ask(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        let answer = self.post.request(bytes, true)?;
        self.open_post()?;
        self.wait(&answer.context("a request without an answer")?)
    }

    fn tell(&self, bytes: Vec<u8>) -> Result<()> {
        self.post.request(bytes, false)?;
        self.open_post()
    }

    fn note_step(&self, step: usize) {
        if let Some(monitor) = &self.monitor {
            monitor.note_step(step);
        }
    }

    fn leave(&self) -> Result<()> {
        // The first process at the end disconnects before the last one gets there.
        if let Some(monitor) = &self.monitor {
            monitor.leave();
        }
        let end = Collective::Other("the end of the job");
        self.call(end, |world| world.barrier())?;
        // MPI_Finalize waits for all processes; the monitor ends this one if that takes too long.
        let _waiting = self.enter(Collective::Other("the end of MPI"));
        lock(&self.jobs).take();
        match lock(&self.thread).take().map(JoinHandle::join) {
            Some(Err(_)) => bail!("the thread of MPI panicked"),
            _ => Ok(()),
        }
    }

    fn fail(&self, reason: &str) -> bool {
        let monitor = self.monitor.as_ref();
        monitor.is_none_or(|monitor| monitor.fail(reason))
    }
}

/// Mutual exclusion of MPI calls between threads.
#[derive(Default)]
struct Turns {
    turn: Mutex<()>,
    /// True if any thread may call MPI, according to its thread level, rather than only the MPI thread.
    any_thread: AtomicBool,
    /// Unfinished jobs of the MPI thread.
    given: AtomicUsize,
}

impl Turns {
    /// Takes the turn for a thread other than the MPI thread, if that is idle.
    fn take(&self) -> Option<MutexGuard<'_, ()>> {
        let turn = self.turn.try_lock().ok()?;
        let is_free = self.given.load(Ordering::Acquire) == 0;
        (is_free && self.any_thread.load(Ordering::Relaxed)).then_some(turn)
    }
}

/// The timeout of MPI calls before the monitor is connected; zero means forever.
struct Joining {
    since: Instant,
    timeout: Duration,
}

impl Joining {
    fn check(&self) -> Result<()> {
        let Joining { since, timeout } = self;
        ensure!(
            timeout.is_zero() || since.elapsed() < *timeout,
            "MPI has not connected this process with the others within {} s: check that all of \
             them run this program and that MPI can use the network between their hosts, or \
             increase --timeout",
            timeout.as_secs_f64()
        );
        Ok(())
    }
}

/// Waits for a result while `goes_on` succeeds.
fn wait_for<T>(result: &Receiver<T>, goes_on: impl Fn() -> Result<()>) -> Result<T> {
    const GONE: &str = "the thread of MPI is gone";
    if let Some(result) = receive_soon(result) {
        return result.context(GONE);
    }
    loop {
        match result.recv_timeout(POLL) {
            Err(RecvTimeoutError::Timeout) => goes_on()?,
            result => return result.context(GONE),
        }
    }
}

fn of_gradients(len: usize) -> Collective {
    Collective::Sum {
        len,
        of: "gradients",
    }
}

fn sum_into<T: Equivalence>(world: &SimpleCommunicator, own: &[T], sum: &mut [T]) {
    for message in messages(own.len()) {
        let (own, sum) = (&own[message.clone()], &mut sum[message]);
        world.all_reduce_into(own, sum, SystemOperation::sum());
    }
}

/// Splits `len` values into messages.
fn messages(len: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = (0..len).step_by(MESSAGE_LEN);
    starts.map(move |start| start..len.min(start + MESSAGE_LEN))
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
