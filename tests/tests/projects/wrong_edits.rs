//! A wrong edit at a TODO site fails one of the site's contract tests, whose message names the site.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

use kiln_tests::{
    parallel,
    rendered::{Project, text},
    running::{self, TRAINING},
};

use crate::{are_all_sites, contract_tests, sites};

/// The environment variable with the number of the one expression that is wrong, so that a single build has them
/// all. Without it, none is wrong.
const SWITCH: &str = "WRONG_EXPRESSION";

/// The function of the project that reads the variable.
const IS_WRONG: &str = "
/// Whether this expression is the wrong one.
pub fn is_wrong(number: usize) -> bool {
    std::env::var(\"WRONG_EXPRESSION\").is_ok_and(|wrong| wrong == number.to_string())
}
";

/// Wrong expressions: the site, its file, the expression to replace, and the wrong one, of the same type.
const EXPRESSIONS: [(&str, &str, &str, &str); 23] = [
    (
        "strategy.devices",
        "strategy.rs",
        "share_devices::<Project>(&devices, replicas, options)",
        "Ok(vec![devices[0].clone(); replicas])",
    ),
    (
        "loss.objects",
        "loss.rs",
        "cross_entropy.forward(predictions.clone(), batch.labels.clone())",
        "cross_entropy.forward(predictions.clone(), batch.labels.clone()).map(|losses| losses.mean())",
    ),
    (
        "loss.compute",
        "loss.rs",
        "replica_context()?.examples_in_update()",
        "replica_context().map(|_| per_example_losses.dims()[0])?",
    ),
    (
        "metric.set",
        "metric.rs",
        "self.accuracy.update(&correct)",
        "self.accuracy.update(&correct.mean())",
    ),
    (
        "metric.set",
        "metric.rs",
        "sparse_categorical_accuracy(predictions, &batch.labels)",
        "predictions.clone().argmax(1).squeeze_dim(1).equal(batch.labels.clone()).float()",
    ),
    (
        "model.architecture",
        "model.rs",
        "conv2d(&self.conv2, x)",
        "conv2d(&self.conv2, x.detach())",
    ),
    (
        "model.split",
        "model.rs",
        "model.finish(x.into()).into()",
        "model.finish(x.tensor() * 2.0).into()",
    ),
    (
        "optimizer.choice",
        "model.rs",
        "ScheduledOptimizer::new(adam, schedule)",
        "ScheduledOptimizer::new(adam, 0.0)",
    ),
    (
        "dataset.batch",
        "dataset.rs",
        "pixels.concat()",
        "pixels.iter().rev().flat_map(|image| image.iter().rev().copied()).collect::<Vec<u8>>()",
    ),
    (
        "dataset.augment",
        "dataset.rs",
        "Ok(example)",
        "static CALLS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let call = CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let label = (call.wrapping_mul(2_654_435_761) >> 24) as u8 % 10;
        Ok(Example { label, ..example })",
    ),
    (
        "dataset.picture",
        "dataset.rs",
        "example.pixels.clone()",
        "example.pixels[1..].to_vec()",
    ),
    (
        "dataset.split",
        "dataset.rs",
        "(subset(training)?, subset(indices)?)",
        "(subset(training.clone())?, subset(training)?)",
    ),
    (
        "dataset.split",
        "dataset.rs",
        "(subset(training)?, subset(indices)?)",
        "(subset([&training[..], &indices[..1]].concat())?, subset(indices)?)",
    ),
    (
        "dataset.split",
        "dataset.rs",
        "indices.split_off(indices.len() / 10)",
        "indices.split_off(indices.len() / 10).split_off(5)",
    ),
    (
        "dataset.source",
        "dataset.rs",
        "read(\"t10k\")?",
        "read(\"train\")?",
    ),
    (
        "train.step",
        "train.rs",
        "train_loss(predictions, batch)?",
        "train_loss(predictions, batch)? * (1.0 + kiln_engine::replica::replica_context()?.rank() as f64)",
    ),
    (
        "train.gradients",
        "train.rs",
        "!gradients.handle_non_finite(NON_FINITE)?",
        "false",
    ),
    (
        "callbacks.schedule",
        "callbacks.rs",
        "Callbacks::<Report>::new()",
        "Callbacks::<Report>::new().at_step(100, |_, _| anyhow::bail!(\"no such layer\"))",
    ),
    (
        "callbacks.hooks",
        "callbacks.rs",
        "Ok((predictions, batch))",
        "Ok((predictions.slice([0..1]), batch))",
    ),
    (
        "validation.step",
        "validation.rs",
        "Split::Validation",
        "Split::Train",
    ),
    ("test.step", "test.rs", "Split::Test", "Split::Validation"),
    (
        "infer.inputs",
        "infer.rs",
        "read_idx_file::<3>(path)?",
        "read_idx_file::<3>(path).or_else(|_| anyhow::bail!(\"bad input\"))?",
    ),
    (
        "infer.predict",
        "infer.rs",
        "softmax(logits, 1)",
        "softmax(logits, 0)",
    ),
];

/// Wrong edits of constants and types: the site, its file, the text to replace, and the replacement.
const EDITS: [(&str, &str, &str, &str); 4] = [
    (
        "metric.best",
        "metric.rs",
        "metric: \"accuracy\"",
        "metric: \"precision\"",
    ),
    (
        "model.weights",
        "model.rs",
        "WeightNames = &[];",
        "WeightNames = &[(\"^features\\\\.0\\\\.\", \"convolution1.\")];",
    ),
    (
        "dataset.example",
        "dataset.rs",
        "pub const CLASSES: usize = 10;",
        "pub const CLASSES: usize = 5;",
    ),
    (
        "dataset.source",
        "dataset.rs",
        "CLASSES, Example::new);",
        "CLASSES, |pixels, size, _| {
             static CALLS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
             let call = CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
             let label = (call.wrapping_mul(2_654_435_761) >> 24) as u8 % 10;
             Example::new(pixels, size, label)
         });",
    ),
];

