//! Training with a generated crate against what a user would take instead, on the same work: `cargo bench
//! -p kiln-tests --bench speed`, or with `-- dense` one network alone.
//!
//! The sides are the generated crate with 1, 2 and 4 replicas, Burn's own learner on one device and on
//! two, a plain Burn loop, TensorFlow's `MirroredStrategy` and PyTorch's `DistributedDataParallel` with
//! two replicas each (both from PyPI, where Python 3 is at hand). All have the same network, optimizer
//! (Adam), examples in a global batch, and cores. They run in turn. Kiln and both Burns read examples and
//! make batches in that time; TensorFlow and PyTorch have one batch in memory. The plain loop has one
//! replica, the system's allocator, and threads as Burn uses them; it neither clips gradients nor checks
//! them, nor keeps metrics but the loss. It and the learner have Burn's layers, without the generated
//! crate's feature `cpu-conv`, and matrix products without AVX-512, which Burn has switched off. The bare
//! loop is the plain one with the layers, allocator and threads of the generated crate, to see what the
//! generated loop costs.
//!
//! Prints a table a network, and writes `target/speed.json` and `target/speed.svg`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use kiln_tests::{
    rendered::{IDX_FILES, Project, idx, text},
    repository, shared_target,
};
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use serde_json::{Value, json};

/// Runs of each side in turn.
const RUNS: usize = 5;
/// Epochs of a run; the first one warms up.
const EPOCHS: usize = 3;
/// Images of 28x28 in the files, and bytes of the text; a tenth validates.
const IMAGES: u32 = 7_680;
const TEXT: usize = 640_000;
/// Examples of an epoch, about: for how long TensorFlow and PyTorch train.
const EXAMPLES: usize = 6_912;
/// What the sides of Python need, as `pip` names it.
const TENSORFLOW: &[&str] = &["tensorflow-cpu==2.21.0"];
const PYTORCH: &[&str] = &["torch==2.15.0"];

/// A network, and what two replicas must reach.
struct Network {
    name: &'static str,
    title: &'static str,
    /// The worked example that has it; else it is in `tests/fixtures/speed`.
    example: Option<&'static str>,
    global_batch: usize,
    /// The side and how many times its rate.
    goals: &'static [(&'static str, f64)],
}

const TWO: &str = "generated crate, 2 replicas";
const ONE: &str = "generated crate, 1 replica";
const LEARNER: &str = "Burn's learner, 1 device";
const PLAIN: &str = "plain Burn loop";
const BARE: &str = "bare loop";
const MIRRORED: &str = "TensorFlow MirroredStrategy, 2 replicas";
const DDP: &str = "PyTorch DDP, 2 processes";

const NETWORKS: [Network; 3] = [
    Network {
        name: "cnn",
        title: "CNN of the TensorFlow tutorial, 128 images of 28x28 in a batch",
        example: None,
        global_batch: 128,
        goals: &[
            (LEARNER, 2.0),
            (PLAIN, 2.0),
            (MIRRORED, 1.0),
            (DDP, 1.0),
            (ONE, 1.8),
        ],
    },
    Network {
        name: "dense",
        title: "Dense 784-1024-1024-10, 256 images in a batch",
        example: None,
        global_batch: 256,
        goals: &[
            (LEARNER, 1.3),
            (PLAIN, 1.3),
            (MIRRORED, 1.5),
            (DDP, 1.0),
            (ONE, 1.8),
        ],
    },
    Network {
        name: "transformer",
        title: "Transformer of 2 blocks of 64 values, 32 texts of 64 bytes in a batch",
        example: Some("language-model"),
        global_batch: 32,
        goals: &[(DDP, 1.0), (ONE, 1.8)],
    },
];

fn main() {
    let chosen: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    let is_chosen =
        |network: &&Network| chosen.is_empty() || chosen.iter().any(|name| name == network.name);
    let peers = Peers::prepare();
    let results: Vec<_> = NETWORKS
        .iter()
        .filter(is_chosen)
        .map(|network| measure(network, &peers))
        .collect();
    let names = NETWORKS.map(|network| network.name).join(", ");
    assert!(!results.is_empty(), "networks: {names}; not {chosen:?}");
    let target = repository().join("target");
    let report: Vec<_> = results.iter().map(Comparison::json).collect();
    let report = serde_json::to_string_pretty(&report).expect("JSON");
    fs::write(target.join("speed.json"), report + "\n").expect("a file");
    draw(&results, &target.join("speed.svg"));
    println!("\nwritten: target/speed.json and target/speed.svg");
}

