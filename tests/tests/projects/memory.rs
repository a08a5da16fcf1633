//! Memory does not grow with the number of steps, and that of contract tests not with the amount of data.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use kiln_tests::{
    filled_in, folder_in_memory,
    rendered::{Project, text},
    rounds::median,
    running::{Running, TRAINING},
    throughput::bytes_of,
    trainer::Trainer,
};

use crate::contract_tests;

/// Anonymous resident memory of a process in MiB; the system can reclaim file pages.
fn resident(process: u32) -> f64 {
    bytes_of(process, "RssAnon").unwrap() as f64 / 1_048_576.0
}

/// The median of the slopes between all pairs of values, which is robust against outliers: the
/// estimator of Theil (1950) and Sen (1968).
fn slope(values: &[f64]) -> f64 {
    let later = |from: usize| from + 1..values.len();
    let between =
        |from: usize| later(from).map(move |to| (values[to] - values[from]) / (to - from) as f64);
    median(&(0..values.len()).flat_map(between).collect::<Vec<_>>())
}

/// Upper bound of the leak per epoch: the lesser of the slope and the median change from one value to the next.
/// Steps, in which an allocator grows, raise the slope alone, and noise the changes alone; a leak raises both.
fn leak(values: &[f64]) -> f64 {
    let changes = values.windows(2).map(|pair| pair[1] - pair[0]);
    slope(values).min(median(&changes.collect::<Vec<_>>()))
}

#[test]
fn a_leak_is_seen_through_noise() {
    let noise = [7.0, 2.5, 0.0, 2.0, -3.5, -3.0, -1.0, -3.0, -1.0];
    let with_leak = |leak: f64| {
        let values = noise.iter().enumerate();
        values
            .map(|(epoch, noise)| noise + leak * epoch as f64)
            .collect::<Vec<_>>()
    };
    assert!(leak(&with_leak(0.0)) < 0.25);
    assert!(leak(&with_leak(2.0)) > 0.25);
    assert_eq!(slope(&[0.0, 0.5, 1.0, 1.5, 50.0]), 0.5);
    let steps = [44.7, 44.8, 44.8, 49.9, 49.9, 49.9, 50.6, 50.6, 54.4, 54.4];
    assert!(slope(&steps) > 0.25 && leak(&steps) < 0.25);
    let leaking: Vec<f64> = (steps.iter().zip(0..))
        .map(|(step, epoch)| step + 0.5 * f64::from(epoch))
        .collect();
    assert!(leak(&leaking) >= 0.5, "{leaking:?}");
}

/// 40,000 steps in epochs of 1,000, each with a validation, a checkpoint and histograms. In fewer
/// epochs, temporary memory of the allocator, also for checkpoints written beside the training, can look like a
/// leak.
#[test]
#[ignore = "long"]
fn forty_thousand_steps_need_no_more_memory_than_one_thousand() {
    if !cfg!(target_os = "linux") {
        return println!("skipped: only Linux tells the memory of a process in /proc");
    }
    // Without the project, so that the other test compiles beside the training.
    let trainer = Trainer::new(&Project::default_answers());
    let options = "train --epochs 40 --steps-per-epoch 1000 --batch-size 2 --prefetch 2";
    let mut child = trainer
        .command("runs", options)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let epochs = lines
        .map(Result::unwrap)
        .filter(|line| line.starts_with("epoch ") && line.contains("  train  "));
    let memory: Vec<f64> = epochs.take(39).map(|_| resident(child.id())).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    println!("MiB after each thousand steps: {memory:.1?}");
    assert_eq!(memory.len(), 39);
    // The allocator may grow or shrink at any time, but a leak grows in every epoch: a leaked batch
    // per step is half a MiB.
    let growth = leak(&memory);
    assert!(growth < 0.25, "{growth} MiB an epoch: {memory:?}");
    // Histograms of the first epoch may take what the second one returns.
    let (early, late) = (memory[0].max(memory[1]), memory[38]);
    assert!(
        late < early + 16.0,
        "from {early} to {late} MiB: {memory:?}"
    );
}

/// Edits that read colour images from a folder per class, and add a byte to the file `reads` for each image.
const COLOUR_IMAGES: [(&str, &str, &str); 6] = [
    (
        "dataset.rs",
        "LabelledImages, Subset",
        "ImageFolder, Map, Subset",
    ),
    (
        "dataset.rs",
        "[batch, 1, height, width]);",
        "[batch, height, width, 3]);",
    ),
    (
        "dataset.rs",
        "Tensor::from_data(pixels, device) / 255.0",
        "(Tensor::<4>::from_data(pixels, device) / 255.0).permute([0, 3, 1, 2])",
    ),
    ("dataset.rs", "Channels::Gray", "Channels::Rgb"),
    (
        "dataset.rs",
        "    let read = |prefix| LabelledImages::read(&folder, prefix, CLASSES, Example::new);
    Ok((Arc::new(read(\"train\")?), Arc::new(read(\"t10k\")?)))",
        "    let read = |split| -> Result<Examples> {
        let images = ImageFolder::open(&folder.join(split), 256, 256)?;
        Ok(Arc::new(Map::new(Arc::new(images), |image: kiln_engine::data::Picture| {
            let log = concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/reads\");
            let mut log = std::fs::File::options().append(true).create(true).open(log)?;
            std::io::Write::write_all(&mut log, b\".\")?;
            Ok(Example::new(&image.pixels, [image.height, image.width], image.label as u8))
        })))
    };
    Ok((read(\"train\")?, read(\"test\")?))",
    ),
    ("model.rs", "conv([1, 32])", "conv([3, 32])"),
];

/// Waits until a process ends; returns its output and its peak memory in bytes.
fn with_peak(process: Running) -> (Output, u64) {
    let (start, mut peak) = (Instant::now(), 0);
    // The memory of a process that has ended is unknown.
    while let Some(bytes) = bytes_of(process.id(), "VmHWM").filter(|_| start.elapsed() < TRAINING) {
        peak = bytes;
        thread::sleep(Duration::from_millis(20));
    }
    (process.end(Duration::from_secs(5)), peak)
}

/// The folder is that of `--data-dir`, as the project has no such images of its own. Later by name than the longer
/// test, which trains meanwhile.
#[test]
#[ignore = "long"]
fn twenty_thousand_large_images_are_sampled_by_contract_tests() {
    if !cfg!(target_os = "linux") {
        return println!("skipped: only Linux tells the memory of a process in /proc");
    }
    let project = Project::to_edit();
    for (file, from, to) in COLOUR_IMAGES {
        project.edit(file, from, to);
    }
    let program = contract_tests(&project);
    let path = project.path();
    let _folder = project.unlock();
    let images = folder_in_memory();
    filled_in::large_images(images.path());
    let mut tests = Command::new(program);
    tests
        .current_dir(&path)
        .env("TRAINING_DATA_DIR", images.path());
    let start = Instant::now();
    let (output, peak) = with_peak(Running::start(&mut tests));
    let seconds = start.elapsed().as_secs_f64();
    assert!(output.status.success(), "{}", text(&output));
    let reads = fs::metadata(path.join("reads")).unwrap().len();
    let megabytes = peak / 1_000_000;
    println!("{reads} images read in {seconds:.1} s, with at most {megabytes} MB");
    assert!(megabytes < 1_000, "{megabytes} MB");
    assert!(reads < 1_000, "{reads} images were read");
}
