//! The additions of this example to the template.

#[allow(dead_code)]
#[path = "contract/support.rs"]
mod support;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use kiln_engine::{
    checkpoint::{Checkpoint, Checkpoints, Progress, Which},
    data::{BatchOptions, Collate, DistributedDataset, Remainder, Subset},
    globals::{inference_model, merged_metrics, reset_metrics},
    metric::MergedMetric,
    replica::visible_devices,
    report::Report,
    training::{Callbacks, Training},
};
use serde_json::Value;
use training::{
    cli::Args,
    dataset::{Batch, CLASSES, Example, Examples, create_datasets, read_examples},
    fashion_mnist::{FILES, SIZE},
    globals::{self, Project, Split},
    loss::per_example_losses,
    model::L2,
    test::test,
    train::{distributed_train_epoch, distributed_train_step, train},
    without_strategy::test_without_strategy,
};

use support::{Job, on_own_thread, set_up, values};

fn args(options: &[&str]) -> Result<Args> {
    Ok(Args::try_parse_from(
        ["fashion-mnist"].iter().chain(options),
    )?)
}

/// The first `examples` training examples in order, `accumulate` batches an update.
fn first(
    job: &Job,
    examples: usize,
    global_batch_size: usize,
    accumulate: usize,
) -> Result<DistributedDataset<Example>> {
    let dataset = Arc::clone(job.datasets.train.dataset());
    let first: Examples = Arc::new(Subset::new(dataset, (0..examples).collect())?);
    let options = BatchOptions {
        global_batch_size,
        seed: 42,
        shuffle: false,
        remainder: Remainder::Keep,
        accumulate,
        prefetch: Some(0),
        training: true,
        augment: None,
    };
    job.strategy.distribute_dataset(first, options)
}

/// The mean cross-entropy of what `split` counted.
fn mean_loss(split: Split) -> Result<f64> {
    Ok(merged_metrics::<Project>(split)?[0].value)
}

/// The penalty as the initial weights have it.
fn penalty(job: &Job) -> Result<f64> {
    job.strategy.run_on_first(|_| {
        let squares = globals::model()?.squared_kernels();
        Ok(L2 * f64::from(squares.into_scalar::<f32>()))
    })
}

