//! Abilities of trainings, several in one, under a strategy. The results are those of one device; from the `run.toml`
//! of a training alone, one that is stopped by a time limit within an epoch and resumed has the same bits.

use std::{fs, process::Command};

use crate::{
    idx::idx_data,
    job::{Job, assert_near},
    mpi,
    pytorch::rename_layer,
    rendered::Project,
    running::{TRAINING, succeeds},
    runs::checkpoints,
};

/// Examples of an update.
const GLOBAL_BATCH: usize = 12;

/// Three epochs on small pictures, of at most five updates each; the last is of half a batch.
const EPOCHS: [&str; 4] = ["--data-dir", "small", "--epochs", "3"];

/// Tolerance for weights and losses relative to those of one device.
const EXACT: f64 = 1e-5;

/// The same for products or gradients in 16 bits. Rounding to bfloat16 makes a difference in the last bit of float32
/// one of 2^-8.
const ROUNDED: f64 = 5e-3;

/// The same for float32 on a Burn server: the layers of this process have kernels of their own, and Adam makes an
/// update of what is left by rounding where a gradient is almost zero.
pub const OTHER_KERNELS: f64 = 5e-4;

/// The same for products in 16 bits on a Burn server, which rounds them, too.
const ROUNDED_PRODUCTS: f64 = 1e-2;

/// The same where replicas train at their own pace.
const ASYNCHRONOUS: f64 = 0.2;

/// The weights and biases of the first layer, which `--freeze` freezes.
pub const FROZEN: usize = 32 * 9 + 32;

/// The output folder of the training that made the initial weights.
pub const INITIAL: &str = "runs/initial";

/// Abilities of one training.
pub struct Abilities {
    pub name: &'static str,
    /// Options of each ability, without which the training ends elsewhere.
    pub change: &'static [&'static [&'static str]],
    /// Options that change nothing.
    keep: &'static [&'static str],
    /// The same for strategies whose replicas send gradients to each other, which others refuse.
    exchange: &'static [&'static str],
    tolerance: f64,
    /// That on Burn servers, which is larger.
    pub on_servers: f64,
}

/// The trainings, of all abilities together.
pub const TOGETHER: [Abilities; 3] = [
    Abilities {
        name: "float32",
        change: &[
            &["--accumulate", "2"],
            &["--ema", "0.9", "--ema-warmup"],
            &["--freeze", "^conv1\\."],
            &["--limit-train", "30"],
            &["--limit-validation", "4"],
            &["--init-from", "headless.safetensors", "--init-partial"],
        ],
        keep: &["--throughput", "--peak-flops", "1T", "--detect-anomalies"],
        exchange: &[],
        tolerance: EXACT,
        on_servers: OTHER_KERNELS,
    },
    Abilities {
        name: "bfloat16",
        change: &[
            &["--precision", "bfloat16"],
            &["--patience", "1", "--min-delta", "9"],
            &["--output-rate", "0.1"],
        ],
        keep: &[],
        exchange: &["--exchange-precision", "bfloat16"],
        tolerance: ROUNDED,
        on_servers: ROUNDED_PRODUCTS,
    },
    Abilities {
        name: "float16",
        change: &[
            &["--precision", "float16"],
            &["--overfit-batches", "2"],
            &["--init-from", "initial.safetensors"],
        ],
        keep: &[],
        exchange: &[],
        tolerance: ROUNDED,
        on_servers: ROUNDED_PRODUCTS,
    },
];

impl Abilities {
    /// The number of batches in an update.
    fn accumulated(&self) -> usize {
        let accumulates = self.change.iter().any(|it| it[0] == "--accumulate");
        if accumulates { 2 } else { 1 }
    }

    /// The output folder of a training on one device, without the ability `without`, or with all.
    pub fn on_one_device(&self, without: Option<usize>) -> String {
        match without {
            Some(place) => format!("runs/{}/without{}", self.name, self.change[place][0]),
            None => format!("runs/{}/one-device", self.name),
        }
    }

