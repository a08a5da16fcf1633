//! A test for each fault of the original.

#[path = "contract/support.rs"]
#[allow(dead_code)]
mod support;

use std::{cell::RefCell, fs, path::Path, rc::Rc};

use anyhow::{Context, Result, bail, ensure};
use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{Device, Tensor},
};
use clap::Parser;
use kiln_engine::{
    checkpoint::{Checkpoints, Progress, Which},
    data::Shard,
    globals::{merged_metrics, reset_metrics, weights_and_gradients},
    loss::Losses,
    metric::MergedMetric,
    optim::Gradients,
    report::Report,
    training::{CallbackContext, apply_gradients},
};
use support::{Job, difference, on_own_thread, set_up, set_up_replicas};
use training::{
    callbacks::schedule,
    cli::Args,
    dataset::{Examples, create_datasets},
    digits::{CALLBACKS, Digits},
    globals::{self, Project, Split},
    loss::LossObjects,
    model::Model,
    train::{distributed_train_step, train},
    train_callbacks::{StepCallback, TrainCallbacks},
};

/// Change of each parameter by an update, if all gradients of a replica have one value.
fn change(of_replicas: &'static [f32]) -> Result<Vec<f32>> {
    on_own_thread(move || {
        let job = set_up_replicas(of_replicas.len())?;
        let before = job.parameters()?;
        job.strategy.run_on_all(|replica| {
            let mut filled = Filled {
                value: of_replicas[replica.rank()],
                gradients: GradientsParams::new(),
            };
            globals::model()?.visit(&mut filled);
            apply_gradients::<Project>(Gradients::new().with(filled.gradients))
        })?;
        let after = job.parameters()?.into_iter();
        Ok(after
            .zip(before)
            .map(|(after, before)| after - before)
            .collect())
    })
}

struct Filled {
    value: f32,
    gradients: GradientsParams,
}

impl ModuleVisitor for Filled {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().inner().zeros_like().add_scalar(self.value);
        self.gradients.register(param.id, gradient);
    }
}

/// The original clips those of each replica. Here each has a norm above 10, so that clipped ones
/// would add up to a step the other way.
#[test]
fn gradients_are_clipped_after_the_sum_over_replicas() {
    let (three, one) = (change(&[6.0, -2.0, -1.0]).unwrap(), change(&[3.0]).unwrap());
    assert!(three.iter().all(|change| *change < 0.0));
    assert_eq!(three, one);
    // Of a norm of 10, and not of 30, whatever Nadam makes of it.
    assert_eq!(one, change(&[300.0]).unwrap());
}

/// Results of a training step on the first `examples`: the loss, the mean of the losses of the
/// examples, the regularisation terms before it, and the gradients.
fn step(replicas: usize, examples: usize) -> Result<(f32, f32, f32, Vec<f32>)> {
    on_own_thread(move || {
        let job = set_up_replicas(replicas)?;
        let terms = job.strategy.run_on_first(|_| {
            let terms = globals::model()?.losses().into_iter();
            Ok(terms.map(|term| term.into_scalar::<f32>()).sum())
        })?;
        reset_metrics::<Project>(Split::Train)?;
        let losses = distributed_train_step(job.batches(examples, examples)?.remove(0))?;
        let loss = losses.get("loss").context("there is no loss")? as f32;
        let mean = mean_loss()?.value as f32;
        let values = job
            .strategy
            .run_on_first(|_| weights_and_gradients::<Project>())?;
        let gradients = values
            .into_iter()
            .filter(|(name, _)| name.starts_with("gradients/"));
        Ok((
            loss,
            mean,
            terms,
            gradients.flat_map(|(_, values)| values).collect(),
        ))
    })
}

fn mean_loss() -> Result<MergedMetric> {
    let metrics = merged_metrics::<Project>(Split::Train)?;
    metrics.into_iter().next().context("there is no metric")
}

/// The original adds the terms once a replica. Here they count once, also where a replica has no
/// example.
#[test]
fn regularisation_counts_once_on_any_number_of_replicas() {
    for (replicas, examples) in [(1, 12), (3, 12), (4, 3)] {
        let (loss, mean, terms, gradients) = step(replicas, examples).unwrap();
        assert!(terms > 1e-3, "{terms} would not show");
        let counted = loss - mean;
        assert!((counted - terms).abs() < 1e-5, "{counted} and not {terms}");
        let of_one = step(1, examples).unwrap().3;
        assert!(difference(&gradients, &of_one) < 1e-6);
    }
}

/// The original gives each of 3 replicas 8 / 3 = 2 examples, and divides by 8.
#[test]
fn a_batch_that_does_not_divide_is_used_whole() {
    let counted = on_own_thread(|| {
        let job = set_up_replicas(3)?;
        let batch = job.batches(8, 8)?.remove(0);
        let shares: Vec<usize> = batch.iter().map(Shard::len).collect();
        reset_metrics::<Project>(Split::Train)?;
        distributed_train_step(batch)?;
        Ok((shares, mean_loss()?.examples))
    });
    assert_eq!(counted.unwrap(), (vec![2, 3, 3], 8));
    let (three, one) = (step(3, 8).unwrap(), step(1, 8).unwrap());
    assert!((three.0 - one.0).abs() < 1e-5);
    assert!(difference(&three.3, &one.3) < 1e-6);
}

