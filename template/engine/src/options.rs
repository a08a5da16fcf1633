//! The command-line options of the engine, to be flattened into those of a task.

mod values;

use std::{ffi::OsString, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};

use crate::comm::{CrossDevice, ExchangePrecision};

pub use values::{Precision, Weights, Which};

/// The exit statuses, for the help text.
pub const EXIT_STATUS: &str = "Exit status: 0 after success, 1 after a failure, 2 for a wrong command line or configuration file, and \
                               128 + the signal that stopped the run (130 after Ctrl-C, 143 after SIGTERM), \
                               which --resume continues.";

/// Upper limit of times.
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

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
    /// Configuration file of options, such as the `run.toml` of a run to repeat. The command line and environment
    /// variables take precedence; `--no-FLAG` unsets a flag of the file.
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,

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

    /// Precision of the gradients that replicas send to each other and to a parameter server; in bfloat16, half the
    /// bytes between processes. Gradients are accumulated and summed in float32.
    #[arg(long, global = true, value_enum, default_value_t = ExchangePrecision::Float32)]
    pub exchange_precision: ExchangePrecision,

    /// Maximum staleness of gradients with `parameter-server`, in updates [default: twice the replicas].
    #[arg(long, global = true, value_name = "N")]
    pub max_staleness: Option<usize>,

    /// Micro-batches per batch in the pipeline of `model-parallel`.
    #[arg(long, global = true, value_name = "N", default_value_t = 4, value_parser = at_least_one)]
    pub micro_batches: usize,

    /// Compare the parameters of all replicas after each update, and stop if they differ; slow.
    #[arg(long, global = true)]
    pub check_replicas: bool,

    /// Stop at the first value or gradient of a layer or loss that is not finite, and name the layer, the example
    /// and the parameter; takes precedence over the policy at TODO(train.gradients). Slow.
    #[arg(long, global = true)]
    pub detect_anomalies: bool,

    /// HOST:PORT of the Burn servers of `remote`; for `launch`, hosts with SSH access without a password and
    /// this program at the same path.
    #[arg(long, global = true, value_name = "HOST,...", value_delimiter = ',')]
    pub hosts: Vec<String>,

    /// Seconds after which a lost or stalled process ends training; 0 waits forever.
    #[arg(long, global = true, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub timeout: Duration,

    /// Seed of the initial weights, the order of examples, augmentation and dropout.
    #[arg(long, global = true, default_value_t = 42)]
    pub seed: u64,

    /// Precision of matrix products and convolutions in the engine's layers (mixed precision). Weights, norms,
    /// losses, sums over replicas and updates stay in float32, and so do layers called by Burn's own `forward`, which a
    /// warning names.
    #[arg(long, global = true, value_enum, default_value_t = Precision::Float32)]
    pub precision: Precision,

    /// Average the weights with this decay, such as 0.999 (exponential moving average), and use the average
    /// for validation, the best checkpoint, test and predictions [default: off].
    #[arg(long, global = true, value_name = "DECAY", value_parser = decay)]
    pub ema: Option<f64>,

    /// Warm up the decay of --ema: 1 - t^(-2/3) after update t, until it reaches DECAY. For trainings of
    /// fewer updates than several times 1 / (1 - DECAY).
    #[arg(long, global = true)]
    pub ema_warmup: bool,

    /// Weights for validation, test, predictions and export [default: ema in trainings with --ema and for their
    /// checkpoints, otherwise model].
    #[arg(long, global = true, value_enum, value_name = "WHICH")]
    pub weights: Option<Weights>,

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

    /// Record the run on the MLflow server at this address, such as http://localhost:5000; `env` for that of
    /// MLFLOW_TRACKING_URI. Credentials are those of MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or
    /// MLFLOW_TRACKING_TOKEN [default: nothing is sent].
    #[arg(long, global = true, value_name = "URI")]
    pub mlflow: Option<String>,

    /// Experiment of --mlflow, which is created if missing [default: the name of the project].
    #[arg(long, global = true, value_name = "NAME")]
    pub mlflow_experiment: Option<String>,

    /// Report the time per phase of a step, and write a trace.
    #[arg(long, global = true)]
    pub profile: bool,

    /// Report the throughput of each epoch, and FLOP/s with their share of the peak (model FLOPs utilisation).
    #[arg(long, global = true)]
    pub throughput: bool,

    /// Peak FLOP/s of all devices together for --throughput, such as 989e12 or 989T [default: of known NVIDIA
    /// GPUs in bfloat16, or measured on a CPU in float32].
    #[arg(long, global = true, value_name = "FLOPS", value_parser = flops)]
    #[arg(allow_negative_numbers = true)]
    pub peak_flops: Option<f64>,

    /// Folder of compiled GPU kernels and the results of their tuning, which later starts load [default: that
    /// of CubeCL for this host, as in ~/.cache/cubecl].
    #[arg(long, global = true, value_name = "DIR")]
    pub kernel_cache: Option<PathBuf>,

    /// Bundle of compiled GPU kernels that `compile` wrote on a machine with the same GPU.
    #[arg(long, global = true, value_name = "BUNDLE")]
    pub kernels: Option<PathBuf>,

    /// Start from the weights in a file: safetensors, PyTorch's `.pt`, or a checkpoint of this program, of which
    /// only the model is used. Names are mapped in src/model.rs. With --resume, a checkpoint takes precedence.
    #[arg(long, global = true, value_name = "FILE")]
    pub init_from: Option<PathBuf>,

    /// With --init-from: keep the initial values of weights that the file lacks or has in another shape, as for a new
    /// head.
    #[arg(long, global = true)]
    pub init_partial: bool,

    /// Freeze the parameters whose names, as `export` writes them, match this regular expression, such as
    /// '^conv1\.'; may be repeated. Groups of parameters in src/model.rs can freeze, too.
    #[arg(long, global = true, value_name = "PATTERN")]
    pub freeze: Vec<String>,

    /// Resume from the latest checkpoint in the output folder, if any.
    #[arg(long, global = true)]
    pub resume: bool,

    /// Validate after every N epochs, and after the last one. The best checkpoint is one of a validated epoch.
    #[arg(long, global = true, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    pub validation_epochs: usize,

    /// Save a checkpoint after every N epochs, and after the last one.
    #[arg(long, global = true, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    pub checkpoint_epochs: usize,

    /// Save a checkpoint after every N steps, in addition to those after epochs.
    #[arg(long, global = true, value_name = "N", value_parser = at_least_one)]
    pub checkpoint_steps: Option<usize>,

    /// End training after this many validations in a row without a better value of the metric that selects
    /// the best checkpoint (early stopping).
    #[arg(long, global = true, value_name = "VALIDATIONS", value_parser = at_least_one)]
    pub patience: Option<usize>,

    /// Improvement of that metric up to which a value does not count as better for --patience [default: 0].
    #[arg(long, global = true, value_name = "CHANGE", value_parser = not_negative)]
    #[arg(allow_negative_numbers = true)]
    pub min_delta: Option<f64>,

    /// End training after the first step or validation beyond this time, such as 90s, 30m, 12h, 2d or 1h30m,
    /// counted over resumed runs; a checkpoint is saved, and the test follows.
    #[arg(long, global = true, value_name = "TIME", value_parser = time)]
    pub max_time: Option<Duration>,

    /// Train on N examples only, drawn by --seed; of a dataset with an order of its own, the first N.
    #[arg(long, global = true, value_name = "N", value_parser = at_least_one)]
    pub limit_train: Option<usize>,

    /// Validate on N examples only, drawn likewise.
    #[arg(long, global = true, value_name = "N", value_parser = at_least_one)]
    pub limit_validation: Option<usize>,

    /// Train and validate on the same N batches of training examples, without augmentation: a correct model
    /// and training step reach a loss near 0.
    #[arg(long, global = true, value_name = "N", value_parser = at_least_one)]
    pub overfit_batches: Option<usize>,

    /// Number of latest checkpoints to keep, in addition to the best one.
    #[arg(long, global = true, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub keep: usize,
}

