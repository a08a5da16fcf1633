//! Faults of the original.

mod job;

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::Result;
use burn::tensor::{Device, Tensor};
use image::{Rgb, RgbImage};
use kiln_engine::{
    Metrics,
    checkpoint::{Checkpoint, Progress},
    data::{Cached, Dataset, stream},
    report::Report,
};
use training::{
    dataset::{Batch, Image, read_examples},
    loss::ERRORS,
    metric::create_metrics,
    model::{DomainPredictions, Predictions},
    train::train,
};

use job::{on_own_thread, set_up};

/// Images `[2, 3, 4, 4]` that are the same everywhere.
fn flat(value: f32) -> Tensor<4> {
    Tensor::full([2, 3, 4, 4], value, &Device::flex())
}

/// Predictions that are right where the images of the domain are `value`.
fn perfect(value: f32) -> DomainPredictions {
    let patches = || Tensor::zeros([2, 1, 1, 1], &Device::flex());
    DomainPredictions {
        fake: flat(0.0),
        cycle: flat(value),
        same: flat(value),
        real_patches: patches(),
        fake_patches: patches(),
        detached_patches: patches(),
    }
}

/// The original prints the errors of the second cycle and of the first identity under each other's
/// names.
#[test]
fn each_error_is_that_of_its_own_pair() {
    let batch = Batch {
        features: flat(0.25),
        targets: flat(-0.5),
    };
    type Choose = fn(&mut Predictions) -> &mut Tensor<4>;
    let change: [(&str, Choose); 4] = [
        ("error/MAE(X, F(G(X)))", |all| &mut all.x.cycle),
        ("error/MAE(Y, G(F(Y)))", |all| &mut all.y.cycle),
        ("error/MAE(X, F(X))", |all| &mut all.x.same),
        ("error/MAE(Y, G(Y))", |all| &mut all.y.same),
    ];
    for (changed, image) in change {
        let mut predictions = Predictions {
            x: perfect(0.25),
            y: perfect(-0.5),
        };
        let image = image(&mut predictions);
        *image = image.clone() + 0.125;
        let mut metrics = create_metrics();
        let losses = Tensor::zeros([2], &Device::flex());
        metrics.update(&losses, &predictions, &batch).unwrap();
        let measured = metrics
            .all()
            .into_iter()
            .flat_map(|metric| metric.results());
        let measured: Vec<_> = measured
            .filter(|(name, _)| ERRORS.contains(&name.as_str()))
            .collect();
        assert_eq!(measured.len(), ERRORS.len());
        for (name, value) in measured {
            let expected = if name == changed { 0.125 } else { 0.0 };
            assert_eq!(value, expected, "{name}, where {changed} was changed");
        }
    }
}

/// A picture of the side 20 that counts how often it is read.
struct Counted(Arc<AtomicUsize>);

impl Dataset for Counted {
    type Example = Image;

    fn len(&self) -> usize {
        1
    }

    fn get(&self, _index: usize) -> Result<Image> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let pixels = (0..20 * 20 * 3).map(|at| (at * 7 % 251) as u8);
        Image::new(pixels.collect(), [20; 2], [16; 2])
    }
}

/// The original caches images after it flipped and cropped them at random: every epoch sees the
/// same ones.
#[test]
fn a_cached_image_is_augmented_anew_and_read_once() {
    let reads = Arc::new(AtomicUsize::new(0));
    let cached = Cached::new(Arc::new(Counted(Arc::clone(&reads)))).unwrap();
    let seen: HashSet<Vec<u8>> = (0..20)
        .map(|epoch| {
            let image = cached.get(0).unwrap();
            let image = image.flipped_and_cropped(&mut stream("test", &[epoch]));
            image.picture().unwrap().pixels().to_vec()
        })
        .collect();
    assert!(seen.len() > 10, "20 epochs see {} images", seen.len());
    assert_eq!(reads.load(Ordering::Relaxed), 1);
}

/// Writes `len` pictures of one colour and of several sizes to a folder.
fn write_pictures(root: &Path, name: &str, len: u8, blue: u8) {
    fs::create_dir(root.join(name)).unwrap();
    for number in 0..len {
        let side = 20 + u32::from(number);
        let picture = RgbImage::from_fn(side, 24, |x, _| Rgb([number * 10, x as u8, blue]));
        picture
            .save(root.join(name).join(format!("{number}.png")))
            .unwrap();
    }
}

/// The four folders of horse2zebra, with 20 and 25 images to train and 3 and 2 to test.
fn write_folders(root: &Path) {
    write_pictures(root, "trainA", 20, 0);
    write_pictures(root, "trainB", 25, 255);
    write_pictures(root, "testA", 3, 64);
    write_pictures(root, "testB", 2, 128);
}

/// Its red values tell images apart: they are the same in every pixel.
fn red(image: &Image) -> u8 {
    image.picture().unwrap().pixels()[0]
}

