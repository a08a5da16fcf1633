//! `kiln new` compared with cargo-generate and copier: `cargo bench -p kiln-tests --bench generators`.
//!
//! All tools write the same project from the same template in a folder, each in a separate process,
//! in turn: 40 files of 7 KB with a dozen placeholders each. Kiln is built as users build it;
//! cargo-generate's library, with the `main` of `src/bin/peer.rs`, with all optimisations. copier
//! (from PyPI, if Python 3 is available) gets the placeholders in its own syntax. Further
//! measurements: Kiln's own template, and templates of increasing size.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use kiln_tests::{
    python, read_tree,
    rendered::text,
    repository,
    rounds::{extremes, in_turn, median},
    template_folder,
};

/// The number of rounds, in each of which every side runs once.
const ROUNDS: usize = 31;
const COPIER: &str = "copier==9.19.1";
/// The number of files in the common template.
const FILES: usize = 40;
const LINES: usize = 100;
/// Goals: the milliseconds of `kiln new`, and the other tools' ratios to it.
const OWN_GOAL: f64 = 5.0;
const CARGO_GENERATE_GOAL: f64 = 6.0;
const COPIER_GOAL: f64 = 80.0;
/// Goal: the cost per file in a template of 10,000 files, relative to one of 100.
const GROWTH_GOAL: f64 = 1.5;

fn main() {
    let programs = Programs::build();
    let work = tempfile::tempdir_in(place()).expect("a folder");
    println!("files are written to {}", work.path().display());
    peers(&programs, work.path());
    own_template(&programs, work.path());
    growth(&programs, work.path());
}

/// The folder for all output. It is outside the repository, as cargo-generate adds projects in a
/// workspace to it, and in memory if possible, as the time of disks varies more than the measured
/// differences. For example, ext4 takes ten times as long for minutes after many files were
/// removed.
fn place() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    match env::var_os("TMPDIR") {
        None if memory.is_dir() => memory,
        _ => env::temp_dir(),
    }
}

/// The measured programs.
struct Programs {
    kiln: PathBuf,
    cargo_generate: PathBuf,
    copier: Option<PathBuf>,
}

impl Programs {
    fn build() -> Self {
        let target = repository().join("target/generators");
        cargo(&["build", "--release", "--locked", "-p", "burn-kiln"]);
        let optimised = [
            "profile.release.opt-level=3",
            "profile.release.package.\"*\".opt-level=3",
        ];
        let configs = optimised.iter().flat_map(|config| ["--config", config]);
        let peer = [
            "build",
            "--release",
            "--locked",
            "-p",
            "kiln-tests",
            "--bin",
        ];
        let peer = peer.into_iter().chain(["peer", "--target-dir"]);
        let folder = target.to_str().expect("UTF-8");
        let arguments: Vec<_> = peer.chain([folder]).chain(configs).collect();
        cargo(&arguments);
        Programs {
            kiln: repository().join("target/release/kiln"),
            cargo_generate: target.join("release/peer"),
            copier: copier()
                .inspect_err(|why| println!("no copier: {why}"))
                .ok(),
        }
    }
}

fn cargo(arguments: &[&str]) {
    let mut cargo = Command::new(env!("CARGO"));
    let status = cargo.args(arguments).current_dir(repository()).status();
    assert!(
        status.expect("cargo").success(),
        "cargo {arguments:?} fails"
    );
}

/// The program `copier`, in a virtual environment.
fn copier() -> Result<PathBuf, String> {
    let python = python::with_packages("copier", "copier", &[COPIER])?;
    Ok(python.with_file_name("copier"))
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{command:?} fails: {}", text(&output))),
        Err(error) => Err(format!("{command:?} does not start: {error}")),
    }
}

/// A measured command.
struct Side<'p> {
    name: &'static str,
    /// The command that creates the project in a folder.
    command: Box<dyn Fn(&Path) -> Command + 'p>,
}

impl<'p> Side<'p> {
    fn new(name: &'static str, command: impl Fn(&Path) -> Command + 'p) -> Self {
        let command = Box::new(command);
        Side { name, command }
    }

    fn kiln(programs: &'p Programs, name: &'static str, template: Option<&'p Path>) -> Self {
        Side::new(name, move |output| {
            let mut command = Command::new(&programs.kiln);
            command
                .args(["new", "example", "--yes", "--vcs", "none", "--path"])
                .arg(output);
            if let Some(template) = template {
                command.arg("--template").arg(template);
            }
            command
        })
    }