#[test]
fn the_penalty_counts_once_whatever_the_replicas_and_the_accumulation() -> Result<()> {
    // Replicas, examples, global batch, batches an update; some replicas have no example.
    for (replicas, examples, batch, accumulate) in [
        (1, 12, 12, 1),
        (3, 12, 12, 1),
        (2, 22, 8, 3),
        (4, 3, 8, 1),
        (3, 7, 3, 3),
    ] {
        on_own_thread(move || {
            let job = set_up(&["--replicas", &replicas.to_string()])?;
            let expected = penalty(&job)?;
            ensure!(expected > 1e-3, "the penalty is {expected}");
            reset_metrics::<Project>(Split::Train)?;
            let mut objective = 0.0;
            for inputs in first(&job, examples, batch, accumulate)?.epoch(1) {
                objective += distributed_train_step(inputs)?
                    .get("loss")
                    .context("no loss")?;
            }
            let counted = objective - mean_loss(Split::Train)?;
            ensure!(
                (counted - expected).abs() < 5e-6,
                "{replicas} replicas count {counted} and not {expected}"
            );
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn the_loss_of_an_epoch_is_the_mean_over_examples_where_batches_differ_in_size() -> Result<()> {
    // Weights stay as they are, so that all batches are seen by the same model.
    let folder = tempfile::tempdir()?;
    let output = folder.path().to_string_lossy();
    let options = [
        "--replicas",
        "2",
        "--learning-rate",
        "1e-30",
        "--output-dir",
        &output,
    ];
    let (args, job) = (args(&options)?, set_up(&options)?);
    let (data, mut report) = (first(&job, 19, 8, 1)?, Report::new(&args.options)?);
    let callbacks = Callbacks::new();
    let mut training = Training::start(&args.options, &job.datasets, &mut report, callbacks)?;
    let mean = distributed_train_epoch(&mut training, data.epoch(1))?.mean();
    let progress = training.progress();
    assert_eq!((progress.step, progress.examples), (3, 19));
    let expected = mean_loss(Split::Train)? + penalty(&job)?;
    assert!((mean - expected).abs() < 1e-5, "{mean} and {expected}");
    let losses = data.epoch(1).map(|inputs| {
        let losses = distributed_train_step(inputs)?;
        losses.get("loss").context("no loss")
    });
    let of_batches = losses.sum::<Result<f64>>()? / 3.0;
    assert!(
        (of_batches - expected).abs() > 1e-4,
        "the test shows nothing"
    );
    Ok(())
}

/// The cross-entropy of each of the examples `test`, from the model on one device in a single batch.
fn test_losses(job: &Job, test: &Examples) -> Result<Vec<f32>> {
    let test = Arc::clone(test);
    job.strategy.run_on_first(move |replica| {
        let examples = (0..test.len()).map(|index| test.get(index));
        let device = replica.device().clone().without_autodiff();
        let batch = Batch::collate(examples.collect::<Result<_>>()?, &device)?;
        let logits = inference_model::<Project>()?.forward(&batch);
        Ok(values(&per_example_losses(&logits, &batch)?))
    })
}

/// The value of `name` in the last line of the log.
fn logged(output: &Path, name: &str) -> Result<Value> {
    let log = fs::read_to_string(output.join("metrics.jsonl"))?;
    let line: Value = serde_json::from_str(log.lines().last().context("an empty log")?)?;
    Ok(line[name].clone())
}

#[test]
fn the_test_loss_is_the_mean_over_examples_and_not_the_epoch() -> Result<()> {
    for replicas in ["1", "3"] {
        on_own_thread(move || {
            let folder = tempfile::tempdir()?;
            let output = folder.path().to_string_lossy().into_owned();
            let options = ["--replicas", replicas, "--output-dir", &output];
            let (args, job) = (args(&options)?, set_up(&options)?);
            let datasets = create_datasets(&args)?;
            let trained = Progress {
                epoch: 8,
                ..Progress::START
            };
            let mut report = Report::new(&args.options)?;
            test(trained, &datasets, &mut report)?;
            let losses = test_losses(&job, datasets.test.dataset())?;
            let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
            let (expected, loss) = (mean(&losses), logged(folder.path(), "loss")?);
            let loss = loss.as_f64().context("no loss")? as f32;
            ensure!((loss - expected).abs() < 1e-5, "{loss} and not {expected}");
            ensure!(logged(folder.path(), "epoch")? == 7);
            // 297 examples leave a last batch of 41, or of 105 on three replicas.
            let batch = 64 * replicas.parse::<usize>()?;
            let of_batches: Vec<f32> = losses.chunks(batch).map(mean).collect();
            ensure!(
                (mean(&of_batches) - expected).abs() > 1e-4,
                "the test shows nothing"
            );
            Ok(())
        })?;
    }
    Ok(())
}

/// Trains and tests; the steps, the fingerprint of the weights, and the metrics of the test.
fn trained(output: &Path, options: &[&str]) -> Result<(usize, String, Vec<MergedMetric>)> {
    let output = output.to_string_lossy().into_owned();
    let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    on_own_thread(move || {
        let options = options.iter().map(String::as_str);
        let options: Vec<&str> = options.chain(["--output-dir", &output]).collect();
        let args = args(&options)?;
        set_up(&options)?;
        let datasets = create_datasets(&args)?;
        let mut report = Report::new(&args.options)?;
        let progress = train(&args, &datasets, &mut report)?.context("it was stopped")?;
        test(progress, &datasets, &mut report)?;
        let latest = Checkpoints::new::<Project>(&args.options).find(&Which::Latest)?;
        let metrics = merged_metrics::<Project>(Split::Test)?;
        Ok((progress.step, latest.manifest.parameters, metrics))
    })
}

#[test]
fn all_loop_styles_train_to_the_same_weights() -> Result<()> {
    // Whole passes with a short last batch, and ten steps an epoch.
    let cases: [&[&str]; 2] = [
        &["--epochs", "1", "--batch-size", "100"],
        &[
            "--epochs",
            "2",
            "--batch-size",
            "8",
            "--steps-per-epoch",
            "10",
        ],
    ];
    for (case, steps) in cases.into_iter().zip([7, 20]) {
        let of_style = |style| {
            let folder = tempfile::tempdir()?;
            trained(
                folder.path(),
                &[case, &["--replicas", "2", "--loop-style", style]].concat(),
            )
        };
        let elements = of_style("elements")?;
        assert_eq!(elements.0, steps);
        for style in ["iterator", "function"] {
            assert_eq!(of_style(style)?, elements, "--loop-style {style}");
        }
    }
    Ok(())
}

#[test]
fn an_epoch_in_one_function_refuses_checkpoints_within() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let options = ["--loop-style", "function", "--checkpoint-steps", "5"];
    let error = trained(folder.path(), &options).unwrap_err().to_string();
    assert!(error.contains("leave out --checkpoint-steps"), "{error}");
    Ok(())
}

#[test]
fn checkpoints_come_every_other_epoch_and_load_without_a_strategy() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let options = [
        "--replicas",
        "2",
        "--epochs",
        "3",
        "--batch-size",
        "8",
        "--steps-per-epoch",
        "5",
    ];
    let (_, _, tested) = trained(folder.path(), &options)?;
    let checkpoints = folder.path().join("checkpoints");
    let names = fs::read_dir(&checkpoints)?.map(|entry| {
        let name = entry?.file_name();
        Ok(name.to_string_lossy().into_owned())
    });
    let mut names = names.collect::<Result<Vec<_>>>()?;
    names.sort();
    assert_eq!(names, ["step-00000010-epoch-2", "step-00000015-epoch-3"]);
    Checkpoint::read(&checkpoints.join(&names[0]))?;

    let output = folder.path().to_string_lossy();
    let without = test_without_strategy(&args(&["--output-dir", &output])?, &Which::Latest)?;
    for (one, other) in tested.iter().zip(&without) {
        assert_eq!((&one.name, one.examples), (&other.name, other.examples));
        assert!(
            (one.value - other.value).abs() < 1e-5,
            "{one:?} and {other:?}"
        );
    }
    Ok(())
}

#[test]
fn a_model_in_stages_trains_to_the_weights_of_one_device() -> Result<()> {
    let weights = |strategy| {
        on_own_thread(move || {
            let job = set_up(&["--strategy", strategy])?;
            for inputs in first(&job, 30, 12, 1)?.epoch(1) {
                distributed_train_step(inputs)?;
            }
            job.parameters()
        })
    };
    let (whole, in_stages) = (weights("one-device")?, weights("model-parallel")?);
    let pairs = whole.iter().zip(&in_stages);
    let far = pairs.filter(|(one, other)| (*one - *other).abs() > 1e-5);
    // A maximum has kinks, where the last bit of a sum can choose another gradient for a few weights.
    let (far, all) = (far.count(), whole.len());
    assert!(far * 100 < all, "{far} of {all} weights differ");
    Ok(())
}

/// Writes an IDX file of bytes that follow from their places.
fn write_idx(path: &Path, dims: &[u32], limit: usize) -> Result<()> {
    let mut bytes = vec![0, 0, 8, dims.len() as u8];
    bytes.extend(dims.iter().flat_map(|dim| dim.to_be_bytes()));
    let len: u32 = dims.iter().product();
    bytes.extend((0..len as usize).map(|place| (place * 7 % limit) as u8));
    Ok(fs::write(path, bytes)?)
}

#[test]
fn files_of_the_size_of_fashion_mnist_are_read() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (split, number) in [("train", 60_000), ("t10k", 10_000)] {
        let file = |kind| folder.path().join(format!("{split}-{kind}-ubyte"));
        write_idx(&file("images-idx3"), &[number, 28, 28], 256)?;
        write_idx(&file("labels-idx1"), &[number], CLASSES)?;
    }
    let (train, test) = read_examples(&args(&["--data-dir", &folder.path().to_string_lossy()])?)?;
    assert_eq!((train.len(), test.len()), (60_000, 10_000));
    let last = 59_999;
    let example = train.get(last)?;
    let pixel = |place: usize| ((last * SIZE * SIZE + place) * 7 % 256) as u8;
    let pixels: Vec<u8> = (0..SIZE * SIZE).map(pixel).collect();
    assert_eq!(example.pixels, pixels);
    assert_eq!(usize::from(example.label), last * 7 % CLASSES);

    let batch = Batch::collate(vec![test.get(0)?, example], &visible_devices().remove(0))?;
    assert_eq!(batch.features.dims(), [2, 1, SIZE, SIZE]);
    let scaled: Vec<f32> = pixels
        .iter()
        .map(|pixel| f32::from(*pixel) / 255.0)
        .collect();
    assert_eq!(values(&batch.features)[SIZE * SIZE..], scaled);
    Ok(())
}

#[test]
fn a_small_image_is_enlarged_and_framed_and_a_large_one_refused() -> Result<()> {
    let image = |side: usize| Example {
        pixels: (0..side * side).map(|place| place as u8).collect(),
        height: side,
        width: side,
        label: 0,
    };
    let device = visible_devices().remove(0);
    let features = values(&Batch::collate(vec![image(8)], &device)?.features);
    let pixel = |y: usize, x: usize| (features[y * SIZE + x] * 255.0).round() as usize;
    // Each pixel is 3x3 large, in a frame of 2.
    for (y, x) in (0..24).flat_map(|y| (0..24).map(move |x| (y, x))) {
        assert_eq!(pixel(2 + y, 2 + x), y / 3 * 8 + x / 3);
    }
    assert_eq!((pixel(1, 14), pixel(26, 14), pixel(14, 26)), (0, 0, 0));
    let error = Batch::collate(vec![image(29)], &device)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("29x29") && error.contains("28x28"),
        "{error}"
    );
    Ok(())
}

