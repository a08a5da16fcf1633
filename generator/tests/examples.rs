//! `kiln new --example` and `kiln examples`.

mod common;

use std::fs;

use common::Place;
use kiln::{
    name::Name,
    project::overlay::render_example,
    render::render,
    template::{
        Template,
        answers::Answers,
        example::{Example, names},
    },
};

#[test]
fn an_example_is_the_template_with_its_files_and_nothing_left_to_do() {
    for example in names() {
        let place = Place::new();
        let new = format!("new my-model --example {example} --yes --vcs none");
        let printed = place.kiln(&new).assert().success().stderr_eq("");
        let printed = String::from_utf8_lossy(&printed.get_output().stdout).into_owned();
        assert!(
            printed.contains(&format!("The example `{example}`: ")),
            "{printed}"
        );
        assert!(printed.contains("less README.md"), "{printed}");
        let template = Template::embedded().unwrap();
        let example = Example::embedded(&template, example).unwrap();
        if !example.is_template() {
            place.kiln("todos my-model --deny").assert().success();
        }
        for file in example.files() {
            let path = format!("my-model/{}", file.path.display());
            assert_eq!(
                fs::read(place.join(&path)).unwrap(),
                file.contents,
                "{path}"
            );
        }
        assert!(!place.join("my-model/answers.toml").exists());
    }
}

/// An example must not repeat files of the template or change the engine.
#[test]
fn an_example_holds_only_what_differs_and_what_a_task_may_change() {
    let template = Template::embedded().unwrap();
    let name = Name::parse("my-model").unwrap();
    for example in names() {
        let example = Example::embedded(&template, example).unwrap();
        let answers = Answers::complete(&template, name.clone(), example.values().clone()).unwrap();
        let plain = render(&template, &answers).unwrap();
        for file in example.files() {
            let path = format!("{}: {}", example.name(), file.path.display());
            let in_template = file.path.strip_prefix("template").unwrap_or(&file.path);
            assert_ne!(plain.get(in_template), Some(file.contents), "{path}");
            let is_engine = in_template.starts_with("engine");
            assert!(!is_engine, "{path} is nothing that a task changes");
        }
    }
}

#[test]
fn what_an_example_answers_can_be_answered_otherwise() {
    let place = Place::new();
    place
        .kiln("new a --example fashion-mnist --yes --vcs none -d strategy=one-device -d ci=github")
        .assert()
        .success();
    let strategy = fs::read_to_string(place.join("a/src/strategy.rs")).unwrap();
    assert!(strategy.contains("DEFAULT_STRATEGY: &str = \"one-device\""));
    assert!(place.join("a/.github").is_dir());
}

#[test]
fn the_manifest_keeps_its_form_and_has_what_an_example_adds() {
    let template = Template::embedded().unwrap();
    let example = Example::embedded(&template, "fashion-mnist").unwrap();
    let name = Name::parse("my-model").unwrap();
    let answers = Answers::complete(&template, name, example.values().clone()).unwrap();
    let path = std::path::Path::new("my-model");
    let plain = render(&template, &answers).unwrap();
    let rendered = render_example(&template, Some(&example), &answers, path).unwrap();
    let lines = |manifest: Option<&[u8]>| -> Vec<String> {
        let text = String::from_utf8(manifest.unwrap().to_vec()).unwrap();
        text.lines().map(str::to_owned).collect()
    };
    let (before, after) = (
        lines(plain.get("Cargo.toml")),
        lines(rendered.get("Cargo.toml")),
    );
    let changed: Vec<_> = before
        .iter()
        .zip(&after)
        .filter(|(old, new)| old != new)
        .collect();
    assert_eq!(before.len(), after.len());
    assert_eq!(changed.len(), 1, "{changed:?}");
    assert_eq!(
        changed[0].1,
        r#"default = ["flex", "cpu-layers", "tensorboard", "download"]"#
    );
}

#[test]
fn examples_are_listed_and_an_unknown_one_is_refused() {
    let place = Place::new();
    let listed = place.kiln("examples").assert().success();
    let listed = String::from_utf8_lossy(&listed.get_output().stdout).into_owned();
    for example in names() {
        let line = listed
            .lines()
            .find(|line| line.starts_with(example))
            .unwrap();
        assert!(line.len() > 40, "{line} tells what it is");
    }
    let refused = place.kiln("new a --example fashion-minst --yes").assert();
    let refused = refused.code(2).get_output().stderr.clone();
    let refused = String::from_utf8_lossy(&refused);
    assert!(
        refused.contains("there is no example `fashion-minst`"),
        "{refused}"
    );
    assert!(
        refused.contains("did you mean `fashion-mnist`?"),
        "{refused}"
    );
    assert!(place.tree().is_empty());
}

#[test]
fn an_example_that_is_a_template_is_made_whole_and_asks_nothing() {
    let place = Place::new();
    let new = "new house --example house-template --vcs none";
    place.kiln(new).assert().success();
    let template = Template::from_folder(&place.join("house/template")).unwrap();
    template.check().unwrap();
    for option in ["-d ci=none", "--train"] {
        let refused = place
            .kiln(&format!("new other --example house-template {option}"))
            .assert()
            .code(2);
        let refused = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
        assert!(
            refused.contains("is a template, not a project"),
            "{refused}"
        );
    }
    assert!(!place.join("other").exists());
}
