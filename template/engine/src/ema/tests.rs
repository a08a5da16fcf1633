use std::{
    cell::{Cell, RefCell},
    path::Path,
    sync::{Arc, Mutex},
};

use burn::{
    nn::{BatchNorm, BatchNormConfig},
    tensor::Tensor,
};

use super::*;
use crate::{
    checkpoint::{Best, Checkpoint, Checkpoints, Which},
    globals::{self, Registry},
    metric::Mean,
    model::{hash_parameters, parameters, running_statistics},
    optim::{AdamConfig, FlatGradients, Gradients, NonFinite, ScheduledOptimizer},
    options::Options,
    pipeline::Stage,
    strategy::{MirroredStrategy, Strategy},
    task::{ModelAndOptimizer, TrainState},
    test_task::{self, Layers, Line, Points, create_trainable, on_a_thread, replica_step, set_up},
    training::{Callbacks, update_parameters},
};

/// The result of a training.
struct Trained {
    /// The parameters after each update.
    parameters: Vec<Vec<f32>>,
    /// The averaged parameters.
    averages: Vec<f32>,
    /// The hashes of the averaged parameters of each replica.
    hashes: Vec<u64>,
    checkpoint: Checkpoint,
}

impl Trained {
    fn averages_and_parameters(&self) -> (Option<String>, String) {
        let manifest = &self.checkpoint.manifest;
        (manifest.ema.clone(), manifest.parameters.clone())
    }
}

/// Trains `Line` on 40 examples, on a thread of its own, as the registry is per thread.
fn train(output: &Path, words: &[&str]) -> Result<Trained> {
    on_a_thread(output, words, train_here)
}

fn train_here(options: &Options) -> Result<Trained> {
    let strategy = set_up(options)?;
    let datasets = test_task::datasets(options, 40)?;
    let after_updates = Arc::default();
    let record: Arc<Mutex<Vec<Vec<f32>>>> = Arc::clone(&after_updates);
    let callbacks = Callbacks::new().every_steps(1, move |_, _| {
        let first =
            globals::strategy()?.run_on_first(|_| globals::with_model::<Line, _>(parameters))?;
        record.lock().unwrap().push(first);
        Ok(())
    });
    test_task::train(options, &datasets, callbacks, replica_step)?;
    let models = averaged_models(&strategy)?;
    let parameters = after_updates.lock().unwrap().clone();
    Ok(Trained {
        parameters,
        averages: self::parameters(&models[0]),
        hashes: models.iter().map(hash_parameters).collect(),
        checkpoint: Checkpoints::new::<Line>(options).find(&Which::Latest)?,
    })
}

fn averaged_models(strategy: &Arc<dyn Strategy>) -> Result<Vec<Layers>> {
    let of_replica = |replica: &ReplicaContext| Ok(inference_model::<Line>(replica)?.train());
    Ok(strategy.run_on_all(of_replica)?.into_iter().collect())
}

/// The average of the parameters after each update, in `f64`.
fn by_hand(trained: &Trained, decay: impl Fn(usize) -> f64) -> Vec<f64> {
    let mut averages = vec![0.0; trained.averages.len()];
    for (step, parameters) in (1..).zip(&trained.parameters) {
        for (average, value) in averages.iter_mut().zip(parameters) {
            *average = decay(step) * *average + (1.0 - decay(step)) * f64::from(*value);
        }
    }
    averages
}

#[track_caller]
fn assert_close(averages: &[f32], expected: &[f64], most: f64) {
    assert_eq!(averages.len(), expected.len());
    let pairs = averages.iter().zip(expected);
    let distance = pairs.map(|(one, other)| (f64::from(*one) - other).abs());
    let distance = distance.fold(0.0, f64::max);
    assert!(distance <= most, "{distance}");
}

#[test]
fn each_update_counts_once_with_one_batch_or_several() {
    for (words, updates) in [(&[][..], 30), (&["--accumulate", "2"], 15)] {
        let output = tempfile::tempdir().unwrap();
        let base = [
            "--epochs",
            "3",
            "--batch-size",
            "4",
            "--strategy",
            "one-device",
        ];
        let words = [&base, words, &["--ema", "0.7"]].concat();
        let trained = train(output.path(), &words).unwrap();
        assert_eq!(trained.parameters.len(), updates);
        // The first update copies the weights.
        let expected = by_hand(&trained, |step| if step == 1 { 0.0 } else { 0.7 });
        assert_close(&trained.averages, &expected, 1e-6);
        let [.., last] = &trained.parameters[..] else {
            panic!("there are no updates")
        };
        assert_ne!(&trained.averages, last);
    }
}

