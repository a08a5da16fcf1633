//! The options of the engine on the command line, to be flattened into those of a task.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand, ValueEnum};

use crate::{checkpoint::Which, comm::CrossDevice};

/// The exit statuses, for the help text.
pub const EXIT_STATUS: &str = "Exit status: 0 after success, 1 after a failure, 2 for a wrong command line, and \
                               128 + the signal that stopped the run (130 after Ctrl-C, 143 after SIGTERM), \
                               which --resume continues.";

/// The values of `--strategy`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrategyKind {
    /// One replica on one device.
    OneDevice,
    /// Synchronous data parallelism in this process, with a gradient all-reduce at every step.
    Mirrored,
    /// As `mirrored`, over several processes on one machine or many, connected by MPI.
    MultiWorkerMirrored,
    /// As `mirrored`, on the devices of the Burn servers in --hosts.
    Remote,
    /// As `mirrored`, with each model split into the pipeline stages of src/model.rs, one device each.
    ModelParallel,
    /// Asynchronous data parallelism, in one process or several: replicas pull parameters from a server
    /// and push gradients to it.
    ParameterServer,
}

/// Options of every training. A task changes a default with `#[command(mut_arg(..))]`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Passes over the training examples.
    #[arg(long, global = true, default_value_t = 20, value_parser = at_least_one)]
    pub epochs: usize,

    /// Examples per replica and step; the global batch size is this times the replicas, at most 1048576.
    #[arg(long, global = true, default_value_t = 16, value_parser = at_least_one)]
    pub batch_size: usize,

    /// Distribution strategy.
    #[arg(long, global = true, value_enum, default_value_t = StrategyKind::Mirrored)]
    pub strategy: StrategyKind,

    /// Replicas of the model per process, at most 1024 [default: 2 on the CPU for mirrored and
    /// parameter-server; 1 for one-device and model-parallel; otherwise one per device].
    #[arg(long, global = true, value_parser = replicas)]
    pub replicas: Option<usize>,

    /// Indices of the GPUs to use, from 0, such as `0,2` [default: all].
    #[arg(long, global = true, value_name = "INDEX,...", value_delimiter = ',')]
    pub devices: Option<Vec<usize>>,

    /// Gradient all-reduce between the GPUs of a process, for mirrored and multi-worker-mirrored [default:
    /// nccl between several CUDA GPUs].
    #[arg(long, global = true, value_enum)]
    pub cross_device_ops: Option<CrossDevice>,

    /// Maximum staleness of gradients with `parameter-server`, in updates [default: twice the replicas].
    #[arg(long, global = true, value_name = "N")]
    pub max_staleness: Option<usize>,

    /// Micro-batches per batch in the pipeline of `model-parallel`.
    #[arg(long, global = true, value_name = "N", default_value_t = 4, value_parser = at_least_one)]
    pub micro_batches: usize,

    /// Compare the parameters of all replicas after each update, and stop if they differ; slow.
    #[arg(long, global = true)]
    pub check_replicas: bool,

    /// HOST:PORT of the Burn servers of `remote`; for `launch`, hosts with SSH access without a password and
    /// this program at the same path.
    #[arg(long, global = true, value_name = "HOST,...", value_delimiter = ',')]
    pub hosts: Vec<String>,

    /// Seconds after which a lost or stalled process ends training; 0 waits forever.
    #[arg(long, global = true, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub timeout: Duration,

    /// Seed of the initial weights and the order of examples.
    #[arg(long, global = true, default_value_t = 42)]
    pub seed: u64,

    /// Folder of the data files; the environment variable also applies to the contract tests [default: the
    /// data of the project].
    #[arg(long, global = true, value_name = "DIR", env = "TRAINING_DATA_DIR")]
    pub data_dir: Option<PathBuf>,

    /// Folder for logs, pictures and checkpoints.
    #[arg(long, global = true, value_name = "DIR", default_value = "runs")]
    pub output_dir: PathBuf,

    /// Drop the last batch of an epoch if it is not full.
    #[arg(long, global = true, conflicts_with = "steps_per_epoch")]
    pub drop_remainder: bool,

    /// Steps per epoch, of full batches that continue across the end of the dataset.
    #[arg(long, global = true, value_name = "N", value_parser = at_least_one)]
    pub steps_per_epoch: Option<usize>,

    /// Batches per update, for gradient accumulation.
    #[arg(long, global = true, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    pub accumulate: usize,

    /// Batches to prefetch on separate threads, at most 1024; 0 reads in the replicas' threads [default: 2,
    /// or 0 if replicas with the whole model on the CPU use every core].
    #[arg(long, global = true, value_name = "N", value_parser = prefetch)]
    pub prefetch: Option<usize>,

    /// Updates between log lines: in `steps.jsonl`, in TensorBoard, and on the output if there is no
    /// progress bar [default: a line about every 5 s].
    #[arg(long, global = true, value_name = "STEPS", value_parser = at_least_one)]
    pub log_every: Option<usize>,

    /// Report the time per phase of a step, and write a trace.
    #[arg(long, global = true)]
    pub profile: bool,

    /// Folder of compiled GPU kernels and the results of their tuning, which later starts load [default: that
    /// of CubeCL for this host, as in ~/.cache/cubecl].
    #[arg(long, global = true, value_name = "DIR")]
    pub kernel_cache: Option<PathBuf>,

    /// Bundle of compiled GPU kernels that `compile` wrote on a machine with the same GPU.
    #[arg(long, global = true, value_name = "BUNDLE")]
    pub kernels: Option<PathBuf>,

    /// Resume from the latest checkpoint in the output folder, if any.
    #[arg(long, global = true)]
    pub resume: bool,

    /// Save a checkpoint after every N epochs, and after the last one.
    #[arg(long, global = true, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    pub checkpoint_epochs: usize,

    /// Save a checkpoint after every N steps, in addition to those after epochs.
    #[arg(long, global = true, value_name = "N", value_parser = at_least_one)]
    pub checkpoint_steps: Option<usize>,

    /// Number of latest checkpoints to keep, in addition to the best one.
    #[arg(long, global = true, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub keep: usize,
}

