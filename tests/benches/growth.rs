//! The cost of training as work grows, and of reporting the throughput: `cargo bench -p kiln-tests --bench growth`, or
//! with `-- throughput` for one part.
//!
//! One generated crate has the CNN of the TensorFlow tutorial, another a dense network of variable
//! width. The benchmark measures throughput by replicas, batch size, width and number of examples,
//! memory by replicas, the time of a checkpoint by its size, and how long training waits for one, by
//! `checkpoint_seconds` of the log and the bytes on disk. All values of a measurement run in turn.
//!
//! Prints a table for each measurement, and writes `target/growth.json` and `target/growth.svg`. The
//! cost of `--throughput` is printed only.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use kiln_tests::{
    rendered::Project,
    repository,
    rounds::{chosen, extremes, in_turn, median, ratio},
    throughput::{Trained, fill_in, train, write_images},
};
use plotters::{coord::Shift, prelude::*};
use serde_json::{Value, json};

/// The number of runs of each value, in turn.
const RUNS: usize = 5;
/// Bytes per parameter in a checkpoint: the parameter and Adam's two moments, as `f32`.
const CHECKPOINT_BYTES: f64 = 4.0 * 3.0;
/// The number of checkpoints of a run that measures them.
const CHECKPOINTS: usize = 8;
/// The most that training may wait for a checkpoint, in microseconds a MB.
const WAIT_GOAL: f64 = 300.0;
/// The number of runs with and without `--throughput`: its cost is less than the noise of a few.
const REPORT_RUNS: usize = 11;
/// The largest share of the time that `--throughput` may cost, in percent.
const REPORT_GOAL: f64 = 0.5;
/// Steps between two checkpoints for which training need not wait: they take longer than the write of one.
const STEPS_BETWEEN: usize = 64;

/// A measurement at several values of one quantity.
struct Measure {
    name: &'static str,
    title: &'static str,
    along: &'static str,
    unit: &'static str,
    points: Vec<Point>,
}

struct Point {
    at: f64,
    /// The results of all runs.
    runs: Vec<f64>,
}

impl Point {
    fn median(&self) -> f64 {
        median(&self.runs)
    }
}

impl Measure {
    /// Measures all values in turn.
    fn run(
        [name, title, along, unit]: [&'static str; 4],
        values: &[usize],
        measure: impl Fn(usize) -> f64,
    ) -> Self {
        let sides: Vec<_> = values.iter().map(|at| || measure(*at)).collect();
        let runs = in_turn(RUNS, &sides);
        let points = values.iter().zip(runs);
        let points = points.map(|(at, runs)| Point {
            at: *at as f64,
            runs,
        });
        Measure {
            name,
            title,
            along,
            unit,
            points: points.collect(),
        }
    }

    fn print(&self) {
        println!(
            "\n{}: {}, medians of {RUNS} runs in turn (minimum to maximum)",
            self.title, self.unit
        );
        for point in &self.points {
            let (least, most) = extremes(&point.runs);
            println!(
                "{:>10.1} {:<28} {:>10.1}  ({least:.1} to {most:.1})",
                point.at,
                self.along,
                point.median()
            );
        }
    }

    fn json(&self) -> Value {
        let points = self
            .points
            .iter()
            .map(|point| json!({"at": point.at, "median": point.median(), "runs": point.runs}));
        json!({
            "measure": self.name,
            "title": self.title,
            "along": self.along,
            "unit": self.unit,
            "points": points.collect::<Vec<_>>(),
        })
    }
}

/// A crate with a network, and its images.
struct Crate {
    project: Project,
    program: PathBuf,
}

impl Crate {
    fn with(network: &str) -> Self {
        let project = Project::to_edit().fully_optimised();
        fill_in(&project, network);
        let program = project.build();
        Crate { project, program }
    }

    /// Trains for two epochs; writes the images if they are missing.
    fn train(&self, images: usize, numbers: &[(&str, usize)], width: usize) -> Trained {
        self.train_with(images, numbers, &["--epochs=2"], width)
    }

