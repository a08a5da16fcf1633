//! The processes of a job and their communication. TensorFlow calls such a process a worker.

mod agreement;
#[cfg(any(test, feature = "mpi"))]
mod bfloat16;
mod environment;
#[cfg(feature = "mpi")]
mod monitor;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "mpi")]
mod post;

use std::{
    sync::{Arc, mpsc::Receiver},
    time::Duration,
};

use anyhow::{Result, bail};

use self::environment::Launcher;

pub use agreement::ensure_equal;
pub use environment::{ensure_started_alone, install_hint};

/// The chief's callback for requests of other processes; the second argument sends the response.
pub type Handler = Box<dyn Fn(Vec<u8>, Box<dyn FnOnce(Vec<u8>) + Send>) + Send>;

/// The result of an all-reduce that may be still running.
pub enum PendingSum {
    /// The sum.
    Ready(Vec<f32>),
    /// Another thread is computing the sum.
    Coming {
        /// The number of values.
        len: usize,
        /// The local values, whose memory is reused, and the sum.
        result: Receiver<(Vec<f32>, Vec<f32>)>,
    },
}

const ALONE: &str = "this is the only process of the job";

/// Communication between the processes of a job. All processes must call the same operations in the
/// same order; if one is lost, the others get an error that names it.
pub trait Workers: Send + Sync {
    /// The rank of this process, from 0; rank 0 is the chief.
    fn index(&self) -> usize;

    /// The host of each process, by rank.
    fn hosts(&self) -> &[String];

    /// Starts an elementwise sum of `values` over all processes.
    ///
    /// # Errors
    /// A process is lost.
    fn start_sum_f32(&self, values: Vec<f32>) -> Result<PendingSum>;

    /// As [`start_sum_f32`](Self::start_sum_f32), in half the bytes: values and sums are rounded to bfloat16 to be
    /// sent, and summed in float32, in the order of ranks.
    ///
    /// # Errors
    /// A process is lost.
    fn start_sum_bf16(&self, values: Vec<f32>) -> Result<PendingSum>;

    /// Waits for a sum, bitwise equal on all processes. Sums must be finished in the order in which they
    /// were started.
    ///
    /// # Errors
    /// A process is lost.
    fn finish_sum_f32(&self, sum: PendingSum) -> Result<Vec<f32>>;

    /// Sums `values` elementwise over all processes; bitwise equal on all.
    ///
    /// # Errors
    /// A process is lost.
    fn sum_f32(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        self.finish_sum_f32(self.start_sum_f32(values)?)
    }

    /// Sums values such as losses elementwise over all processes, in place; bitwise equal on all.
    ///
    /// # Errors
    /// A process is lost.
    fn sum_f64(&self, values: &mut Vec<f64>) -> Result<()>;

    /// Gathers the bytes of all processes on every process, by rank.
    ///
    /// # Errors
    /// A process is lost.
    fn all_gather(&self, what: &'static str, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>>;

    /// Broadcasts the chief's bytes; the argument of the other processes is ignored.
    ///
    /// # Errors
    /// A process is lost.
    fn broadcast(&self, what: &'static str, bytes: Vec<u8>) -> Result<Vec<u8>>;

    /// Checks that no process is lost, for waits outside these operations.
    ///
    /// # Errors
    /// A process is lost.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Registers the chief's handler for [`ask`](Self::ask) and [`tell`](Self::tell). It must not block.
    ///
    /// # Errors
    /// This is the only process.
    fn serve(&self, _handler: Handler) -> Result<()> {
        bail!("{ALONE}")
    }

    /// Sends a request to the chief's handler and waits for the response, concurrently with other
    /// operations.
    ///
    /// # Errors
    /// A process is lost, or this is the only one.
    fn ask(&self, _bytes: Vec<u8>) -> Result<Vec<u8>> {
        bail!("{ALONE}")
    }

    /// Sends a request without response to the chief's handler.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    fn tell(&self, _bytes: Vec<u8>) -> Result<()> {
        bail!("{ALONE}")
    }

    /// Publishes the current step, for the error messages of other processes if this one is lost.
    fn note_step(&self, _step: usize) {}

    /// Waits until all processes reach the end of the job.
    ///
    /// # Errors
    /// A process is lost.
    fn leave(&self) -> Result<()> {
        Ok(())
    }

    /// Sends the reason of a failure to the other processes; false if they know it already.
    fn fail(&self, _reason: &str) -> bool {
        true
    }
}

impl dyn Workers + '_ {
    /// The number of processes.
    pub fn count(&self) -> usize {
        self.hosts().len()
    }