type Notes = Rc<RefCell<Vec<(usize, &'static str)>>>;

/// Calls two callbacks after every second step, and one that fails after the fifth.
struct Noting(Notes);

impl Noting {
    fn note(&self, name: &'static str) -> StepCallback {
        let notes = Rc::clone(&self.0);
        Box::new(move |context, _| {
            notes.borrow_mut().push((context.progress.step, name));
            Ok(())
        })
    }
}

impl TrainCallbacks for Noting {
    fn create_dataset(&self, args: &Args) -> Result<(Examples, Examples)> {
        Digits.create_dataset(args)
    }

    fn create_model(&self, device: &Device) -> Model {
        Digits.create_model(device)
    }

    fn create_loss(&self) -> LossObjects {
        Digits.create_loss()
    }

    fn every_steps(&self) -> Vec<(usize, StepCallback)> {
        vec![(2, self.note("first")), (2, self.note("second"))]
    }

    fn at_step(&self) -> Vec<(usize, StepCallback)> {
        vec![
            (3, self.note("once")),
            (5, Box::new(|_, _| bail!("no more"))),
        ]
    }
}

fn after_step(step: usize) -> CallbackContext {
    let progress = Progress {
        step,
        ..Progress::START
    };
    CallbackContext::after_step(progress, Losses::new())
}

/// The original has a dictionary: of two callbacks for the same number the last one is left.
#[test]
fn all_callbacks_of_a_step_run_in_their_order() {
    let noted = on_own_thread(|| {
        let _job = set_up_replicas(1)?;
        let folder = tempfile::tempdir()?;
        let mut report = Report::new(&args(folder.path(), &[])?.options)?;
        let notes = Notes::default();
        let mut callbacks = schedule(&Noting(Rc::clone(&notes)));
        for step in 1..=4 {
            callbacks.after_step(after_step(step), &mut report)?;
        }
        Ok(notes.take())
    });
    let expected = [
        (2, "first"),
        (2, "second"),
        (3, "once"),
        (4, "first"),
        (4, "second"),
    ];
    assert_eq!(noted.unwrap(), expected);
    let tenth = CALLBACKS
        .every_steps()
        .into_iter()
        .filter(|(steps, _)| *steps == 10);
    assert_eq!(tenth.count(), 2);
}

fn options<'a>(folder: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["--epochs", "1", "--output-dir", folder], more].concat()
}

fn args(folder: &Path, more: &[&str]) -> Result<Args> {
    let folder = folder.to_string_lossy();
    let options = options(&folder, more);
    Ok(Args::try_parse_from(["callbacks"].iter().chain(&options))?)
}

/// Trains as `main` does, and names the checkpoints.
fn trained(more: &'static [&'static str]) -> Result<Vec<String>> {
    on_own_thread(move || {
        let folder = tempfile::tempdir()?;
        let args = args(folder.path(), more)?;
        let job = set_up(&options(&folder.path().to_string_lossy(), more))?;
        let datasets = create_datasets(&args)?;
        train(&args, &datasets, &mut Report::new(&args.options)?)?.context("it was stopped")?;
        ensure_loads(&args, &job)?;
        let entries = fs::read_dir(folder.path().join("checkpoints"))?;
        let name = |entry: std::io::Result<fs::DirEntry>| {
            Ok(entry?.file_name().to_string_lossy().into_owned())
        };
        entries.map(name).collect()
    })
}

/// Makes sure that the latest checkpoint holds the model that was trained.
fn ensure_loads(args: &Args, job: &Job) -> Result<()> {
    let trained = job.parameters()?;
    Checkpoints::new::<Project>(&args.options)
        .find(&Which::Latest)?
        .restore_model::<Project>()?;
    ensure!(
        trained == job.parameters()?,
        "the checkpoint is of another model"
    );
    Ok(())
}

/// The original makes a manager for checkpoints, and no standard callback saves one.
#[test]
fn a_checkpoint_is_saved_by_default() {
    let one = &["--replicas", "1", "--batch-size", "450"];
    assert_eq!(trained(one).unwrap(), ["step-00000003-epoch-1"]);
    let three = &["--replicas", "3", "--batch-size", "150"];
    assert_eq!(trained(three).unwrap(), ["step-00000003-epoch-1"]);
}

#[test]
fn fifty_checkpoints_are_kept() {
    let more = &[
        "--batch-size",
        "1",
        "--steps-per-epoch",
        "55",
        "--checkpoint-steps",
        "1",
    ];
    let mut names = trained(more).unwrap();
    names.sort();
    assert_eq!(names.len(), 50);
    assert_eq!(names[0], "step-00000007");
    assert_eq!(names[49], "step-00000055-epoch-1");
}

/// The original writes an error to its log and returns as if all were well.
#[test]
fn what_is_missing_stops_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = args(folder.path(), &["--data-dir", "no such folder"]).unwrap();
    let error = |result: Result<()>| format!("{:#}", result.unwrap_err());

    // No dataset.
    let found = on_own_thread({
        let args = nowhere.clone();
        move || {
            let _job = set_up_replicas(1)?;
            create_datasets(&args).map(drop)
        }
    });
    assert!(error(found).contains("no such folder"));

    // No checkpoint to evaluate.
    let found = on_own_thread(move || {
        let _job = set_up_replicas(1)?;
        Checkpoints::new::<Project>(&nowhere.options)
            .find_for_all(&Which::Latest)
            .map(drop)
    });
    assert!(error(found).contains("train first"));

    // No model in a step. Where a task defines none it does not compile: `TrainCallbacks` shows it.
    let found = on_own_thread(|| globals::model().map(drop));
    assert!(error(found).contains("create_model_and_optimizer"));

    // A callback that fails.
    let found = on_own_thread(|| {
        let _job = set_up_replicas(1)?;
        let folder = tempfile::tempdir()?;
        let mut report = Report::new(&args(folder.path(), &[])?.options)?;
        schedule(&Noting(Notes::default())).after_step(after_step(5), &mut report)
    });
    assert_eq!(error(found), "no more");
}
