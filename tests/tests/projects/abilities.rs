//! Abilities under all strategies, several in one training, with one replica and three; `tests/remote.rs` has those
//! under `remote`. The weights are those of one device, where leaving out any ability changes them. From the `run.toml`
//! of a training alone, one that is stopped by a time limit within an epoch and resumed has the same bits.

use std::{collections::BTreeSet, fs};

use kiln_tests::{
    abilities::{
        self, Abilities, FROZEN, INITIAL, ONE, Strategy, TOGETHER, find_learning_rate,
        finds_the_rate_of_one_device, is_as_on_one_device, rate_finder, results,
    },
    job::{Job, fails, largest_difference},
    log, mlflow, mpi, parallel,
    rendered::Project,
    running::{self, succeeds},
    runs::log_of,
};
use serde_json::Value;

/// The weights and biases of the last layer, which the file of `--init-partial` lacks.
const LACKING: usize = 64 * 4 * 4 * 10 + 10;

/// The abilities of trainings that a server of MLflow records.
const TRACKED: &str = "float16";

const STRATEGIES: [Strategy<'_>; 10] = [
    // The slowest first, so that no core waits at the end.
    Strategy::new("multi-worker-mirrored", 3, 1),
    Strategy::new("parameter-server", 3, 1),
    Strategy::new("mirrored", 1, 1),
    Strategy::new("mirrored", 1, 3),
    Strategy::new("model-parallel", 1, 1),
    Strategy::new("model-parallel", 1, 3),
    Strategy::new("parameter-server", 1, 1),
    Strategy::new("parameter-server", 1, 3),
    Strategy::new("multi-worker-mirrored", 1, 1),
    Strategy::new("multi-worker-mirrored", 1, 3),
];

#[test]
#[ignore = "long"]
fn abilities_do_not_depend_on_the_strategy() {
    let project = Project::to_edit();
    abilities::add_a_group(&project);
    let job = Job::of(&project, &["weights"], "");
    let _folder = project.unlock();
    abilities::prepare(&job);
    missing_weights_keep_their_values(&job);
    each_ability_changes_the_training(&job);
    let server = mlflow::Server::start();
    let all = STRATEGIES
        .iter()
        .filter(|it| it.processes == 1 || mpi::is_there());
    let all: Vec<(Strategy<'_>, Option<&Abilities>)> = all
        .flat_map(|strategy| {
            let together = TOGETHER.iter().map(Some);
            together.chain([None]).map(|one| (*strategy, one))
        })
        .collect();
    find_learning_rate(&job, ONE);
    parallel::for_each(&all, |(strategy, together)| match together {
        Some(together) => trains_as_on_one_device(&job, together, *strategy, &server),
        None if strategy.is_server() => finding_a_rate_is_refused(&job, *strategy),
        None => finds_the_rate_of_one_device(&job, *strategy),
    });
    assert_eq!(server.created(), all.len() / 4, "runs of the server");
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
    let (len, trained) = (initial.len(), job.weights(INITIAL));
    assert_eq!(partial[len - LACKING..], initial[len - LACKING..]);
    assert_eq!(partial[..FROZEN], trained[..FROZEN]);
    assert_ne!(partial[..FROZEN], initial[..FROZEN]);
}

/// Trains on one device with all abilities of each list, and without each.
fn each_ability_changes_the_training(job: &Job) {
    let all: Vec<(&Abilities, Option<usize>)> = TOGETHER
        .iter()
        .flat_map(|together| {
            let places = (0..together.change.len()).map(Some);
            places.chain([None]).map(move |without| (together, without))
        })
        .collect();
    parallel::for_each(&all, |(together, without)| {
        together.train_on_one_device(job, *without);
    });
    parallel::for_each(&all, |(together, without)| {
        let Some(place) = without else {
            return;
        };
        let options = together.change[*place];
        let [whole, runs] = [None, *without].map(|without| together.on_one_device(without));
        // Rounded products change the bits alone.
        let least = match options[0] {
            "--precision" => 0.0,
            _ => 2.0 * together.on_servers,
        };
        let difference = difference(&results(job, &whole), &results(job, &runs));
        assert!(
            difference > least,
            "{runs}: {options:?} changes {difference:e}"
        );
    });
}

/// The largest difference between results; trainings of other lengths differ in any case.
fn difference(one: &[f64], other: &[f64]) -> f64 {
    match one.len() == other.len() {
        true => largest_difference(one, other),
        false => f64::INFINITY,
    }
}

/// Trains, with a run on the server for one of the lists.
fn trains_as_on_one_device(
    job: &Job,
    together: &Abilities,
    on: Strategy<'_>,
    server: &mlflow::Server,
) {
    if together.name == TRACKED {
        let tracked = ["--log-every", "1", "--mlflow", server.uri()];
        let runs = is_as_on_one_device(job, together, on, &tracked);
        is_on_the_server_once(job, &runs, server);
    } else {
        is_as_on_one_device(job, together, on, &[]);
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

fn finding_a_rate_is_refused(job: &Job, on: Strategy<'_>) {
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
