//! Abilities under all strategies, with one replica and three: the weights are those of one device, and a resumed
//! training has the bits of one that was not interrupted.

use kiln_tests::{
    idx::idx_data,
    job::{Job, assert_near},
    mpi,
    rendered::Project,
};
use serde_json::Value;

/// Examples of an update.
const GLOBAL_BATCH: usize = 12;

/// Three epochs on small pictures, of five updates each; the last is of half a batch.
const TRAINING: [&str; 4] = ["--data-dir", "small", "train", "--epochs"];

/// Tolerance for weights relative to those of one device.
const EXACT: f64 = 1e-5;

/// The same for products or gradients in bfloat16. Rounding to bfloat16 makes a difference in the last
/// bit of float32 one of 2^-8.
const ROUNDED: f64 = 5e-3;

/// The same where replicas train at their own pace.
const ASYNCHRONOUS: f64 = 0.2;

struct Ability {
    name: &'static str,
    options: &'static [&'static str],
    /// Whether the training ends otherwise than without it.
    changes: bool,
    /// Whether `one-device` has it; the weights are compared with those without it, if not.
    of_one_device: bool,
    tolerance: f64,
}

impl Ability {
    const fn new(name: &'static str, options: &'static [&'static str]) -> Self {
        Ability {
            name,
            options,
            changes: true,
            of_one_device: true,
            tolerance: EXACT,
        }
    }
}

const ABILITIES: &[Ability] = &[
    Ability::new("accumulate", &["--accumulate", "2"]),
    Ability::new("ema", &["--ema", "0.9", "--ema-warmup"]),
    Ability::new("patience", &["--patience", "1", "--min-delta", "9"]),
    Ability::new("init-from", &["--init-from", "initial.safetensors"]),
    Ability::new(
        "limits",
        &["--limit-train", "30", "--limit-validation", "4"],
    ),
    Ability::new("overfit", &["--overfit-batches", "2"]),
    Ability::new("freeze", &["--freeze", "^conv1\\."]),
    Ability {
        tolerance: ROUNDED,
        ..Ability::new("bfloat16", &["--precision", "bfloat16"])
    },
    Ability {
        tolerance: ROUNDED,
        ..Ability::new("float16", &["--precision", "float16"])
    },
    Ability {
        changes: false,
        of_one_device: false,
        tolerance: ROUNDED,
        ..Ability::new("exchange", &["--exchange-precision", "bfloat16"])
    },
    Ability {
        changes: false,
        ..Ability::new("throughput", &["--throughput", "--peak-flops", "1T"])
    },
    Ability {
        changes: false,
        ..Ability::new("anomalies", &["--detect-anomalies"])
    },
];

/// A strategy with the number of processes, and of replicas in each.
type Strategy = (&'static str, usize, usize);

const STRATEGIES: &[Strategy] = &[
    ("mirrored", 1, 1),
    ("mirrored", 1, 3),
    ("model-parallel", 1, 1),
    ("parameter-server", 1, 1),
    ("parameter-server", 1, 3),
    ("multi-worker-mirrored", 1, 3),
    ("multi-worker-mirrored", 3, 1),
    ("parameter-server", 3, 1),
];

/// Replicas of a parameter server push their gradients in any order.
fn is_reproducible((strategy, processes, replicas): Strategy) -> bool {
    strategy != "parameter-server" || processes * replicas == 1
}

/// What a training leaves: the step, and hashes of parameters and averages.
#[derive(PartialEq, Debug)]
struct State([Value; 3]);

#[test]
#[ignore = "long"]
fn abilities_do_not_depend_on_the_strategy() {
    let project = Project::default_answers();
    let job = Job {
        programs: project.build_with_examples(),
        folder: project.path(),
        strategy: "multi-worker-mirrored",
    };
    idx_data(&job.folder.join("small"), 8);
    initial_weights(&job);
    let one = ("one-device", 1, 1);
    let plain = state(&job, &train(&job, &Ability::new("none", &[]), one));
    for ability in ABILITIES {
        let runs = train(&job, ability, one);
        let changed = state(&job, &runs) != plain;
        assert_eq!(changed, ability.changes, "{}", ability.name);
        let expected = job.weights(&runs);
        for strategy in STRATEGIES.iter().filter(|it| it.1 == 1 || mpi::is_there()) {
            let runs = train(&job, ability, *strategy);
            let tolerance = if is_reproducible(*strategy) {
                ability.tolerance
            } else {
                ASYNCHRONOUS
            };
            assert_near(&job.weights(&runs), &expected, tolerance, &runs);
        }
    }
}

/// Weights of a short training with another seed.
fn initial_weights(job: &Job) {
    let other = ["--output-dir", "runs/initial", "--seed", "7"];
    job.runs_alone(&[&TRAINING[..], &["1"], &other].concat());
    let export = ["export", "--output", "initial.safetensors"];
    job.runs_alone(&[&export[..], &other[..2]].concat());
}

/// Trains in one go and with an interruption, and compares their ends. Returns the output folder.
fn train(job: &Job, ability: &Ability, on: Strategy) -> String {
    let (strategy, processes, replicas) = on;
    let runs = format!("runs/{}/{strategy}-{processes}x{replicas}", ability.name);
    let accumulated = if ability.name == "accumulate" { 2 } else { 1 };
    // With a parameter server, each replica makes updates of its own.
    let sharing = match strategy {
        "parameter-server" => 1,
        _ => processes * replicas,
    };
    let batch_size = (GLOBAL_BATCH / accumulated / sharing).to_string();
    let replicas = replicas.to_string();
    let mut options = vec!["--replicas", &replicas, "--batch-size", &batch_size];
    if strategy == "parameter-server" {
        options.extend(["--max-staleness", "0"]);
    }
    let job = Job {
        programs: job.programs.clone(),
        folder: job.folder.clone(),
        strategy,
    };
    let own = match ability.of_one_device || strategy != "one-device" {
        true => ability.options,
        false => &[],
    };
    let run = |epochs: &str, runs: &str, more: &[&str]| {
        let options = [&options[..], own, &["--output-dir", runs]].concat();
        let options = [&options[..], &TRAINING, &[epochs], more].concat();
        match processes {
            1 => job.runs_alone(&[&["--strategy", strategy][..], &options].concat()),
            _ => job.runs(processes, &options),
        };
    };
    run("3", &runs, &[]);
    let interrupted = format!("{runs}-interrupted");
    run("1", &interrupted, &[]);
    run("3", &interrupted, &["--resume"]);
    let [State(left), State(right)] = [&interrupted, &runs].map(|runs| state(&job, runs));
    match is_reproducible(on) {
        true => assert_eq!(left, right, "{runs}"),
        false => assert_eq!(left[0], right[0], "the step of {runs}"),
    }
    runs
}

fn state(job: &Job, runs: &str) -> State {
    let manifest = job.manifest(runs);
    State(["step", "parameters", "ema"].map(|part| manifest[part].clone()))
}