    /// As [`train`](Self::train), with other options, such as the number of epochs.
    fn train_with(
        &self,
        images: usize,
        numbers: &[(&str, usize)],
        others: &[&str],
        width: usize,
    ) -> Trained {
        let data = self.project.path().join(format!("images-{images}"));
        if !data.exists() {
            write_images(&data, u32::try_from(images).expect("a number for IDX"));
        }
        let numbers = numbers.iter();
        let mut options: Vec<String> = numbers
            .map(|(option, number)| format!("--{option}={number}"))
            .collect();
        options.extend(others.iter().map(|&option| option.into()));
        options.push(format!("--data-dir={}", data.display()));
        let width = width.to_string();
        let runs = self.project.path().join("runs");
        let program = Command::new(&self.program);
        train(program, &runs, &options, &[("WIDTH", &width)])
    }
}

fn main() {
    let chosen = chosen(&["cnn", "dense", "throughput"]);
    let is_chosen = |part| chosen.contains(&part);
    let mut results = Vec::new();
    if is_chosen("cnn") || is_chosen("throughput") {
        let cnn = Crate::with("cnn");
        if is_chosen("cnn") {
            results.extend(convolutional(&cnn));
        }
        if is_chosen("throughput") {
            cost_of_throughput(&cnn);
        }
    }
    if is_chosen("dense") {
        results.extend(dense(&Crate::with("dense")));
    }
    if results.is_empty() {
        return;
    }
    results.iter().for_each(Measure::print);
    if let Some(waited) = results.iter().find(|result| result.name == "wait") {
        let most = waited.points.iter().map(Point::median).reduce(f64::max);
        let (most, goal) = (most.expect("a point") / 1e3, WAIT_GOAL / 1e3);
        let verdict = if most <= goal { "reached" } else { "MISSED" };
        println!("  {verdict}: training waits {most:.3} ms a MB (goal: at most {goal})");
    }
    let target = repository().join("target");
    let report: Vec<_> = results.iter().map(Measure::json).collect();
    let report = serde_json::to_string_pretty(&report).expect("JSON");
    fs::write(target.join("growth.json"), report + "\n").expect("a file");
    draw(&results, &target.join("growth.svg"));
    println!("\nwritten: target/growth.json and target/growth.svg");
}

/// Compares trainings with `--throughput` and without, in turn.
fn cost_of_throughput(cnn: &Crate) {
    let numbers = [("replicas", 2), ("batch-size", 64)];
    let rate = |option: &'static [&'static str]| {
        let options = [&["--epochs=4"][..], option].concat();
        move || {
            cnn.train_with(7_680, &numbers, &options, 0)
                .examples_a_second
        }
    };
    // The peak is measured before the first epoch, which does not count.
    let runs = in_turn(REPORT_RUNS, &[rate(&[]), rate(&["--throughput"])]);
    let cost = 100.0 * (ratio(&runs[0], &runs[1]) - 1.0);
    println!(
        "\nCNN, 2 replicas of 64 images: examples a second, medians of {REPORT_RUNS} runs in turn"
    );
    for (name, runs) in ["without --throughput", "with it"].iter().zip(&runs) {
        let (least, most) = extremes(runs);
        println!(
            "{name:<24} {:>10.1}  ({least:.1} to {most:.1})",
            median(runs)
        );
    }
    let verdict = if cost < REPORT_GOAL {
        "reached"
    } else {
        "MISSED"
    };
    println!("  {verdict}: it costs {cost:.2}% (goal: under {REPORT_GOAL}%)");
}

/// Measurements by replicas, batch size and examples, with a network of 122,000 parameters.
fn convolutional(cnn: &Crate) -> Vec<Measure> {
    const IMAGES: usize = 7_680;
    let rate = "examples a second";
    let replicas = |replicas: usize| {
        cnn.train(
            IMAGES,
            &[("replicas", replicas), ("batch-size", 128 / replicas)],
            0,
        )
    };
    let batch = |size| cnn.train(IMAGES, &[("replicas", 2), ("batch-size", size)], 0);
    // The same number of steps, from more examples.
    let examples = |images| {
        let numbers = [("replicas", 2), ("batch-size", 64), ("steps-per-epoch", 54)];
        cnn.train(images, &numbers, 0)
    };
    vec![
        Measure::run(
            [
                "replicas",
                "CNN, 128 images in a global batch",
                "replicas",
                rate,
            ],
            &[1, 2, 4, 8],
            |count| replicas(count).examples_a_second,
        ),
        Measure::run(
            ["batch", "CNN, 2 replicas", "images a replica", rate],
            &[4, 16, 64, 256],
            |size| batch(size).examples_a_second,
        ),
        Measure::run(
            [
                "examples",
                "CNN, 2 replicas of 64 images",
                "examples in the files",
                rate,
            ],
            &[8_000, 40_000, 200_000],
            |images| examples(images).examples_a_second,
        ),
        Measure::run(
            [
                "memory",
                "CNN, 64 images a replica",
                "replicas",
                "MiB at most",
            ],
            &[1, 2, 4, 8],
            |count| {
                let numbers = [("replicas", count), ("batch-size", 64)];
                let trained = cnn.train(IMAGES, &numbers, 0);
                let memory = trained.memory;
                memory.expect("Linux tells, and this process has had less") / 1_048_576.0
            },
        ),
    ]
}

