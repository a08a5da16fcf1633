//! Gathers what `tests/gpu/run.py` needs on a machine with a GPU, in one folder that can be copied there:
//! `cargo bench -p kiln-tests --bench gpu -- cuda FOLDER`. This machine needs no GPU. The hardware may also
//! be `flex`, whose programs `run.py --dry-run` tries.
//!
//! With `--untuned`, programs are built without the feature `autotune`.
//!
//! With `--without-llvm`, CubeCL's LLVM is not fetched: kernels are compiled by its C++ backend and NVRTC, which
//! the machine with the GPU then has to have.
//!
//! Programs are built as users build them: the default project with its unit and contract tests, the networks
//! of `tests/fixtures/speed`, and the examples `cyclegan` and `language-model`, the latter with the size of
//! GPT-2 small.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, exit},
};

use kiln_tests::{
    NAME,
    rendered::{Project, text},
    repository, shared_target,
    throughput::{fill_in, write_images},
    without_llvm::without_llvm,
};
use serde_json::{Value, json};

/// Images of 28x28 for the networks of `tests/fixtures/speed`, and bytes of text for the decoder.
const IMAGES: u32 = 7_680;
const TEXT: usize = 1 << 20;

/// Smaller programs.
const STRIPPED: &str = "profile.release.strip=true";

/// The measuring scripts in that folder.
const SCRIPTS: [&str; 5] = [
    "processes.py",
    "records.py",
    "run.py",
    "table.py",
    "torch_peers.py",
];

/// The test executables of the engine and of the default project.
const TESTS: [&str; 2] = ["unit", "contract"];

fn main() {
    let mut words: Vec<String> = env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    let has_llvm = !words.iter().any(|word| word == "--without-llvm");
    let is_tuned = !words.iter().any(|word| word == "--untuned");
    words.retain(|word| word != "--without-llvm" && word != "--untuned");
    let [hardware, folder] = &words[..] else {
        eprintln!(
            "usage: cargo bench -p kiln-tests --bench gpu -- cuda FOLDER [--without-llvm] [--untuned]"
        );
        exit(2);
    };
    // Cargo runs benchmarks in the folder of their package.
    let folder = repository().join(folder);
    fs::create_dir_all(&folder).expect("a folder");
    let features = match is_tuned {
        true => format!("{hardware},autotune"),
        false => hardware.clone(),
    };
    programs(&features, has_llvm, &folder);
    for script in SCRIPTS {
        let path = repository().join("tests/gpu").join(script);
        fs::copy(path, folder.join(script)).expect("a script");
    }
    let manifest = json!({
        "commit": answer("git", &["rev-parse", "--short", "HEAD"]),
        "date": answer("date", &["-I"]),
        "features": hardware,
        "tuned": is_tuned,
    });
    fs::write(folder.join("manifest.json"), format!("{manifest:#}\n")).expect("a file");
    println!(
        "written: {}; `python3 run.py` there measures",
        folder.display()
    );
}

/// Builds all programs and tests into `folder`, with their data.
fn programs(features: &str, has_llvm: bool, folder: &Path) {
    let digits = prepared(Project::with_answers_and_engine(&[]), has_llvm);
    program(&digits, features, &folder.join("digits"));
    copy_folder(&digits.path().join("data"), &folder.join("digits/data"));
    tests(&digits, features, &folder.join("digits"));
    // One project exists at a time.
    drop(digits);
    for network in ["cnn", "dense"] {
        let project = prepared(Project::with_answers_and_engine(&[]), has_llvm);
        fill_in(&project, network);
        program(&project, features, &folder.join(network));
    }
    write_images(&folder.join("images"), IMAGES);
    let cyclegan = prepared(Project::example_to_edit("cyclegan"), has_llvm);
    program(&cyclegan, features, &folder.join("cyclegan"));
    drop(cyclegan);
    let decoder = prepared(decoder(), has_llvm);
    program(&decoder, features, &folder.join("decoder"));
    write_text(&decoder, &folder.join("decoder/data"));
}

/// The project as it is built here.
fn prepared(project: Project, has_llvm: bool) -> Project {
    let project = project.fully_optimised().with_settings([STRIPPED]);
    if has_llvm {
        project
    } else {
        without_llvm(project)
    }
}

/// The example `language-model` with 12 blocks of 768 values and 12 heads.
///
/// Source: A. Radford and others, Language models are unsupervised multitask learners, 2019, table 2.
fn decoder() -> Project {
    let project = Project::example_to_edit("language-model");
    for (name, small, large) in [("WIDTH", 64, 768), ("HEADS", 4, 12), ("BLOCKS", 2, 12)] {
        let line = |value| format!("pub const {name}: usize = {value};");
        project.edit("model.rs", &line(small), &line(large));
    }
    project
}

/// Builds the program of a project into `folder`.
fn program(project: &Project, features: &str, folder: &Path) {
    project.cargo(&["build", "--release", "--bins", "--features", features]);
    fs::create_dir_all(folder).expect("a folder");
    let built = shared_target().join("release").join(NAME);
    fs::copy(built, folder.join("program")).expect("a program");
}

/// Builds the unit tests of the engine and the contract tests into `folder`, as one workspace, with the
/// features of the program.
fn tests(project: &Project, features: &str, folder: &Path) {
    let build = [
        "test",
        "--release",
        "--workspace",
        "--lib",
        "--test",
        "contract",
        "--no-run",
        "--message-format=json-render-diagnostics",
        "--features",
        features,
    ];
    let output = project.try_cargo(&build);
    assert!(output.status.success(), "{}", text(&output));
    let messages = String::from_utf8_lossy(&output.stdout);
    for (name, target) in TESTS.iter().zip(["kiln_engine", "contract"]) {
        let built = test_executable(&messages, target).expect("an executable");
        fs::copy(built, folder.join(name)).expect("a test");
    }
}

/// The executable of the tests of a target, in the messages of cargo.
fn test_executable(messages: &str, target: &str) -> Option<PathBuf> {
    let messages = messages.lines();
    let values = messages.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut tests = values.filter(|message| {
        message["profile"]["test"] == true && message["target"]["name"] == target
    });
    tests.find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

/// The text of the example, repeated, as its validation and test need contexts of 1,024 bytes, too.
fn write_text(project: &Project, folder: &Path) {
    fs::create_dir_all(folder).expect("a folder");
    let text = fs::read(project.path().join("data/text.txt")).expect("the text");
    let long: Vec<u8> = text.iter().copied().cycle().take(TEXT).collect();
    fs::write(folder.join("text.txt"), long).expect("a text");
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("a file").path();
        fs::copy(&path, to.join(path.file_name().expect("a file"))).expect("a file");
    }
}

/// Output of a program; empty if it is missing.
fn answer(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(repository())
        .output();
    output.map_or(String::new(), |output| {
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    })
}