    fn cargo_generate(programs: &'p Programs, template: &'p Path) -> Self {
        Side::new("cargo-generate", move |output| {
            let mut command = Command::new(&programs.cargo_generate);
            command
                .arg("cargo-generate")
                .arg(template)
                .arg(output)
                .arg("example");
            command
        })
    }

    fn copier(copier: &'p Path, template: &'p Path) -> Self {
        Side::new("copier", move |output| {
            let mut command = Command::new(copier);
            command
                .args(["copy", "--defaults", "--quiet"])
                .arg(template)
                .arg(output);
            command
        })
    }

    /// Milliseconds from the start to the end of the process; `kept` inspects the folder with the project.
    fn time(&self, work: &Path, kept: impl FnOnce(&Path)) -> f64 {
        let folder = new_folder(work);
        let output = folder.join("example");
        let mut command = (self.command)(&output);
        if self.name == "cargo-generate" {
            // copier needs an existing parent folder.
            fs::create_dir(&output).expect("a folder");
        }
        command
            .current_dir(&folder)
            .env("HOME", work)
            .env("CARGO_HOME", work)
            .env("GIT_AUTHOR_NAME", "Somebody")
            .env("GIT_AUTHOR_EMAIL", "somebody@example.org")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let start = Instant::now();
        let status = command.status().expect("it starts");
        let time = start.elapsed();
        assert!(status.success(), "{command:?} fails");
        kept(&output);
        time.as_secs_f64() * 1e3
    }
}

/// A new folder, which is kept.
fn new_folder(work: &Path) -> PathBuf {
    tempfile::tempdir_in(work).expect("a folder").keep()
}

/// The times of all sides, after a first round whose output is checked.
fn measure(sides: &[Side], work: &Path, check: impl Fn(&Path)) -> Vec<Vec<f64>> {
    for side in sides {
        side.time(work, &check);
    }
    let sides: Vec<_> = sides
        .iter()
        .map(|side| || side.time(work, |_| ()))
        .collect();
    in_turn(ROUNDS, &sides)
}

/// Prints a line per side; returns the ratios of the medians to that of the first side.
fn table(title: &str, sides: &[Side], times: &[Vec<f64>]) -> Vec<f64> {
    println!("\n{title}: medians of {ROUNDS} rounds in turn (minimum to maximum)");
    let first = median(&times[0]);
    let line = |(side, times): (&Side, &Vec<f64>)| {
        let ratio = median(times) / first;
        let (least, most) = extremes(times);
        println!(
            "{:<34} {:>8.1} ms  ({least:.1} to {most:.1})  {ratio:.1} x",
            side.name,
            median(times),
        );
        ratio
    };
    sides.iter().zip(times).map(line).collect()
}

/// Prints whether a goal was reached.
fn goal(what: &str, reached: bool, value: f64) {
    let verdict = if reached { "reached" } else { "MISSED" };
    println!("  {verdict}: {what} (here {value:.1})");
}

/// Kiln, cargo-generate and copier on the same template.
fn peers(programs: &Programs, work: &Path) {
    let [liquid, jinja] = ["liquid", "jinja"].map(|name| work.join(name));
    write_template(&liquid, FILES, LINES);
    write_jinja(&liquid, &jinja);
    let mut sides = vec![
        Side::kiln(programs, "kiln new --template", Some(&liquid)),
        Side::cargo_generate(programs, &liquid),
    ];
    sides.extend(
        programs
            .copier
            .iter()
            .map(|copier| Side::copier(copier, &jinja)),
    );
    let times = measure(&sides, work, is_complete);
    let ratios = table("40 files of 7 KB", &sides, &times);
    goal(
        &format!("cargo-generate takes at least {CARGO_GENERATE_GOAL} times as long"),
        ratios[1] >= CARGO_GENERATE_GOAL,
        ratios[1],
    );
    if let Some(&ratio) = ratios.get(2) {
        let what = format!("copier takes at least {COPIER_GOAL} times as long");
        goal(&what, ratio >= COPIER_GOAL, ratio);
    }
}

