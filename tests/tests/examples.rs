//! Each worked example compiles without warnings, passes its contract tests and its own, and trains
//! on one replica and on several.

use std::ops::RangeInclusive;

use kiln_tests::{log, rendered::Project, rounds::extremes};

/// How an example is trained, and what comes of it.
struct Training<'a> {
    example: &'a str,
    /// The options of each run.
    runs: &'a [&'a [&'a str]],
    /// A metric of the test, where it must be, and by how much runs may differ in it.
    metric: &'a str,
    range: RangeInclusive<f64>,
    spread: f64,
}

impl Training<'_> {
    fn check(&self) {
        let project = Project::example(self.example);
        project.is_clean("");
        project.cargo(&["test", "--lib", "--test", "*"]);
        let values: Vec<f64> = self
            .runs
            .iter()
            .map(|run| self.run(&project, run))
            .collect();
        println!("{}: {} {values:?}", self.example, self.metric);
        assert!(
            values.iter().all(|value| self.range.contains(value)),
            "{values:?}"
        );
        let (smallest, largest) = extremes(&values);
        assert!(largest - smallest <= self.spread, "{values:?}");
    }

    /// Trains and gives the metric of the test.
    fn run(&self, project: &Project, options: &[&str]) -> f64 {
        let run = ["run", "--", "--output-dir", "runs"];
        project.cargo(&[&run, options].concat());
        let log = log(&project.path().join("runs"));
        let test = log.last().unwrap();
        assert_eq!(test["split"], "test", "{log:?}");
        test[self.metric].as_f64().unwrap()
    }
}

#[test]
#[ignore = "long"]
fn fashion_mnist() {
    Training {
        example: "fashion-mnist",
        runs: &[
            &["--epochs", "6", "--replicas", "1", "--batch-size", "32"],
            &["--epochs", "6", "--replicas", "2", "--batch-size", "16"],
        ],
        metric: "accuracy",
        range: 0.93..=1.0,
        spread: 0.01,
    }
    .check();
}

#[test]
#[ignore = "long"]
fn keras_cnn() {
    Training {
        example: "keras-cnn",
        runs: &[
            &["--epochs", "6", "--replicas", "1"],
            &["--epochs", "6", "--replicas", "3"],
        ],
        metric: "accuracy",
        range: 0.94..=1.0,
        spread: 0.04,
    }
    .check();
}

#[test]
#[ignore = "long"]
fn callbacks() {
    Training {
        example: "callbacks",
        runs: &[
            &["--epochs", "6", "--replicas", "1"],
            &["--epochs", "6", "--replicas", "3"],
        ],
        metric: "accuracy",
        range: 0.94..=1.0,
        spread: 0.04,
    }
    .check();
}

/// A table of how often each byte comes reaches 26.9, and one of pairs of bytes 11.0.
#[test]
#[ignore = "long"]
fn language_model() {
    let accumulated = ["--replicas", "2", "--batch-size", "4", "--accumulate", "2"];
    Training {
        example: "language-model",
        runs: &[
            &["--epochs", "3", "--replicas", "1"],
            &[&["--epochs", "3"], &accumulated[..]].concat(),
        ],
        metric: "perplexity",
        range: 8.0..=10.5,
        spread: 0.01,
    }
    .check();
}

/// With the kernels for the CPU, which debug builds do without.
#[test]
#[ignore = "long"]
fn language_model_in_release() {
    let project = Project::example("language-model");
    project.cargo(&[
        "test",
        "--release",
        "--test",
        "language_model",
        "--test",
        "parity",
    ]);
}

/// The mean absolute error of images that were translated and back again; 0.59 after one update. Networks
/// that play against each other multiply what differs in the last bits: by the seed it is 0.2 to 0.3.
#[test]
#[ignore = "long"]
fn cyclegan() {
    Training {
        example: "cyclegan",
        runs: &[
            &["--epochs", "2", "--replicas", "1", "--batch-size", "12"],
            &["--epochs", "2", "--replicas", "3", "--batch-size", "4"],
        ],
        metric: "error/MAE(X, F(G(X)))",
        range: 0.05..=0.35,
        spread: 0.1,
    }
    .check();
}