/// Options that may differ between the processes of a job or are compared elsewhere.
pub(crate) const OF_A_PROCESS: [&str; 16] = [
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
    "--kernel-cache",
    "--kernels",
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

/// The subcommands; without one, the program trains, then tests.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Train, and save checkpoints in the output folder.
    Train,
    /// Test a checkpoint.
    Test(Test),
    /// Predict with a checkpoint, on one device.
    Infer(Infer),
    /// Compile and tune the GPU kernels of a training with these options, for --kernels on other machines.
    Compile(Compile),
    /// Start several processes with MPI, each a worker of `multi-worker-mirrored` or the `--strategy` given.
    Launch(Launch),
    /// Serve the devices of this machine to programs that train with `--strategy remote`.
    Serve(Serve),
}

/// Options of `test`.
#[derive(Args, Clone, Debug)]
pub struct Test {
    /// `latest` or `best` of the output folder, or the folder of a checkpoint.
    #[arg(long, value_name = "WHICH", default_value = "latest")]
    pub checkpoint: Which,
}

/// Options of `compile`.
#[derive(Args, Clone, Debug)]
pub struct Compile {
    /// The bundle to write.
    #[arg(value_name = "BUNDLE")]
    pub bundle: PathBuf,
}

/// Options of `serve`.
#[derive(Args, Clone, Debug)]
pub struct Serve {
    /// The address to listen on; 0.0.0.0:3000 for all networks of this machine. There is no authentication
    /// and no encryption.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:3000")]
    pub address: String,
}

/// Options of `launch`.
#[derive(Args, Clone, Debug)]
pub struct Launch {
    /// Processes to start, at most 256 per host [default: one per host, or 2 on this one].
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub workers: Option<usize>,

    /// Command of each process, such as `-- train` [default: train, then test].
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Options of `infer`.
#[derive(Args, Clone, Debug)]
pub struct Infer {
    /// Input files, in the format of `src/infer.rs`.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// `latest` or `best` of the output folder, or the folder of a checkpoint.
    #[arg(long, value_name = "WHICH", default_value = "latest")]
    pub checkpoint: Which,

    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Csv)]
    pub format: Format,

    /// Output file [default: the standard output].
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Output format of predictions.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated values with a header.
    Csv,
    /// One JSON object per line.
    Jsonl,
}

/// Parses a number of at least 1.
///
/// # Errors
/// The text is not such a number.
pub fn at_least_one(text: &str) -> Result<usize> {
    let number: usize = text.parse()?;
    ensure!(number > 0, "must be at least 1");
    Ok(number)
}

/// Parses a finite number above 0.
///
/// # Errors
/// The text is not such a number.
pub fn positive(text: &str) -> Result<f64> {
    let number: f64 = text.parse()?;
    ensure!(
        number.is_finite() && number > 0.0,
        "must be a number above 0"
    );
    Ok(number)
}

/// Parses `--replicas`; bounded, as each replica is a thread with buffers of its own.
fn replicas(text: &str) -> Result<usize> {
    let replicas = at_least_one(text)?;
    ensure!(
        replicas <= 1_024,
        "a process has at most 1024: one per GPU or CPU core suffices, and `launch` starts more processes"
    );
    Ok(replicas)
}

/// Parses `--prefetch`; bounded, as prefetched batches are in memory.
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
    ensure!(seconds <= YEAR, "must be at most a year: 0 waits forever");
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
                "one per GPU or CPU core suffices",
            ),
            ("--prefetch", "1024", "1025", "must be at most 1024"),
            ("--timeout", "31536000", "1e19", "0 waits forever"),
        ] {
            assert_eq!(refusal(option, most), None);
            let error = refusal(option, too_many).unwrap();
            assert!(error.contains(option) && error.contains(advice), "{error}");
        }
    }
}
