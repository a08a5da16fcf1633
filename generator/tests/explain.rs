//! `kiln explain`, inside and outside a project.

mod common;

use std::fs;

use common::Place;
use kiln::{
    project::explain::{Explainer, Explanation, site_ids},
    template::Template,
};
use serde_json::Value;
use snapbox::str;

/// The number of examples that change each site.
const ANSWERS: &[(&str, usize)] = &[
    ("strategy.devices", 0),
    ("loss.objects", 4),
    ("loss.compute", 1),
    ("metric.set", 3),
    ("metric.best", 3),
    ("dataset.example", 3),
    ("dataset.batch", 4),
    ("dataset.augment", 1),
    ("dataset.picture", 3),
    ("dataset.split", 2),
    ("dataset.source", 5),
    ("model.architecture", 5),
    ("model.split", 3),
    ("model.weights", 0),
    ("optimizer.choice", 5),
    ("train.step", 1),
    ("train.gradients", 4),
    ("callbacks.schedule", 3),
    ("callbacks.hooks", 1),
    ("validation.step", 0),
    ("test.step", 0),
    ("infer.inputs", 3),
    ("infer.predict", 3),
];

fn all() -> Vec<Explanation> {
    let template = Template::embedded().unwrap();
    let explainer = Explainer::of_template(&template).unwrap();
    let ids = site_ids(&template).unwrap();
    let explained = ids.iter().map(|(id, _)| explainer.explain(id).unwrap());
    explained.collect()
}

fn stdout(command: snapbox::cmd::Command) -> String {
    let done = command.assert().success().stderr_eq("");
    String::from_utf8(done.get_output().stdout.clone()).unwrap()
}

fn made(name: &str, options: &str) -> Place {
    let place = Place::new();
    place
        .kiln(&format!("new {name} --yes --vcs none {options}"))
        .assert()
        .success();
    place
}

#[test]
fn each_site_is_explained_whole() {
    let all = all();
    let counted: Vec<_> = all
        .iter()
        .map(|site| (site.id.as_str(), site.answers.len()))
        .collect();
    assert_eq!(counted, ANSWERS);
    for site in &all {
        let id = &site.id;
        assert!(!site.what.is_empty() && site.now.is_some(), "{id}");
        assert!(site.notes.contains_key("Shapes"), "{id}");
        assert_eq!(site.state, None, "{id}");
        assert!(!site.tests.is_empty(), "{id}");
        for test in &site.tests {
            assert!(test.line.is_some(), "{id}: {}", test.name);
            assert!(test.says.ends_with('.'), "{id}: {}", test.says);
        }
        let told = site.tests.iter().any(|test| !test.messages.is_empty());
        assert!(told || *id == "dataset.picture", "{id}");
        let default = site.default.as_ref().unwrap();
        assert!(!default.code.contains("TODO("), "{id}");
        for answer in &site.answers {
            assert_eq!(answer.code.file, site.file, "{id}");
            assert_ne!(answer.code.code, default.code, "{id}");
            assert!(!answer.description.is_empty(), "{id}");
        }
    }
}

/// Every printed location is that of the printed code.
#[test]
fn lines_are_true() {
    let place = made("a", "");
    let check = |folder: &str, file: &str, line: usize, expected: &str| {
        let text = fs::read_to_string(place.join(&format!("{folder}/{file}"))).unwrap();
        let found = text.lines().nth(line - 1).unwrap();
        assert_eq!(found.trim(), expected.trim(), "{folder}/{file}:{line}");
    };
    let first = |code: &str| code.lines().next().unwrap().to_owned();
    for site in all() {
        let default = site.default.unwrap();
        check("a", &default.file, default.line, &first(&default.code));
        for test in site.tests {
            let name = test.name.rsplit("::").next().unwrap();
            let head = format!("fn {name}() {{");
            check("a", &test.file, test.line.unwrap(), &head);
        }
        for answer in site.answers {
            let example = &answer.example;
            if !place.join(example).exists() {
                let new = format!("new {example} --yes --vcs none --example {example}");
                place.kiln(&new).assert().success();
            }
            let code = &answer.code;
            check(example, &code.file, code.line, &first(&code.code));
        }
    }
}

