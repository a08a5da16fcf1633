//! `kiln doctor` on the machine that runs the tests, which can build Kiln. The unit tests simulate
//! machines that lack parts.

use crate::common::Place;
use serde_json::Value;

#[test]
fn this_machine_can_use_the_default() {
    let output = Place::new().kiln("doctor --format json").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["usable"], true);
    let rust = &found["parts"][0];
    assert_eq!(
        (&rust["name"], &rust["state"]),
        (&"Rust".into(), &"found".into())
    );
    assert!(
        rust["detail"].as_str().unwrap().starts_with("rustc 1."),
        "{rust}"
    );
    for key in ["memory", "free_disk", "threads"] {
        assert!(found["resources"][key].as_u64() > Some(0), "{key}: {found}");
    }
    let mirrored = &found["strategies"][1];
    assert_eq!(
        (&mirrored["name"], &mirrored["usable"]),
        (&"mirrored".into(), &true.into())
    );
}

#[test]
fn tables_are_for_people() {
    let output = Place::new().kiln("doctor").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "part ",
        "Rust ",
        "Memory: ",
        "hardware ",
        "strategy ",
        "mirrored ",
    ] {
        assert!(
            text.lines().any(|it| it.starts_with(line)),
            "{line}: {text}"
        );
    }
    assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
}

#[cfg(unix)]
#[test]
fn without_rust_in_path_the_default_cannot_be_used() {
    let place = Place::new();
    let output = place
        .kiln("doctor --format json")
        .env("PATH", place.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["usable"], false);
    assert_eq!(found["parts"][0]["detail"], "no rustc in PATH");
}

/// A hanging tool is killed with its descendants, and the other parts are reported.
#[cfg(unix)]
#[test]
fn a_tool_that_hangs_is_not_waited_for() {
    use std::{
        env,
        time::{Duration, Instant},
    };

    let place = Place::new();
    place.put_program("nvidia-smi", "sleep 100 & sleep 100");
    let path = env::var_os("PATH").unwrap();
    let path = env::join_paths(
        [place.path().to_owned()]
            .into_iter()
            .chain(env::split_paths(&path)),
    );
    let started = Instant::now();
    let output = place
        .kiln("doctor --format json")
        .env("PATH", path.unwrap())
        .output()
        .unwrap();
    assert!(started.elapsed() < Duration::from_secs(60));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut parts = found["parts"].as_array().unwrap().iter();
    let driver = parts.find(|part| part["name"] == "NVIDIA driver").unwrap();
    assert_eq!(driver["state"], "hangs", "{driver}");
    assert!(output.status.success(), "{output:?}");
}