/// Measurements by the width of a network of three layers.
fn dense(dense: &Crate) -> Vec<Measure> {
    const IMAGES: usize = 4_000;
    let numbers = [
        ("replicas", 2),
        ("batch-size", 64),
        ("steps-per-epoch", CHECKPOINTS),
    ];
    let train = |width, more: &[(&str, usize)]| {
        let numbers = [&numbers[..], more].concat();
        dense.train(IMAGES, &numbers, width)
    };
    let parameters = |width: usize| 784 * width + width * width + 12 * width + 10;
    let widths = [256, 512, 1_024, 2_048];
    // The second epoch has one checkpoint more per step; both have one at the end.
    let checkpoint = |width| {
        let seconds = |every| {
            let trained = train(width, &[("checkpoint-steps", every)]);
            (CHECKPOINTS * 128) as f64 / trained.examples_a_second
        };
        (seconds(1) - seconds(CHECKPOINTS)) / (CHECKPOINTS - 1) as f64
    };
    let mut saved = Measure::run(
        [
            "checkpoint",
            "Dense network",
            "MB in a checkpoint",
            "ms a checkpoint",
        ],
        &widths,
        |width| 1e3 * checkpoint(width),
    );
    let megabytes = |width| parameters(width) as f64 * CHECKPOINT_BYTES / 1e6;
    // An epoch has the checkpoint before its validation, and the one after that of the epoch before.
    let wait = |width| {
        let numbers = [
            ("replicas", 2),
            ("batch-size", 64),
            ("steps-per-epoch", STEPS_BETWEEN),
        ];
        let trained = dense.train(IMAGES, &numbers, width);
        1e12 * trained.checkpoint_seconds / trained.checkpoint_bytes
    };
    let mut waited = Measure::run(
        [
            "wait",
            "Dense network, 64 steps between checkpoints",
            "MB in a checkpoint",
            "microseconds a MB that training waits",
        ],
        &widths,
        wait,
    );
    for point in saved.points.iter_mut().chain(&mut waited.points) {
        point.at = megabytes(point.at as usize);
    }
    vec![
        Measure::run(
            [
                "width",
                "Dense network, 2 replicas of 64 images",
                "values in a layer",
                "examples a second",
            ],
            &widths,
            |width| train(width, &[]).examples_a_second,
        ),
        saved,
        waited,
    ]
}

/// Draws a chart for each measurement, two in a row.
fn draw(results: &[Measure], path: &Path) {
    let area = SVGBackend::new(path, (860, 300 * results.len().div_ceil(2) as u32));
    let area = area.into_drawing_area();
    area.fill(&WHITE).expect("a chart");
    let places = area.split_evenly((results.len().div_ceil(2), 2));
    for (result, place) in results.iter().zip(&places) {
        draw_measure(result, place);
    }
    area.present().expect("a chart");
}

/// Draws the medians as a line, and all runs as points. Values grow by about the same factor, so
/// they are drawn at equal distances.
fn draw_measure(result: &Measure, place: &DrawingArea<SVGBackend, Shift>) {
    let color = RGBColor(37, 99, 235);
    let last = result.points.len() - 1;
    let runs = || result.points.iter().flat_map(|point| &point.runs);
    let most = runs().copied().fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(place)
        .caption(result.title, ("sans-serif", 15))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(-0.2..last as f64 + 0.2, 0.0..most * 1.1)
        .expect("a chart");
    chart
        .configure_mesh()
        .x_desc(result.along)
        .y_desc(result.unit)
        .x_labels(last + 1)
        .x_label_formatter(&|place| {
            let point = (place.fract() == 0.0).then(|| result.points.get(*place as usize));
            point
                .flatten()
                .map_or_else(String::new, |point| format!("{:.0}", point.at))
        })
        .y_labels(5)
        .y_label_formatter(&|value| format!("{value:.0}"))
        .light_line_style(TRANSPARENT)
        .draw()
        .expect("a chart");
    let points = || (0..).map(f64::from).zip(&result.points);
    let medians = points().map(|(place, point)| (place, point.median()));
    chart
        .draw_series(LineSeries::new(medians, color.stroke_width(2)))
        .expect("a line");
    let all = points().flat_map(|(place, point)| point.runs.iter().map(move |run| (place, *run)));
    chart
        .draw_series(all.map(|place| Circle::new(place, 2, color.filled())))
        .expect("points");
}
