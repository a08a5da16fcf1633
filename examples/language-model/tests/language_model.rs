//! Properties of a language model, and of the options of this one.

use std::fs;

use anyhow::{Context, Result, ensure};
use burn::{
    module::Module,
    optim::lr_scheduler::module_lr_scheduler::ModuleLrScheduler,
    tensor::{Device, Int, Tensor, TensorData},
};
use clap::Parser;
use kiln_engine::{
    TrainState,
    globals::update_trainable,
    metric::{Metric, Perplexity},
    model::{lock_generator, named_parameters},
    optim::{FlatGradients, Gradients},
};
use training::{
    cli::Args,
    dataset::read_examples,
    globals::{self, Project},
    infer::{
        cut,
        sample::{Settings, sample},
    },
    loss::create_loss_objects,
    metric::next_byte_accuracy,
    model::{Model, create_schedule},
    train::{distributed_train_step, train_step},
};

#[allow(dead_code)]
#[path = "contract/support.rs"]
mod support;

use support::{difference, on_own_thread, set_up, values};

fn args(options: &[&str]) -> Args {
    Args::try_parse_from(["test"].iter().chain(options)).unwrap()
}

fn model() -> Model {
    let device = Device::flex();
    // Burn's CPU generator is global, and tests run in parallel. Weights are drawn when they are first read.
    let _generator = lock_generator();
    device.seed(1);
    let model = Model::new(&args(&["--context", "16"]), &device);
    named_parameters(&model);
    model
}

/// The logits `[time, 256]` for each byte that follows one of `text`.
fn logits(model: &Model, text: &[u8]) -> Vec<f32> {
    let bytes: Vec<i32> = text.iter().map(|byte| i32::from(*byte)).collect();
    let data = TensorData::new(bytes, [1, text.len()]);
    let device = Device::flex();
    values(&model.logits(Tensor::<2, Int>::from_data(data, &device)))
}

#[test]
fn a_position_does_not_see_those_after_it() {
    let model = model();
    let (one, other) = (
        logits(&model, b"To be, or not"),
        logits(&model, b"To be, or NOT"),
    );
    let same = 10 * 256;
    assert!(difference(&one[..same], &other[..same]) < 1e-6);
    assert!(difference(&one[same..], &other[same..]) > 1e-4);
    let short = logits(&model, b"To be");
    assert!(difference(&short, &one[..short.len()]) < 1e-5);
}

/// The gradients of the first batch, by parameter.
fn gradients(options: &'static [&'static str]) -> Result<Vec<(String, Vec<f32>)>> {
    on_own_thread(move || {
        let fixed = ["--strategy=mirrored", "--replicas=1", "--context=32"];
        let job = set_up(&[&fixed, options].concat())?;
        job.with_batch(4, |batch| {
            let (_, gradients) = train_step(batch)?;
            Ok(FlatGradients::new(&globals::model()?, gradients)?.to_named())
        })
    })
}

#[test]
fn gradient_checkpointing_changes_no_gradient() -> Result<()> {
    let kept = gradients(&["--precision=float32"])?;
    let computed = gradients(&["--precision=float32", "--gradient-checkpointing"])?;
    for ((name, kept), (_, computed)) in kept.iter().zip(&computed) {
        assert!(kept.iter().any(|value| *value != 0.0), "{name}");
        // Under gradient checkpointing, the operations of Burn take the place of the engine's layers.
        assert!(difference(kept, computed) <= 1e-6, "{name}");
    }
    Ok(())
}

