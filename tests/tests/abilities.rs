//! Abilities under all strategies, several in one training, with one replica and three. The weights are those of one
//! device, where leaving out any ability changes them. From the `run.toml` of a training alone, one that is stopped
//! by a time limit within an epoch and resumed has the same bits.

use std::{collections::BTreeSet, fs, process::Command};

use kiln_tests::{
    idx::idx_data,
    job::{Job, assert_near, fails, largest_difference},
    log, mlflow, mpi, parallel,
    pytorch::rename_layer,
    rendered::Project,
    running::{self, succeeds},
    runs::{checkpoints, log_of},
};
use serde_json::Value;

/// Examples of an update.
const GLOBAL_BATCH: usize = 12;

/// Three epochs on small pictures, of at most five updates each; the last is of half a batch.
const EPOCHS: [&str; 4] = ["--data-dir", "small", "--epochs", "3"];

/// Tolerance for weights and losses relative to those of one device.
const EXACT: f64 = 1e-5;

/// The same for products or gradients in 16 bits. Rounding to bfloat16 makes a difference in the last bit of float32
/// one of 2^-8.
const ROUNDED: f64 = 5e-3;

/// The same where replicas train at their own pace.
const ASYNCHRONOUS: f64 = 0.2;

/// The weights and biases of the first layer, which `--freeze` freezes.
const FROZEN: usize = 32 * 9 + 32;

/// The weights and biases of the last layer, which the file of `--init-partial` lacks.
const LACKING: usize = 64 * 4 * 4 * 10 + 10;

/// Abilities of one training.
struct Abilities {
    name: &'static str,
    /// Options of each ability, without which the training ends elsewhere.
    change: &'static [&'static [&'static str]],
    /// Options that change nothing under `one-device`, which refuses `--exchange-precision`.
    keep: &'static [&'static str],
    tolerance: f64,
}

const TOGETHER: [Abilities; 3] = [
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
        tolerance: EXACT,
    },
    Abilities {
        name: "bfloat16",
        change: &[
            &["--precision", "bfloat16"],
            &["--patience", "1", "--min-delta", "9"],
            &["--output-rate", "0.1"],
        ],
        keep: &["--exchange-precision", "bfloat16"],
        tolerance: ROUNDED,
    },
    Abilities {
        name: "float16",
        change: &[
            &["--precision", "float16"],
            &["--overfit-batches", "2"],
            &["--init-from", "initial.safetensors"],
        ],
        keep: &[],
        tolerance: ROUNDED,
    },
];