/// The rates of all sides of a network.
struct Comparison {
    network: &'static Network,
    sides: Vec<Rates>,
}

/// Examples a second of each run, sorted.
struct Rates {
    side: &'static str,
    runs: Vec<f64>,
}

impl Rates {
    fn median(&self) -> f64 {
        self.runs[self.runs.len() / 2]
    }
}

impl Comparison {
    fn of(&self, side: &str) -> Option<f64> {
        let rates = self.sides.iter().find(|rates| rates.side == side);
        rates.map(Rates::median)
    }

    fn print(&self) {
        println!(
            "\n{}: examples a second, medians of {RUNS} runs in turn (minimum to maximum)",
            self.network.title
        );
        let plain = self.of(PLAIN).expect("a plain loop");
        for rates in &self.sides {
            let (least, most) = (rates.runs[0], rates.runs[rates.runs.len() - 1]);
            let median = rates.median();
            println!(
                "{:<48} {median:>8.0}  ({least:.0} to {most:.0})  {:.2} x",
                rates.side,
                median / plain
            );
        }
        let two = self.of(TWO).expect("two replicas");
        for (side, goal) in self.network.goals {
            let Some(rate) = self.of(side) else {
                println!("  not here: {side}");
                continue;
            };
            let ratio = two / rate;
            let verdict = if ratio >= *goal { "reached" } else { "MISSED" };
            println!("  {verdict}: two replicas {ratio:.2} x {side} (goal {goal})");
        }
        let [one, bare] = [ONE, BARE].map(|side| self.of(side).expect("a side"));
        let cost = 100.0 * (bare / one - 1.0);
        let verdict = if cost <= 1.0 { "reached" } else { "MISSED" };
        println!("  {verdict}: one replica costs {cost:.1}% over the bare loop (goal: at most 1%)");
    }

    fn json(&self) -> Value {
        let sides = self.sides.iter().map(|rates| {
            json!({"side": rates.side, "median": rates.median(), "examples_a_second": rates.runs})
        });
        json!({
            "network": self.network.name,
            "title": self.network.title,
            "global_batch": self.network.global_batch,
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "sides": sides.collect::<Vec<_>>(),
        })
    }
}

/// Interpreters with TensorFlow and with PyTorch, where they can be had.
struct Peers {
    tensorflow: Option<PathBuf>,
    pytorch: Option<PathBuf>,
}

impl Peers {
    fn prepare() -> Self {
        let peer = |name, module, packages: &[&str]| {
            let python = python(name, module, packages);
            python.inspect_err(|why| println!("no {name}: {why}")).ok()
        };
        Peers {
            tensorflow: peer("TensorFlow", "tensorflow", TENSORFLOW),
            pytorch: peer("PyTorch", "torch", PYTORCH),
        }
    }
}

/// The Python of a virtual environment below `target` that can import `module`.
fn python(name: &str, module: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let folder = repository().join("target").join(name.to_lowercase());
    let python = folder.join("bin/python");
    if run(&python, &["-c", &format!("import {module}")]).is_err() {
        let folder = folder.to_str().ok_or("the folder is not UTF-8")?;
        run(Path::new("python3"), &["-m", "venv", "--clear", folder])?;
        let install = ["-m", "pip", "install", "--quiet"];
        run(&python, &[&install[..], packages].concat())?;
    }
    Ok(python)
}

/// What a program prints.
fn run(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let called = format!("{} {}", program.display(), arguments.join(" "));
    match Command::new(program).args(arguments).output() {
        Err(error) => Err(format!("`{called}` does not start: {error}")),
        Ok(output) if output.status.success() => Ok(text(&output)),
        Ok(output) => Err(format!("`{called}` failed:\n{}", text(&output))),
    }
}

/// The crate with a network filled in, and the programs that use it.
struct Programs {
    project: Project,
    generated: PathBuf,
    bare: PathBuf,
    plain: PathBuf,
    learner: PathBuf,
}