/// Kiln's own template: embedded, and as a folder for cargo-generate.
fn own_template(programs: &Programs, work: &Path) {
    let template = template_folder();
    let sides = [
        Side::kiln(programs, "kiln new", None),
        Side::cargo_generate(programs, &template),
        Side::new("kiln --version", |_| {
            let mut command = Command::new(&programs.kiln);
            command.arg("--version");
            command
        }),
    ];
    let mut times = measure(&sides, work, |_| ());
    let project = work.join("own");
    run(&mut (sides[0].command)(&project)).expect("a project");
    times.push((0..ROUNDS).map(|_| bare_writes(&project, work)).collect());
    let bare = Side::new("its files, written and no more", |_| Command::new("true"));
    let sides: Vec<Side> = sides.into_iter().chain([bare]).collect();
    table("Kiln's own template, default answers", &sides, &times);
    let own = median(&times[0]);
    goal(&format!("at most {OWN_GOAL} ms"), own <= OWN_GOAL, own);
}

/// Milliseconds to write the contents of `project` from memory: the share of the file system.
fn bare_writes(project: &Path, work: &Path) -> f64 {
    let files: Vec<(PathBuf, Vec<u8>)> = read_tree(project)
        .expect("a project")
        .into_keys()
        .map(|path| (PathBuf::from(&path), project.join(path)))
        .filter(|(_, source)| source.is_file())
        .map(|(path, source)| (path, fs::read(source).expect("a file")))
        .collect();
    let folder = new_folder(work);
    let start = Instant::now();
    for (path, contents) in &files {
        let path = folder.join(path);
        if !path.parent().is_some_and(Path::exists) {
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        }
        fs::write(path, contents).expect("a file");
    }
    start.elapsed().as_secs_f64() * 1e3
}

/// The times of templates of increasing size.
fn growth(programs: &Programs, work: &Path) {
    println!("\nfiles of 0.7 KB, medians of 5 runs of `kiln new --template`");
    let mut per_file = Vec::new();
    for files in [10, 100, 1_000, 10_000] {
        let template = work.join(format!("of-{files}"));
        write_template(&template, files, LINES / 10);
        let side = Side::kiln(programs, "kiln new", Some(&template));
        let times: Vec<f64> = (0..5).map(|_| side.time(work, is_complete)).collect();
        let each = median(&times) / files as f64 * 1e3;
        println!(
            "{files:>6} files {:>9.1} ms  {each:>7.1} us a file",
            median(&times)
        );
        per_file.push(each);
    }
    let growth = per_file[3] / per_file[1];
    goal(
        &format!("a file costs at most {GROWTH_GOAL} times as much among 10,000 as among 100"),
        growth <= GROWTH_GOAL,
        growth,
    );
}

/// Writes a template with this number of files, in folders of 100.
fn write_template(folder: &Path, files: usize, lines: usize) {
    let file = |number: usize| {
        let line = |line: usize| match line % 8 {
            0 => format!(
                "// `{{{{ crate_name }}}}` has module {number}, whose line {line} says this.\n"
            ),
            _ => format!(
                "pub const VALUE_{line}: (usize, &str) = ({number}, \"a value in a line\");\n"
            ),
        };
        (0..lines).map(line).collect::<String>()
    };
    for number in 0..files {
        let folder = folder.join(format!("part_{}", number / 100));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join(format!("module_{number}.rs")), file(number)).expect("a file");
    }
    let config = "[template]\nfmt = false\n[placeholders.word]\ntype = \"string\"\n\
                  prompt = \"A word?\"\ndefault = \"word\"\n";
    fs::write(folder.join("cargo-generate.toml"), config).expect("a file");
    let manifest = "[package]\nname = \"{{project-name}}\"\nversion = \"0.1.0\"\n";
    fs::write(folder.join("Cargo.toml"), manifest).expect("a file");
}

/// Converts the template for copier.
fn write_jinja(liquid: &Path, jinja: &Path) {
    for path in read_tree(liquid).expect("a template").into_keys() {
        let source = liquid.join(&path);
        let target = jinja.join(format!("{path}.jinja"));
        if source.is_dir() || path == "cargo-generate.toml" {
            continue;
        }
        fs::create_dir_all(target.parent().expect("a folder")).expect("a folder");
        let text = fs::read_to_string(source).expect("a file");
        fs::write(target, text.replace("project-name", "crate_name")).expect("a file");
    }
    let config =
        "crate_name:\n  type: str\n  default: example\nword:\n  type: str\n  default: word\n";
    fs::write(jinja.join("copier.yml"), config).expect("a file");
}

/// Checks that a project is complete and its placeholders are filled in.
fn is_complete(project: &Path) {
    // cargo-generate creates a folder with the project's name.
    let inner = project.join("example");
    let project = if inner.is_dir() { &inner } else { project };
    let first = fs::read_to_string(project.join("part_0/module_0.rs")).expect("a file");
    assert!(first.starts_with("// `example` has module 0"), "{first}");
}
