//! `kiln check` on small crates without dependencies. Their fake program accepts the options of a
//! generated program but does not train. The tests in `kiln-tests` check projects with Burn.

use std::{
    path::Path,
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::common::Place;
use serde_json::Value;
use snapbox::{cmd::Command, str};

const MANIFEST: &str = "\
[package]
name = \"my-model\"
version = \"0.1.0\"
edition = \"2024\"

[workspace]

[features]
default = [\"pass\"]
pass = []
other = []
";

const SITES: &str = "\
[[site]]
id = \"model.architecture\"
file = \"src/model.rs\"
what = \"Replace with the model for your task.\"
now = \"a small network\"
test = [\"model::shapes\"]

[[site]]
id = \"loss.objects\"
file = \"src/loss.rs\"
what = \"Create the losses.\"
now = \"one\"
test = []
";

const CONTRACT: &str = "\
mod model {
    #[test]
    fn shapes() {
        assert!(cfg!(feature = \"pass\"), \"TODO(model.architecture): the shape is wrong\");
    }
}
";

fn project() -> Place {
    let place = Place::new();
    place.put("Cargo.toml", MANIFEST);
    place.put("todos.toml", SITES);
    place.put("tests/contract.rs", CONTRACT);
    place.put("src/main.rs", include_str!("../fake/main.rs"));
    place.put("src/loss.rs", "// TODO(loss.objects): Create them.\n");
    place
}

/// A shared project that is built once, whose trainings fail depending on a variable. Locked, as
/// only one check may run at a time.
fn shared() -> (MutexGuard<'static, Place>, Command) {
    static SHARED: LazyLock<Mutex<Place>> = LazyLock::new(|| Mutex::new(project()));
    let place = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let command = check(&place, "");
    (place, command)
}

fn check(place: &Place, options: &str) -> Command {
    place
        .kiln(&format!("check {options}"))
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("CARGO_BUILD_TARGET_DIR")
        .env_remove("FAKE")
}

/// Runs a check whose trainings have a fault; returns its exit status and report.
fn with_fault(fault: &str, options: &[&str]) -> (Option<i32>, Value) {
    let (_place, command) = shared();
    run_json(command.args(options).env("FAKE", fault))
}

fn run_json(command: Command) -> (Option<i32>, Value) {
    let output = command.args(["--format", "json"]).output().unwrap();
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output.status.code(), report)
}

/// The result of each check.
fn results(report: &Value) -> Vec<(&str, &str)> {
    let checks = report["checks"].as_array().unwrap().iter();
    checks
        .map(|check| {
            let name = check["check"].as_str().unwrap();
            (name, check["result"].as_str().unwrap())
        })
        .collect()
}

fn problem(report: &Value, check: &str) -> String {
    let mut checks = report["checks"].as_array().unwrap().iter();
    let row = checks.find(|row| row["check"] == check).unwrap();
    row["problem"].as_str().unwrap().to_owned()
}

const PASSED: [(&str, &str); 5] = [
    ("build", "passed"),
    ("contract tests", "passed"),
    ("one replica", "passed"),
    ("two replicas", "passed"),
    ("resume", "passed"),
];

#[test]
fn a_good_project_passes() {
    let (place, command) = shared();
    command.assert().success().stdout_eq(str![[r#"
check           result  seconds  log                 problem
build           passed  [..]  build.log
contract tests  passed  [..]  contract-tests.log
one replica     passed  [..]  one-replica.log
two replicas    passed  [..]  two-replicas.log
resume          passed  [..]  resume.log

5 of 5 checks passed, in [..] seconds. The logs are in [..]kiln-check
1 of 2 TODO sites open in my-model.

"#]]);
    let tree = place.tree();
    assert!(!tree.keys().any(|path| path.starts_with("runs")));
    let left = tree.keys().filter(|path| path.contains("kiln-check/"));
    let left: Vec<_> = left
        .map(|path| path.rsplit_once("kiln-check/").unwrap().1)
        .collect();
    assert_eq!(
        left,
        [
            "",
            "build.log",
            "contract-tests.log",
            "one-replica.log",
            "resume.log",
            "two-replicas.log"
        ]
    );
}

#[test]
fn results_are_for_programs_too() {
    let (code, report) = with_fault("", &[]);
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(results(&report), PASSED);
    assert_eq!(
        (&report["project"], &report["passed"]),
        (&"my-model".into(), &true.into())
    );
    assert_eq!(
        (&report["sites"], &report["sites_left"]),
        (&2.into(), &1.into())
    );
    assert!(report["seconds"].as_f64() > Some(0.0));
    for check in report["checks"].as_array().unwrap() {
        let log = std::fs::read_to_string(check["log"].as_str().unwrap()).unwrap();
        assert!(log.starts_with("$ "), "{log}");
        assert_eq!(check["problem"], Value::Null);
    }
    let resume = std::fs::read_to_string(report["checks"][4]["log"].as_str().unwrap()).unwrap();
    assert_eq!(resume.matches("$ ").count(), 2, "{resume}");
    assert!(
        resume.contains(" --resume\nresumed after step "),
        "{resume}"
    );
}

/// A closed pipe is not an error, but a failed write is.
#[cfg(unix)]
#[test]
fn reports_that_are_not_read_and_that_cannot_be_written() {
    use std::{fs, io, process};

    let (place, _) = shared();
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let full = fs::OpenOptions::new().write(true).open("/dev/full");
    for format in ["text", "json"] {
        let run = |output: process::Stdio, errors: process::Stdio| {
            let mut kiln = process::Command::new(snapbox::cmd::cargo_bin!("kiln"));
            kiln.args(["check", "--format", format])
                .current_dir(place.path())
                .env_remove("CARGO_TARGET_DIR")
                .stdout(output)
                .stderr(errors);
            kiln.output().unwrap()
        };
        // The names of the checks are written to standard error.
        let unread = || writer.try_clone().unwrap().into();
        assert!(run(unread(), unread()).status.success(), "{format}");
        if let Ok(full) = &full {
            let output = run(full.try_clone().unwrap().into(), process::Stdio::piped());
            assert_eq!(output.status.code(), Some(3), "{format}");
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(said.contains("cannot write to standard output"), "{said}");
        }
    }
}

#[test]
fn a_build_that_fails_is_all_there_is() {
    let place = project();
    place.put("src/main.rs", "fn main() {\n    let x: u8 = \"text\";\n}\n");
    let (code, report) = run_json(check(&place, ""));
    assert_eq!(code, Some(1));
    let skipped = PASSED.map(|(check, _)| (check, "skipped"));
    assert_eq!(results(&report)[0], ("build", "failed"));
    assert_eq!(results(&report)[1..], skipped[1..]);
    assert_eq!(
        problem(&report, "build"),
        "error[E0308]: mismatched types (src/main.rs:2:17)"
    );
    assert_eq!(
        problem(&report, "resume"),
        "no training passed that a resumed one could be compared with"
    );
    assert_eq!(report["checks"][1]["log"], Value::Null);
}

#[test]
fn a_contract_that_is_broken_is_named() {
    let (_place, command) = shared();
    let options = ["--no-default-features", "--features", "other"];
    let (code, report) = run_json(command.args(options));
    assert_eq!(code, Some(1), "{report:#}");
    assert_eq!(results(&report)[1], ("contract tests", "failed"));
    assert_eq!(
        problem(&report, "contract tests"),
        "model::shapes: TODO(model.architecture): the shape is wrong"
    );
    // The remaining checks still run.
    assert_eq!(results(&report)[2..], PASSED[2..]);
}

#[test]
fn trainings_that_go_wrong_are_told_why() {
    for (fault, check, expected) in [
        ("fails", "one replica", "error: the loss is no number"),
        ("panics", "one replica", "the model is upside down"),
        (
            "silent",
            "one replica",
            "the training wrote no metrics.jsonl into its --output-dir",
        ),
        (
            "nan",
            "two replicas",
            "`loss` of train 1 is not a finite number",
        ),
        (
            "loses",
            "two replicas",
            "`examples` of train 1 is 47 on two replicas but 48 on one",
        ),
        (
            "forgets",
            "resume",
            "`--resume` started a new training instead of loading the checkpoint",
        ),
        (
            "differs",
            "resume",
            "`loss` of train 2 is 0.75 after a resume but 0.1 without interruption",
        ),
        (
            "keeps-nothing",
            "resume",
            "the training wrote no checkpoint",
        ),
    ] {
        let (code, report) = with_fault(fault, &[]);
        assert_eq!(code, Some(1), "{fault}: {report:#}");
        assert_eq!(problem(&report, check), expected, "{fault}");
        let failed = results(&report)
            .into_iter()
            .find(|(name, _)| *name == check);
        assert_eq!(failed, Some((check, "failed")), "{fault}");
    }
}

/// Without signals, the program is killed and its message does not matter.
#[cfg(unix)]
#[test]
fn a_stop_that_goes_wrong_is_told() {
    let (code, report) = with_fault("dies", &[]);
    assert_eq!(code, Some(1));
    assert_eq!(results(&report)[..4], PASSED[..4]);
    assert_eq!(
        problem(&report, "resume"),
        "error: no checkpoint could be written"
    );
}

/// The training is cut back to its first checkpoint.
#[test]
fn a_training_too_fast_to_be_stopped_is_resumed_all_the_same() {
    let (_place, command) = shared();
    let (code, report) = run_json(command.env("FAKE", "fast"));
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(results(&report), PASSED);
    let log = std::fs::read_to_string(report["checks"][4]["log"].as_str().unwrap()).unwrap();
    assert!(log.ends_with("\nresumed after step 2\n"), "{log}");
}

#[test]
fn a_training_that_hangs_is_killed() {
    let started = Instant::now();
    let (code, report) = with_fault("hangs", &["--timeout", "1"]);
    assert_eq!(code, Some(1));
    assert!(started.elapsed() < Duration::from_secs(60), "{report:#}");
    assert_eq!(
        problem(&report, "one replica"),
        "killed after the time limit of 1 second; `--timeout` sets the limit"
    );
}

#[test]
fn options_go_on_to_the_trainings() {
    let (_place, command) = shared();
    let options = ["--format", "json", "--", "--learning-rate", "0.1"];
    let output = command.args(options).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(results(&report), PASSED);
    for check in &report["checks"].as_array().unwrap()[2..] {
        let log = std::fs::read_to_string(check["log"].as_str().unwrap()).unwrap();
        assert!(log.contains("--learning-rate 0.1"), "{log}");
    }
}

#[test]
fn the_release_profile_is_for_who_asks() {
    let (_place, command) = shared();
    let (code, report) = run_json(command.arg("--release"));
    assert_eq!(code, Some(0), "{report:#}");
    let log = std::fs::read_to_string(report["checks"][2]["log"].as_str().unwrap()).unwrap();
    let program = Path::new("release").join("my-model");
    assert!(log.contains(program.to_str().unwrap()), "{log}");
}

#[test]
fn options_that_check_sets_are_refused() {
    let place = project();
    check(&place, "-- --epochs 3")
        .assert()
        .code(2)
        .stdout_eq("")
        .stderr_eq(str![[r#"
  × `--epochs` is set by `kiln check` and not allowed after `--`
  help: remove the option; to train with it, use `cargo run` in the project

"#]]);
    check(&place, "-- --output-dir=x").assert().code(2);
    assert!(!place.join("target").exists());
}

#[test]
fn a_folder_that_is_no_project() {
    let place = Place::new();
    place.put("Cargo.toml", MANIFEST);
    check(&place, "").assert().code(2).stderr_eq(str![[r#"
  × `.` is not a Kiln project: it has no `todos.toml`
  help: give the folder of a project that `kiln new` created

"#]]);
    check(&place, "nowhere").assert().code(2);
}

#[test]
fn a_manifest_that_cargo_cannot_read() {
    let place = project();
    place.put("Cargo.toml", "[package\n");
    let output = check(&place, "").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("Cargo cannot read the manifest in `.`"),
        "{text}"
    );
    assert!(text.contains("unclosed table"), "{text}");
}

/// Cargo also searches parent folders, and a workspace's manifest may have no package.
#[test]
fn a_manifest_without_a_package() {
    let place = project();
    place.put("in/todos.toml", SITES);
    place.put("all/todos.toml", SITES);
    place.put("all/Cargo.toml", "[workspace]\n");
    for folder in ["in", "all"] {
        let output = check(&place, folder).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{folder}");
        let text = String::from_utf8(output.stderr).unwrap();
        let expected = format!("`{folder}` has no `Cargo.toml` with a `[package]`");
        assert!(text.contains(&expected), "{text}");
    }
}

#[test]
fn without_cargo_nothing_is_checked() {
    let place = project();
    let output = check(&place, "")
        .env("CARGO", "no-such-cargo")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("cannot run `no-such-cargo`"), "{text}");
}

/// Starts a check, and sends Ctrl-C when `file` exists and `is_running` holds.
#[cfg(unix)]
fn stopped_at(
    place: &Place,
    file: &Path,
    variables: &[(&str, &str)],
    is_running: impl Fn() -> bool,
) -> Option<i32> {
    use std::{process, thread};

    let mut kiln = process::Command::new(snapbox::cmd::cargo_bin!("kiln"))
        .args(["check", "--format", "json"])
        .current_dir(place.path())
        .env_remove("CARGO_TARGET_DIR")
        .envs(variables.iter().copied())
        .stdout(process::Stdio::null())
        .stderr(process::Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(100);
    while !file.exists() && Instant::now() < until {
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(200));
    assert!(is_running());
    let kill = process::Command::new("kill")
        .args(["-INT", &kiln.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    let status = kiln.wait().unwrap().code();
    let left = std::fs::read_dir(place.join("target/kiln-check"));
    let left = left.into_iter().flatten();
    let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.filter(|name| name.starts_with("runs-")).count(), 0);
    status
}

/// All child processes end with the check.
#[cfg(unix)]
#[test]
fn ctrl_c_ends_what_was_started() {
    let (place, _) = shared();
    let log = place.join("target/kiln-check/one-replica.log");
    let _ = std::fs::remove_file(&log);
    let program = || is_running(place.path());
    let status = stopped_at(&place, &log, &[("FAKE", "hangs")], program);
    assert_eq!(status, Some(130));
    assert!(!program());
}

/// Also while Cargo prints metadata, and while it builds.
#[cfg(unix)]
#[test]
fn ctrl_c_ends_cargo() {
    for when in ["metadata", "test"] {
        let place = project();
        let (cargo, at) = (place.join("cargo.sh"), place.join("at"));
        let script = format!("if [ $1 = {when} ]; then touch at; sleep 100; fi\nexec cargo \"$@\"");
        place.put_program("cargo.sh", &script);
        let started = Instant::now();
        let variables = [("CARGO", cargo.to_str().unwrap())];
        let status = stopped_at(&place, &at, &variables, || at.exists());
        assert_eq!(status, Some(130), "{when}");
        assert!(started.elapsed() < Duration::from_secs(60));
    }
}

/// Whether a program built in this folder is running.
#[cfg(unix)]
fn is_running(folder: &Path) -> bool {
    let output = std::process::Command::new("ps")
        .args(["-eo", "args"])
        .output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let program = format!("{}/target/debug/my-model", folder.display());
    text.lines().any(|line| line.starts_with(&program))
}
