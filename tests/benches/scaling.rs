//! The cost of replicas, measured and predicted: `cargo bench -p kiln-tests --bench scaling`.
//!
//! The benchmark compares the all-reduce of threads with a bound from copies, that of processes
//! with a bare `MPI_Allreduce`, and measures a training step by replicas. From these results and
//! from published figures of networks, it derives the table in `docs/scaling.md`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use kiln_tests::{
    log, mpi,
    rendered::{Project, text},
    repository,
    rounds::median,
    shared_target,
};
use serde_json::Value;

/// The number of runs of each side, in turn.
const RUNS: usize = 5;
/// The number of runs with MPI, of which one may take twice as long as the next.
const MPI_RUNS: usize = 15;

/// Goal for two threads, relative to the bound, for messages larger than any cache. Results of
/// smaller messages vary widely between runs.
const MEMORY_GOAL: f64 = 0.8;
const OUT_OF_CACHE: f64 = 64e6;

/// Goal for two processes, relative to the time of bare MPI.
const MPI_GOAL: f64 = 1.1;

/// Networks between hosts: latency in seconds, and bandwidth in bytes per second.
const NETWORKS: [(&str, f64, f64); 3] = [
    ("10 Gb Ethernet, TCP", 30e-6, 1.1e9),
    ("25 Gb Ethernet, RoCE", 5e-6, 2.9e9),
    ("200 Gb InfiniBand HDR", 1.5e-6, 24e9),
];

/// Models: bytes of the float32 gradients, number of buckets, and seconds of a step of one replica
/// without communication. Each weight of 65,536 values or more is a bucket; small weights are
/// combined into buckets of that size.
const MODELS: [(&str, f64, f64, f64); 2] = [
    ("ResNet-50, 64 images a GPU", 102e6, 47.0, 0.1),
    ("GPT-2 small, 8 x 1,024 tokens a GPU", 498e6, 52.0, 0.12),
];

/// Replicas per host in the predictions.
const PER_HOST: usize = 8;

fn main() {
    let project = Project::default_answers().fully_optimised();
    let examples = project.path().join("examples");
    fs::create_dir_all(&examples).expect("a folder");
    let fixture = repository().join("tests/fixtures/benches/all_reduce.rs");
    fs::copy(fixture, examples.join("all_reduce.rs")).expect("a fixture");
    let with_mpi = mpi::is_there();
    let features: &[&str] = if with_mpi {
        &["--features", "mpi"]
    } else {
        &[]
    };
    project.cargo(&[&["build", "--release", "--bins", "--examples"], features].concat());
    let bench = shared_target().join("release/examples/all_reduce");
    let program = project.path().join("program");
    fs::copy(shared_target().join("release").join("my-model"), &program).expect("a program");

    let mut met = threads(&bench);
    if with_mpi {
        met &= processes(&bench);
    }
    steps(&program, &project.path(), with_mpi);
    predict();
    assert!(met, "a goal is not reached: see the tables");
}