/// A strategy with the number of processes, and of replicas in each.
#[derive(Clone, Copy)]
struct Strategy(&'static str, usize, usize);

const ONE: Strategy = Strategy("one-device", 1, 1);

const STRATEGIES: [Strategy; 10] = [
    // The slowest first, so that no core waits at the end.
    Strategy("multi-worker-mirrored", 3, 1),
    Strategy("parameter-server", 3, 1),
    Strategy("mirrored", 1, 1),
    Strategy("mirrored", 1, 3),
    Strategy("model-parallel", 1, 1),
    Strategy("model-parallel", 1, 3),
    Strategy("parameter-server", 1, 1),
    Strategy("parameter-server", 1, 3),
    Strategy("multi-worker-mirrored", 1, 1),
    Strategy("multi-worker-mirrored", 1, 3),
];

impl Strategy {
    fn is_server(self) -> bool {
        self.0 == "parameter-server"
    }

    /// Replicas of a parameter server push their gradients in any order.
    fn is_reproducible(self) -> bool {
        !self.is_server() || self.1 * self.2 == 1
    }

    fn name(self) -> String {
        format!("{}-{}x{}", self.0, self.1, self.2)
    }

    /// The program, with options given by a configuration alone.
    fn program(self, job: &Job) -> Command {
        match self.1 {
            1 => job.alone(),
            processes => {
                let mut command = mpi::run(processes);
                command.arg(job.programs.join("program"));
                command.current_dir(&job.folder);
                command
            }
        }
    }

    /// The program, with the options of a global batch in so many parts per replica.
    fn command(self, job: &Job, accumulated: usize) -> Command {
        // With a parameter server, each replica makes updates of its own.
        let sharing = if self.is_server() { 1 } else { self.1 * self.2 };
        let batch_size = GLOBAL_BATCH / accumulated / sharing;
        let mut command = self.program(job);
        command
            .args(["--strategy", self.0, "--replicas", &self.2.to_string()])
            .args(["--batch-size", &batch_size.to_string()])
            .args(EPOCHS);
        if self.is_server() {
            command.args(["--max-staleness", "0"]);
        }
        command
    }
}

#[test]
#[ignore = "long"]
fn abilities_do_not_depend_on_the_strategy() {
    let project = Project::to_edit();
    add_a_group(&project);
    let job = Job {
        programs: project.build_in_debug(),
        folder: project.path(),
        strategy: "",
    };
    idx_data(&job.folder.join("small"), 8);
    fs::create_dir(job.folder.join("rates")).unwrap();
    initial_weights(&job);
    missing_weights_keep_their_values(&job);
    each_ability_changes_the_training(&job);
    let server = mlflow::Server::start();
    let all = STRATEGIES.iter().filter(|it| it.1 == 1 || mpi::is_there());
    let all: Vec<(Strategy, Option<&Abilities>)> = all
        .flat_map(|strategy| {
            let together = TOGETHER.iter().map(Some);
            together.chain([None]).map(|one| (*strategy, one))
        })
        .collect();
    find_learning_rate(&job, ONE);
    parallel::for_each(&all, |(strategy, together)| match together {
        Some(together) => is_as_on_one_device(&job, together, *strategy, &server),
        None if strategy.is_server() => finding_a_rate_is_refused(&job, *strategy),
        None => finds_the_rate_of_one_device(&job, *strategy),
    });
    assert_eq!(server.created(), all.len() / 4, "runs of the server");
}

/// A learning rate of the last layer, as a group of parameters.
fn add_a_group(project: &Project) {
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

/// Weights of a short training with another seed, and a file without those of the last layer.
fn initial_weights(job: &Job) {
    let other = ["--output-dir", "runs/initial", "--seed", "7"];
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

/// Of layers that are frozen, a training keeps the initial values: those of the file, or, for weights that the file
/// lacks, those of a training without it.
fn missing_weights_keep_their_values(job: &Job) {
    let kept = |runs: &str, from: &[&str]| {
        let mut command = ONE.command(job, 1);
        command.args(["--freeze", "^conv1\\.", "--freeze", "^output\\."]);
        command.args(["--output-dir", runs, "train"]).args(from);
        let printed = succeeds(&mut command, running::TRAINING);
        (printed, job.weights(runs))
    };
    let (_, initial) = kept("runs/kept/without", &[]);
    let (printed, partial) = kept("runs/kept/partial", TOGETHER[0].change[5]);
    for line in ["matched    4 of the 6 weights", "missing    2: `output."] {
        assert!(printed.contains(line), "no {line}: {printed}");
    }
    let (len, trained) = (initial.len(), job.weights("runs/initial"));
    assert_eq!(partial[len - LACKING..], initial[len - LACKING..]);
    assert_eq!(partial[..FROZEN], trained[..FROZEN]);
    assert_ne!(partial[..FROZEN], initial[..FROZEN]);
}

/// Trains on one device with all abilities of each list, and without each.
fn each_ability_changes_the_training(job: &Job) {
    let train = |together: &Abilities, without: usize, runs: &str| {
        let mut command = ONE.command(job, accumulated(together));
        for (place, options) in together.change.iter().enumerate() {
            command.args(if place == without {
                [].as_slice()
            } else {
                *options
            });
        }
        succeeds(
            command.args(["--output-dir", runs, "train"]),
            running::TRAINING,
        );
    };
    let all: Vec<(&Abilities, usize)> = TOGETHER
        .iter()
        .flat_map(|together| (0..=together.change.len()).map(move |without| (together, without)))
        .collect();
    parallel::for_each(&all, |(together, without)| {
        train(together, *without, &on_one_device(together, *without));
    });
    parallel::for_each(&all, |(together, without)| {
        let Some(options) = together.change.get(*without) else {
            return;
        };
        let whole = on_one_device(together, together.change.len());
        let runs = on_one_device(together, *without);
        // Rounded products change the bits alone.
        let least = match options[0] {
            "--precision" => 0.0,
            _ => 2.0 * together.tolerance,
        };
        let difference = difference(&results(job, &whole), &results(job, &runs));
        assert!(
            difference > least,
            "{runs}: {options:?} changes {difference:e}"
        );
    });
}

/// The output folder of a training on one device, which lacks an ability, or none.
fn on_one_device(together: &Abilities, without: usize) -> String {
    match together.change.get(without) {
        Some(options) => format!("runs/{}/without{}", together.name, options[0]),
        None => format!("runs/{}/one-device", together.name),
    }
}

/// The number of batches in an update.
fn accumulated(together: &Abilities) -> usize {
    let accumulates = together.change.iter().any(|it| it[0] == "--accumulate");
    if accumulates { 2 } else { 1 }
}

/// The weights and the losses of all validations, which are of the averaged weights, if any.
fn results(job: &Job, runs: &str) -> Vec<f64> {
    let log = job.log(runs);
    let validations = log.iter().filter(|line| line["split"] == "validation");
    let losses = validations.map(|line| line["loss"].as_f64().unwrap());
    losses.chain(job.weights(runs)).collect()
}

/// The largest difference between results; trainings of other lengths differ in any case.
fn difference(one: &[f64], other: &[f64]) -> f64 {
    match one.len() == other.len() {
        true => largest_difference(one, other),
        false => f64::INFINITY,
    }
}

fn is_as_on_one_device(job: &Job, together: &Abilities, on: Strategy, server: &mlflow::Server) {
    let runs = format!("runs/{}/{}", together.name, on.name());
    let mut command = on.command(job, accumulated(together));
    command.args(together.change.iter().flat_map(|options| *options));
    command
        .args(together.keep)
        .args(["--output-dir", &runs, "train"]);
    let is_tracked = together.keep.is_empty();
    if is_tracked {
        command.args(["--log-every", "1", "--mlflow", server.uri()]);
    }
    let printed = succeeds(&mut command, running::TRAINING);
    let whole = on_one_device(together, together.change.len());
    let [expected, reached] = [&whole, &runs].map(|runs| results(job, runs));
    if on.is_reproducible() {
        assert_near(&reached, &expected, together.tolerance, &runs);
    } else {
        let [expected, reached] = [&whole, &runs].map(|runs| job.weights(runs));
        assert_near(&reached, &expected, ASYNCHRONOUS, &runs);
    }
    // A pipeline sums the parts of a batch, and replicas of a server round what they exchange.
    let rounds = on.0 == "model-parallel" || on.is_server() && together.name == "bfloat16";
    if on.1 * on.2 == 1 && !rounds {
        assert_eq!(
            reached, expected,
            "{runs}: one replica has the bits of one device"
        );
    }
    goes_on_to_the_same_bits(job, on, &runs);
    match together.name {
        "float32" => {
            assert!(printed.contains("missing    2: `output."), "{printed}");
            let trained = job.weights("runs/initial");
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
    if is_tracked {
        is_on_the_server_once(job, &runs, server);
    }
}

/// Trains as in `run.toml`, is stopped by a time limit within an epoch, and resumed.
fn goes_on_to_the_same_bits(job: &Job, on: Strategy, runs: &str) {
    let (file, again) = (format!("{runs}/run.toml"), format!("{runs}-again"));
    let train = |more: &[&str]| {
        let mut command = on.program(job);
        command.args(["--config", &file, "--output-dir", &again, "train"]);
        succeeds(command.args(more), running::TRAINING)
    };
    let printed = train(&["--max-time", "0.001s"]);
    let (step, epoch) = *checkpoints(&job.folder.join(&again))
        .keys()
        .next_back()
        .unwrap();
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

/// One process created a run and sent each point of its logs once.
fn is_on_the_server_once(job: &Job, runs: &str, server: &mlflow::Server) {
    let folder = job.folder.join(runs);
    let file = fs::read_to_string(folder.join("mlflow.json")).unwrap();
    let identity: Value = serde_json::from_str(&file).unwrap();
    let run = server.run(identity["run_id"].as_str().unwrap());
    assert_eq!(run.status, "FINISHED", "{runs}: {run:?}");
    let points: BTreeSet<&(String, u64)> = run.points.iter().collect();
    assert_eq!(points.len(), run.points.len(), "{runs}: {run:?}");
    let has = |name: &str, line: &Value| {
        let point = (name.to_owned(), line["step"].as_u64().unwrap());
        assert!(points.contains(&point), "{runs} lacks {point:?}: {run:?}");
    };
    for line in log(&folder) {
        has(&format!("{}/loss", line["split"].as_str().unwrap()), &line);
    }
    for line in log_of(&folder.join("steps.jsonl")) {
        // A parameter server does not know the loss of each step.
        has("step/learning_rate/optimizer", &line);
    }
}

/// `find-lr` with abilities of training, without its first words.
fn rate_finder(job: &Job, on: Strategy) -> Command {
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

fn find_learning_rate(job: &Job, on: Strategy) -> Vec<f64> {
    let printed = succeeds(&mut rate_finder(job, on), running::TRAINING);
    assert!(printed.contains("the smoothed loss is lowest"), "{printed}");
    let file = job.folder.join("rates").join(on.name());
    let picture = fs::read_to_string(file.with_extension("svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    curve(job, on)
}

/// The loss of each update.
fn curve(job: &Job, on: Strategy) -> Vec<f64> {
    let file = job.folder.join("rates").join(on.name());
    let rows = fs::read_to_string(file.with_extension("csv")).unwrap();
    let losses = rows
        .lines()
        .skip(1)
        .map(|row| row.split(',').nth(2).unwrap());
    losses.map(|loss| loss.parse().unwrap()).collect()
}

fn finds_the_rate_of_one_device(job: &Job, on: Strategy) {
    let losses = find_learning_rate(job, on);
    assert!(losses.len() >= 10, "{losses:?}");
    // The last updates have rates of up to 10, which multiply rounding differences.
    let what = format!("find-lr of {}", on.name());
    assert_near(&losses[..8], &curve(job, ONE)[..8], EXACT, &what);
}

fn finding_a_rate_is_refused(job: &Job, on: Strategy) {
    let message = "`find-lr` needs the loss of each update before the next one";
    fails(
        &mut rate_finder(job, on),
        &[message, "use another --strategy"],
    );
    let picture = job
        .folder
        .join("rates")
        .join(on.name())
        .with_extension("svg");
    assert!(!picture.exists());
}