/// The product of two gradients.
fn product(one: &[f32], other: &[f32]) -> f64 {
    let pairs = one.iter().zip(other);
    pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

#[test]
fn gradients_in_bfloat16_are_near_those_in_float32() -> Result<()> {
    let exact = gradients(&["--precision=float32"])?;
    for more in [
        &["--precision=bfloat16"][..],
        &["--precision=bfloat16", "--gradient-checkpointing"],
    ] {
        let rounded = gradients(more)?;
        assert_eq!(rounded.len(), exact.len());
        assert!(rounded != exact, "nothing is rounded");
        for ((name, exact), (_, rounded)) in exact.iter().zip(&rounded) {
            let norms = [exact, rounded].map(|one| product(one, one).sqrt());
            let cosine = product(exact, rounded) / (norms[0] * norms[1]);
            println!("{name}: the cosine is {cosine}");
            assert!(cosine >= 0.999, "{name}: the cosine is {cosine}");
            // A bfloat16 has 8 bits of precision.
            let ratio = norms[1] / norms[0];
            assert!((ratio - 1.0).abs() < 0.01, "{name}: {ratio} times as long");
        }
    }
    Ok(())
}

#[test]
fn each_job_has_the_data_of_its_options() -> Result<()> {
    for context in [64, 32, 64] {
        let read = on_own_thread(move || {
            let option = format!("--context={context}");
            let job = set_up(&["--strategy=one-device", &option])?;
            job.with_batch(4, |batch| Ok(batch.features.dims()))
        })?;
        assert_eq!(read, [4, context]);
    }
    Ok(())
}

#[test]
fn stages_train_to_the_weights_of_the_whole_model() -> Result<()> {
    let trained = |options: &'static [&'static str]| {
        on_own_thread(move || {
            let job = set_up(options)?;
            for _ in 0..3 {
                for batch in job.batches(20, 10)? {
                    distributed_train_step(batch)?;
                }
            }
            let model = job
                .strategy
                .run_on_first(|_| Ok(named_parameters(&globals::model()?)))?;
            Ok(model
                .into_iter()
                .flat_map(|(_, values)| values)
                .collect::<Vec<_>>())
        })
    };
    let whole = trained(&[
        "--strategy=one-device",
        "--precision=float32",
        "--gradient-checkpointing",
    ])?;
    let staged = trained(&[
        "--strategy=model-parallel",
        "--precision=float32",
        "--replicas=1",
        "--micro-batches=3",
        "--gradient-checkpointing",
    ])?;
    assert!(difference(&whole, &staged) < 1e-5);
    Ok(())
}

fn rates(schedule: &mut ModuleLrScheduler, updates: usize) -> Vec<f64> {
    (0..updates).map(|_| schedule.step().base()).collect()
}

#[test]
fn the_rate_warms_up_and_falls_to_a_tenth_and_stays() -> Result<()> {
    let args = args(&["--learning-rate", "0.01", "--warm-up", "4"]);
    let rates = rates(&mut create_schedule(&args, 14)?, 20);
    for (rate, expected) in rates.iter().zip([0.0025, 0.005, 0.0075, 0.01, 0.01]) {
        assert!((rate - expected).abs() < 1e-12, "{rates:?}");
    }
    // Half-way down the cosine, and all the way.
    assert!((rates[9] - 0.0055).abs() < 1e-12, "{rates:?}");
    assert!(
        rates[4..14].windows(2).all(|pair| pair[1] < pair[0]),
        "{rates:?}"
    );
    assert!(
        rates[14..].iter().all(|rate| (rate - 0.001).abs() < 1e-12),
        "{rates:?}"
    );
    Ok(())
}

#[test]
fn every_length_of_training_has_a_schedule() -> Result<()> {
    for warm_up in ["0", "1", "2", "1000"] {
        for updates in 0..8 {
            let args = args(&["--warm-up", warm_up]);
            let rates = rates(&mut create_schedule(&args, updates)?, updates + 3);
            let within = |rate: &f64| *rate > 0.0 && *rate <= args.learning_rate;
            assert!(
                rates.iter().all(within),
                "{warm_up} of {updates}: {rates:?}"
            );
        }
    }
    Ok(())
}

#[test]
fn the_schedule_goes_on_from_a_record() -> Result<()> {
    let args = args(&["--warm-up", "4"]);
    let expected = rates(&mut create_schedule(&args, 14)?, 16);
    for done in [2, 4, 9, 15] {
        let mut first = create_schedule(&args, 14)?;
        rates(&mut first, done);
        let mut resumed = create_schedule(&args, 14)?.load_record(first.to_record());
        assert_eq!(rates(&mut resumed, 16 - done), expected[done..]);
    }
    Ok(())
}