/// Options that may differ between the processes of a job, or whose equality is checked elsewhere.
pub(crate) const OF_A_PROCESS: [&str; 21] = [
    "--config",
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
    "--mlflow",
    "--mlflow-experiment",
    "--profile",
    "--throughput",
    "--peak-flops",
    "--kernel-cache",
    "--kernels",
    "--keep",
    "--download",
];

impl Options {
    /// Checks combinations of options, given before or after a subcommand.
    ///
    /// # Errors
    /// An option has no effect without another, or contradicts one.
    pub(crate) fn ensure_fit_together(&self) -> Result<()> {
        ensure!(
            self.min_delta.is_none() || self.patience.is_some(),
            "--min-delta is for early stopping: give --patience, too, or leave it out"
        );
        ensure!(
            self.peak_flops.is_none() || self.throughput,
            "--peak-flops is for the utilisation that --throughput reports: give --throughput, too, or leave it out"
        );
        ensure!(
            self.mlflow_experiment.is_none() || self.mlflow.is_some(),
            "--mlflow-experiment is for --mlflow: give that, too, or leave it out"
        );
        let limits = [
            ("--limit-train", self.limit_train),
            ("--limit-validation", self.limit_validation),
        ];
        let limit = limits.iter().find(|(_, limit)| limit.is_some());
        if let (Some(_), Some((limit, _))) = (self.overfit_batches, limit) {
            bail!(
                "--overfit-batches chooses the examples of training and validation: leave out {limit}"
            );
        }
        Ok(())
    }

