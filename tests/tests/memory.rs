//! Memory does not grow with the number of steps.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use kiln_tests::{rendered::Project, rounds::median, throughput::bytes_of};

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
    let project = Project::default_answers();
    let options = [
        "train",
        "--epochs",
        "40",
        "--steps-per-epoch",
        "1000",
        "--batch-size",
        "2",
        "--prefetch",
        "2",
    ];
    let mut child = Command::new(project.build())
        .args(options)
        .current_dir(project.path())
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
    let (early, late) = (memory[1], memory[38]);
    assert!(
        late < early + 16.0,
        "from {early} to {late} MiB: {memory:?}"
    );
}
