//! A wrong edit at a TODO site fails one of the site's contract tests, whose message names the site.

use std::{collections::BTreeSet, fs};

use kiln_tests::{
    rendered::{Project, text},
    repository,
};

/// The site, its file, the text to replace, and the replacement.
const EDITS: [(&str, &str, &str, &str); 24] = [
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
        "accuracy.update(&correct)",
        "accuracy.update(&correct.mean())",
    ),
    (
        "metric.set",
        "metric.rs",
        "sparse_categorical_accuracy(predictions, &batch.labels);",
        "predictions.clone().argmax(1).squeeze_dim(1).equal(batch.labels.clone()).float();",
    ),
    (
        "metric.best",
        "metric.rs",
        "metric: \"accuracy\"",
        "metric: \"precision\"",
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
        "model.weights",
        "model.rs",
        "WeightNames = &[];",
        "WeightNames = &[(\"^features\\\\.0\\\\.\", \"convolution1.\")];",
    ),
    (
        "optimizer.choice",
        "model.rs",
        "ScheduledOptimizer::new(adam, schedule)",
        "ScheduledOptimizer::new(adam, 0.0)",
    ),
    (
        "dataset.example",
        "dataset.rs",
        "pub const CLASSES: usize = 10;",
        "pub const CLASSES: usize = 5;",
    ),
    (
        "dataset.batch",
        "dataset.rs",
        "let labels: Vec<i32>",
        "let pixels: Vec<f32> = pixels.into_iter().rev().collect();\n        let labels: Vec<i32>",
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
        "example.pixels.clone())?",
        "example.pixels[1..].to_vec())?",
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
    (
        "dataset.split",
        "dataset.rs",
        "(subset(training)?, subset(indices)?)",
        "(subset(training.clone())?, subset(training)?)",
    ),
    (
        "train.step",
        "train.rs",
        "let loss = train_loss(predictions, batch)?;",
        "let rank = kiln_engine::replica::replica_context()?.rank();\n    let loss = train_loss(predictions, batch)? * (1.0 + rank as f64);",
    ),
    (
        "train.gradients",
        "train.rs",
        "if !gradients.handle_non_finite(NON_FINITE)? {",
        "if false {",
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
        "Split::Validation, |metrics|",
        "Split::Train, |metrics|",
    ),
    (
        "test.step",
        "test.rs",
        "Split::Test, |metrics|",
        "Split::Validation, |metrics|",
    ),
    (
        "infer.inputs",
        "infer.rs",
        "let images = read_idx_file::<3>(path)?;",
        "let images = read_idx_file::<3>(path).or_else(|_| anyhow::bail!(\"bad input\"))?;",
    ),
    (
        "infer.predict",
        "infer.rs",
        "softmax(logits, 1)",
        "softmax(logits, 0)",
    ),
];

fn sites() -> Vec<toml::Value> {
    let sites = fs::read_to_string(repository().join("template/todos.toml")).unwrap();
    let mut sites: toml::Table = sites.parse().unwrap();
    match sites.remove("site") {
        Some(toml::Value::Array(sites)) => sites,
        other => panic!("no sites: {other:?}"),
    }
}

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
    let sites = sites();
    let sites: BTreeSet<&str> = sites
        .iter()
        .map(|site| site["id"].as_str().unwrap())
        .collect();
    let edited: BTreeSet<&str> = EDITS.iter().map(|(site, ..)| *site).collect();
    assert_eq!(edited, sites);
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
        let printed = text(&output);
        assert!(!printed.contains("could not compile"), "{site}: {printed}");
        assert!(
            printed.contains(&format!("TODO({site}): ")),
            "{site} is not named: {printed}"
        );
    }
}
