//! The embedded releases, and the record of each project.

use std::{env, fs, path::Path};

use kiln::{
    name::Name,
    project::{
        engine::engine_hash,
        record::{RECORD_FILE, Record},
    },
    render::render,
    template::{answers::Answers, history::Release},
};

/// The template's record is up to date; SNAPSHOTS=overwrite renews it.
#[test]
fn the_template_states_its_version_and_hashes() {
    let current = Release::current();
    let template = current.template().unwrap();
    let answers = Answers::defaults(&template, Name::parse("a").unwrap()).unwrap();
    let engine = engine_hash(&render(&template, &answers).unwrap());
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("template")
        .join(format!("{RECORD_FILE}.liquid"));
    let text = fs::read_to_string(&file).unwrap();
    let line = |line: &str| match line.split_once(" = ") {
        Some(("kiln", _)) => format!("kiln = {:?}", current.version()),
        Some(("template", _)) => format!("template = {:?}", current.hash()),
        Some(("engine", _)) => format!("engine = {engine:?}"),
        _ => line.to_owned(),
    };
    let right = text.lines().map(line).collect::<Vec<_>>().join("\n") + "\n";
    if env::var_os("SNAPSHOTS").is_some_and(|value| value == "overwrite") {
        fs::write(&file, &right).unwrap();
    } else {
        assert_eq!(text, right, "renew it with SNAPSHOTS=overwrite");
    }
}

/// The record is not part of the hash that it states.
#[test]
fn no_answer_changes_the_engine() {
    let template = Release::current().template().unwrap();
    let defaults = Answers::defaults(&template, Name::parse("my_model").unwrap()).unwrap();
    let engine = engine_hash(&render(&template, &defaults).unwrap());
    for option in template.options() {
        for value in option.values() {
            let value = value.to_string();
            let answers = defaults.clone().with(&template, &option.name, &value);
            let rendered = render(&template, &answers.unwrap()).unwrap();
            assert_eq!(engine_hash(&rendered), engine, "{} = {value}", option.name);
        }
    }
}

#[test]
fn every_answer_is_recorded() {
    let template = Release::current().template().unwrap();
    let defaults = Answers::defaults(&template, Name::parse("my_model").unwrap()).unwrap();
    for option in template.options() {
        for value in option.values() {
            let answers = defaults
                .clone()
                .with(&template, &option.name, &value.to_string());
            let answers = answers.unwrap();
            let rendered = render(&template, &answers).unwrap();
            let text = str::from_utf8(rendered.get(RECORD_FILE).unwrap()).unwrap();
            let record = Record::parse(RECORD_FILE, text).unwrap();
            let values = record.values(&template).unwrap();
            let recorded = Answers::complete(&template, record.name, values).unwrap();
            assert_eq!(recorded, answers, "{text}");
        }
    }
}

/// Otherwise, a project could claim a release that it was not generated from.
#[test]
fn a_release_is_never_changed() {
    for release in Release::history() {
        let files = release.files();
        let record = format!("template/{RECORD_FILE}.liquid");
        let (_, text, _) = files
            .into_iter()
            .find(|(path, ..)| *path == record)
            .unwrap();
        let text = str::from_utf8(text).unwrap();
        let states = |key: &str, value: &str| text.contains(&format!("\n{key} = {value:?}\n"));
        assert!(states("kiln", release.version()), "{}", release.version());
        assert!(states("template", &release.hash()), "{}", release.version());
        let current = Release::current();
        if release.version() == current.version() {
            assert!(
                release.files().eq(current.files()),
                "{} is released: a change of the template needs a new version in Cargo.toml",
                release.version()
            );
        }
    }
}

#[test]
fn a_wrong_record_is_told_with_its_place() {
    let good = "kiln = \"0.1.0\"\ntemplate = \"a\"\nname = \"a\"\n";
    let cases = [
        (
            "kiln = 3\ntemplate = \"a\"\nname = \"a\"",
            "`kiln` should be a string",
            1,
        ),
        ("kiln = \"0.1.0\"", "has no `name`", 1),
        ("kiln = ", "is not valid TOML", 1),
        (
            &good.replace("\"a\"\nname", "1\nname"),
            "`template` should be a string",
            2,
        ),
        (&good.replace("name = \"a\"", "name = \"fn\""), "fn", 3),
        (&format!("{good}option = 1"), "unknown key `option`", 4),
        (
            &format!("{good}options = 1"),
            "`options` should be a table",
            4,
        ),
        (
            &format!("{good}example = 1"),
            "`example` should be a table",
            4,
        ),
        (
            &format!("{good}[example]\nname = \"a\"\n"),
            "an example has no `hash`",
            4,
        ),
    ];
    for (text, message, line) in cases {
        let error = Record::parse("a/.kiln.toml", text).unwrap_err();
        assert!(error.to_string().contains(message), "{text}: {error}");
        let (file, at, _) = error.place().unwrap();
        assert_eq!(
            (file.as_str(), at),
            ("a/.kiln.toml", line),
            "{text}: {error}"
        );
    }
    let record = Record::parse("a/.kiln.toml", good).unwrap();
    let error = record.release().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("does not include the template `a`"),
        "{error}"
    );
    assert_eq!(error.place().unwrap().1, 2);
}
