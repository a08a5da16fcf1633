//! Questions on a terminal.

#![cfg(unix)]

use std::{fs, path::Path};

use kiln::{name::Name, option::Answers, render::render, template::Template};
use rexpect::session::{Options, PtySession, spawn_with_options};

fn start(folder: &Path, args: &str) -> PtySession {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.args(args.split(' ')).current_dir(folder);
    let options = Options::new().timeout_ms(Some(20_000));
    spawn_with_options(command, options).unwrap()
}

const DOWN: &str = "\x1b[B";

#[test]
fn asks_in_order_for_what_is_not_given() {
    let template = Template::embedded().unwrap();
    let place = tempfile::tempdir().unwrap();
    let mut terminal = start(place.path(), "new a --vcs none --define hardware=cuda");
    for option in template.options() {
        match option.name.as_str() {
            "hardware" => continue,
            "strategy" => {
                terminal.exp_string(&option.prompt).unwrap();
                terminal.send(DOWN).unwrap();
            }
            _ => drop(terminal.exp_string(&option.prompt).unwrap()),
        }
        terminal.send("\r").unwrap();
        terminal.flush().unwrap();
    }
    let rest = terminal.exp_eof().unwrap();
    assert!(rest.contains("Made `a`"), "{rest}");

    let answers = Answers::defaults(&template, Name::parse("a").unwrap())
        .and_then(|answers| answers.with(&template, "hardware", "cuda"))
        .and_then(|answers| answers.with(&template, "strategy", "one-device"))
        .unwrap();
    for file in render(&template, &answers).unwrap().files {
        let found = fs::read(place.path().join("a").join(&file.path)).unwrap();
        assert_eq!(found, *file.contents, "{}", file.path.display());
    }
}

#[test]
fn asks_nothing_when_told() {
    let place = tempfile::tempdir().unwrap();
    let said = start(place.path(), "new a --vcs none --yes")
        .exp_eof()
        .unwrap();
    assert!(said.starts_with("Made `a`"), "{said}");
}

#[test]
fn writes_nothing_when_cancelled() {
    let place = tempfile::tempdir().unwrap();
    let mut terminal = start(place.path(), "new a --vcs none");
    terminal.exp_string("?").unwrap();
    terminal.send("\x1b").unwrap();
    terminal.flush().unwrap();
    let said = terminal.exp_eof().unwrap();
    assert!(
        said.contains("cancelled, and nothing was written"),
        "{said}"
    );
    let status = terminal.process().wait().unwrap();
    assert!(format!("{status:?}").contains("130"), "{status:?}");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}
