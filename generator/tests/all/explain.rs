//! `kiln explain`, inside and outside a project.

use std::{collections::BTreeSet, fs, path::Path};

use crate::common::Place;
use kiln::{
    project::{
        ability::Ability,
        explain::{Explainer, Explanation, site_ids},
    },
    template::{Template, example::names},
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
    ("model.weights", 2),
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

Other answers, with `--example`: callbacks, language-model, cyclegan

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
    let sites = listed.as_array().unwrap().iter();
    let sites = sites.filter(|entry| entry["kind"] == "site");
    assert_eq!(sites.count(), ANSWERS.len());
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

/// Options and commands that no ability is made of: what is trained on, how long, and its folder; and
/// details of `--strategy`.
const PLAIN: &[&str] = &[
    "train",
    "--epochs",
    "--batch-size",
    "--seed",
    "--data-dir",
    "--output-dir",
    "--drop-remainder",
    "--steps-per-epoch",
    "--prefetch",
    "--cross-device-ops",
    "--max-staleness",
    "--micro-batches",
];

fn abilities() -> Vec<Ability> {
    let template = Template::embedded().unwrap();
    Explainer::of_template(&template)
        .unwrap()
        .abilities()
        .to_vec()
}

/// The text of a file of the repository.
fn text_of(file: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    fs::read_to_string(root.join(file)).unwrap()
}

/// The lines of the block that starts with `head` in a source.
fn block(source: &str, head: &str) -> Vec<String> {
    let lines = source.lines().skip_while(|line| *line != head).skip(1);
    let lines: Vec<_> = lines.take_while(|line| *line != "}").collect();
    assert!(!lines.is_empty(), "{head}");
    lines.iter().map(|line| (*line).to_owned()).collect()
}

/// All options of a training, and all commands.
fn defined() -> BTreeSet<String> {
    let options = text_of("template/engine/src/options.rs");
    let task = text_of("template/src/cli.rs");
    let mut defined = BTreeSet::new();
    for (source, head) in [
        (&options, "pub struct Options {"),
        (&task, "pub struct Args {"),
    ] {
        let mut is_option = false;
        for line in block(source, head) {
            is_option |= line.contains("#[arg(long");
            let field = line.strip_prefix("    pub ");
            if let Some((name, _)) = field.and_then(|field| field.split_once(':'))
                && std::mem::take(&mut is_option)
            {
                defined.insert(format!("--{}", name.replace('_', "-")));
            }
        }
    }
    for line in block(&options, "pub enum Command {") {
        let name = line.trim().split(['(', ',']).next().unwrap();
        if name.starts_with(char::is_uppercase) {
            let letters = name.chars().flat_map(|letter| {
                let dash = letter.is_uppercase().then_some('-');
                dash.into_iter().chain(letter.to_lowercase())
            });
            defined.insert(letters.skip(1).collect());
        }
    }
    defined
}

/// No option is forgotten, and none is told that does not exist.
#[test]
fn every_option_and_command_belongs_to_an_ability() {
    let abilities = abilities();
    let mut told: Vec<_> = abilities.iter().flat_map(|one| one.uses.clone()).collect();
    told.extend(PLAIN.iter().map(|&name| name.to_owned()));
    let defined = defined();
    for name in ["--ema", "--learning-rate", "find-lr", "train"] {
        assert!(defined.contains(name), "{name}: {defined:?}");
    }
    let set: BTreeSet<_> = told.iter().cloned().collect();
    assert_eq!(set, defined);
    assert_eq!(set.len(), told.len(), "one is told twice: {told:?}");
}

/// The references of an ability exist: its site, commands, example and part of the guide.
#[test]
fn abilities_are_explained_whole() {
    let template = Template::embedded().unwrap();
    let explainer = Explainer::of_template(&template).unwrap();
    let sites: BTreeSet<_> = explainer
        .summaries()
        .into_iter()
        .map(|one| one.id)
        .collect();
    let (defined, guide) = (defined(), text_of("docs/features.md"));
    for ability in abilities() {
        let id = &ability.id;
        assert!(!sites.contains(id), "{id}");
        assert!(ability.what.ends_with('.'), "{id}");
        assert!(ability.site.iter().all(|site| sites.contains(site)), "{id}");
        let heading = format!("\n## {}\n", ability.guide.as_ref().unwrap());
        assert!(guide.contains(&heading), "{id}: {heading}");
        let example = ability.example.as_deref().unwrap();
        assert!(names().contains(example), "{id}");
        let shown = ability.uses.first().or(ability.site.as_ref()).unwrap();
        let readme = text_of(&format!("examples/{example}/README.md"));
        let mut words = readme.split([' ', '`', '\n']);
        assert!(
            words.any(|word| word == shown),
            "{id}: {example} has no {shown}"
        );
        assert!(!ability.tries.is_empty(), "{id}");
        for command in &ability.tries {
            if let Some((_, words)) = command.split_once("cargo run") {
                let words = words.split_once(" -- ").map_or("", |(_, words)| words);
                let mut words = words.split(' ').filter(|word| word.starts_with("--"));
                let own = ["--output", "--format", "--svg", "--checkpoint", "--workers"];
                let known = |word: &str| defined.contains(word) || own.contains(&word);
                assert!(words.all(known), "{id}: {command}");
            }
        }
        let explained = explainer.explain_ability(id).unwrap().unwrap();
        assert_eq!(explained.ability, ability);
        let names = explained.options.iter().map(|option| &option.name);
        assert!(names.eq(&ability.uses), "{id}");
        for option in &explained.options {
            let help = option
                .help
                .as_ref()
                .unwrap_or_else(|| panic!("{}", option.name));
            assert!(help.ends_with('.'), "{}: {help}", option.name);
            // Of `test`, `launch` and the like, the options are not abilities.
            let word = option.name.trim_start_matches('-');
            let same = explainer.explain_ability(word).unwrap().unwrap();
            assert!(same.ability.uses.contains(&option.name) || same.ability.id == word);
        }
    }
}

/// The options and commands of an ability in a table, at most `most`; or else its site.
fn access(ability: &Ability, most: usize) -> String {
    let uses = ability.uses.iter().take(most);
    let words: Vec<_> = uses.map(|word| format!("`{word}`")).collect();
    match &words[..] {
        [] => format!("`TODO({})`", ability.site.as_ref().unwrap()),
        words => words.join(", "),
    }
}

#[test]
fn the_readmes_list_the_abilities() {
    let table = |file: &str, head: &str| -> Vec<String> {
        let text = text_of(file);
        let lines = text.lines().skip_while(|line| *line != head).skip(2);
        let rows = lines.take_while(|line| line.starts_with('|'));
        rows.map(str::to_owned).collect()
    };
    let front = abilities().into_iter().map(|ability| {
        let guide = ability.guide.as_ref().unwrap().to_lowercase();
        let anchor = guide.replace(' ', "-").replace(',', "");
        let (name, by) = (&ability.name, access(&ability, 3));
        format!("| [{name}](docs/features.md#{anchor}) | {by} |")
    });
    let listed = table("README.md", "| ability | by |");
    assert_eq!(listed, front.collect::<Vec<_>>());
    let in_project = abilities().into_iter().map(|ability| {
        let by = access(&ability, usize::MAX);
        format!("| {by} | {} |", ability.what)
    });
    let listed = table("template/README.md.liquid", "| by | effect |");
    assert_eq!(listed, in_project.collect::<Vec<_>>());
}

#[test]
fn abilities_are_listed_after_the_sites() {
    let place = made("a", "");
    for folder in ["", " --path a"] {
        let said = stdout(place.kiln(&format!("explain{folder}")));
        let (_, listed) = said
            .split_once("\nAbilities, by options and commands:\n")
            .unwrap();
        let ids: Vec<_> = listed
            .lines()
            .filter_map(|line| line.split(' ').next())
            .collect();
        let expected = abilities();
        let expected: Vec<_> = expected.iter().map(|ability| &*ability.id).collect();
        assert_eq!(ids[..expected.len()], expected);
        let json = stdout(place.kiln(&format!("explain --format json{folder}")));
        let json: Value = serde_json::from_str(&json).unwrap();
        let last = json.as_array().unwrap().last().unwrap();
        assert_eq!(
            (&last["kind"], &last["id"]),
            (&"ability".into(), &(*expected.last().unwrap()).into())
        );
    }
}

#[test]
fn an_ability_is_explained() {
    let place = made("a", "");
    for path in ["", " --path a"] {
        let explain = format!("explain early-stopping{path}");
        place
            .kiln(&explain)
            .assert()
            .success()
            .stdout_eq(str![[r#"
early-stopping  early stopping
  Ends training after N validations without a better value of the metric at `metric.best`.

Options and commands:
  --patience
    End training after this many validations in a row without a better value of the metric that selects the best checkpoint (early stopping).
  --min-delta
    Improvement of that metric up to which a value does not count as better for --patience [default: 0].

Try it in a new project:
  cargo run -- train --patience 3 --min-delta 0.001

In the code: `kiln explain metric.best`
In an example: README.md after `kiln new keras-cnn --example keras-cnn`
More: docs/features.md of Kiln, under "Early stopping and time limits"

"#]]);
    }
    // By one of its options, too.
    let by_option = stdout(place.kiln("explain patience"));
    assert_eq!(by_option, stdout(place.kiln("explain early-stopping")));
    let json = stdout(place.kiln("explain early-stopping --format json"));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["kind"], "ability");
    assert_eq!(json["use"][0], "--patience");
    assert_eq!(json["options"][0]["name"], "--patience");
    // The help is that of the project's sources.
    let options = place.join("a/engine/src/options.rs");
    let text = fs::read_to_string(&options).unwrap();
    fs::write(
        &options,
        text.replace("End training after this many", "Stop after so many"),
    )
    .unwrap();
    let said = stdout(place.kiln("explain early-stopping --path a"));
    assert!(
        said.contains("    Stop after so many validations"),
        "{said}"
    );
    fs::remove_file(&options).unwrap();
    let said = stdout(place.kiln("explain early-stopping --path a"));
    assert!(
        said.contains("    The sources of this project do not define it."),
        "{said}"
    );
}

#[test]
fn wrong_names_of_abilities_are_told() {
    let place = Place::new();
    place
        .kiln("explain precison")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × there is no site or ability `precison`
   ╭─[ID:1:1]
 1 │ precison
   · ────┬───
   ·     ╰── no site or ability
   ╰────
  help: did you mean `precision`? `kiln explain` lists the sites and abilities

"#]]);
    place
        .kiln("explain ema --example cyclegan")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × `ema` is an ability, not a site
   ╭─[--example:1:1]
 1 │ cyclegan
   · ────┬───
   ·     ╰── not for it
   ╰────
  help: leave out --example, which chooses an answer at a site

"#]]);
}

/// A team's template and projects of earlier versions have no list of abilities.
#[test]
fn a_project_without_abilities_has_its_sites() {
    let place = made("a", "");
    let list = place.join("a/abilities.toml");
    fs::remove_file(&list).unwrap();
    let said = stdout(place.kiln("explain --path a"));
    assert!(!said.to_lowercase().contains("abilit"), "{said}");
    assert!(
        said.ends_with("Details of a site: `kiln explain ID`.\n"),
        "{said}"
    );
    let error = place.kiln("explain ema --path a").assert().code(2);
    let error = String::from_utf8_lossy(&error.get_output().stderr).into_owned();
    assert!(error.contains("there is no site `ema`"), "{error}");
    assert!(!error.contains("abilit"), "{error}");
    // A site of the project's own comes before an ability of the same name.
    place.put(
        "a/abilities.toml",
        "[[ability]]\nid = \"own\"\nname = \"n\"\nwhat = \"W.\"\nuse = [\"--own\"]\n",
    );
    let said = stdout(place.kiln("explain own --path a"));
    assert_eq!(
        said,
        "own  n\n  W.\n\nOptions and commands:\n  --own\n    The sources of this project do not define it.\n"
    );
    place.put("a/src/own.rs", "// TODO(own): Do it.\nfn part() {}\n");
    let said = stdout(place.kiln("explain own --path a"));
    assert!(said.contains("Do it."), "{said}");
}

#[test]
fn a_wrong_list_of_abilities_is_told_with_its_place() {
    let place = made("a", "");
    let good = "[[ability]]\nid = \"a\"\nname = \"n\"\nwhat = \"w\"\n";
    for (list, says) in [
        ("[[ability\n".to_owned(), &["is not valid TOML"][..]),
        (
            "[[abilty]]\n".to_owned(),
            &[
                "unknown key `abilty`",
                "toml:1:3",
                "did you mean `ability`?",
            ],
        ),
        (
            "ability = 1\n".to_owned(),
            &["`ability` should be an array of tables", "toml:1:11"],
        ),
        (
            "[[ability]]\nname = \"n\"\n".to_owned(),
            &["an ability has no `id`", "toml:1:1"],
        ),
        (
            good.to_owned(),
            &["an ability has no `use`", "`use` or `site`"],
        ),
        (
            format!("{good}use = 1\n"),
            &["`use` should be an array of strings", "toml:5:7"],
        ),
        (
            format!("{good}usee = []\n"),
            &["unknown key `usee`", "toml:5:1", "`use`"],
        ),
        (
            format!("{good}site = \"s\"\n{good}site = \"s\"\n"),
            &["the ability `a` is listed twice", "toml:6:1"],
        ),
    ] {
        place.put("a/abilities.toml", &list);
        let error = place.kiln("explain --path a").assert().code(2);
        let error = String::from_utf8_lossy(&error.get_output().stderr).into_owned();
        for part in says {
            assert!(error.contains(part), "{list}: {error}");
        }
    }
}
