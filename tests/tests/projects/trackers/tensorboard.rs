//! TensorBoard reads the written values from the event files of a rendered crate.
//!
//! Requires Python and, the first time, the network. Without them, the test is skipped with a
//! message, unless `KILN_REQUIRE_PYTHON` is set.

use std::{env, fs, path::Path, process::Command};

use kiln_tests::{
    python,
    rendered::{Project, text},
    repository,
    running::{self, TRAINING},
    trainer::Trainer,
};
use serde_json::{Value, json};

/// The version of TensorBoard that reads the files.
const TENSORBOARD: &str = "tensorboard==2.20.0";

/// Buckets of a histogram.
const BUCKETS: usize = 30;

#[test]
#[ignore = "long"]
fn tensorboard_reads_what_was_written() {
    let reader = "tensorboard.backend.event_processing.event_accumulator";
    let folder = TENSORBOARD.replace("==", "-");
    let python = match python::with_packages(&folder, reader, &[TENSORBOARD]) {
        Ok(python) => python,
        Err(reason) if env::var_os("KILN_REQUIRE_PYTHON").is_some() => panic!("{reason}"),
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    let project = Project::default_answers();
    let trainer = Trainer::new(&project);
    let folder = trainer.folder.join("events");
    write_events(&project, &folder);
    // Another test compiles meanwhile.
    drop(project);

    let events = read(&python, "read_events.py", &folder.join("run"));

    check_scalars(&events["scalars"]);
    for (name, width, height) in [("gray", 8, 6), ("rgb", 6, 5)] {
        let png = fs::read(folder.join(name).with_extension("png")).unwrap();
        let hex: String = png.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(events["images"][name], json!([[3, width, height, hex]]));
    }
    check_histograms(&events["histograms"]);
    let text = json!({"run": [[3, "**bold** | `ä`\n\nand more"]]});
    assert_eq!(events["texts"], text);
    runs_are_rows_of_hyper_parameters(&python, &trainer);
}

/// Two runs, of which one was continued with more epochs.
fn runs_are_rows_of_hyper_parameters(python: &Path, trainer: &Trainer) {
    trainer.run("runs/one", "--epochs 1 train");
    trainer.run("runs/one", "--epochs 2 --resume train");
    trainer.run("runs/other", "--epochs 1 --learning-rate 0.01 train");
    let rows = read(python, "read_hparams.py", &trainer.runs("runs"));
    assert_eq!(rows.as_object().unwrap().len(), 2, "{rows}");
    for (name, epochs, rate) in [("one", 2.0, 0.002), ("other", 1.0, 0.01)] {
        let row = &rows[format!("{name}/tensorboard")];
        assert_eq!(row["hparams"]["epochs"], epochs, "{rows}");
        assert_eq!(row["hparams"]["learning-rate"], rate, "{rows}");
        assert_eq!(row["hparams"]["strategy"], "mirrored");
        assert_eq!(row["status"], "STATUS_SUCCESS");
        let accuracy = &row["metrics"]["validation/accuracy"];
        assert!(accuracy.as_f64().is_some_and(|value| value > 0.5), "{rows}");
    }
}

/// The JSON that a fixture prints for a folder.
fn read(python: &Path, fixture: &str, folder: &Path) -> Value {
    let mut command = Command::new(python);
    command
        .arg(repository().join("tests/fixtures").join(fixture))
        .arg(folder);
    let output = running::output(&mut command, TRAINING);
    assert!(output.status.success(), "{}", text(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Runs the fixture as an example of the project.
fn write_events(project: &Project, folder: &Path) {
    let examples = project.path().join("examples");
    fs::create_dir_all(&examples).unwrap();
    let fixture = repository().join("tests/fixtures/events.rs");
    fs::copy(fixture, examples.join("events.rs")).unwrap();
    fs::create_dir_all(folder).unwrap();
    let folder = folder.to_str().unwrap();
    project.cargo(&["run", "--example", "events", "--", folder]);
}

/// Steps 0 to 5 were written before the kill, 6 and 7 after it; the lost steps 8 and 9 are absent.
fn check_scalars(scalars: &Value) {
    let kept = (0..6).map(|step| json!([step, 1.0_f32 / (step + 1) as f32]));
    let again = (6..8).map(|step| json!([step, -1.0]));
    let expected: Vec<Value> = kept.chain(again).collect();
    assert_eq!(scalars["loss"], json!(expected));
    assert_eq!(scalars["broken/not_finite"], json!([[4, 2.0]]));
    assert_eq!(scalars.as_object().unwrap().len(), 2, "{scalars}");
}

fn check_histograms(histograms: &Value) {
    let of = |tag: &str| {
        assert_eq!(histograms[tag][0][0], 4, "the step of {tag}");
        histograms[tag][0][1].clone()
    };
    let numbers = |value: &Value| -> Vec<f64> {
        let numbers = value.as_array().unwrap().iter();
        numbers.map(|number| number.as_f64().unwrap()).collect()
    };

    let many = of("many");
    let values: Vec<f64> = (0..1_000)
        .map(|value| f64::from(value * value % 97))
        .collect();
    assert_eq!(many["num"], 1_000.0);
    assert_eq!(many["sum"], values.iter().sum::<f64>());
    assert_eq!(many["max"], 96.0);
    let (limits, counts) = (numbers(&many["bucket_limit"]), numbers(&many["bucket"]));
    assert_eq!(limits.len(), BUCKETS);
    let mut left = f64::NEG_INFINITY;
    for (bucket, right) in limits.into_iter().enumerate() {
        let last = bucket == BUCKETS - 1;
        let inside = |value: &&f64| **value >= left && (**value < right || last);
        let expected = values.iter().filter(inside).count();
        assert_eq!(counts[bucket], expected as f64, "from {left} to {right}");
        left = right;
    }

    let equal = of("equal");
    assert_eq!([&equal["min"], &equal["max"]], [2.5, 2.5]);
    assert_eq!(numbers(&equal["bucket"]), [7.0]);
    assert_eq!(numbers(&of("none")["bucket"]), [0.0; 0]);
    let broken = of("broken");
    assert_eq!(numbers(&broken["bucket"]).iter().sum::<f64>(), 2.0);
    assert_eq!([&broken["min"], &broken["max"]], [1.0, 2.0]);
}
