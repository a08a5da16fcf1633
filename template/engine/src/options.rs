//! The options of the engine on the command line, to be flattened into those of a task.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

use crate::{checkpoint::Which, distribute::CrossDevice};

/// What the help of a program says of its exit status.
pub const EXIT_STATUS: &str = "Exit status: 0 after success, 1 after a failure, 2 for a wrong command line, and \
                               128 + the signal where one stopped the run (130 after Ctrl-C, 143 after SIGTERM), \
                               which --resume goes on with.";

/// What `--strategy` can name.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrategyKind {
    /// One replica on one device.
    OneDevice,
    /// Replicas in this process that hold equal weights and sum their gradients at every step.
    Mirrored,
    /// As `mirrored`, in several processes on one machine or many, which MPI connects.
    MultiWorkerMirrored,
    /// As `mirrored`, on the devices of the Burn servers that --hosts names.
    Remote,
    /// As `mirrored`, with models cut into the stages that src/model.rs names, each on a device.
    ModelParallel,
    /// Replicas, in one process or several, that do not wait for each other: each pulls parameters
    /// from a server and pushes gradients to it.
    ParameterServer,
}

/// The options that every training has. A task changes a default with `#[command(mut_arg(..))]`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Passes over the training examples.
    #[arg(long, global = true, default_value_t = 20, value_parser = at_least_one)]
    pub epochs: usize,

    /// Examples a replica takes at each step; the global batch is this times the replicas, and at most
    /// 1048576.
    #[arg(long, global = true, default_value_t = 16, value_parser = at_least_one)]
    pub batch_size: usize,

    /// How training is spread over replicas.
    #[arg(long, global = true, value_enum, default_value_t = StrategyKind::Mirrored)]
    pub strategy: StrategyKind,

    /// Replicas of the model in each process, at most 1024 [default: 2 on the CPU for mirrored and
    /// parameter-server; 1 for one-device and model-parallel; else one a device].
    #[arg(long, global = true, value_parser = replicas)]
    pub replicas: Option<usize>,

    /// The GPUs to use, counted from 0, such as `0,2` [default: all].
    #[arg(long, global = true, value_name = "INDEX,...", value_delimiter = ',')]
    pub devices: Option<Vec<usize>>,

    /// How gradients cross between the GPUs of a process, with mirrored and multi-worker-mirrored [default:
    /// nccl between several CUDA GPUs].
    #[arg(long, global = true, value_enum)]
    pub cross_device_ops: Option<CrossDevice>,

    /// Updates by which the gradients of `parameter-server` may be late [default: twice the replicas].
    #[arg(long, global = true, value_name = "N")]
    pub max_staleness: Option<usize>,

    /// Parts of a batch that follow each other through the stages of `model-parallel`.
    #[arg(long, global = true, value_name = "N", default_value_t = 4, value_parser = at_least_one)]
    pub micro_batches: usize,

    /// Compare the parameters of all replicas after each update, and stop where they differ. It takes time.
    #[arg(long, global = true)]
    pub check_replicas: bool,

    /// HOST:PORT of the Burn servers whose devices to use; for `launch`, hosts that SSH reaches
    /// without a password, with this program at the same place.
    #[arg(long, global = true, value_name = "HOST,...", value_delimiter = ',')]
    pub hosts: Vec<String>,

    /// Seconds after which training ends where another process is lost; 0 waits for ever.
    #[arg(long, global = true, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub timeout: Duration,

    /// Seed of the initial weights and of the order of the examples.
    #[arg(long, global = true, default_value_t = 42)]
    pub seed: u64,

    /// Folder of the data files, also for the contract tests if it is in the environment [default: the data
    /// that came with the project].
    #[arg(long, global = true, value_name = "DIR", env = "TRAINING_DATA_DIR")]
    pub data_dir: Option<PathBuf>,

    /// Folder for logs, pictures and checkpoints.
    #[arg(long, global = true, value_name = "DIR", default_value = "runs")]
    pub output_dir: PathBuf,

    /// Leave out the last batch of an epoch where it is not full.
    #[arg(long, global = true, conflicts_with = "steps_per_epoch")]
    pub drop_remainder: bool,

    /// Steps an epoch, all with full batches that run on across the ends of the dataset.
    #[arg(long, global = true, value_name = "N", value_parser = at_least_one)]
    pub steps_per_epoch: Option<usize>,

    /// Batches whose gradients add up to one update.
    #[arg(long, global = true, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    pub accumulate: usize,

    /// Batches that are read ahead, on threads of their own, at most 1024; 0 reads in the threads of the
    /// replicas [default: 2, or 0 where there is a replica on the CPU, with the whole model, for every core].
    #[arg(long, global = true, value_name = "N", value_parser = prefetch)]
    pub prefetch: Option<usize>,

    /// Updates from one line about training to the next: in `steps.jsonl`, in TensorBoard, and on the
    /// output where no progress bar is seen [default: a line about every 5 s].
    #[arg(long, global = true, value_name = "STEPS", value_parser = at_least_one)]
    pub log_every: Option<usize>,

    /// Show where the time of training went, and write a trace of it.
    #[arg(long, global = true)]
    pub profile: bool,

    /// Go on from the latest checkpoint in the output folder, if there is one.
    #[arg(long, global = true)]
    pub resume: bool,

    /// Save a checkpoint after every N epochs, and after the last one.
    #[arg(long, global = true, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    pub checkpoint_epochs: usize,

    /// Save a checkpoint after every N steps, beside those after epochs.
    #[arg(long, global = true, value_name = "N", value_parser = at_least_one)]
    pub checkpoint_steps: Option<usize>,

    /// How many of the last checkpoints to keep; the best one stays, too.
    #[arg(long, global = true, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub keep: usize,
}

