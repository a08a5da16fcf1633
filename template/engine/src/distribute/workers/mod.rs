//! The processes of a job, and what crosses between them. TensorFlow calls such a process a worker.

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
use crate::checkpoint::interrupt;

pub use environment::{ensure_started_alone, install_hint};

/// Ends this process, whatever its other threads do beside writing a checkpoint. `std::process::exit`
/// waits where another thread is on its way out and does not get there, such as one that waits for lost
/// workers.
pub fn exit_at_once(status: i32) -> ! {
    interrupt::wait_for_write();
    #[cfg(unix)]
    signal_hook::low_level::exit(status);
    #[cfg(not(unix))]
    std::process::exit(status)
}

/// What the chief does with the bytes that another process sends it; the second argument takes the
/// answer.
pub type Handler = Box<dyn Fn(Vec<u8>, Box<dyn FnOnce(Vec<u8>) + Send>) + Send>;

/// A sum that may be on its way.
pub enum PendingSum {
    /// The sum.
    Ready(Vec<f32>),
    /// The sum is being computed by another thread.
    Coming {
        /// The number of values.
        len: usize,
        /// The values of this process, whose memory is used again, and the sum.
        result: Receiver<(Vec<f32>, Vec<f32>)>,
    },
}

const ALONE: &str = "there is no other process to speak to";

/// What the processes of a job exchange values through. All must call the same operations in the
/// same order; where one is lost, the others get an error that names it.
pub trait Workers: Send + Sync {
    /// The place of this process among all, from 0; the first one is the chief.
    fn index(&self) -> usize;

    /// The host of each process, in the order of their places.
    fn hosts(&self) -> &[String];

    /// Begins to sum `values` elementwise over all processes.
    ///
    /// # Errors
    /// A process is lost.
    fn start_sum_f32(&self, values: Vec<f32>) -> Result<PendingSum>;

    /// Waits for a sum, which has the same bits on all processes. Those that were started earlier are
    /// to be waited for before.
    ///
    /// # Errors
    /// A process is lost.
    fn finish_sum_f32(&self, sum: PendingSum) -> Result<Vec<f32>>;

    /// Sums `values` elementwise over all processes, to the same bits on each.
    ///
    /// # Errors
    /// A process is lost.
    fn sum_f32(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        self.finish_sum_f32(self.start_sum_f32(values)?)
    }

    /// Sums numbers such as losses elementwise over all processes, in place, to the same bits on each.
    ///
    /// # Errors
    /// A process is lost.
    fn sum_f64(&self, values: &mut Vec<f64>) -> Result<()>;

    /// Gives every process the bytes of each.
    ///
    /// # Errors
    /// A process is lost.
    fn all_gather(&self, what: &'static str, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>>;

    /// Gives every process the bytes of the chief; what others bring is not looked at.
    ///
    /// # Errors
    /// A process is lost.
    fn broadcast(&self, what: &'static str, bytes: Vec<u8>) -> Result<Vec<u8>>;

    /// Whether the job goes on, for one who waits for something other than these operations.
    ///
    /// # Errors
    /// A process is lost.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Has `handler` handle what the others [`ask`](Self::ask) and [`tell`](Self::tell); on the
    /// chief. It must not wait.
    ///
    /// # Errors
    /// This is the only process.
    fn serve(&self, _handler: Handler) -> Result<()> {
        bail!("{ALONE}")
    }

    /// Sends `bytes` to the handler of the chief and waits for the answer, beside any other
    /// operation.
    ///
    /// # Errors
    /// A process is lost, or this is the only one.
    fn ask(&self, _bytes: Vec<u8>) -> Result<Vec<u8>> {
        bail!("{ALONE}")
    }

    /// Sends `bytes` to the handler of the chief, which does not answer.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    fn tell(&self, _bytes: Vec<u8>) -> Result<()> {
        bail!("{ALONE}")
    }

    /// Tells the others how far this one has come, for their messages if it is lost.
    fn note_step(&self, _step: usize) {}

    /// Waits until all have come to the end of the job.
    ///
    /// # Errors
    /// A process is lost.
    fn leave(&self) -> Result<()> {
        Ok(())
    }

    /// Tells the others why this one ends before the job does; false where they know already.
    fn fail(&self, _reason: &str) -> bool {
        true
    }
}

impl dyn Workers + '_ {
    /// The number of processes.
    pub fn count(&self) -> usize {
        self.hosts().len()
    }

    /// Whether this process writes what there is one of, such as checkpoints and reports.
    pub fn is_chief(&self) -> bool {
        self.index() == 0
    }

    /// How many processes run on this one's host, and which of these it is.
    pub fn on_this_host(&self) -> OnHost {
        let own = &self.hosts()[self.index()];
        let same = |hosts: &[String]| hosts.iter().filter(|host| *host == own).count();
        OnHost {
            index: same(&self.hosts()[..self.index()]),
            count: same(self.hosts()),
        }
    }

    /// A process as messages name it.
    pub fn name(&self, index: usize) -> String {
        name(index, self.hosts())
    }
}

/// Joins the job that a launcher such as `mpirun` has started this process for. The others may keep
/// this one waiting for `timeout`, or for ever where that is zero.
///
/// # Errors
/// This program is built without MPI, MPI sees other processes than the launcher started, or one
/// cannot be reached. What goes wrong in MPI itself ends the program.
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

/// Joins the job where a launcher has started several processes; else this one is alone.
///
/// # Errors
/// As [`join_workers`].
pub fn join_workers_if_started(timeout: Duration) -> Result<Arc<dyn Workers>> {
    match Launcher::detect() {
        Some(launcher) if launcher.processes > 1 => join_workers(timeout),
        _ => Ok(Arc::new(Alone::default())),
    }
}

/// The place of a process among those of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnHost {
    /// Index of the process among those of its host, from 0.
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
