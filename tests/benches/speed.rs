//! Training speed of a generated crate compared with alternatives on the same work: `cargo bench -p
//! kiln-tests --bench speed`, or with `-- dense` for one network.
//!
//! The sides are the generated crate with 1, 2 and 4 replicas, Burn's learner on one and two
//! devices, a plain Burn loop, TensorFlow's `MirroredStrategy` and PyTorch's
//! `DistributedDataParallel` with two replicas each, and PyTorch in one process, eager and compiled,
//! with fused optimizers and, for the CNN, the channels last in memory, in float32 and under autocast
//! to bfloat16 (both from PyPI, if Python 3 is available). All have the same network, optimizer (Adam,
//! or AdamW for the transformer; loops without Kiln use Burn's implementation), global batch and
//! cores. The sides run in turn, in reverse order in every second round. Kiln's and Burn's sides read
//! examples and build batches in the measured time; TensorFlow and PyTorch reuse one batch in memory.
//!
//! The plain loop has one replica, the system allocator and Burn's default threads; it neither
//! clips nor checks gradients, and its only metric is the loss. The plain loop and the learner use
//! Burn's layers, without the generated crate's feature `cpu-layers`, and matrix products without
//! AVX-512, which Burn disables. The bare loop is the plain loop with the layers, allocator and
//! threads of the generated crate, and shows the overhead of the generated loop. One replica uses
//! the threads of all cores; on one core with half of the batch, it has the resources of one of two
//! replicas. Two such trainings at once, which do not communicate, give an upper bound for two
//! replicas.
//!
//! Prints a table for each network, and writes `target/speed.json` and `target/speed.svg`, which
//! keep earlier results of networks that were not measured.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use kiln_tests::{
    python,
    rendered::{Project, text},
    repository,
    rounds::{chosen, extremes, in_turn, median, ratio},
    shared_target,
    throughput::{fill_in, noise, train, write_images},
};
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use serde_json::{Value, json};

/// The number of runs of each side, in turn.
const RUNS: usize = 5;
/// The number of 28x28 images, and of bytes of text; a tenth is for validation.
const IMAGES: u32 = 7_680;
const TEXT: usize = 160_000;
/// Bytes per example of the text.
const WINDOW: usize = 64;
/// Training epochs of TensorFlow and PyTorch.
const PEER_EPOCHS: usize = 2;
/// Python packages, as `pip` names them.
const TENSORFLOW: &[&str] = &["tensorflow-cpu==2.21.0"];
const PYTORCH: &[&str] = &["torch==2.15.0"];

/// Definitions for the loops without Kiln, if `model.rs` does not have them.
const TEMPLATE_PARTS: &str = "
pub fn create_model(_: &Args, device: &Device) -> Result<Model> {
    Ok(Model::new(device))
}

pub fn create_optimizer() -> burn::optim::ModuleOptimizer {
    burn::optim::AdamConfig::new().with_epsilon(1e-7).init()
}
";
const EXAMPLE_PARTS: &str = "
pub fn create_model(args: &Args, device: &Device) -> Result<Model> {
    Model::new(args, device)
}
";

/// A network, and its goals for two replicas.
struct Network {
    name: &'static str,
    title: &'static str,
    source: Source,
    /// Epochs of a run with the layers and threads of the generated crate; the first is for
    /// warm-up. A run takes seconds, so that a stall of the machine matters little.
    epochs: usize,
    /// Epochs of a run with Burn's layers, which are slower.
    burn_epochs: usize,
    global_batch: usize,
    /// A side, and the required ratio to its rate.
    goals: &'static [(&'static str, f64)],
}

impl Network {
    /// The approximate number of examples of an epoch of noise; the template trains on its digits.
    fn examples(&self) -> usize {
        let all = match self.source {
            Source::Template | Source::Fixture => IMAGES as usize,
            Source::Example(_) => TEXT / WINDOW,
        };
        all - all / 10
    }

    /// The [ways](PYTORCH_WAYS) of this network.
    fn pytorch_ways(&self) -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
        let is_cnn = self.name == "cnn";
        let ways = PYTORCH_WAYS.into_iter();
        ways.filter(move |(_, ways)| is_cnn || !ways.contains(&"channels_last"))
    }
}