    /// Trains on one device, without the ability `without`, or with all.
    ///
    /// # Panics
    /// The training fails.
    pub fn train_on_one_device(&self, job: &Job, without: Option<usize>) {
        let mut command = ONE.command(job, self.accumulated());
        for (place, options) in self.change.iter().enumerate() {
            if without != Some(place) {
                command.args(*options);
            }
        }
        command.args(["--output-dir", &self.on_one_device(without), "train"]);
        succeeds(&mut command, TRAINING);
    }
}

/// A strategy.
#[derive(Clone, Copy)]
pub struct Strategy<'a> {
    /// The value of `--strategy`.
    kind: &'static str,
    pub processes: usize,
    /// Replicas of each process.
    replicas: usize,
    /// Burn servers, with `remote`.
    hosts: &'a str,
}

/// One replica, to whose results those of all strategies are compared.
pub const ONE: Strategy<'_> = Strategy::new("one-device", 1, 1);

impl<'a> Strategy<'a> {
    /// A strategy with these numbers of processes, and of replicas in each.
    pub const fn new(kind: &'static str, processes: usize, replicas: usize) -> Self {
        Strategy {
            kind,
            processes,
            replicas,
            hosts: "",
        }
    }

    /// Replicas on the devices of Burn servers, in turn.
    pub const fn remote(hosts: &'a str, replicas: usize) -> Self {
        Strategy {
            hosts,
            ..Strategy::new("remote", 1, replicas)
        }
    }

    /// Whether replicas exchange parameters with a server.
    pub fn is_server(self) -> bool {
        self.kind == "parameter-server"
    }

    /// Replicas of a parameter server push their gradients in any order.
    fn is_reproducible(self) -> bool {
        !self.is_server() || self.count() == 1
    }

    /// The number of replicas.
    fn count(self) -> usize {
        self.processes * self.replicas
    }

    /// Whether Burn servers compute, with other kernels.
    fn is_remote(self) -> bool {
        !self.hosts.is_empty()
    }

    /// Tolerance for results relative to those of one device.
    fn tolerance(self, together: &Abilities) -> f64 {
        match self.is_remote() {
            true => together.on_servers,
            false => together.tolerance,
        }
    }

    /// The strategy and its numbers, for names of files.
    pub fn name(self) -> String {
        format!("{}-{}x{}", self.kind, self.processes, self.replicas)
    }

    /// The program, with options given by a configuration alone.
    fn program(self, job: &Job) -> Command {
        let mut command = match self.processes {
            1 => job.alone(),
            processes => {
                let mut command = mpi::run(processes);
                command.arg(job.programs.join("program"));
                command.current_dir(&job.folder);
                command
            }
        };
        // A configuration does not name machines.
        if self.is_remote() {
            command.args(["--hosts", self.hosts]);
        }
        command
    }

    /// The program, with the options of a global batch in so many parts per replica.
    pub fn command(self, job: &Job, accumulated: usize) -> Command {
        // With a parameter server, each replica makes updates of its own.
        let sharing = if self.is_server() { 1 } else { self.count() };
        let batch_size = GLOBAL_BATCH / accumulated / sharing;
        let mut command = self.program(job);
        command
            .args(["--strategy", self.kind])
            .args(["--replicas", &self.replicas.to_string()])
            .args(["--batch-size", &batch_size.to_string()])
            .args(EPOCHS);
        if self.is_server() {
            command.args(["--max-staleness", "0"]);
        }
        command
    }
}

