//! `kiln new` and `cargo generate` make the same tree from the same answers.

mod peer;

use std::fs;

use kiln::{name::Name, option::Answers, template::Template};
use kiln_tests::{NAME, checkout, combinations};
use peer::{Peer, assert_same};
use tempfile::TempDir;

fn source() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    checkout(folder.path()).unwrap();
    folder
}

#[test]
fn every_combination_of_the_template() {
    let template = Template::embedded().unwrap();
    let source = source();
    let peer = Peer::new();
    let all = combinations(&template, NAME);
    assert!(all.len() > 1);
    for combination in all {
        assert_same(&peer, &template, source.path(), &combination.answers);
    }
}

#[test]
fn awkward_names() {
    let template = Template::embedded().unwrap();
    let source = source();
    let peer = Peer::new();
    let names = [
        "a",
        "Z",
        "x1",
        "my_model",
        "my-model",
        "MyModel",
        "myModel2",
        "HTTPServer",
        "a-b_c",
        "under_score_2",
        "a--b",
        "tail-",
        "tail_",
        "_lead",
        "__x__",
        "a1b2C3",
        "training",
        "digits-8x8",
        "A-B",
        "snake_Case",
    ];
    for name in names {
        let name = Name::parse(name).unwrap();
        let answers = Answers::defaults(&template, name).unwrap();
        assert_same(&peer, &template, source.path(), &answers);
    }
}

#[test]
fn awkward_texts() {
    let template = Template::embedded().unwrap();
    let source = source();
    let peer = Peer::new();
    let defaults = Answers::defaults(&template, Name::parse(NAME).unwrap()).unwrap();
    let texts = [
        "",
        "a=b, c: 'd' # e",
        "{{ project-name }} {% raw %}",
        "naïve 数字 ✓",
        "<b>&amp;</b>",
        "trailing ",
    ];
    for text in texts {
        let answers = defaults
            .clone()
            .with(&template, "description", text)
            .unwrap();
        assert_same(&peer, &template, source.path(), &answers);
    }
}

/// The peer alone is what keeps the environment out: without it the same comparison fails.
#[test]
fn the_comparison_is_hermetic() {
    let template = Template::embedded().unwrap();
    let source = source();
    let answers = Answers::defaults(&template, Name::parse(NAME).unwrap()).unwrap();
    let (key, value) = ("strategy", "one-device");

    let peer = Peer::new();
    let clean = peer.generate(source.path(), NAME, &[]).unwrap();
    let leaky = Peer::new().with_env("CARGO_GENERATE_VALUE_STRATEGY", value);
    assert_ne!(clean, leaky.generate(source.path(), NAME, &[]).unwrap());

    let configured = Peer::new();
    let config = format!("[values]\n{key} = \"{value}\"\n");
    fs::write(configured.cargo_home().join("cargo-generate.toml"), config).unwrap();
    assert_ne!(
        clean,
        configured.generate(source.path(), NAME, &[]).unwrap()
    );

    // With every answer given, nothing leaks even so.
    assert_same(&leaky, &template, source.path(), &answers);
    assert_same(&configured, &template, source.path(), &answers);
}