/// The source of a network.
enum Source {
    /// The template, with its digits.
    Template,
    /// `tests/fixtures/speed`.
    Fixture,
    /// A worked example.
    Example(&'static str),
}

const TWO: &str = "generated crate, 2 replicas";
const ONE: &str = "generated crate, 1 replica";
const ONE_CORE: &str = "generated crate, 1 replica on 1 core";
const APART: &str = "generated crate, 2 trainings on 1 core each";
const LEARNER: &str = "Burn's learner, 1 device";
const PLAIN: &str = "plain Burn loop";
const BARE: &str = "bare loop";
const MIRRORED: &str = "TensorFlow MirroredStrategy, 2 replicas";
const DDP: &str = "PyTorch DDP fused, 2 processes";
const EAGER: &str = "PyTorch, 1 process";
const FUSED: &str = "PyTorch fused, 1 process";
const COMPILED: &str = "PyTorch compiled fused, 1 process";
const CHANNELS_LAST: &str = "PyTorch channels-last fused, 1 process";
const COMPILED_CHANNELS_LAST: &str = "PyTorch compiled channels-last fused, 1 process";
const AUTOCAST: &str = "PyTorch bfloat16 fused, 1 process";
const COMPILED_AUTOCAST: &str = "PyTorch compiled bfloat16 fused, 1 process";
const CHANNELS_LAST_AUTOCAST: &str = "PyTorch bfloat16 channels-last fused, 1 process";
const COMPILED_CHANNELS_LAST_AUTOCAST: &str =
    "PyTorch compiled bfloat16 channels-last fused, 1 process";
const BFLOAT16: &str = "generated crate, 2 replicas, bfloat16";

/// PyTorch's ways to train a network in one process. Those with `channels_last` are for the CNN.
const PYTORCH_WAYS: [(&str, &[&str]); 9] = [
    (EAGER, &[]),
    (FUSED, &["fused"]),
    (COMPILED, &["fused", "compile"]),
    (CHANNELS_LAST, &["fused", "channels_last"]),
    (
        COMPILED_CHANNELS_LAST,
        &["fused", "compile", "channels_last"],
    ),
    (AUTOCAST, &["fused", "bfloat16"]),
    (COMPILED_AUTOCAST, &["fused", "compile", "bfloat16"]),
    (
        CHANNELS_LAST_AUTOCAST,
        &["fused", "bfloat16", "channels_last"],
    ),
    (
        COMPILED_CHANNELS_LAST_AUTOCAST,
        &["fused", "compile", "bfloat16", "channels_last"],
    ),
];

static NETWORKS: [Network; 4] = [
    Network {
        name: "digits",
        title: "CNN of the template, 32 images of 8x8 in a batch",
        source: Source::Template,
        epochs: 19,
        burn_epochs: 9,
        global_batch: 32,
        goals: &[(LEARNER, 2.0), (PLAIN, 2.0), (ONE, 1.8), (ONE_CORE, 1.8)],
    },
    Network {
        name: "cnn",
        title: "CNN of the TensorFlow tutorial, 128 images of 28x28 in a batch",
        source: Source::Fixture,
        epochs: 7,
        burn_epochs: 3,
        global_batch: 128,
        goals: &[
            (LEARNER, 2.0),
            (PLAIN, 2.0),
            (MIRRORED, 1.0),
            (DDP, 1.0),
            (EAGER, 1.2),
            (FUSED, 1.2),
            (COMPILED, 1.2),
            (CHANNELS_LAST, 1.2),
            (COMPILED_CHANNELS_LAST, 1.2),
            (ONE, 1.8),
            (ONE_CORE, 1.8),
        ],
    },
    Network {
        name: "dense",
        title: "Dense 784-1024-1024-10, 256 images in a batch",
        source: Source::Fixture,
        epochs: 9,
        burn_epochs: 3,
        global_batch: 256,
        goals: &[
            (LEARNER, 1.3),
            (PLAIN, 1.3),
            (MIRRORED, 1.5),
            (DDP, 1.0),
            (EAGER, 1.2),
            (FUSED, 1.2),
            (COMPILED, 1.2),
            (ONE, 1.8),
            (ONE_CORE, 1.8),
        ],
    },
    Network {
        name: "transformer",
        title: "Transformer of 2 blocks of 64 values, 32 texts of 64 bytes in a batch",
        source: Source::Example("language-model"),
        epochs: 5,
        burn_epochs: 3,
        global_batch: 32,
        goals: &[
            (DDP, 1.0),
            (EAGER, 1.2),
            (FUSED, 1.2),
            (COMPILED, 1.2),
            (ONE, 1.8),
            (ONE_CORE, 1.8),
        ],
    },
];

fn main() {
    let chosen = chosen(&NETWORKS.each_ref().map(|network| network.name));
    let networks = NETWORKS.iter();
    let networks = networks.filter(|network| chosen.contains(&network.name));
    let peers = Peers::prepare();
    let path = repository().join("target/speed.json");
    let mut results = measured_before(&path).unwrap_or_default();
    for network in networks {
        let result = measure(network, &peers);
        results.retain(|earlier| earlier.network.name != network.name);
        results.push(result);
        results.sort_by_key(|result| place(result.network.name));
        let report: Vec<_> = results.iter().map(Comparison::json).collect();
        let report = serde_json::to_string_pretty(&report).expect("JSON");
        fs::write(&path, report + "\n").expect("a file");
        draw(&results, &path.with_extension("svg"));
    }
    println!("\nwritten: target/speed.json and target/speed.svg");
}

fn place(network: &str) -> Option<usize> {
    NETWORKS.iter().position(|other| other.name == network)
}

/// The networks in the file of earlier results.
fn measured_before(path: &Path) -> Option<Vec<Comparison>> {
    let report: Value = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
    let rates = |side: &Value| {
        let runs = side["examples_a_second"].as_array()?.iter();
        Some(Rates {
            side: side["side"].as_str()?.to_owned(),
            runs: runs.map(Value::as_f64).collect::<Option<_>>()?,
        })
    };
    let comparisons = report.as_array()?.iter().filter_map(|result| {
        let sides = result["sides"].as_array()?.iter();
        Some(Comparison {
            network: &NETWORKS[place(result["network"].as_str()?)?],
            sides: sides.map(rates).collect::<Option<_>>()?,
        })
    });
    Some(comparisons.collect())
}

/// The rates of all sides for a network.
struct Comparison {
    network: &'static Network,
    sides: Vec<Rates>,
}

/// Examples per second of each run, in the order of rounds.
struct Rates {
    side: String,
    runs: Vec<f64>,
}

impl Rates {
    fn median(&self) -> f64 {
        median(&self.runs)
    }