#[test]
fn folders_are_read_once_and_each_epoch_augments_anew() {
    on_own_thread(|| {
        let root = tempfile::tempdir()?;
        write_folders(root.path());
        let folder = root.path().to_string_lossy();
        let job = set_up(&["--data-dir", &folder, "--replicas", "1"])?;
        let x_of_epoch = |number| -> Result<HashMap<u8, Image>> {
            let shards = job
                .datasets
                .train
                .epoch(number)
                .flat_map(IntoIterator::into_iter);
            let examples = shards
                .map(|shard| shard.examples())
                .collect::<Result<Vec<_>>>()?;
            let images = examples.into_iter().flatten().map(|example| example.x);
            Ok(images.map(|image| (red(&image), image)).collect())
        };
        // In some of these each image of the longer folder comes, too.
        for epoch in 1..=30 {
            x_of_epoch(epoch)?;
        }
        fs::remove_dir_all(root.path())?;
        let (one, other) = (x_of_epoch(31)?, x_of_epoch(32)?);
        assert_eq!(one.len(), 18, "two of the shorter 20 validate");
        let changed = one
            .iter()
            .filter(|(red, image)| other[red] != **image)
            .count();
        assert!(
            changed > 9,
            "{changed} of 18 images differ between two epochs"
        );
        Ok(())
    });
}

#[test]
fn pairs_are_as_many_as_the_shorter_folder_and_keep_to_their_splits() {
    on_own_thread(|| {
        let root = tempfile::tempdir()?;
        write_folders(root.path());
        let folder = root.path().to_string_lossy();
        let job = set_up(&["--data-dir", &folder, "--replicas", "1"])?;
        let of = |dataset: &Arc<dyn Dataset<Example = _>>, pass| -> Result<Vec<_>> {
            (0..dataset.len())
                .map(|index| dataset.get_in_pass(index, pass))
                .collect()
        };
        let (mut trains, mut validates) = (HashSet::new(), HashSet::new());
        for pass in 0..20 {
            let train = of(job.datasets.train.dataset(), pass)?;
            let validation = of(job.datasets.validation.dataset(), pass)?;
            assert_eq!((train.len(), validation.len()), (18, 2));
            trains.extend(train.iter().map(|example| red(&example.y)));
            validates.extend(validation.iter().map(|example| red(&example.y)));
        }
        assert_eq!(trains.len(), 23, "all of the longer folder are used");
        assert!(trains.is_disjoint(&validates));
        assert_eq!(job.datasets.test.dataset().len(), 2);
        let (_, test) = read_examples(&job.args)?;
        let example = test.get(0)?;
        let blue = |image: &Image| image.picture().unwrap().pixels()[2];
        assert_eq!((blue(&example.x), blue(&example.y)), (64, 128));
        Ok(())
    });
}

#[test]
fn a_folder_that_is_missing_is_named() {
    on_own_thread(|| {
        let root = tempfile::tempdir()?;
        write_pictures(root.path(), "trainA", 2, 0);
        let folder = root.path().to_string_lossy();
        let error = set_up(&["--data-dir", &folder]).err().unwrap();
        assert!(
            format!("{error:#}").contains("has no folder trainB"),
            "{error:#}"
        );
        Ok(())
    });
}

/// Trains for `epochs` in all, and says where training came.
fn trained(output: &Path, epochs: &str, resume: &[&str]) -> Progress {
    let output = output.to_string_lossy().into_owned();
    let mut options: Vec<String> = ["--epochs", epochs, "--output-dir", &output]
        .into_iter()
        .chain([
            "--replicas",
            "1",
            "--batch-size",
            "16",
            "--steps-per-epoch",
            "2",
        ])
        .chain(resume.iter().copied())
        .map(str::to_owned)
        .collect();
    options.extend(["--filters", "2", "--blocks", "1"].map(str::to_owned));
    on_own_thread(move || {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let job = set_up(&options)?;
        let mut report = Report::new(&job.args.options)?;
        Ok(train(&job.args, &job.datasets, &mut report)?.unwrap())
    })
}

/// The original saves the networks and not the epoch, and begins with the first one after a restart.
#[test]
fn a_resumed_training_goes_on_at_its_epoch() {
    let output = tempfile::tempdir().unwrap();
    trained(output.path(), "2", &[]);
    let latest = fs::read_dir(output.path().join("checkpoints")).unwrap();
    let latest = latest.map(|entry| entry.unwrap().path()).max().unwrap();
    assert_eq!(
        Checkpoint::read(&latest).unwrap().manifest.progress.epoch,
        3
    );
    let progress = trained(output.path(), "3", &["--resume"]);
    assert_eq!((progress.epoch, progress.step), (4, 6));
    let log = fs::read_to_string(output.path().join("metrics.jsonl")).unwrap();
    let epochs = log
        .lines()
        .filter(|line| line.contains("\"train\""))
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["epoch"].as_u64().unwrap()
        });
    assert_eq!(epochs.collect::<Vec<_>>(), [1, 2, 3]);
    // The sheets of cycles of the last epochs, in both directions.
    for sheet in ["X_cycle-00000006.png", "Y_cycle-00000006.png"] {
        assert!(
            output.path().join("pictures").join(sheet).is_file(),
            "no {sheet}"
        );
    }
}
