//! Unusual paths and file systems: errors are reported, and no files are left behind.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Output, Stdio},
};

fn kiln(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command
        .args(args)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs `kiln new`, which must fail with this status and message and leave no files.
#[track_caller]
fn refuses(args: &[&str], status: i32, says: &str) {
    let place = tempfile::tempdir().unwrap();
    let args = [&["new", "--yes", "--vcs", "none"], args].concat();
    let output = kiln(place.path(), &args).output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert!(text.contains(says), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "{text}");
}

#[test]
fn names_that_are_no_folders() {
    let long = "a".repeat(300);
    for name in [
        "/",
        "a/2b",
        "a\\b",
        "",
        " ",
        "con",
        "aux",
        "nul",
        "-",
        "é/ü",
        ".kiln-new-a",
    ] {
        refuses(&["--", name], 2, "");
    }
    refuses(&[&long], 2, "is longer than 100 characters");
    refuses(&[&long[..101]], 2, "is longer than 100 characters");
}

#[test]
fn folders_that_cannot_be_made() {
    let long = format!("./{}", "b".repeat(300));
    refuses(&["a", "--path", &long], 2, "too long for the file system");
    #[cfg(target_os = "linux")]
    refuses(&["a", "--path", "/proc/a"], 3, "`/proc");
    refuses(&["a", "--path", ""], 2, "");
}

#[cfg(unix)]
#[test]
fn arguments_that_are_not_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let odd = std::ffi::OsStr::from_bytes(b"a\xff");
    let place = tempfile::tempdir().unwrap();
    let output = kiln(place.path(), &["new"]).arg(odd).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    // Valid as a path.
    let output = kiln(
        place.path(),
        &["new", "a", "--yes", "--vcs", "none", "--path"],
    )
    .arg(odd)
    .output()
    .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(place.path().join(odd).join("Cargo.toml").exists());
    for command in ["todos", "update"] {
        let output = kiln(place.path(), &[command]).arg(odd).output().unwrap();
        assert!(output.status.success(), "{command}: {}", said(&output));
    }
}

/// One process creates the complete project; the others report that it exists.
#[test]
fn many_at_once_into_one_folder() {
    let place = tempfile::tempdir().unwrap();
    let whole = "whole";
    let args = ["new", whole, "--yes", "--vcs", "none"];
    assert!(kiln(place.path(), &args).status().unwrap().success());
    let files = |folder: &Path| {
        let output = Command::new("diff")
            .arg("-rq")
            .args([&place.path().join(whole), folder])
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    for exists in [false, true] {
        let folder = place.path().join("one");
        let _ = fs::remove_dir_all(&folder);
        if exists {
            fs::create_dir(&folder).unwrap();
        }
        let args = ["new", whole, "--path", "one", "--yes", "--vcs", "none"];
        let all: Vec<Child> = (0..8)
            .map(|_| kiln(place.path(), &args).spawn().unwrap())
            .collect();
        let all: Vec<Output> = all
            .into_iter()
            .map(|child| child.wait_with_output().unwrap())
            .collect();
        let made = all.iter().filter(|output| output.status.success()).count();
        let told: Vec<_> = all.iter().map(said).collect();
        assert_eq!(made, 1, "{told:#?}");
        for output in all.iter().filter(|output| !output.status.success()) {
            let text = said(output);
            let known = [
                "has files of the template",
                "is not empty",
                "another process of Kiln is changing",
            ];
            assert!(known.iter().any(|known| text.contains(known)), "{text}");
        }
        assert_eq!(files(&folder), "");
    }
}

/// Uses a mount namespace, which not every machine permits.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_and_one_that_cannot_be_written() {
    let place = tempfile::tempdir().unwrap();
    let disk = place.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let script = r#"
        mount -t tmpfs -o size=200k kiln-full "$1" || exit 77
        cd "$1"
        "$2" new a --yes --vcs none && exit 1
        ls -A
        mkdir b && "$2" new b --path b --force --yes --vcs none && exit 1
        ls -A b
        mount -o remount,ro "$1" || exit 77
        "$2" new c --yes --vcs none && exit 1
        exit 0
    "#;
    let output = Command::new("unshare")
        .args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
        ])
        .arg(&disk)
        .arg(env!("CARGO_BIN_EXE_kiln"))
        .output();
    let Ok(output) = output else {
        println!("skipped: there is no `unshare` to make a small disk with");
        return;
    };
    let text = said(&output);
    let may_not = text.contains("unshare failed") || text.contains("Operation not permitted");
    if output.status.code() == Some(77) || may_not {
        println!("skipped: no file system can be mounted here: {text}");
        return;
    }
    assert!(output.status.success(), "{text}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{text}");
    assert_eq!(text.matches("No space left").count(), 2, "{text}");
    assert_eq!(text.matches("Read-only file system").count(), 1, "{text}");
}

/// Shells replace `~` only at the start of an argument.
#[cfg(unix)]
#[test]
fn the_home_folder_is_known_by_its_sign() {
    let place = tempfile::tempdir().unwrap();
    let home = tempfile::tempdir().unwrap();
    let args = ["new", "a", "--yes", "--vcs", "none", "--path=~/x"];
    let output = kiln(place.path(), &args).env("HOME", home.path()).output();
    assert!(output.unwrap().status.success());
    assert!(home.path().join("x/Cargo.toml").exists());
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    let output = kiln(place.path(), &["todos", "~/x"])
        .env("HOME", home.path())
        .output();
    assert!(output.unwrap().status.success());
}