/// The contract tests of a site.
fn guards(id: &str) -> Vec<String> {
    let sites = sites();
    let site = sites.iter().find(|site| site["id"].as_str() == Some(id));
    let tests = site.unwrap()["test"].as_array().unwrap().iter();
    tests
        .map(|test| test.as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn every_site_has_a_wrong_edit() {
    let edits = EXPRESSIONS.iter().chain(&EDITS);
    are_all_sites(edits.map(|(site, ..)| *site));
}

/// Checks that the output of contract tests names the site.
#[track_caller]
fn names_the_site(output: &Output, site: &str) {
    let printed = text(output);
    assert!(!printed.contains("could not compile"), "{site}: {printed}");
    assert!(
        printed.contains(&format!("TODO({site}): ")),
        "{site} is not named: {printed}"
    );
}

#[test]
#[ignore = "long"]
fn a_wrong_edit_fails_a_test_that_names_the_site() {
    let project = Project::to_edit();
    for (site, file, right, wrong) in EDITS {
        let path = project.path().join("src").join(file);
        let source = fs::read_to_string(&path).unwrap();
        project.edit(file, right, wrong);
        let guards = guards(site);
        let arguments = ["test", "--test", "contract", "--", "--exact"];
        let names: Vec<&str> = guards.iter().map(String::as_str).collect();
        let output = project.try_cargo(&[&arguments[..], &names].concat());
        fs::write(&path, source).unwrap();
        names_the_site(&output, site);
    }
    let tests = tests_with_all_expressions(&project);
    let path = project.path();
    let _folder = project.unlock();
    let run = |switch: &str, names: &[String]| {
        let mut command = Command::new(&tests);
        command.args(names).arg("--exact").env(SWITCH, switch);
        running::output(command.current_dir(&path), TRAINING)
    };
    let all = std::iter::once(None).chain((0..EXPRESSIONS.len()).map(Some));
    parallel::for_each(&all.collect::<Vec<_>>(), |wrong| match wrong {
        None => {
            let output = run("none", &[]);
            assert!(output.status.success(), "{}", text(&output));
        }
        Some(number) => {
            let (site, ..) = EXPRESSIONS[*number];
            names_the_site(&run(&number.to_string(), &guards(site)), site);
        }
    });
}

/// Builds the contract tests of a project in which each of [`EXPRESSIONS`] is wrong if [`SWITCH`] has its number;
/// returns their program.
fn tests_with_all_expressions(project: &Project) -> PathBuf {
    let library = project.path().join("src/lib.rs");
    let source = fs::read_to_string(&library).unwrap();
    fs::write(library, source + IS_WRONG).unwrap();
    for (number, (_, file, right, wrong)) in EXPRESSIONS.iter().enumerate() {
        let either = format!("(if crate::is_wrong({number}) {{ {wrong} }} else {{ {right} }})");
        project.edit(file, right, &either);
    }
    contract_tests(project)
}