    /// Whether `--checkpoint-steps` makes a checkpoint due after update number `step`, from 1.
    pub fn saves_after(&self, step: usize) -> bool {
        self.checkpoint_steps
            .is_some_and(|steps| step.is_multiple_of(steps))
    }

    /// Whether a validation is due after epoch number `epoch`, from 1.
    pub fn validates_after_epoch(&self, epoch: usize) -> bool {
        epoch >= self.epochs || epoch.is_multiple_of(self.validation_epochs)
    }

    /// Whether a checkpoint is due after epoch number `epoch`, from 1.
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
    /// Write the weights of a checkpoint, averaged ones if it has any (--weights), to a file for other programs, or
    /// for --init-from.
    Export(Export),
    /// Compile and tune the GPU kernels of a training with these options, for --kernels on other machines.
    Compile(Compile),
    /// Start several processes with MPI, each a worker of `multi-worker-mirrored` or the `--strategy` given.
    Launch(Launch),
    /// Serve the devices of this machine to programs that train with `--strategy remote`.
    Serve(Serve),
    /// Compare runs: the options, program and data that differ, metrics and time.
    Compare(Compare),
    /// Train with many values of options, on a grid or drawn at random, and rank the runs.
    Sweep(Sweep),
    /// Find a learning rate: train with a growing one, and draw the loss over it.
    FindLr(FindLr),
}

/// Options of `test`.
#[derive(Args, Clone, Debug)]
pub struct Test {
    /// `latest` or `best` of the output folder, or the folder of a checkpoint.
    #[arg(long, value_name = "WHICH", default_value = "latest")]
    pub checkpoint: Which,
}

/// Options of `export`.
#[derive(Args, Clone, Debug)]
pub struct Export {
    /// The file to write.
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,

    /// Names and layouts of the weights.
    #[arg(long, value_enum, default_value_t = WeightFormat::Safetensors)]
    pub format: WeightFormat,

    /// `latest` or `best` of the output folder, or the folder of a checkpoint.
    #[arg(long, value_name = "WHICH", default_value = "latest")]
    pub checkpoint: Which,

    /// Replace the file if it exists.
    #[arg(long)]
    pub force: bool,
}

/// The values of `export --format`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightFormat {
    /// A safetensors file with the names and layouts of Burn.
    Safetensors,
    /// A safetensors file with the names and layouts of PyTorch's layers, for `load_state_dict`; renames at
    /// WEIGHT_NAMES in src/model.rs are read backwards.
    PytorchNames,
}

/// Options of `compile`.
#[derive(Args, Clone, Debug)]
pub struct Compile {
    /// The bundle to write.
    #[arg(value_name = "BUNDLE")]
    pub bundle: PathBuf,
}

/// Options of `compare`.
#[derive(Args, Clone, Debug)]
pub struct Compare {
    /// Output folders of runs.
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<PathBuf>,

    /// Picture of the training and validation curves of all runs.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Options of `sweep`.
#[derive(Args, Clone, Debug)]
pub struct Sweep {
    /// TOML file: options of all runs as in a `run.toml`, the lists of values in `[grid]`, the ranges in `[random]`,
    /// and `metric`, `direction`, `output` and `parallel`. Options of the command line take precedence, in all runs.
    /// A stopped sweep continues when it is started again.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Check all options of all runs, and list the runs.
    #[arg(long)]
    pub dry_run: bool,
}

/// Options of `find-lr`.
#[derive(Args, Clone, Debug)]
pub struct FindLr {
    /// Learning rate of the first update.
    #[arg(long, value_name = "RATE", default_value_t = 1e-7, value_parser = positive)]
    pub min: f64,