/// A learning rate of the last layer, as a group of parameters.
///
/// # Panics
/// The project is not a default one, or tests share it.
pub fn add_a_group(project: &Project) {
    project.edit(
        "cli.rs",
        "    pub warm_up: usize,\n",
        "    pub warm_up: usize,

    /// Factor of the learning rate of the last layer.
    #[arg(long, global = true, default_value_t = 1.0, value_parser = positive)]
    pub output_rate: f64,
",
    );
    project.edit(
        "model.rs",
        "    let optimizer = ScheduledOptimizer::new(adam, schedule);\n",
        "    let mut optimizer = ScheduledOptimizer::new(adam, schedule);
    if args.output_rate != 1.0 {
        let output = kiln_engine::optim::Group::new(\"^output\\\\.\");
        optimizer = optimizer.with_groups([output.learning_rate_times(args.output_rate)]);
    }
",
    );
}

/// Writes what the trainings read: small pictures, and initial weights.
///
/// # Panics
/// A file cannot be written.
pub fn prepare(job: &Job) {
    idx_data(&job.folder.join("small"), 8);
    fs::create_dir(job.folder.join("rates")).expect("a folder");
    initial_weights(job);
}

/// Weights of a short training with another seed, and a file without those of the last layer.
fn initial_weights(job: &Job) {
    let other = ["--output-dir", INITIAL, "--seed", "7"];
    job.runs_alone(&[&EPOCHS[..2], &["--epochs", "1", "train"], &other].concat());
    let export = ["export", "--output", "initial.safetensors"];
    job.runs_alone(&[&export[..], &other[..2]].concat());
    let at = |name| job.folder.join(name);
    rename_layer(
        &at("initial.safetensors"),
        &at("headless.safetensors"),
        "output",
        "absent",
    );
}

/// The weights and the losses of all validations, which are of the averaged weights, if any.
///
/// # Panics
/// The training has no log or no checkpoint.
pub fn results(job: &Job, runs: &str) -> Vec<f64> {
    let log = job.log(runs);
    let validations = log.iter().filter(|line| line["split"] == "validation");
    let losses = validations.map(|line| line["loss"].as_f64().expect("a loss"));
    losses.chain(job.weights(runs)).collect()
}

/// Trains with abilities, after the same on one device, and with the options `more`, which change nothing; returns
/// the output folder.
///
/// # Panics
/// The results are not those of one device, or a message is missing.
pub fn is_as_on_one_device(
    job: &Job,
    together: &Abilities,
    on: Strategy<'_>,
    more: &[&str],
) -> String {
    let runs = format!("runs/{}/{}", together.name, on.name());
    let mut command = on.command(job, together.accumulated());
    command.args(together.change.iter().flat_map(|options| *options));
    command.args(together.keep).args(more);
    if !on.is_remote() {
        command.args(together.exchange);
    }
    command.args(["--output-dir", &runs, "train"]);
    let printed = succeeds(&mut command, TRAINING);
    let whole = together.on_one_device(None);
    let [expected, reached] = [&whole, &runs].map(|runs| results(job, runs));
    if on.is_reproducible() {
        assert_near(&reached, &expected, on.tolerance(together), &runs);
    } else {
        let [expected, reached] = [&whole, &runs].map(|runs| job.weights(runs));
        assert_near(&reached, &expected, ASYNCHRONOUS, &runs);
    }
    // A pipeline sums the parts of a batch, and replicas of a server round what they exchange.
    let rounds = on.kind == "model-parallel" || on.is_server() && !together.exchange.is_empty();
    if on.count() == 1 && !rounds && !on.is_remote() {
        assert_eq!(
            reached, expected,
            "{runs}: one replica has the bits of one device"
        );
    }
    goes_on_to_the_same_bits(job, on, &runs);
    if together.name != "float32" {
        let told = format!("of the engine's layers in {}, all else", together.name);
        assert!(printed.contains(&told), "{runs}: no {told}: {printed}");
    }
    match together.name {
        "float32" => {
            assert!(printed.contains("missing    2: `output."), "{printed}");
            let trained = job.weights(INITIAL);
            assert_eq!(job.weights(&runs)[..FROZEN], trained[..FROZEN], "{runs}");
            let told = "MFLOP per example, forward and backward; peak 1.00 TFLOP/s";
            assert!(printed.contains(told), "{runs}: no {told}: {printed}");
        }
        "bfloat16" => {
            let told = "1 validation without a better `accuracy`";
            assert!(printed.contains(told), "{runs}: no {told}: {printed}");
        }
        _ => {}
    }
    runs
}

/// Trains as in `run.toml`, is stopped by a time limit within an epoch, and resumed.
fn goes_on_to_the_same_bits(job: &Job, on: Strategy<'_>, runs: &str) {
    let (file, again) = (format!("{runs}/run.toml"), format!("{runs}-again"));
    let train = |more: &[&str]| {
        let mut command = on.program(job);
        command.args(["--config", &file, "--output-dir", &again, "train"]);
        succeeds(command.args(more), TRAINING)
    };
    let printed = train(&["--max-time", "0.001s"]);
    let last = checkpoints(&job.folder.join(&again)).pop_last();
    let ((step, epoch), _) = last.expect("a checkpoint");
    let told = format!("training ends after step {step}: --max-time of 0.001 s is over");
    assert!(printed.contains(&told), "{again}: no {told}: {printed}");
    if on.is_reproducible() {
        assert_eq!(epoch, 0, "{again} is within an epoch: {printed}");
    }
    let printed = train(&["--max-time", "1h", "--resume"]);
    assert!(printed.contains("resumed from"), "{again}: {printed}");
    let [left, right] = [&again, runs].map(|runs| {
        let manifest = job.manifest(runs);
        ["step", "parameters", "ema"].map(|part| manifest[part].clone())
    });
    match on.is_reproducible() {
        true => assert_eq!(left, right, "{again}"),
        false => assert_eq!(left[0], right[0], "the step of {again}"),
    }
}

/// `find-lr` with abilities of training, which draws `rates/NAME.svg`.
pub fn rate_finder(job: &Job, on: Strategy<'_>) -> Command {
    let mut command = on.command(job, 2);
    command
        .args([
            "--accumulate",
            "2",
            "--freeze",
            "^conv1\\.",
            "--output-rate",
            "3",
        ])
        .args(["find-lr", "--steps", "12", "--svg"])
        .arg(format!("rates/{}.svg", on.name()));
    command
}

/// Runs [`rate_finder`]; returns the loss of each update.
///
/// # Panics
/// It fails, or draws nothing.
pub fn find_learning_rate(job: &Job, on: Strategy<'_>) -> Vec<f64> {
    let printed = succeeds(&mut rate_finder(job, on), TRAINING);
    assert!(printed.contains("the smoothed loss is lowest"), "{printed}");
    let file = job.folder.join("rates").join(on.name());
    let picture = fs::read_to_string(file.with_extension("svg")).expect("a picture");
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    curve(job, on)
}

/// The loss of each update.
fn curve(job: &Job, on: Strategy<'_>) -> Vec<f64> {
    let file = job.folder.join("rates").join(on.name());
    let rows = fs::read_to_string(file.with_extension("csv")).expect("a table");
    let losses = rows.lines().skip(1).map(|row| row.split(',').nth(2));
    losses
        .map(|loss| loss.expect("a loss").parse().expect("a number"))
        .collect()
}

/// Runs [`rate_finder`], after the same on one device.
///
/// # Panics
/// The curve is not that of one device.
pub fn finds_the_rate_of_one_device(job: &Job, on: Strategy<'_>) {
    let losses = find_learning_rate(job, on);
    assert!(losses.len() >= 10, "{losses:?}");
    // The last updates have rates of up to 10, which multiply rounding differences.
    let what = format!("find-lr of {}", on.name());
    let tolerance = on.tolerance(&TOGETHER[0]);
    assert_near(&losses[..8], &curve(job, ONE)[..8], tolerance, &what);
}
