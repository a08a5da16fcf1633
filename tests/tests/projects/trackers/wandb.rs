//! `docs/wandb_import.py` gives Weights & Biases the options, and each number of the logs once.
//!
//! Requires Python and, the first time, the network. Without them, the test is skipped with a
//! message, unless `KILN_REQUIRE_PYTHON` is set.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use kiln_tests::{
    python,
    rendered::Project,
    repository,
    running::{self, TRAINING},
    runs::log_of,
    trainer::Trainer,
};
use serde_json::{Map, Value, json};

/// The version that the files are written with, and read.
const WANDB: &str = "wandb==0.31.0";

/// Values by name, by step.
type Points = BTreeMap<u64, Map<String, Value>>;

/// Fields of logs that are not metrics.
const NOT_METRICS: [&str; 8] = [
    "split",
    "epoch",
    "step",
    "examples",
    "seconds",
    "data_seconds",
    "checkpoint_seconds",
    "flops_complete",
];

#[test]
#[ignore = "long"]
fn each_number_of_the_logs_is_imported_once() {
    let Some(python) = python() else { return };
    let trainer = Trainer::new(&Project::default_answers());
    let options = "--epochs 2 --log-every 10 --throughput train";
    trainer.run("runs/digits", options);
    let tokens = trainer.runs("runs/tokens");
    write_run_on_gpu(&tokens);
    let digits = trainer.runs("runs/digits");
    let runs = import(&python, &trainer.folder, &[&digits, &tokens]);

    assert_eq!(runs.as_object().unwrap().len(), 2, "{runs}");
    check_digits(&runs["digits"], &digits);
    check_run_on_gpu(&runs["tokens"]);
}

/// Of 86 updates on the CPU.
fn check_digits(run: &Value, runs: &Path) {
    assert_eq!(run["ended"], true);
    assert_eq!(run["config"]["epochs"], 2);
    assert_eq!(run["config"]["learning-rate"], 0.002);
    assert_eq!(run["config"]["replicas"], 2);
    let files = run["files"].as_array().unwrap();
    assert!(files.contains(&json!("curves.svg")), "{files:?}");
    let expected = expected(runs);
    let names: Vec<_> = expected.values().flat_map(Map::keys).collect();
    for name in ["loss", "examples_per_second", "data_wait", "memory"] {
        assert!(names.contains(&&format!("step/{name}")), "{names:?}");
    }
    assert_same(&points(run), &expected);
}

/// The points that the logs of a run give, by step.
fn expected(runs: &Path) -> Points {
    let mut points: Points = BTreeMap::new();
    let mut add = |line: &Value, prefix: &str, values: &Value| {
        let point = points.entry(line["step"].as_u64().unwrap()).or_default();
        point.insert("epoch".to_owned(), line["epoch"].clone());
        let values = values.as_object().unwrap().iter();
        let metrics = values.filter(|(name, value)| {
            !NOT_METRICS.contains(&name.as_str()) && !value.is_object() && !value.is_null()
        });
        let named = |(name, value): (&String, &Value)| (format!("{prefix}{name}"), value.clone());
        point.extend(metrics.map(named));
    };
    for line in log_of(&runs.join("steps.jsonl")) {
        add(&line, "step/", &line["losses"]);
        add(&line, "step/learning_rate/", &line["learning_rates"]);
        add(&line, "step/", &line);
    }
    for line in log_of(&runs.join("metrics.jsonl")) {
        let split = line["split"].as_str().unwrap();
        add(&line, &format!("{split}/"), &line);
    }
    points
}

/// The points that were read, by step, without what the package adds.
fn points(run: &Value) -> Points {
    let points = run["points"].as_array().unwrap().iter();
    let points = points.map(|point| {
        let mut point = point.as_object().unwrap().clone();
        let step = point["_step"].as_u64().unwrap();
        point.retain(|name, _| !name.starts_with('_'));
        (step, point)
    });
    let all: Vec<_> = points.collect();
    let count = all.len();
    let by_step = BTreeMap::from_iter(all);
    assert_eq!(by_step.len(), count, "a step has two points");
    by_step
}