#[test]
fn the_schedule_is_as_long_as_the_training() -> Result<()> {
    for options in [
        &["--epochs=3"][..],
        &["--epochs=3", "--accumulate=2"],
        &["--epochs=3", "--accumulate=3"],
        &["--epochs=3", "--accumulate=3", "--drop-remainder"],
        &["--epochs=3", "--accumulate=3", "--steps-per-epoch=5"],
    ] {
        on_own_thread(move || {
            let fixed = ["--strategy=mirrored", "--replicas=2", "--batch-size=50"];
            let options = [&fixed, options].concat();
            let job = set_up(&options)?;
            let all = (1..=3).flat_map(|epoch| job.datasets.train.epoch(epoch));
            let updates = all.filter(|batch| batch.info().completes_update).count();
            let counted = job.datasets.updates(&args(&options).options);
            ensure!(
                counted == updates,
                "{updates} updates are counted as {counted}"
            );
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn the_norms_do_not_shrink() -> Result<()> {
    let weights = on_own_thread(|| {
        let job = set_up(&[
            "--strategy=one-device",
            "--learning-rate=0.5",
            "--warm-up=0",
        ])?;
        job.strategy.run_on_first(|_| {
            let model = globals::model()?;
            // All zeros: only the decay changes anything.
            let gradients = FlatGradients::new(&model, Gradients::new())?;
            let before = named_parameters(&model);
            update_trainable::<Project>(|trainable| Ok(trainable.update(gradients)))?;
            Ok((before, named_parameters(&globals::model()?)))
        })
    })?;
    for ((name, before), (_, after)) in weights.0.into_iter().zip(weights.1) {
        let shrinks = if name.contains("norm") { 1.0 } else { 0.95 };
        let expected: Vec<f32> = before.iter().map(|value| value * shrinks).collect();
        assert!(difference(&after, &expected) < 1e-6, "{name}");
    }
    Ok(())
}

#[test]
fn perplexity_is_that_of_the_merged_loss() -> Result<()> {
    let device = Device::flex();
    let mut replicas = [&[1.0, 1.0, 1.0][..], &[5.0]].map(|losses| {
        let mut perplexity = Perplexity::new("perplexity");
        let losses = Tensor::<1>::from_floats(losses, &device);
        perplexity.update_losses(&losses, None).unwrap();
        perplexity
    });
    let other = replicas[1].state();
    replicas[0].add_state(&other)?;
    let (name, value) = replicas[0].results().remove(0);
    assert_eq!((name.as_str(), replicas[0].examples()), ("perplexity", 4));
    assert!(
        (value - f64::exp(2.0)).abs() < 1e-9,
        "the mean of the exponentials is larger: {value}"
    );
    Ok(())
}

#[test]
fn a_byte_with_a_logit_that_is_not_finite_is_wrong() {
    let device = Device::flex();
    let labels = Tensor::<2, Int>::from_ints([[0, 9], [0, 9]], &device);
    let right = labels.clone().one_hot::<3>(256).float(); // [2, 2, 256]
    assert_eq!(values(&next_byte_accuracy(&right, &labels)), [1.0; 4]);
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let logits = right.clone().slice_fill([0..1, 0..1], value);
        let accuracy = values(&next_byte_accuracy(&logits, &labels));
        assert_eq!(accuracy, [0.0, 1.0, 1.0, 1.0], "{value} for the first byte");
        let cross_entropy = create_loss_objects().cross_entropy;
        let losses = cross_entropy.forward(logits, labels.clone()).unwrap();
        let finite: Vec<bool> = values(&losses)
            .iter()
            .map(|loss| loss.is_finite())
            .collect();
        assert_eq!(finite, [false, true], "{value} for one byte of the first");
        let mut perplexity = Perplexity::new("perplexity");
        perplexity.update_losses(&losses, None).unwrap();
        assert!(perplexity.results()[0].1.is_nan(), "{value}");
        perplexity.reset();
        let losses = Tensor::<1>::from_floats([1.0, value], &device);
        perplexity.update_losses(&losses, None).unwrap();
        assert!(perplexity.results()[0].1.is_nan(), "a loss of {value}");
    }
}

#[test]
fn a_sample_repeats_by_its_seed() -> Result<()> {
    let (model, device) = (model().valid(), Device::flex());
    let write = |prompt: &[u8], temperature, seed| {
        let settings = Settings {
            length: 30,
            temperature,
            seed,
        };
        sample(&model, prompt, settings, &device)
    };
    assert_eq!(write(b"ROMEO:", 0.8, 1)?, write(b"ROMEO:", 0.8, 1)?);
    assert_ne!(write(b"ROMEO:", 0.8, 1)?, write(b"ROMEO:", 0.8, 2)?);
    assert_eq!(write(b"ROMEO:", 0.0, 1)?, write(b"ROMEO:", 0.0, 2)?);
    // Of a prompt that is longer than the context only its end counts.
    let long = b"What is in a name? That which we call a rose";
    assert_eq!(
        write(long, 0.8, 1)?,
        write(&long[long.len() - 16..], 0.8, 1)?
    );
    assert!(write(b"", 0.8, 1).is_err());
    Ok(())
}

#[test]
fn a_text_that_is_too_short_or_missing_is_named() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().to_string_lossy().into_owned();
    let error = || {
        let examples = read_examples(&args(&["--data-dir", &path]));
        let error = examples.err().context("it reads");
        error.map(|error| format!("{error:#}"))
    };
    assert!(error()?.contains("text.txt"));
    fs::write(folder.path().join("text.txt"), "Too short.")?;
    assert!(error()?.contains("too short for --context 64"));
    assert!(cut(b"short".to_vec(), 64).is_err());
    Ok(())
}