impl Programs {
    fn build(network: &Network) -> Self {
        let project = match network.example {
            None => Project::default_answers(),
            Some(example) => Project::example(example),
        };
        let fixtures = repository().join("tests/fixtures/speed");
        let fixture = |name: &str| fs::read_to_string(fixtures.join(name)).expect("a fixture");
        let write = |path: &str, text: &str| {
            let path = project.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        let model = match network.example {
            None => {
                write("src/network.rs", &fixture(&format!("{}.rs", network.name)));
                project.edit(
                    "lib.rs",
                    "pub mod model;",
                    "pub mod model;\npub mod network;",
                );
                fixture("model.rs")
            }
            Some(_) => {
                let path = project.path().join("src/model.rs");
                let model = fs::read_to_string(path).expect("a model");
                model
                    + "\npub fn create_model(args: &Args, device: &Device) -> Result<Model> {\n    \
                       Model::new(args, device)\n}\n"
            }
        };
        write("src/model.rs", &model);
        write_data(&project.path().join("noise"));
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
        project.cargo(&["build", "--release", "--example", "bare"]);
        let bare = keep("bare");
        let generated = project.build();
        write("examples/plain.rs", &plain);
        write("examples/learner.rs", &fixture("learner.rs"));
        // Burn as its users have it.
        let manifest = fs::read_to_string(project.path().join("Cargo.toml")).expect("a manifest");
        let learner = "[dev-dependencies]\nburn = { version = \"0.22.1\", default-features = false, \
                       features = [\"train\"] }\n";
        let manifest = manifest
            .replacen("[dev-dependencies]\n", learner, 1)
            .replacen(", \"burn/x86-v4\"", "", 1);
        write("Cargo.toml", &manifest);
        let of_burn = ["--no-default-features", "--features", "flex"];
        let examples = ["--example", "plain", "--example", "learner"];
        project.cargo(&[&["build", "--release"], &of_burn[..], &examples].concat());
        let [plain, learner] = ["plain", "learner"].map(keep);
        Programs {
            project,
            generated,
            bare,
            plain,
            learner,
        }
    }

    fn data(&self) -> [String; 2] {
        let folder = self.project.path().join("noise");
        ["--data-dir".to_owned(), folder.display().to_string()]
    }

    /// Examples a second of the generated crate.
    fn generated(&self, replicas: usize, global_batch: usize) -> f64 {
        let runs = self.project.path().join("runs").join(replicas.to_string());
        // A fresh folder: older checkpoints would be set aside one by one.
        let _ = fs::remove_dir_all(&runs);
        let output = Command::new(&self.generated)
            .args(["train", "--epochs", &EPOCHS.to_string()])
            .args(["--replicas", &replicas.to_string()])
            .args(["--batch-size", &(global_batch / replicas).to_string()])
            .args(self.data())
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
        let counts = of_training.skip(1).map(|line| {
            let examples = line["examples"].as_f64().expect("a number");
            (examples, line["seconds"].as_f64().expect("seconds"))
        });
        let (examples, seconds): (Vec<_>, Vec<_>) = counts.unzip();
        assert_eq!(examples.len(), EPOCHS - 1, "{log}");
        examples.iter().sum::<f64>() / seconds.iter().sum::<f64>()
    }

    /// Examples a second of a loop without Kiln.
    fn burn_loop(&self, program: &Path, global_batch: usize, more: &[&str]) -> f64 {
        let mut command = Command::new(program);
        let numbers = [EPOCHS, global_batch].map(|number| number.to_string());
        rate(command.args(numbers).args(more).args(self.data()))
    }

    /// Examples a second of Burn's learner.
    fn learner(&self, devices: usize, global_batch: usize) -> f64 {
        let mut command = Command::new(&self.learner);
        let numbers = [EPOCHS, global_batch, devices].map(|number| number.to_string());
        rate(command.args(numbers).args(self.data()))
    }
}

/// Examples a second, as a program says.
fn rate(command: &mut Command) -> f64 {
    let output = command.output().expect("a program");
    let printed = text(&output);
    assert!(output.status.success(), "{command:?}: {printed}");
    let rate = printed.lines().find_map(|line| line.strip_prefix("rate "));
    let rate = rate.unwrap_or_else(|| panic!("{command:?}: no rate: {printed}"));
    rate.trim().parse().expect("a number")
}

/// Examples a second of a script of `tests/fixtures/speed`.
fn script(python: &Path, script: &str, network: &Network) -> f64 {
    let path = repository().join("tests/fixtures/speed").join(script);
    let steps = EXAMPLES * (EPOCHS - 1) / network.global_batch;
    let numbers = [2, network.global_batch, steps].map(|number| number.to_string());
    let mut command = Command::new(python);
    rate(command.arg(path).arg(network.name).args(numbers))
}

/// Files like those of MNIST, with images of noise, and a text.
fn write_data(folder: &Path) {
    fs::create_dir_all(folder).expect("a folder");
    let noise = |at: usize| ((at as u32).wrapping_mul(2_654_435_761) >> 24) as u8;
    for (files, images) in [(&IDX_FILES[..2], IMAGES), (&IDX_FILES[2..], 100)] {
        fs::write(folder.join(files[0]), idx(&[images, 28, 28], noise)).expect("a file");
        let labels = idx(&[images], |at| (at % 10) as u8);
        fs::write(folder.join(files[1]), labels).expect("a file");
    }
    let text: Vec<u8> = (0..TEXT).map(noise).collect();
    fs::write(folder.join("text.txt"), text).expect("a file");
}

/// A name, and what gives examples a second.
type Side<'a> = (&'static str, Box<dyn Fn() -> f64 + 'a>);

/// The sides of a network that are here.
fn sides<'a>(network: &'a Network, programs: &'a Programs, peers: &'a Peers) -> Vec<Side<'a>> {
    let batch = network.global_batch;
    let generated = move |name, replicas| -> Side<'a> {
        (name, Box::new(move || programs.generated(replicas, batch)))
    };
    let burn_loop = move |name, program: &'a Path, more: &'static [&'static str]| -> Side<'a> {
        let run = move || programs.burn_loop(program, batch, more);
        (name, Box::new(run))
    };
    let learner = move |name, devices| -> Side<'a> {
        (name, Box::new(move || programs.learner(devices, batch)))
    };
    let script = move |name, python: &'a Path, file| -> Side<'a> {
        (name, Box::new(move || script(python, file, network)))
    };
    let mut sides = vec![
        generated(ONE, 1),
        burn_loop(BARE, &programs.bare, &["pool"]),
        generated(TWO, 2),
        generated("generated crate, 4 replicas", 4),
        burn_loop(PLAIN, &programs.plain, &[]),
        learner(LEARNER, 1),
        learner("Burn's learner, 2 devices", 2),
    ];
    let (tensorflow, pytorch) = (peers.tensorflow.as_deref(), peers.pytorch.as_deref());
    sides.extend(tensorflow.map(|python| script(MIRRORED, python, "tf_mirrored.py")));
    sides.extend(pytorch.map(|python| script(DDP, python, "torch_ddp.py")));
    sides
}

/// Builds all sides of a network, and has them run in turn.
fn measure(network: &'static Network, peers: &Peers) -> Comparison {
    let programs = Programs::build(network);
    let sides = sides(network, &programs, peers);
    let mut runs = vec![Vec::new(); sides.len()];
    for _ in 0..RUNS {
        for ((_, run), rates) in sides.iter().zip(&mut runs) {
            rates.push(run());
        }
    }
    let sides = sides.iter().zip(runs).map(|((name, _), mut runs)| {
        runs.sort_by(f64::total_cmp);
        Rates { side: name, runs }
    });
    let result = Comparison {
        network,
        sides: sides.collect(),
    };
    result.print();
    result
}

/// Pixels of the chart: its width, the place of names, and the height of a bar and of a title.
const WIDTH: i32 = 860;
const NAMES: i32 = 330;
const BAR: i32 = 26;
const TITLE: i32 = 44;

/// Draws a bar a side, as long as its median.
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
        write(rates.side.to_owned(), (NAMES - 8, middle), HPos::Right, 13);
        let value = format!("{:.0}", rates.median());
        write(value, (NAMES + length as i32 + 6, middle), HPos::Left, 13);
    }
}