    /// True for the process that writes checkpoints and reports.
    pub fn is_chief(&self) -> bool {
        self.index() == 0
    }

    /// The local rank of this process and the number of processes on its host.
    pub fn on_this_host(&self) -> OnHost {
        let own = &self.hosts()[self.index()];
        let same = |hosts: &[String]| hosts.iter().filter(|host| *host == own).count();
        OnHost {
            index: same(&self.hosts()[..self.index()]),
            count: same(self.hosts()),
        }
    }

    /// The name of a process in messages.
    pub fn name(&self, index: usize) -> String {
        name(index, self.hosts())
    }
}

/// Joins the job of a launcher such as `mpirun`. Waits at most `timeout` for the other processes; zero
/// means forever.
///
/// # Errors
/// This program is built without MPI, MPI sees another number of processes than the launcher started,
/// or a process is unreachable. A failure within MPI ends the program.
#[cfg(feature = "mpi")]
pub fn join_workers(timeout: Duration) -> Result<Arc<dyn Workers>> {
    Ok(Arc::new(mpi::Mpi::join(timeout)?))
}

/// As above, without MPI.
#[cfg(not(feature = "mpi"))]
pub fn join_workers(_timeout: Duration) -> Result<Arc<dyn Workers>> {
    bail!(
        "a strategy for several processes needs MPI, and this program was built without: install \
         it with\n    {}\nand build with `--features mpi`",
        install_hint()
    )
}

/// Joins the job of a launcher if there is one; otherwise returns [`Alone`].
///
/// # Errors
/// As [`join_workers`].
pub fn join_workers_if_started(timeout: Duration) -> Result<Arc<dyn Workers>> {
    match Launcher::detect() {
        Some(launcher) if launcher.processes > 1 => join_workers(timeout),
        _ => Ok(Arc::new(Alone::default())),
    }
}

/// The rank of a process on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnHost {
    /// Local rank, from 0.
    pub index: usize,
    /// Number of processes on the host.
    pub count: usize,
}

fn name(index: usize, hosts: &[String]) -> String {
    format!("worker {index} of {} (host {})", hosts.len(), hosts[index])
}

/// The only process of a job.
pub struct Alone([String; 1]);

impl Default for Alone {
    fn default() -> Self {
        Alone(["this one".to_owned()])
    }
}

impl Workers for Alone {
    fn index(&self) -> usize {
        0
    }

    fn hosts(&self) -> &[String] {
        &self.0
    }

    fn start_sum_f32(&self, values: Vec<f32>) -> Result<PendingSum> {
        Ok(PendingSum::Ready(values))
    }

    fn start_sum_bf16(&self, values: Vec<f32>) -> Result<PendingSum> {
        // Nothing is sent.
        Ok(PendingSum::Ready(values))
    }

    fn finish_sum_f32(&self, sum: PendingSum) -> Result<Vec<f32>> {
        match sum {
            PendingSum::Ready(sum) => Ok(sum),
            PendingSum::Coming { result, .. } => Ok(result.recv()?.1),
        }
    }

    fn sum_f64(&self, _values: &mut Vec<f64>) -> Result<()> {
        Ok(())
    }

    fn all_gather(&self, _what: &'static str, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        Ok(vec![bytes])
    }

    fn broadcast(&self, _what: &'static str, bytes: Vec<u8>) -> Result<Vec<u8>> {
        Ok(bytes)
    }
}
