//! Two replicas of a generated crate against a plain Burn loop, on the same work: `cargo bench -p
//! kiln-tests --bench replicas`.
//!
//! All sides are built from one rendered crate and run in turn. The plain loop
//! (`tests/fixtures/plain_burn.rs`) has one replica, the system's allocator, and threads as Burn
//! uses them; it neither clips gradients nor checks them, nor keeps metrics but the loss. The bare
//! loop is the same with the allocator and the threads of the generated crate, to see what the
//! generated loop costs.

use std::{fs, path::Path, process::Command};

use kiln_tests::{
    rendered::{Project, text},
    repository, shared_target,
};
use serde_json::Value;

const RUNS: usize = 9;
const EPOCHS: usize = 5;
/// Examples in a global batch: the default of 16 a replica, on two.
const BATCH: usize = 32;
const EXAMPLES: usize = 1_350;

/// What the generated crate must reach.
const GOAL: f64 = 1.5;

/// Percent of time that the generated loop may cost over a bare one.
const COST: f64 = 2.0;

fn main() {
    let project = Project::default_answers();
    let examples = project.path().join("examples");
    fs::create_dir_all(&examples).expect("a folder");
    let fixture = repository().join("tests/fixtures/plain_burn.rs");
    fs::copy(fixture, examples.join("plain_burn.rs")).expect("a fixture");
    let plain = fs::read_to_string(examples.join("plain_burn.rs")).expect("a fixture");
    let allocator =
        "#[global_allocator]\nstatic ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;\n";
    let bare = plain.replacen(
        "use std::time::Instant;",
        &format!("use std::time::Instant;\n{allocator}"),
        1,
    );
    fs::write(examples.join("bare_loop.rs"), bare).expect("an example");
    project.cargo(&["build", "--release", "--examples"]);
    let plain = shared_target().join("release/examples/plain_burn");
    let bare = shared_target().join("release/examples/bare_loop");
    let program = project.build();

    let sides: [(&str, &dyn Fn() -> f64); 4] = [
        ("plain Burn loop, one replica", &|| run_plain(&plain, &[])),
        ("bare loop, one replica", &|| run_plain(&bare, &["pool"])),
        ("generated crate, one replica", &|| {
            run_generated(&program, &project.path(), 1)
        }),
        ("generated crate, two replicas", &|| {
            run_generated(&program, &project.path(), 2)
        }),
    ];
    let mut rates = vec![Vec::new(); sides.len()];
    for _ in 0..RUNS {
        for ((_, run), rates) in sides.iter().zip(&mut rates) {
            rates.push(run());
        }
    }
    println!("examples a second in training, medians of {RUNS} runs in turn (minimum to maximum)");
    let medians: Vec<f64> = rates.iter_mut().map(|rates| median(rates)).collect();
    for (((name, _), rates), median) in sides.iter().zip(&rates).zip(&medians) {
        let (least, most) = (rates[0], rates[rates.len() - 1]);
        println!(
            "{name:<32} {median:>8.0}  ({least:.0} to {most:.0})  {:.2} x",
            median / medians[0]
        );
    }
    println!("goal: two replicas at least {GOAL} x the plain loop");
    let cost = 100.0 * (medians[1] / medians[2] - 1.0);
    println!(
        "one replica of the generated loop costs {cost:.1}% over the bare loop (goal: at most {COST}%)"
    );
}

fn run_plain(program: &Path, more: &[&str]) -> f64 {
    let output = Command::new(program)
        .args([EPOCHS.to_string(), BATCH.to_string()])
        .args(more)
        .output()
        .expect("the plain loop starts");
    let printed = text(&output);
    assert!(output.status.success(), "{printed}");
    let seconds = printed.lines().map(|line| {
        let seconds = line.split(' ').next().expect("seconds");
        seconds.parse::<f64>().expect("seconds")
    });
    rate(seconds.collect())
}

fn run_generated(program: &Path, project: &Path, replicas: usize) -> f64 {
    let runs = project.join("runs").join(replicas.to_string());
    // A fresh folder: older checkpoints would be set aside one by one.
    let _ = fs::remove_dir_all(&runs);
    let output = Command::new(program)
        .args(["train", "--epochs", &EPOCHS.to_string()])
        .args(["--replicas", &replicas.to_string()])
        .args(["--batch-size", &(BATCH / replicas).to_string()])
        .arg("--output-dir")
        .arg(&runs)
        .output()
        .expect("the generated crate starts");
    assert!(output.status.success(), "{}", text(&output));
    let log = fs::read_to_string(runs.join("metrics.jsonl")).expect("a log");
    let lines = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let of_training = lines.filter(|line| line["split"] == "train");
    rate(
        of_training
            .map(|line| line["seconds"].as_f64().expect("seconds"))
            .collect(),
    )
}

/// Examples a second after the first epoch, which warms up.
fn rate(seconds: Vec<f64>) -> f64 {
    assert_eq!(seconds.len(), EPOCHS);
    (EXAMPLES * (EPOCHS - 1)) as f64 / seconds[1..].iter().sum::<f64>()
}

/// The median; sorts the values.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