    fn over(&self, other: &Rates) -> f64 {
        ratio(&self.runs, &other.runs)
    }
}

impl Comparison {
    fn of(&self, side: &str) -> Option<&Rates> {
        self.sides.iter().find(|rates| rates.side == side)
    }

    fn print(&self) {
        println!(
            "\n{}: examples a second, medians of {RUNS} runs in turn (minimum to maximum), and of \
             ratios within a round",
            self.network.title
        );
        let plain = self.of(PLAIN).expect("a plain loop");
        for rates in &self.sides {
            let (least, most) = extremes(&rates.runs);
            println!(
                "{:<56} {:>8.0}  ({least:.0} to {most:.0})  {:.2} x",
                rates.side,
                rates.median(),
                rates.over(plain)
            );
        }
        let two = self.of(TWO).expect("two replicas");
        for (side, goal) in self.network.goals {
            self.print_goal(two, side, *goal);
        }
        if let Some(rounded) = self.of(BFLOAT16) {
            let ways = self.network.pytorch_ways();
            for (side, _) in ways.filter(|(_, ways)| ways.contains(&"bfloat16")) {
                self.print_goal(rounded, side, 1.0);
            }
        }
        let [one, bare] = [ONE, BARE].map(|side| self.of(side).expect("a side"));
        if let (Some(one), Some(apart)) = (self.of(ONE_CORE), self.of(APART)) {
            let (most, reached) = (apart.over(one), 100.0 * two.over(apart));
            println!(
                "  two trainings that exchange nothing reach {most:.2} x {ONE_CORE}, of which two \
                 replicas are {reached:.0}%"
            );
        }
        let cost = 100.0 * (bare.over(one) - 1.0);
        let verdict = if cost <= 1.0 { "reached" } else { "MISSED" };
        println!("  {verdict}: one replica costs {cost:.1}% over the bare loop (goal: at most 1%)");
    }