/// Programs print the last digit differently, and integers as floats.
#[track_caller]
fn assert_same(points: &Points, expected: &Points) {
    let steps = |points: &Points| points.keys().copied().collect::<Vec<_>>();
    assert_eq!(steps(points), steps(expected));
    let same = |value: &Value, expected: &Value| match (value.as_f64(), expected.as_f64()) {
        (Some(value), Some(expected)) => (value - expected).abs() <= 1e-12 * expected.abs(),
        _ => value == expected,
    };
    for (step, expected) in expected {
        let point = &points[step];
        let names = |point: &Map<String, Value>| point.keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(names(point), names(expected), "step {step}");
        for (name, expected) in expected {
            let value = &point[name];
            assert!(
                same(value, expected),
                "step {step}, {name}: {value}, not {expected}"
            );
        }
    }
}

/// Logs with what a training of digits on the CPU does not have: tokens, memory of a GPU, and numbers that are unknown
/// or not finite.
fn write_run_on_gpu(runs: &Path) {
    let steps = concat!(
        r#"{"epoch":1,"step":5,"losses":{"loss":"NaN"},"learning_rates":{"a":0.1,"b":0.2},"#,
        r#""gradient_norm":"inf","examples_per_second":40.0,"tokens_per_second":2000.0,"#,
        r#""flops_per_second":1e11,"mfu":0.25,"data_wait":0.125,"flops_complete":false,"memory":1000,"#,
        r#""device_memory":3000,"device_memory_in_use":2000}"#,
        "\n",
        r#"{"epoch":1,"step":10,"losses":{},"learning_rates":{"a":0.1},"gradient_norm":null,"#,
        r#""examples_per_second":41.0,"data_wait":0.0,"memory":null}"#,
        "\n",
    );
    let metrics = concat!(
        r#"{"split":"validation","epoch":1,"step":10,"examples":7,"weights":"ema","loss":null,"#,
        r#""perplexity":8.5,"seconds":1.0,"data_seconds":0.0}"#,
        "\n",
    );
    let record = r#"{"options":null,"replicas":3,"git":null}"#;
    fs::create_dir_all(runs).unwrap();
    for (name, text) in [
        ("steps.jsonl", steps),
        ("metrics.jsonl", metrics),
        ("run.json", record),
    ] {
        fs::write(runs.join(name), text).unwrap();
    }
}

fn check_run_on_gpu(run: &Value) {
    let first = json!({
        "epoch": 1,
        "step/loss": "nan",
        "step/learning_rate/a": 0.1,
        "step/learning_rate/b": 0.2,
        "step/gradient_norm": "inf",
        "step/examples_per_second": 40.0,
        "step/tokens_per_second": 2000.0,
        "step/flops_per_second": 1e11,
        "step/mfu": 0.25,
        "step/data_wait": 0.125,
        "step/memory": 1000,
        "step/device_memory": 3000,
        "step/device_memory_in_use": 2000,
    });
    let last = json!({
        "epoch": 1,
        "step/learning_rate/a": 0.1,
        "step/examples_per_second": 41.0,
        "step/data_wait": 0.0,
        "validation/perplexity": 8.5,
    });
    let expected = [(5, first), (10, last)];
    let expected = expected.map(|(step, point)| (step, point.as_object().unwrap().clone()));
    assert_same(&points(run), &expected.into());
    assert_eq!(run["config"]["replicas"], 3);
}

/// A Python with the package; if it is missing, prints that the test is skipped.
fn python() -> Option<PathBuf> {
    match python::with_packages(&WANDB.replace("==", "-"), "wandb", &[WANDB]) {
        Ok(python) => Some(python),
        Err(reason) if env::var_os("KILN_REQUIRE_PYTHON").is_some() => panic!("{reason}"),
        Err(reason) => {
            eprintln!("skipped: {reason}");
            None
        }
    }
}

/// Imports runs in a folder, without a network; returns what the package reads of them.
fn import(python: &Path, folder: &Path, runs: &[&Path]) -> Value {
    let script = |name: &str| {
        let mut command = Command::new(python);
        command
            .current_dir(folder)
            .arg(repository().join(name))
            .env("WANDB_MODE", "offline")
            .env("WANDB_ERROR_REPORTING", "false")
            // No settings of the user.
            .env("HOME", folder);
        command
    };
    let mut import = script("docs/wandb_import.py");
    running::succeeds(import.arg("kiln").args(runs), TRAINING);
    let read = running::succeeds(script("tests/fixtures/read_wandb.py").arg("."), TRAINING);
    serde_json::from_str(&read).expect("JSON")
}
