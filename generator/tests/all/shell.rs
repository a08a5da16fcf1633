//! Completion scripts and manual pages.

use std::{collections::BTreeSet, fs, process::Command};

use crate::common::Place;
use clap::CommandFactory;
use kiln::cli::Cli;

fn subcommands() -> Vec<String> {
    let command = Cli::command();
    let names = command
        .get_subcommands()
        .map(|one| one.get_name().to_owned());
    names.collect()
}

fn script(shell: &str) -> String {
    let done = Place::new()
        .kiln(&format!("completions {shell}"))
        .assert()
        .success()
        .stderr_eq("");
    String::from_utf8(done.get_output().stdout.clone()).unwrap()
}

/// Bash's completions of the last of `words`.
fn completed(words: &[&str]) -> Option<BTreeSet<String>> {
    let place = Place::new();
    place.put("kiln.bash", &script("bash"));
    let last = words.len() - 1;
    let run = "source ./kiln.bash; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
               _kiln kiln \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"; \
               printf '%s\\n' \"${COMPREPLY[@]}\"";
    let output = Command::new("bash")
        .args(["--norc", "-c", run, "bash"])
        .args(words)
        .current_dir(place.path())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(cause) => {
            println!("skipped: bash does not run here: {cause}");
            return None;
        }
    };
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && complaints.is_empty(),
        "{complaints}"
    );
    let offered = String::from_utf8(output.stdout).unwrap();
    let offered = offered.lines().filter(|line| !line.is_empty());
    let offered: BTreeSet<_> = offered.map(str::to_owned).collect();
    for word in &offered {
        assert!(word.starts_with(words[last]), "{word}");
    }
    Some(offered)
}

#[test]
fn bash_completes_with_the_script() {
    let cases: &[(&[&str], &[&str])] = &[
        (&["kiln", "ne"], &["new"]),
        (&["kiln", "new", "--ex"], &["--example"]),
        (&["kiln", "new", "--example", "keras"], &["keras-cnn"]),
        (&["kiln", "new", "-d", "ci"], &["ci=github", "ci=none"]),
        (&["kiln", "new", "--define", "desc"], &["description="]),
        (
            &["kiln", "explain", "model."],
            &["model.architecture", "model.split", "model.weights"],
        ),
        (&["kiln", "explain", "--example", "keras"], &["keras-cnn"]),
        (&["kiln", "diff", "-d", "ci"], &["ci=github", "ci=none"]),
        (&["kiln", "diff", "--against", "desc"], &["description="]),
        (&["kiln", "diff", "--example", "keras"], &["keras-cnn"]),
        (&["kiln", "update", "--define", "ci=g"], &["ci=github"]),
        (&["kiln", "add", "slu"], &["slurm"]),
        (&["kiln", "add", "mpi"], &["mpi"]),
        (&["kiln", "add", "ci"], &["ci", "ci=github", "ci=none"]),
        (
            &["kiln", "add", "slurm", "tens"],
            &["tensorboard", "tensorboard=no", "tensorboard=yes"],
        ),
        // More than one option has this value.
        (&["kiln", "add", "non"], &[]),
        (&["kiln", "nonsense"], &[]),
    ];
    for (words, expected) in cases {
        let Some(offered) = completed(words) else {
            return;
        };
        let expected: BTreeSet<_> = expected.iter().map(|word| (*word).to_owned()).collect();
        assert_eq!(offered, expected, "{words:?}");
    }
}

#[test]
fn every_shell_has_a_script_that_knows_every_subcommand() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = script(shell);
        for name in subcommands() {
            assert!(script.contains(&name), "{shell}: {name}");
        }
        // Fish completes only values of options; the other two shells complete none.
        let values: &[&str] = match shell {
            "bash" | "zsh" => &["keras-cnn", "strategy=mirrored", "model.architecture"],
            "fish" => &["keras-cnn", "strategy=mirrored"],
            _ => &[],
        };
        for value in values {
            assert!(script.contains(value), "{shell}: {value}");
        }
    }
}

/// Each installed shell accepts its script.
#[test]
fn shells_read_their_scripts() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        place.put("script", &script(shell));
        let checked = Command::new(shell)
            .args(["-n", "script"])
            .current_dir(place.path())
            .output();
        match checked {
            Ok(output) => assert!(
                output.status.success() && output.stderr.is_empty(),
                "{shell}"
            ),
            Err(cause) => println!("skipped: {shell} does not run here: {cause}"),
        }
    }
}

#[test]
fn every_subcommand_has_a_page_and_each_page_all_arguments() {
    let place = Place::new();
    place.kiln("man pages").assert().success();
    let mut expected: Vec<_> = subcommands()
        .iter()
        .map(|name| format!("kiln-{name}.1"))
        .collect();
    expected.push("kiln.1".to_owned());
    expected.sort();
    let mut found: Vec<_> = fs::read_dir(place.join("pages"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(found, expected);
    for command in Cli::command().get_subcommands() {
        let page = format!("pages/kiln-{}.1", command.get_name());
        let page = fs::read_to_string(place.join(&page)).unwrap();
        assert!(page.contains("EXIT STATUS"), "{page}");
        let version = concat!("\"kiln ", env!("CARGO_PKG_VERSION"), "\"");
        assert!(page.contains(version), "{page}");
        for argument in command.get_arguments().filter_map(|one| one.get_long()) {
            let escaped = format!("\\-\\-{}", argument.replace('-', "\\-"));
            assert!(page.contains(&escaped), "{argument}: {page}");
        }
    }
}

#[test]
fn the_page_of_kiln_lists_the_exit_statuses_that_its_help_does() {
    let place = Place::new();
    let help = place.kiln("--help").assert().success();
    let help = String::from_utf8(help.get_output().stdout.clone()).unwrap();
    let page = place.kiln("man").assert().success().stderr_eq("");
    let page = String::from_utf8(page.get_output().stdout.clone()).unwrap();
    let page = page.replace("\\-", "-").replace("\\*(Aq", "'");
    let statuses = help.split_once("Exit status:\n").unwrap().1;
    let statuses: Vec<_> = statuses
        .lines()
        .filter_map(|line| line.trim().split_once(' '))
        .filter(|(status, _)| status.parse::<u8>().is_ok())
        .collect();
    assert!(statuses.len() >= 6, "{statuses:?}");
    for (status, meaning) in statuses {
        let entry = format!(".TP\n{status}\n{}\n", meaning.trim());
        assert!(page.contains(&entry), "{entry}\n{page}");
    }
}

#[test]
fn pages_are_read_without_warnings() {
    let place = Place::new();
    place.kiln("man pages").assert().success();
    let readers: &[(&str, &[&str])] = &[
        ("groff", &["-man", "-Tutf8", "-ww", "-z"]),
        ("mandoc", &["-T", "lint", "-W", "warning"]),
        ("man", &["--warnings", "-l"]),
    ];
    for (reader, options) in readers {
        for page in fs::read_dir(place.join("pages")).unwrap() {
            let output = Command::new(reader)
                .args(*options)
                .arg(page.unwrap().path())
                .output();
            let output = match output {
                Ok(output) => output,
                Err(cause) => {
                    println!("skipped: {reader} does not run here: {cause}");
                    break;
                }
            };
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success() && said.is_empty(),
                "{reader}: {said}"
            );
        }
    }
}

#[test]
fn what_stands_in_the_way_of_the_pages_stays() {
    let place = Place::new();
    place.put("pages", "mine");
    place.kiln("man pages").assert().code(3);
    assert_eq!(fs::read(place.join("pages")).unwrap(), b"mine");
}
