use std::{cell::RefCell, rc::Rc};

use indexmap::IndexMap;
use serde_json::json;

use super::*;
use crate::{
    globals,
    report::Report,
    run_record::OptionRecord,
    test_task::{self, Line, set_up, train_step},
    training::{Callbacks, Training, apply_gradients},
};

/// Notes the calls.
#[derive(Clone, Default)]
struct Notes(Rc<RefCell<Vec<String>>>);

impl Notes {
    fn note(&self, text: String) -> Result<()> {
        self.0.borrow_mut().push(text);
        Ok(())
    }
}

impl Tracker for Notes {
    fn connect(&mut self, resumes: bool) -> Result<()> {
        self.note(format!("connect {resumes}"))
    }

    fn start(&mut self, run: &StartedRun<'_>) -> Result<()> {
        self.note(format!("start {} at step {}", run.name, run.step))
    }

    fn metrics(&mut self, split: Split, step: usize, metrics: &[MergedMetric]) -> Result<()> {
        let names: Vec<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
        self.note(format!("{} {step} {}", split.name(), names.join(" ")))
    }

    fn scalar(&mut self, step: usize, tag: &str, _: f64) -> Result<()> {
        self.note(format!("{tag} {step}"))
    }

    fn finish(&mut self, run: &EndedRun) -> Result<()> {
        let names = run.files.iter().filter_map(|file| file.file_name());
        let names: Vec<_> = names.map(|name| name.to_string_lossy()).collect();
        self.note(format!("{:?} {}", run.outcome, names.join(" ")))
    }
}

#[test]
fn a_projects_tracker_follows_the_training() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("first");
    let output = output.to_str().unwrap();
    let options = ["--output-dir", output, "--epochs", "1", "--log-every", "1"];
    let options = test_task::options(&[&options[..], &["--batch-size", "8"]].concat());
    set_up(&options).unwrap();
    let datasets = test_task::datasets(&options, 8).unwrap();
    let notes = Notes::default();
    let mut report = Report::new(&options).unwrap();
    let callbacks = Callbacks::new().tracker(notes.clone());
    let mut training =
        Training::<Line>::start(&options, &datasets, &mut report, callbacks).unwrap();
    let inputs = training.begin_epoch().next().unwrap();
    let step = |inputs| {
        globals::strategy()?.train(inputs, |shard| {
            let (losses, gradients) = train_step(shard.load()?.expect("a batch"))?;
            apply_gradients::<Line>(gradients)?;
            Ok(losses)
        })
    };
    assert!(training.step(inputs, step).unwrap());
    let validation = IndexMap::from([("loss".to_owned(), 0.5)]);
    training.end_epoch(|_, _, _| Ok(Some(validation))).unwrap();
    training.end().unwrap();
    report.scalar(1, "own", 1.0).unwrap();
    drop(report);
    let notes = notes.0.take();
    let expected = ["connect false", "start first at step 0", "step/loss 1"];
    assert_eq!(notes[..3], expected);
    let expected = [
        "train 1 loss",
        "own 1",
        "Finished run.json metrics.jsonl steps.jsonl curves.svg",
    ];
    let rest: Vec<&String> = notes[3..]
        .iter()
        .filter(|note| !note.starts_with("step/") && !note.starts_with("learning_rate"))
        .collect();
    assert_eq!(rest, expected);
}

#[test]
fn a_training_that_fails_says_so_and_one_that_never_starts_says_nothing() {
    let notes = Notes::default();
    let folder = tempfile::tempdir().unwrap();
    let mut trackers = Trackers::none(folder.path());
    trackers
        .connect(vec![Box::new(notes.clone())], false)
        .unwrap();
    drop(trackers);
    assert_eq!(notes.0.take(), ["connect false"]);
    let mut trackers = Trackers::none(folder.path());
    trackers.all.push(Box::new(notes.clone()));
    trackers
        .log(|tracker| tracker.scalar(1, "of a test alone", 0.0))
        .unwrap();
    trackers
        .start(&StartedRun {
            name: "runs".to_owned(),
            folder: folder.path(),
            parameters: Vec::new(),
            record: &RunRecord::default(),
            resumes: false,
            step: 0,
            first_step: 0,
        })
        .unwrap();
    drop(trackers);
    assert_eq!(notes.0.take(), ["start runs at step 0", "Failed "]);
}

#[test]
fn parameters_are_the_options_that_change_results() {
    let record = |value: Value| OptionRecord {
        value,
        ..OptionRecord::default()
    };
    let run = RunRecord {
        options: Some(IndexMap::from([
            ("--learning-rate".to_owned(), record(json!(0.002))),
            ("--replicas".to_owned(), record(json!(null))),
            ("--patience".to_owned(), record(json!(null))),
            ("--output-dir".to_owned(), record(json!("runs"))),
            ("test --checkpoint".to_owned(), record(json!("best"))),
        ])),
        replicas: Some(2),
        global_batch_size: Some(32),
        ..RunRecord::default()
    };
    let expected = [
        ("learning-rate", json!(0.002)),
        ("replicas", json!(2)),
        ("global-batch-size", json!(32)),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value));
    assert_eq!(parameters(&run), expected);
}

#[test]
fn nothing_is_tracked_by_mlflow_unless_asked() {
    assert!(mlflow(&test_task::options(&[])).unwrap().is_none());
    let asked = mlflow(&test_task::options(&["--mlflow", "http://localhost:1"]));
    match cfg!(feature = "mlflow") {
        true => assert!(asked.unwrap().is_some()),
        false => {
            let error = asked.err().unwrap().to_string();
            assert!(error.contains("`--features mlflow`"), "{error}");
        }
    }
}