#[test]
fn three_replicas_average_as_one() {
    let train = |strategy: &[&str]| {
        let output = tempfile::tempdir().unwrap();
        let base = ["--epochs", "3", "--ema", "0.9", "--ema-warmup"];
        train(output.path(), &[&base, strategy].concat()).unwrap()
    };
    let one = train(&["--batch-size", "12", "--strategy", "one-device"]);
    let expected = by_hand(&one, |step| {
        0.9_f64.min(1.0 - (step as f64).powf(-2.0 / 3.0))
    });
    assert_close(&one.averages, &expected, 1e-6);
    let mirrored = [
        "--batch-size",
        "4",
        "--strategy",
        "mirrored",
        "--replicas",
        "3",
    ];
    let three = train(&mirrored);
    let expected: Vec<f64> = one.averages.iter().map(|value| f64::from(*value)).collect();
    assert_close(&three.averages, &expected, 1e-5);
    assert_eq!(three.hashes, [three.hashes[0]; 3]);
    let server = ["--batch-size", "12", "--strategy", "parameter-server"];
    let server = train(&[&server[..], &["--replicas", "1", "--max-staleness", "0"]].concat());
    assert_eq!(server.averages, one.averages);
}

#[test]
fn a_resumed_average_has_the_bits_of_one_that_never_stopped() {
    let base = [
        "--ema",
        "0.95",
        "--batch-size",
        "4",
        "--strategy",
        "mirrored",
    ];
    let base = [&base[..], &["--replicas", "2", "--epochs"]].concat();
    let [whole, parts] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let whole = train(whole.path(), &[&base[..], &["4"]].concat()).unwrap();
    train(parts.path(), &[&base[..], &["2"]].concat()).unwrap();
    let parts = train(parts.path(), &[&base[..], &["4", "--resume"]].concat()).unwrap();
    assert_eq!(parts.averages, whole.averages);
    assert_eq!(
        parts.averages_and_parameters(),
        whole.averages_and_parameters()
    );
    assert!(whole.checkpoint.manifest.ema.is_some());
}

#[test]
fn checkpoints_give_the_averages_or_the_weights_of_the_model() {
    let output = tempfile::tempdir().unwrap();
    let base = ["--batch-size", "4", "--strategy", "one-device"];
    let words = [&base[..], &["--epochs", "2", "--ema", "0.9"]].concat();
    let trained = train(output.path(), &words).unwrap();
    let load = |checkpoint: &Checkpoint| {
        let model = create_trainable(&Device::flex().autodiff()).model().clone();
        Ok::<_, anyhow::Error>(parameters(&checkpoint.load_model(model)?))
    };
    assert_eq!(load(&trained.checkpoint).unwrap(), trained.averages);
    let of_model = trained.checkpoint.with_weights(Some(Weights::Model));
    assert_eq!(Some(&load(&of_model).unwrap()), trained.parameters.last());
}

#[test]
fn an_average_may_begin_with_the_weights_of_a_checkpoint_without_one() {
    let output = tempfile::tempdir().unwrap();
    let base = ["--batch-size", "4", "--strategy", "one-device", "--epochs"];
    // `train` reads the averages, so the first training ends with an error.
    let plain = train(output.path(), &[&base[..], &["1"]].concat());
    let plain = format!("{:#}", plain.err().unwrap());
    assert!(
        plain.contains("this training averages no weights"),
        "{plain}"
    );
    let options = test_task::options(&["--output-dir", &output.path().to_string_lossy()]);
    let checkpoint = Checkpoints::new::<Line>(&options)
        .find(&Which::Latest)
        .unwrap();
    assert_eq!(checkpoint.manifest.ema, None);
    let model = create_trainable(&Device::flex().autodiff()).model().clone();
    let before = parameters(&checkpoint.load_model(model.clone()).unwrap());
    let error = checkpoint
        .with_weights(Some(Weights::Ema))
        .load_model(model);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("no averaged weights (ema.bpk)"), "{error}");
    let more = [&base[..], &["2", "--resume", "--ema", "0.5"]].concat();
    let mut resumed = train(output.path(), &more).unwrap();
    assert_eq!(resumed.parameters.len(), 10);
    resumed.parameters.insert(0, before);
    let expected = by_hand(&resumed, |step| if step == 1 { 0.0 } else { 0.5 });
    assert_close(&resumed.averages, &expected, 1e-6);
}

#[test]
fn options_that_need_an_average_say_so() {
    for words in [&["--ema-warmup"][..], &["--weights", "ema"]] {
        let error = EmaConfig::of(&test_task::options(words)).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains(words[0]) && error.contains("--ema 0.999"),
            "{error}"
        );
    }
}

