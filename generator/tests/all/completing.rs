//! Completions as a user sees them: Tab in a terminal with bash, zsh and fish.

#![cfg(unix)]

use std::{env, process::Command};

use crate::common::Place;
use crate::terminal::Terminal;

/// Text before Tab, and the line after it.
const CASES: [(&str, &str); 16] = [
    ("kiln explain model.arch", "kiln explain model.architecture"),
    ("kiln explain early", "kiln explain early-stopping"),
    ("kiln explain --example keras", "--example keras-cnn"),
    ("kiln add slu", "kiln add slurm"),
    ("kiln add mp", "kiln add mpi"),
    ("kiln add ci=g", "kiln add ci=github"),
    ("kiln add slurm tensorboard=n", "slurm tensorboard=no"),
    ("kiln new a -d ci=g", "-d ci=github"),
    ("kiln new a --define ci=g", "--define ci=github"),
    ("kiln new a --define=ci=g", "--define=ci=github"),
    ("kiln new a --workspace mem", "--workspace member"),
    ("kiln new a --vcs=n", "--vcs=none"),
    ("kiln diff --against strategy=one", "strategy=one-device"),
    ("kiln update --define hardware=cu", "hardware=cuda"),
    ("kiln completions fi", "completions fish"),
    ("kiln help expl", "kiln help explain"),
];

/// The arguments of a shell without a user's configuration, and the line that loads the script.
const SHELLS: [(&str, &[&str], &str); 3] = [
    ("bash", &["--norc", "--noprofile", "-i"], "source ./script"),
    (
        "zsh",
        &["-f", "-i"],
        "autoload -Uz compinit && compinit -u -D && source ./script",
    ),
    ("fish", &["--no-config", "-i"], "source ./script"),
];

/// Whether a shell is installed.
///
/// # Panics
/// It is missing, and `KILN_REQUIRE_SHELLS` is set.
fn is_there(shell: &str) -> bool {
    let asked = Command::new(shell).arg("--version").output();
    let is_there = asked.is_ok_and(|output| output.status.success());
    assert!(
        is_there || env::var_os("KILN_REQUIRE_SHELLS").is_none(),
        "{shell} does not run here"
    );
    if !is_there {
        println!("skipped: {shell} does not run here");
    }
    is_there
}

#[test]
fn every_shell_completes_ids_options_and_values() {
    for (shell, args, load) in SHELLS {
        if !is_there(shell) {
            continue;
        }
        let place = Place::new();
        let script = place
            .kiln(&format!("completions {shell}"))
            .output()
            .unwrap();
        place.put("script", &String::from_utf8(script.stdout).unwrap());
        let home = place.path().to_str().unwrap();
        let variables = [("TERM", "xterm-256color"), ("HOME", home), ("PS1", "$ ")];
        // Without echo, Bash does not show what is typed.
        let args = [&["-c", "stty echo; exec \"$0\" \"$@\"", shell], args].concat();
        let mut terminal = Terminal::run(place.path(), "sh", &args, &variables);
        terminal.settle();
        terminal.send(&format!("{load} && echo read{}y\r", "\"\""));
        terminal.wait("ready");
        for (typed, expected) in CASES {
            let last_is = |what| move |screen: &str| screen.trim_end().ends_with(what);
            terminal.send(typed);
            terminal.wait_until(typed, last_is(typed));
            terminal.send("\t");
            terminal.wait_until(&format!("{expected:?} in {shell}"), last_is(expected));
            terminal.send("\x15");
            terminal.wait_until("empty line", |screen| !last_is(expected)(screen));
        }
        terminal.send("exit\r");
        terminal.end();
    }
}