#[test]
fn a_site_of_the_template() {
    let place = Place::new();
    place
        .kiln("explain loss.objects")
        .assert()
        .success()
        .stdout_eq(str![[r#"
loss.objects  src/loss.rs
  Choose the losses of your task, each with one value per example.
  Now: sparse categorical cross-entropy from logits.
  Note: `kiln_engine::loss` also has class weights, and binary, focal, Huber and CTC losses.
  Shapes: predictions [batch, classes] and labels [batch] in, losses [batch] out.

Guarded by:
  loss::there_is_one_finite_loss_an_example  tests/contract/loss.rs:7
    There is one finite loss an example.
    - fails with: 2 examples have {} losses and {examples} examples {}: leave the sum to `compute_loss`
    - fails with: losses are not finite: {many:?}
    - fails with: the loss of an example depends on the others in its batch: {few:?} and {many:?}
Run these tests: cargo test --test contract -- --exact loss::there_is_one_finite_loss_an_example

The template has, at src/loss.rs:16:

    /// The loss objects of a replica, reached with `globals::loss_objects()`.
    #[derive(Clone, Debug)]
    pub struct LossObjects {
        pub cross_entropy: SparseCategoricalCrossentropy,
    }

    /// Creates the loss objects.
    pub fn create_loss_objects() -> LossObjects {
        LossObjects {
            cross_entropy: SparseCategoricalCrossentropy::new(),
        }
    }

    /// The loss of each example, shape `[batch]`.
    pub fn per_example_losses(predictions: &Predictions, batch: &Batch) -> Result<Tensor<1>> {
        let cross_entropy = globals::loss_objects()?.cross_entropy;
        cross_entropy.forward(predictions.clone(), batch.labels.clone())
    }

A worked answer, from the example `keras-cnn`:
A convolutional network in the manner of Keras, for Fashion-MNIST or digits.
It has, at src/loss.rs:15:

    /// The loss objects of a replica, reached with `globals::loss_objects()`.
    #[derive(Clone, Debug)]
    pub struct LossObjects {
        pub cross_entropy: CategoricalCrossentropy,
    }

    /// Creates the loss objects.
    pub fn create_loss_objects() -> LossObjects {
        LossObjects {
            cross_entropy: CategoricalCrossentropy {
                reduction: Reduction::None,
            },
        }
    }

    /// The loss of each example, shape `[batch]`.
    pub fn per_example_losses(predictions: &Predictions, batch: &Batch) -> Result<Tensor<1>> {
        let cross_entropy = globals::loss_objects()?.cross_entropy;
        Ok(cross_entropy.forward(predictions.clone(), batch.labels.clone()))
    }

Other answers, with `--example`: language-model, callbacks, cyclegan

"#]]);
}

#[test]
fn another_answer_is_shown_when_asked_for() {
    let place = Place::new();
    let said = stdout(place.kiln("explain model.architecture --example keras-cnn"));
    let answer = said.split("A worked answer").nth(1).unwrap();
    assert!(answer.contains("from the example `keras-cnn`"), "{answer}");
    assert!(answer.contains("pool: MaxPool2d,"), "{answer}");
    assert!(answer.contains("fn finish"), "all of its impl: {answer}");
    assert!(
        answer.contains("cyclegan"),
        "the others are named: {answer}"
    );
}

/// Functions that follow a site's function belong to it too, up to another kind of item.
#[test]
fn a_site_of_several_functions_is_shown_whole() {
    let place = Place::new();
    let said = stdout(place.kiln("explain callbacks.hooks --example callbacks"));
    let (default, answer) = said.split_once("A worked answer").unwrap();
    for function in ["prepare_inputs", "prepare_loss_inputs", "is_trainable"] {
        let function = format!("pub fn {function}(");
        assert!(default.contains(&function), "{default}");
        assert!(answer.contains(&function), "{answer}");
    }
    let said = stdout(place.kiln("explain metric.best"));
    assert!(said.contains("pub const BEST"), "{said}");
    assert!(!said.contains("pub fn"), "{said}");
}

#[test]
fn sites_are_listed() {
    let place = Place::new();
    let said = stdout(place.kiln("explain"));
    let ids: Vec<_> = said
        .lines()
        .filter_map(|line| line.split_once(' '))
        .collect();
    for ((id, _), (found, what)) in ANSWERS.iter().zip(&ids) {
        assert_eq!(id, found);
        assert!(what.trim().ends_with('.'), "{what}");
    }
    let listed: Value = serde_json::from_str(&stdout(place.kiln("explain --format json"))).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), ANSWERS.len());
    assert_eq!(listed[0]["id"], "strategy.devices");
}

/// In a project, its own list is explained, and its code is shown if it differs.
#[test]
fn a_project_is_explained_as_it_is() {
    let place = made("a", "");
    let explain = |id: &str| -> Value {
        let command = place.command();
        let command = command.args(["explain", id, "--path", "a", "--format", "json"]);
        serde_json::from_str(&stdout(command)).unwrap()
    };
    let before = explain("loss.compute");
    assert_eq!(before["state"]["is"], "left");
    assert_eq!(before["state"]["file"], "src/loss.rs");
    assert!(before["current"].is_null(), "the default: {before}");

    let loss = place.join("a/src/loss.rs");
    let text = fs::read_to_string(&loss).unwrap();
    let marker = text.find("    // TODO(loss.compute)").unwrap();
    let code = marker + text[marker..].find("    let denominator").unwrap();
    let changed = format!("{}{}", &text[..marker], &text[code..]).replace(
        "compute_average_loss(per_example_losses,",
        "half(per_example_losses,",
    );
    fs::write(&loss, changed).unwrap();
    let after = explain("loss.compute");
    assert_eq!(after["state"]["is"], "done");
    assert_eq!(after["notes"], before["notes"]);
    let current = after["current"]["code"].as_str().unwrap();
    assert!(current.contains("half(per_example_losses,"), "{current}");
    assert_eq!(after["default"], before["default"]);

    let said = stdout(place.kiln("explain loss.compute --path a"));
    assert!(said.contains("  In the template: the sum over"), "{said}");
    assert!(!said.contains("  Now:"), "{said}");

    // In the project's folder, `--path` can be omitted.
    let said = stdout(place.command().current_dir(place.join("a")).arg("explain"));
    assert!(said.contains("loss.compute        done  Apply"), "{said}");
    assert!(said.contains("loss.objects        open  Choose"), "{said}");
}

#[test]
fn a_site_of_the_projects_own_is_explained_too() {
    let place = made("a", "");
    place.put(
        "a/src/own.rs",
        "// TODO(own.part): Do it.\n//   Shapes: none.\nfn part() {}\n",
    );
    let said = stdout(place.kiln("explain own.part --path a"));
    snapbox::assert_data_eq!(
        said,
        str![[r#"
own.part  src/own.rs
  Do it.
  Shapes: none.
  Open: the marker is at src/own.rs:1.

This project has, at src/own.rs:3:

    fn part() {}

"#]]
    );
    // A source that does not parse is not an error.
    place.put("a/src/own.rs", "// TODO(own.part): Do it.\nfn part() {\n");
    let said = stdout(place.kiln("explain own.part --path a"));
    assert!(!said.contains("This project has"), "{said}");
}

#[test]
fn a_test_that_is_gone_is_told() {
    let place = made("a", "");
    fs::remove_file(place.join("a/tests/contract/loss.rs")).unwrap();
    let said = stdout(place.kiln("explain loss.compute --path a"));
    assert!(
        said.contains("The test is missing: this project deleted"),
        "{said}"
    );
}

/// A list of sites cannot refer to files outside the project.
#[test]
fn nothing_outside_of_a_project_is_read() {
    let place = Place::new();
    place.put("secret.rs", "// TODO(out.side): Here.\nfn secret() {}\n");
    place.put(
        "a/todos.toml",
        "[[site]]\nid = \"out.side\"\nfile = \"../secret.rs\"\nwhat = \"w\"\nnow = \"n\"\n\
         test = [\"../../x::y\"]\n",
    );
    let said = stdout(place.kiln("explain out.side --path a"));
    assert!(!said.contains("secret()"), "{said}");
}

#[test]
fn the_contract_tests_are_told_as_the_project_has_them() {
    let place = made("a", "");
    let path = place.join("a/tests/contract/loss.rs");
    let text = fs::read_to_string(&path).unwrap();
    let documented = text.replace(
        "#[test]\nfn there_is_one",
        "/// One loss,\n/// for one example.\n#[test]\nfn there_is_one",
    );
    assert_ne!(text, documented);
    fs::write(&path, documented).unwrap();
    let said = stdout(place.kiln("explain loss.objects --path a"));
    assert!(said.contains("    One loss, for one example.\n"), "{said}");
}