    /// Whether `rates` are `goal` times those of a side.
    fn print_goal(&self, rates: &Rates, side: &str, goal: f64) {
        let Some(other) = self.of(side) else {
            return println!("  not here: {side}");
        };
        let ratio = rates.over(other);
        let verdict = if ratio >= goal { "reached" } else { "MISSED" };
        println!(
            "  {verdict}: {} {ratio:.2} x {side} (goal {goal})",
            rates.side
        );
    }

    fn json(&self) -> Value {
        let sides = self.sides.iter().map(|rates| {
            json!({"side": rates.side, "median": rates.median(), "examples_a_second": rates.runs})
        });
        json!({
            "network": self.network.name,
            "title": self.network.title,
            "global_batch": self.network.global_batch,
            "cores": cores(),
            "sides": sides.collect::<Vec<_>>(),
        })
    }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Interpreters with TensorFlow and with PyTorch, if available.
struct Peers {
    tensorflow: Option<PathBuf>,
    pytorch: Option<PathBuf>,
}

impl Peers {
    fn prepare() -> Self {
        let peer = |name, module, packages: &[&str]| {
            python::with_packages(name, module, packages)
                .inspect_err(|why| println!("no {name}: {why}"))
                .ok()
        };
        Peers {
            tensorflow: peer("tensorflow", "tensorflow", TENSORFLOW),
            pytorch: peer("pytorch", "torch", PYTORCH),
        }
    }
}

/// The crate with a network filled in, and its programs.
struct Programs {
    network: &'static Network,
    project: Project,
    generated: PathBuf,
    bare: PathBuf,
    plain: PathBuf,
    learner: PathBuf,
}

impl Programs {
    fn build(network: &'static Network) -> Self {
        let project = match network.source {
            Source::Template | Source::Fixture => Project::to_edit(),
            Source::Example(example) => Project::example_to_edit(example),
        }
        .fully_optimised();
        let fixtures = repository().join("tests/fixtures/speed");
        let fixture = |name: &str| fs::read_to_string(fixtures.join(name)).expect("a fixture");
        let write = |path: &str, text: &str| {
            let path = project.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        let append = |parts: &str| {
            let model = fs::read_to_string(project.path().join("src/model.rs"));
            write("src/model.rs", &(model.expect("a model") + parts));
        };
        match network.source {
            Source::Template => append(TEMPLATE_PARTS),
            Source::Example(_) => append(EXAMPLE_PARTS),
            Source::Fixture => fill_in(&project, network.name),
        }
        let folder = project.path().join("noise");
        write_images(&folder, IMAGES);
        let text: Vec<u8> = (0..TEXT).map(noise).collect();
        fs::write(folder.join("text.txt"), text).expect("a file");
        let keep = |name: &str| {
            let program = project.path().join(name);
            let built = shared_target().join("release/examples").join(name);
            fs::copy(built, &program).expect("a program");
            program
        };
        let plain = fixture("plain.rs");
        let allocator =
            "#[global_allocator]\nstatic ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;\n";
        let started = "use std::time::Instant;";
        let bare = plain.replacen(started, &format!("{started}\n{allocator}"), 1);
        write("examples/bare.rs", &bare);
        let generated = project.build();
        // The loops without Kiln use Burn's optimizer.
        if let Source::Example(_) = network.source {
            project.edit("model.rs", "    adam::AdamConfig,\n", "");
            let import = "optim::{\n";
            let burns = format!("{import}AdamWConfig as AdamConfig,");
            project.edit("model.rs", import, &burns);
        }
        project.cargo(&["build", "--release", "--example", "bare"]);
        let bare = keep("bare");
        write("examples/plain.rs", &plain);
        write("examples/learner.rs", &fixture("learner.rs"));
        // Burn with its default settings.
        let manifest = fs::read_to_string(project.path().join("Cargo.toml")).expect("a manifest");
        let learner = "\n[dev-dependencies]\nburn = { version = \"0.22.1\", default-features = false, \
                       features = [\"train\"] }\n";
        let manifest = manifest.replacen(", \"burn/x86-v4\"", "", 1);
        write("Cargo.toml", &(manifest + learner));
        let of_burn = ["--no-default-features", "--features", "flex"];
        let examples = ["--example", "plain", "--example", "learner"];
        project.cargo(&[&["build", "--release"], &of_burn[..], &examples].concat());
        let [plain, learner] = ["plain", "learner"].map(keep);
        Programs {
            network,
            project,
            generated,
            bare,
            plain,
            learner,
        }
    }

    /// Options that select the examples.
    fn data(&self) -> Vec<String> {
        let folder = self.project.path().join("noise");
        match self.network.source {
            Source::Template => Vec::new(),
            _ => vec!["--data-dir".to_owned(), folder.display().to_string()],
        }
    }

    /// Examples per second of the generated crate.
    fn generated(&self, replicas: usize, precision: &str) -> f64 {
        let batch_size = self.network.global_batch / replicas;
        let mut command = Command::new(&self.generated);
        command.args(["--precision", precision]);
        self.train(command, replicas, batch_size)
    }

    /// Examples per second of one replica on a core with half of the batch, pinned with Linux's `taskset`.
    fn on_core(&self, core: usize) -> f64 {
        let mut command = Command::new("taskset");
        command.arg("--cpu-list").arg(core.to_string());
        command.arg(&self.generated);
        self.train(command, 1, self.network.global_batch / 2)
    }

    /// The total of two such trainings at the same time.
    fn on_two_cores_apart(&self) -> f64 {
        thread::scope(|scope| {
            let other = scope.spawn(|| self.on_core(1));
            self.on_core(0) + other.join().expect("a rate")
        })
    }

    fn train(&self, program: Command, replicas: usize, batch_size: usize) -> f64 {
        let runs = tempfile::tempdir_in(self.project.path()).expect("a folder");
        let numbers = [
            ("--epochs", self.network.epochs),
            ("--replicas", replicas),
            ("--batch-size", batch_size),
        ];
        let numbers = numbers.map(|(option, number)| format!("{option}={number}"));
        let options = [numbers.to_vec(), self.data()].concat();
        train(program, runs.path(), &options, &[]).examples_a_second
    }

    /// Examples per second of a loop without Kiln.
    fn burn_loop(&self, program: &Path, epochs: usize, more: &[&str]) -> f64 {
        let numbers = [epochs, self.network.global_batch];
        let mut command = Command::new(program);
        command.args(numbers.map(|number| number.to_string()));
        rate(command.args(more).args(self.data()))
    }
}

/// Examples per second, as printed by a program.
fn rate(command: &mut Command) -> f64 {
    let output = command.output().expect("a program");
    let printed = text(&output);
    assert!(output.status.success(), "{command:?}: {printed}");
    let rate = printed.lines().find_map(|line| line.strip_prefix("rate "));
    let rate = rate.unwrap_or_else(|| panic!("{command:?}: no rate: {printed}"));
    rate.trim().parse().expect("a number")
}

/// Examples per second of a script of `tests/fixtures/speed`.
fn script(python: &Path, script: &str, network: &Network, replicas: usize, ways: &[&str]) -> f64 {
    let path = repository().join("tests/fixtures/speed").join(script);
    let steps = network.examples() * PEER_EPOCHS / network.global_batch;
    let numbers = [replicas, network.global_batch, steps].map(|number| number.to_string());
    let mut command = Command::new(python);
    rate(command.arg(path).arg(network.name).args(numbers).args(ways))
}

/// A name, and a function that returns examples per second.
type Side<'a> = (&'static str, Box<dyn Fn() -> f64 + 'a>);

/// The available sides of a network; the Python scripts do not implement the template's own network.
fn sides<'a>(network: &'a Network, programs: &'a Programs, peers: &'a Peers) -> Vec<Side<'a>> {
    let generated = move |name, replicas| -> Side<'a> {
        (
            name,
            Box::new(move || programs.generated(replicas, "float32")),
        )
    };
    let burn_loop =
        move |name, program: &'a Path, epochs, more: &'static [&'static str]| -> Side<'a> {
            (
                name,
                Box::new(move || programs.burn_loop(program, epochs, more)),
            )
        };
    // Sides that are compared closely run one after the other, as rates drift within minutes.
    let mut sides = vec![
        burn_loop(BARE, &programs.bare, network.epochs, &["pool"]),
        generated(ONE, 1),
        generated(TWO, 2),
    ];
    if Command::new("taskset").arg("--version").output().is_ok() {
        sides.push((ONE_CORE, Box::new(move || programs.on_core(0))));
        if cores() > 1 {
            sides.push((APART, Box::new(move || programs.on_two_cores_apart())));
        }
    }
    let epochs = network.burn_epochs;
    sides.extend([
        generated("generated crate, 4 replicas", 4),
        burn_loop(PLAIN, &programs.plain, epochs, &[]),
        burn_loop(LEARNER, &programs.learner, epochs, &["1"]),
        burn_loop(
            "Burn's learner, 2 devices",
            &programs.learner,
            epochs,
            &["2"],
        ),
    ]);
    if let Source::Template = network.source {
        return sides;
    }
    let (tensorflow, pytorch) = (peers.tensorflow.as_deref(), peers.pytorch.as_deref());
    if let Some(python) = tensorflow {
        let run = move || script(python, "tf_mirrored.py", network, 2, &[]);
        sides.push((MIRRORED, Box::new(run)));
    }
    if let Some(python) = pytorch {
        sides.extend(of_pytorch(python, network));
        let rounded = || programs.generated(2, "bfloat16");
        sides.push((BFLOAT16, Box::new(rounded)));
    }
    sides
}

/// PyTorch's ways to train a network.
fn of_pytorch<'a>(python: &'a Path, network: &'a Network) -> impl Iterator<Item = Side<'a>> {
    let ddp: (_, _, &[&str]) = (DDP, 2, &["fused"]);
    let alone = network.pytorch_ways().map(|(name, ways)| (name, 1, ways));
    let all = [ddp].into_iter().chain(alone);
    all.map(move |(name, replicas, ways)| {
        let run = move || script(python, "torch_peer.py", network, replicas, ways);
        (name, Box::new(run) as _)
    })
}

/// Builds all sides of a network and runs them in turn.
fn measure(network: &'static Network, peers: &Peers) -> Comparison {
    let programs = Programs::build(network);
    let sides = sides(network, &programs, peers);
    let (names, runs): (Vec<_>, Vec<_>) = sides.into_iter().unzip();
    let measured = in_turn(RUNS, &runs);
    let sides = names.into_iter().zip(measured).map(|(side, runs)| Rates {
        side: side.to_owned(),
        runs,
    });
    let result = Comparison {
        network,
        sides: sides.collect(),
    };
    result.print();
    result
}

/// Dimensions of the chart in pixels: width, space for names, and heights of a bar and of a title.
const WIDTH: i32 = 930;
const NAMES: i32 = 400;
const BAR: i32 = 26;
const TITLE: i32 = 44;

/// Draws a bar for each side, as long as its median.
fn draw(results: &[Comparison], path: &Path) {
    let height = |result: &Comparison| TITLE + BAR * result.sides.len() as i32;
    let all = results.iter().map(height).sum::<i32>() + BAR / 2;
    let area = SVGBackend::new(path, (WIDTH as u32, all as u32)).into_drawing_area();
    area.fill(&WHITE).expect("a chart");
    let mut top = 0;
    for result in results {
        draw_network(&area, result, top);
        top += height(result);
    }
    area.present().expect("a chart");
}

fn draw_network(
    area: &DrawingArea<SVGBackend, plotters::coord::Shift>,
    result: &Comparison,
    top: i32,
) {
    let dark = RGBColor(51, 65, 85);
    let write = |words: String, place: (i32, i32), right: HPos, size: i32| {
        let style = ("sans-serif", size).into_font().color(&dark);
        let style = style.pos(Pos::new(right, VPos::Center));
        area.draw(&Text::new(words, place, style)).expect("a text");
    };
    let title = format!("{}: examples a second", result.network.title);
    write(title, (12, top + TITLE / 2 + 4), HPos::Left, 16);
    let most = result.sides.iter().map(Rates::median).fold(0.0, f64::max);
    for (number, rates) in result.sides.iter().enumerate() {
        let middle = top + TITLE + BAR * number as i32 + BAR / 2;
        let length = rates.median() / most * f64::from(WIDTH - NAMES - 90);
        let own = rates.side.starts_with("generated");
        let color = if own {
            RGBColor(37, 99, 235)
        } else {
            RGBColor(148, 163, 184)
        };
        let corners = [
            (NAMES, middle - BAR / 3),
            (NAMES + length as i32, middle + BAR / 3),
        ];
        area.draw(&Rectangle::new(corners, color.filled()))
            .expect("a bar");
        write(rates.side.clone(), (NAMES - 8, middle), HPos::Right, 13);
        let value = format!("{:.0}", rates.median());
        write(value, (NAMES + length as i32 + 6, middle), HPos::Left, 13);
    }
}