/// Options that may differ between the processes of a job, or are compared elsewhere.
pub(crate) const OF_A_PROCESS: [&str; 14] = [
    "--strategy",
    "--replicas",
    "--devices",
    "--cross-device-ops",
    "--micro-batches",
    "--hosts",
    "--timeout",
    "--data-dir",
    "--output-dir",
    "--prefetch",
    "--log-every",
    "--profile",
    "--keep",
    "--download",
];

impl Options {
    /// Whether a checkpoint is due after update number `step`.
    pub fn saves_after(&self, step: usize) -> bool {
        self.checkpoint_steps
            .is_some_and(|steps| step.is_multiple_of(steps))
    }

    /// Whether a checkpoint is due after epoch number `epoch`.
    pub fn saves_after_epoch(&self, epoch: usize) -> bool {
        epoch >= self.epochs || epoch.is_multiple_of(self.checkpoint_epochs)
    }
}

/// What `test` tests.
#[derive(Args, Clone, Debug)]
pub struct Test {
    /// `latest` or `best` of the output folder, or the folder of a checkpoint.
    #[arg(long, value_name = "WHICH", default_value = "latest")]
    pub checkpoint: Which,
}

/// Where `serve` listens.
#[derive(Args, Clone, Debug)]
pub struct Serve {
    /// The address to listen on; 0.0.0.0:3000 for all networks of this machine. Who reaches it can
    /// compute here, and nothing is encrypted.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:3000")]
    pub address: String,
}

/// Where `launch` starts processes, and what they do.
#[derive(Args, Clone, Debug)]
pub struct Launch {
    /// Processes to start, at most 256 a host [default: one on each host, or 2 on this one].
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub workers: Option<usize>,

    /// What they do, such as `-- train` [default: train, then test].
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// What `infer` predicts, and how it writes.
#[derive(Args, Clone, Debug)]
pub struct Infer {
    /// Files to predict for, in the format that `src/infer.rs` reads.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// `latest` or `best` of the output folder, or the folder of a checkpoint.
    #[arg(long, value_name = "WHICH", default_value = "latest")]
    pub checkpoint: Which,

    /// How predictions are written.
    #[arg(long, value_enum, default_value_t = Format::Csv)]
    pub format: Format,

    /// File to write [default: the standard output].
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// How predictions are written.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated values with a header.
    Csv,
    /// A JSON object a line.
    Jsonl,
}

/// Parses a number of at least 1.
///
/// # Errors
/// It is none.
pub fn at_least_one(text: &str) -> Result<usize> {
    let number: usize = text.parse()?;
    ensure!(number > 0, "must be at least 1");
    Ok(number)
}

/// Parses a finite number above 0.
///
/// # Errors
/// It is none.
pub fn positive(text: &str) -> Result<f64> {
    let number: f64 = text.parse()?;
    ensure!(
        number.is_finite() && number > 0.0,
        "must be a number above 0"
    );
    Ok(number)
}

/// Each replica is a thread with buffers of its own, so that far too many would use up the machine.
fn replicas(text: &str) -> Result<usize> {
    let replicas = at_least_one(text)?;
    ensure!(
        replicas <= 1_024,
        "a process has at most 1024: one a GPU or CPU core suffices, and `launch` starts more processes"
    );
    Ok(replicas)
}

/// All batches that are read ahead are in memory.
fn prefetch(text: &str) -> Result<usize> {
    let batches: usize = text.parse()?;
    ensure!(batches <= 1_024, "must be at most 1024: 2 often suffice");
    Ok(batches)
}

fn seconds(text: &str) -> Result<Duration> {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    let seconds: f64 = text.parse()?;
    let seconds = Duration::try_from_secs_f64(seconds);
    let seconds = seconds.context("must be a number of seconds, 0 or more")?;
    ensure!(seconds <= YEAR, "must be at most a year: 0 waits for ever");
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::test_task::Cli;

    #[test]
    fn numbers_that_would_use_up_the_machine_are_refused() {
        let refusal = |option, value| {
            let parsed = Cli::try_parse_from(["test", option, value]);
            parsed.err().map(|error| error.to_string())
        };
        for (option, most, too_many, advice) in [
            (
                "--replicas",
                "1024",
                "1025",
                "one a GPU or CPU core suffices",
            ),
            ("--prefetch", "1024", "1025", "must be at most 1024"),
            ("--timeout", "31536000", "1e19", "0 waits for ever"),
        ] {
            assert_eq!(refusal(option, most), None);
            let error = refusal(option, too_many).unwrap();
            assert!(error.contains(option) && error.contains(advice), "{error}");
        }
    }
}