    /// Learning rate of the last update, unless the loss diverges before.
    #[arg(long, value_name = "RATE", default_value_t = 10.0, value_parser = positive)]
    pub max: f64,

    /// Updates, each with a learning rate that is higher by the same factor.
    #[arg(long, value_name = "UPDATES", default_value_t = 100, value_parser = at_least_one)]
    pub steps: usize,

    /// Weight of each neighbour relative to the next nearer one when the loss is smoothed; 0 does not smooth.
    #[arg(long, value_name = "WEIGHT", default_value_t = 0.8, value_parser = weight)]
    pub smoothing: f64,

    /// The curve as a picture; its values are in the file of the same name that ends in `.csv`.
    #[arg(long, value_name = "FILE", default_value = "find-lr.svg")]
    pub svg: PathBuf,
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

/// Parses an integer of at least 1.
///
/// # Errors
/// The text is not such an integer.
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

/// Parses `--peak-flops` in FLOP/s: a number with an optional metric prefix.
fn flops(text: &str) -> Result<f64> {
    const PREFIXES: [(char, f64); 4] = [('M', 1e6), ('G', 1e9), ('T', 1e12), ('P', 1e15)];
    let mut prefixes = PREFIXES.into_iter();
    let with_prefix = prefixes.find_map(|(prefix, unit)| Some((text.strip_suffix(prefix)?, unit)));
    let (number, unit) = with_prefix.unwrap_or((text, 1.0));
    let number = positive(number).map(|number| number * unit);
    number
        .ok()
        .filter(|flops| flops.is_finite())
        .context("must be a number above 0, such as 989e12 or 989T")
}

/// Parses `--ema`.
fn decay(text: &str) -> Result<f64> {
    let decay: f64 = text.parse()?;
    ensure!(
        (0.0..1.0).contains(&decay),
        "must be at least 0 and below 1: 0.999 averages over about 1,000 updates"
    );
    Ok(decay)
}

/// Parses `find-lr --smoothing`.
fn weight(text: &str) -> Result<f64> {
    let weight: f64 = text.parse()?;
    ensure!(
        (0.0..1.0).contains(&weight),
        "must be at least 0 and below 1"
    );
    Ok(weight)
}

/// Parses a finite number of 0 or more.
fn not_negative(text: &str) -> Result<f64> {
    let number: f64 = text.parse()?;
    ensure!(
        number.is_finite() && number >= 0.0,
        "must be a number of 0 or more"
    );
    Ok(number)
}

/// Parses a time as a sum of numbers with units, above 0 and at most a year.
fn time(text: &str) -> Result<Duration> {
    let parts = text.split_inclusive(|letter: char| letter.is_ascii_alphabetic());
    let seconds = parts.map(seconds_of_part).sum::<Result<f64>>();
    let seconds = seconds.context("must be numbers with units: 90s, 30m, 12h, 2d or 1h30m")?;
    let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    ensure!(
        time > Duration::ZERO && time <= YEAR,
        "must be above 0 and at most a year"
    );
    Ok(time)
}

/// The seconds of a number with a unit.
fn seconds_of_part(part: &str) -> Result<f64> {
    const UNITS: [(char, f64); 4] = [('s', 1.0), ('m', 60.0), ('h', 3_600.0), ('d', 86_400.0)];
    let mut units = UNITS.into_iter();
    let number = units.find_map(|(unit, seconds)| Some((part.strip_suffix(unit)?, seconds)));
    let (number, seconds) = number.context("a number has no unit")?;
    let number: f64 = number.trim().parse()?;
    ensure!(number >= 0.0, "a number is negative");
    Ok(number * seconds)
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
    let seconds: f64 = text.parse()?;
    let seconds = Duration::try_from_secs_f64(seconds);
    let seconds = seconds.context("must be a number of seconds, 0 or more")?;
    ensure!(seconds <= YEAR, "must be at most a year: 0 waits forever");
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
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

    fn parsed(words: &[&str]) -> Result<Options, String> {
        let parsed = Cli::try_parse_from([&["test"], words].concat());
        parsed
            .map(|cli| cli.options)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn times_have_units() {
        for (text, seconds) in [
            ("90s", 90.0),
            ("30m", 1_800.0),
            ("12h", 43_200.0),
            ("2d", 172_800.0),
            ("1h30m", 5_400.0),
            ("0.5s", 0.5),
        ] {
            let time = parsed(&["--max-time", text]).unwrap().max_time.unwrap();
            assert!(
                (time.as_secs_f64() - seconds).abs() < 1e-9,
                "{text}: {time:?}"
            );
        }
        let units = "must be numbers with units";
        for (text, message) in [
            ("5", units),
            ("", "must be above 0"),
            ("1h5", units),
            ("90ms", units),
            ("h", units),
            ("1w", units),
            ("0s", "must be above 0"),
            ("nans", units),
            ("99999999999d", "at most a year"),
            ("366d", "at most a year"),
        ] {
            let error = parsed(&["--max-time", text]).unwrap_err();
            assert!(
                error.contains("--max-time") && error.contains(message),
                "{error}"
            );
        }
        assert!(parsed(&["--max-time=-1h"]).unwrap_err().contains(units));
    }

    #[test]
    fn peak_flops_have_prefixes() {
        let peak = |text| parsed(&["--throughput", "--peak-flops", text]);
        for (text, flops) in [
            ("989e12", 9.89e14),
            ("19.5T", 1.95e13),
            ("2P", 2e15),
            ("5", 5.0),
        ] {
            assert_eq!(peak(text).unwrap().peak_flops, Some(flops), "{text}");
        }
        for text in ["0", "-3", "1K", "T", "nan", "inf", "1e300P", "1 T"] {
            let error = peak(text).unwrap_err();
            assert!(
                error.contains("--peak-flops") && error.contains("989T"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_last_epoch_is_validated_and_each_of_the_interval() {
        let options = parsed(&["--epochs", "8", "--validation-epochs", "3"]).unwrap();
        let validated = (1..=8).filter(|epoch| options.validates_after_epoch(*epoch));
        assert_eq!(validated.collect::<Vec<_>>(), [3, 6, 8]);
    }

    #[test]
    fn early_stopping_and_limits_are_checked() {
        for (words, messages) in [
            (&["--patience", "0"][..], ["--patience", "at least 1"]),
            (
                &["--validation-epochs", "0"],
                ["--validation-epochs", "at least 1"],
            ),
            (
                &["--patience", "2", "--min-delta", "-1"],
                ["--min-delta", "0 or more"],
            ),
            (
                &["--patience", "2", "--min-delta", "nan"],
                ["--min-delta", "0 or more"],
            ),
            (&["--limit-train", "0"], ["--limit-train", "at least 1"]),
            (
                &["--limit-validation", "0"],
                ["--limit-validation", "at least 1"],
            ),
            (
                &["--overfit-batches", "0"],
                ["--overfit-batches", "at least 1"],
            ),
        ] {
            let error = parsed(words).unwrap_err();
            let all = messages.iter().all(|message| error.contains(message));
            assert!(all, "{words:?}: {error}");
        }
    }

    #[test]
    fn options_that_others_make_meaningless_are_refused() {
        for (words, messages) in [
            (
                &["--min-delta", "0.1"][..],
                ["--min-delta is for early", "--patience"],
            ),
            (
                &["--peak-flops", "1T"],
                ["--peak-flops is for", "--throughput"],
            ),
            (
                &["--mlflow-experiment", "digits"],
                ["--mlflow-experiment is for", "--mlflow:"],
            ),
            (
                &["--overfit-batches", "2", "--limit-train", "9"],
                ["--overfit-batches", "leave out --limit-train"],
            ),
            (
                &["--limit-validation", "9", "train", "--overfit-batches", "2"],
                ["--overfit-batches", "leave out --limit-validation"],
            ),
        ] {
            let error = parsed(words).unwrap().ensure_fit_together().unwrap_err();
            let error = error.to_string();
            let all = messages.iter().all(|message| error.contains(message));
            assert!(all, "{words:?}: {error}");
        }
        let words = ["--patience", "2", "train", "--min-delta", "0.1"];
        let options = parsed(&words).unwrap();
        options.ensure_fit_together().unwrap();
        assert_eq!((options.patience, options.min_delta), (Some(2), Some(0.1)));
        parsed(&[]).unwrap().ensure_fit_together().unwrap();
    }
}