fn lines(command: &mut Command) -> Vec<Value> {
    let output = command.output().expect("a program");
    assert!(output.status.success(), "{}", text(&output));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let objects = printed.lines().filter(|line| line.starts_with('{'));
    objects
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

fn number(line: &Value, name: &str) -> f64 {
    line[name].as_f64().expect("a number")
}

/// Measures threads. Each rank reads its slice from all ranks and writes the sum, then reads all
/// slices and writes the values: `3 + 1 / ranks` times its bytes. A copy reads and writes once
/// each: twice its bytes.
fn threads(bench: &Path) -> bool {
    println!("\nAll-reduce between threads, beside copies on as many threads at once\n");
    println!("| ranks | bytes | all-reduce | bound from copies | reached |");
    println!("|---|---|---|---|---|");
    let mut met = true;
    for ranks in [2, 4] {
        let runs: Vec<_> = (0..RUNS)
            .map(|_| lines(Command::new(bench).args(["memory", &ranks.to_string()])))
            .collect();
        let mut points = Vec::new();
        for at in 0..runs[0].len() {
            let of_run = |name| {
                let values: Vec<f64> = runs.iter().map(|run| number(&run[at], name)).collect();
                median(&values)
            };
            let ratio = |run: &Vec<Value>| {
                let bound = number(&run[at], "copy") * (3.0 + 1.0 / f64::from(ranks)) / 2.0;
                bound / number(&run[at], "all_reduce")
            };
            let reached = median(&runs.iter().map(ratio).collect::<Vec<_>>());
            let (bytes, seconds) = (number(&runs[0][at], "bytes"), of_run("all_reduce"));
            points.push((bytes, seconds));
            println!(
                "| {ranks} | {bytes:.0} | {:.1} us | {:.1} us | {:.0}% |",
                seconds * 1e6,
                seconds * reached * 1e6,
                reached * 100.0
            );
            met &= ranks != 2 || bytes < OUT_OF_CACHE || reached >= MEMORY_GOAL;
        }
        print_fit(&format!("{ranks} threads"), &points);
    }
    met
}

fn processes(bench: &Path) -> bool {
    println!("\nAll-reduce between processes of this host, beside bare MPI_Allreduce\n");
    println!("| processes | bytes | all-reduce | bare | of bare |");
    println!("|---|---|---|---|---|");
    let mut met = true;
    for processes in [2, 4] {
        let run = |what| lines(mpi::run(processes).arg(bench).arg(what));
        let runs: Vec<_> = (0..MPI_RUNS)
            .map(|_| [run("workers"), run("bare")])
            .collect();
        let mut points = Vec::new();
        for at in 0..runs[0][0].len() {
            let side = |side: usize| {
                let times = runs.iter().map(|run| number(&run[side][at], "all_reduce"));
                median(&times.collect::<Vec<_>>())
            };
            let bytes = number(&runs[0][0][at], "bytes");
            let (own, bare) = (side(0), side(1));
            let ratio = |run: &[Vec<Value>; 2]| {
                number(&run[0][at], "all_reduce") / number(&run[1][at], "all_reduce")
            };
            let of_bare = median(&runs.iter().map(ratio).collect::<Vec<_>>());
            points.push((bytes, own));
            println!(
                "| {processes} | {bytes:.0} | {:.1} us | {:.1} us | {of_bare:.2} |",
                own * 1e6,
                bare * 1e6
            );
            met &= processes != 2 || of_bare <= MPI_GOAL;
        }
        print_fit(&format!("{processes} processes"), &points);
    }
    met
}

/// Fits `latency + bytes / bandwidth` by least squares, each point weighted by its own time.
fn print_fit(what: &str, points: &[(f64, f64)]) {
    let sum = |term: fn(f64, f64) -> f64| {
        points
            .iter()
            .map(|(bytes, seconds)| term(*bytes, *seconds))
            .sum::<f64>()
    };
    let ones = sum(|_, s| 1.0 / (s * s));
    let x = sum(|b, s| b / (s * s));
    let xx = sum(|b, s| b * b / (s * s));
    let y = sum(|_, s| 1.0 / s);
    let xy = sum(|b, s| b / s);
    let determinant = ones * xx - x * x;
    let latency = (y * xx - x * xy) / determinant;
    let slope = (ones * xy - x * y) / determinant;
    println!(
        "\n{what}: {:.1} us + bytes / {:.2} GB/s\n",
        latency * 1e6,
        1e-9 / slope
    );
}

/// The median time of a step with a fixed number of examples per replica, from the second epoch on.
fn steps(program: &PathBuf, folder: &Path, with_mpi: bool) {
    println!("\nA step of the default crate, 16 examples a replica\n");
    println!("| replicas | step |\n|---|---|");
    let step = |mut command: Command, replicas: usize| {
        let runs = folder.join("runs/bench");
        let options = ["--epochs", "4", "--batch-size", "16", "--output-dir"];
        command.args(options).arg(&runs).arg("train");
        let output = command.current_dir(folder).output().expect("a program");
        assert!(output.status.success(), "{}", text(&output));
        let log = log(&runs);
        fs::remove_dir_all(&runs).expect("a folder");
        let train = log.iter().filter(|line| line["split"] == "train").skip(1);
        let steps = 1_350.0 / (16 * replicas) as f64;
        let times = train.map(|line| number(line, "seconds") / steps);
        median(&times.collect::<Vec<_>>())
    };
    let print = |what: &str, replicas: usize, command: &dyn Fn() -> Command| {
        let times: Vec<f64> = (0..RUNS).map(|_| step(command(), replicas)).collect();
        println!("| {what} | {:.2} ms |", median(&times) * 1e3);
    };
    for replicas in [1, 2, 4] {
        let command = || {
            let mut command = Command::new(program);
            command.args([
                "--strategy",
                "mirrored",
                "--replicas",
                &replicas.to_string(),
            ]);
            command
        };
        print(&format!("{replicas} in one process"), replicas, &command);
    }
    for processes in [2, 4] {
        let command = || {
            let mut command = mpi::run(processes);
            command.arg(program).args(["--replicas", "1"]);
            command.args(["--strategy", "multi-worker-mirrored"]);
            command
        };
        if with_mpi {
            print(&format!("{processes} processes"), processes, &command);
        }
    }
}

/// Seconds of an all-reduce of `bytes` between `hosts`, in `buckets`, by recursive halving and
/// doubling: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in
/// MPICH, 2005.
fn exchange(hosts: f64, bytes: f64, buckets: f64, latency: f64, bandwidth: f64) -> f64 {
    buckets * 2.0 * hosts.log2() * latency + 2.0 * (hosts - 1.0) / hosts * bytes / bandwidth
}

fn predict() {
    println!("\nPredicted: the part of the time that computes, with {PER_HOST} replicas a host\n");
    let columns: Vec<usize> = (0..8).map(|power| PER_HOST << power).collect();
    let header: Vec<String> = columns.iter().map(ToString::to_string).collect();
    println!("| model | network | {} |", header.join(" | "));
    println!("|---|---|{}", "---|".repeat(columns.len()));
    for (model, bytes, buckets, compute) in MODELS {
        for (network, latency, bandwidth) in NETWORKS {
            let variants = [
                ("", 1.0, 1.0),
                (", --accumulate 4", 4.0, 1.0),
                (", gradients in bfloat16", 1.0, 0.5),
            ];
            for (variant, batches, size) in variants {
                let efficiency = |replicas: &usize| {
                    let hosts = (replicas / PER_HOST) as f64;
                    let exchange = match hosts {
                        1.0 => 0.0,
                        _ => exchange(hosts, bytes * size, buckets, latency, bandwidth),
                    };
                    let computes = batches * compute;
                    format!("{:.0}%", 100.0 * computes / (computes + exchange))
                };
                let row: Vec<String> = columns.iter().map(efficiency).collect();
                println!("| {model}{variant} | {network} | {} |", row.join(" | "));
            }
        }
    }
}