/// A task whose model has running statistics, and whose updates can be skipped.
struct Normalised;

#[derive(Module, Debug)]
struct Norm {
    norm: BatchNorm,
}

thread_local! {
    static REGISTRY: RefCell<Registry<Normalised>> = RefCell::default();
    static SKIPS: Cell<bool> = const { Cell::new(false) };
}

impl Task for Normalised {
    type Example = f32;
    type Batch = Points;
    type Predictions = Tensor<2>;
    type LossObjects = ();
    type Metrics = Mean;
    type Model = Norm;
    type Trainable = ModelAndOptimizer<Norm>;

    const STAGES: &'static [Stage<Norm, Points>] = &[];
    const BEST: Best = Line::BEST;
    const NON_FINITE: NonFinite = NonFinite::Skip;

    fn with_registry<R>(lend: impl FnOnce(&mut Registry<Self>) -> R) -> R {
        REGISTRY.with_borrow_mut(lend)
    }

    fn forward(model: &Norm, batch: &Points) -> Tensor<2> {
        model.norm.forward(batch.values.clone())
    }

    fn train_loss(predictions: Tensor<2>, _batch: Points) -> Result<Tensor<1>> {
        Ok(predictions.sum())
    }

    fn update_gradients(_gradients: &mut FlatGradients) -> Result<bool> {
        Ok(!SKIPS.get())
    }
}

/// Statistics of a replica: running and averaged ones after each of three updates, of which the second is
/// skipped, and at the end those of the averaged model.
type Statistics = ([Vec<f32>; 3], [Vec<f32>; 3], Vec<f32>);

/// The statistics of a replica that makes three updates.
fn three_updates(replica: &ReplicaContext) -> Result<Statistics> {
    let model = Norm {
        norm: BatchNormConfig::new(2).init(replica.device()),
    };
    let optimizer = ScheduledOptimizer::new(AdamConfig::new().init(), 1e-3);
    globals::register_trainable::<Normalised>(ModelAndOptimizer { model, optimizer });
    let config = EmaConfig {
        decay: 0.75,
        warmup: false,
        evaluated: Weights::Ema,
    };
    globals::with_model::<Normalised, _>(|model| start_from(config, Average::of(model)))?;
    let (mut running, mut averaged) = <([Vec<f32>; 3], [Vec<f32>; 3])>::default();
    for step in 0..3 {
        SKIPS.set(step == 1);
        let model = globals::model::<Normalised>()?;
        let x = (step + 2 * replica.rank()) as f32;
        let batch = Tensor::from_floats([[x, 1.0], [2.0 - x, x * x]], replica.device());
        model.norm.forward::<2>(batch);
        let gradients = FlatGradients::new(&model, Gradients::new())?;
        drop(model);
        let gradients = replica.reduce_gradients(gradients)?;
        replica.update(gradients, update_parameters::<Normalised>)?;
        running[step] = globals::with_model::<Normalised, _>(running_statistics)?;
        averaged[step] = statistics()?;
    }
    let model = inference_model::<Normalised>(replica)?.train();
    Ok((running, averaged, running_statistics(&model)))
}

#[test]
fn each_replica_averages_its_running_statistics_after_updates_that_are_made() {
    let devices = vec![Device::flex(); 2];
    let strategy: Arc<dyn Strategy> = Arc::new(MirroredStrategy::new(devices, None).unwrap());
    let replicas: Vec<_> = strategy
        .run_on_all(three_updates)
        .unwrap()
        .into_iter()
        .collect();
    for (running, averaged, _) in &replicas {
        assert_eq!(averaged[0], running[0], "the first update copies");
        assert_eq!(averaged[1], averaged[0], "the second is skipped");
        let lerp =
            |(average, value): (&f32, &f32)| 0.75 * f64::from(*average) + 0.25 * f64::from(*value);
        let expected: Vec<f64> = averaged[1].iter().zip(&running[2]).map(lerp).collect();
        assert_close(&averaged[2], &expected, 1e-6);
    }
    let [(_, one, model), (_, other, other_model)] = &replicas[..] else {
        panic!("there are two replicas")
    };
    assert_ne!(one[2], other[2]);
    assert_eq!(model, other_model);
    let mean = |(one, other): (&f32, &f32)| (f64::from(*one) + f64::from(*other)) / 2.0;
    let means: Vec<f64> = one[2].iter().zip(&other[2]).map(mean).collect();
    assert_close(model, &means, 1e-6);
}