/// The error of reading the data with `options` from a folder with `file` in it.
fn reading_error(options: &[&str], file: Option<&str>) -> Result<(PathBuf, String)> {
    let folder = tempfile::tempdir()?;
    if let Some(file) = file {
        fs::write(folder.path().join(file), "something else")?;
    }
    let path = folder.path().to_string_lossy();
    let read = read_examples(&args(&[&["--data-dir", &path], options].concat())?);
    let error = read.err().context("it was read")?;
    Ok((folder.path().to_owned(), format!("{error:#}")))
}

#[test]
fn missing_files_are_named_with_their_folder() -> Result<()> {
    let (folder, error) = reading_error(&[], None)?;
    for part in FILES
        .map(|(name, ..)| name)
        .iter()
        .chain([&&*folder.to_string_lossy()])
    {
        assert!(error.contains(part), "no {part} in {error}");
    }
    Ok(())
}

#[test]
#[cfg(feature = "download")]
fn a_file_that_is_not_fashion_mnist_is_neither_used_nor_replaced() -> Result<()> {
    let (_, error) = reading_error(&["--download"], Some(FILES[0].0))?;
    for part in [FILES[0].1, "is another file", FILES[3].0] {
        assert!(error.contains(part), "no {part} in {error}");
    }
    Ok(())
}
