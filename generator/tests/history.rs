//! The releases that projects were made from, and the record of it in each project.

use std::{env, fs, path::Path};

use kiln::{
    name::Name,
    project::record::{RECORD_FILE, Record},
    render::render,
    template::{answers::Answers, history::Release},
};

/// The file of the template that states what it is, as SNAPSHOTS=overwrite renews it.
#[test]
fn the_template_states_its_version_and_hash() {
    let current = Release::current();
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("template")
        .join(format!("{RECORD_FILE}.liquid"));
    let text = fs::read_to_string(&file).unwrap();
    let line = |line: &str| match line.split_once(" = ") {
        Some(("kiln", _)) => format!("kiln = {:?}", current.version()),
        Some(("template", _)) => format!("template = {:?}", current.hash()),
        _ => line.to_owned(),
    };
    let right = text.lines().map(line).collect::<Vec<_>>().join("\n") + "\n";
    if env::var_os("SNAPSHOTS").is_some_and(|value| value == "overwrite") {
        fs::write(&file, &right).unwrap();
    } else {
        assert_eq!(text, right, "renew it with SNAPSHOTS=overwrite");
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

/// Otherwise a project would say that it was made from a release, and was not.
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
        error.to_string().contains("does not know the template `a`"),
        "{error}"
    );
    assert_eq!(error.place().unwrap().1, 2);
}
