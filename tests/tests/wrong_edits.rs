//! A wrong edit at a TODO site fails a contract test that names the site.

use std::fs;

use kiln_tests::rendered::{Project, text};

/// The site, its file, and what is replaced there by what.
const EDITS: [(&str, &str, &str, &str); 12] = [
    (
        "strategy.devices",
        "strategy.rs",
        "(Some(replicas), _) => replicas,",
        "(Some(_), _) => 1,",
    ),
    (
        "loss.objects",
        "loss.rs",
        "self.reduction.apply(of_label.neg())",
        "of_label.neg().mean()",
    ),
    (
        "loss.compute",
        "loss.rs",
        "replica_context()?.examples_in_global_batch()",
        "replica_context().map(|_| per_example_losses.dims()[0])?",
    ),
    (
        "metric.set",
        "metric.rs",
        "accuracy.update(&correct)",
        "accuracy.update(&correct.mean())",
    ),
    (
        "model.architecture",
        "model.rs",
        "self.conv2.forward(x)",
        "self.conv2.forward(x.detach())",
    ),
    (
        "optimizer.choice",
        "model.rs",
        "learning_rate: args.learning_rate,",
        "learning_rate: 0.0,",
    ),
    (
        "dataset.batch",
        "dataset.rs",
        "let labels: Vec<i32>",
        "let pixels: Vec<f32> = pixels.into_iter().rev().collect();\n        let labels: Vec<i32>",
    ),
    (
        "dataset.split",
        "dataset.rs",
        "(subset(training), subset(indices))",
        "(subset(training.clone()), subset(training))",
    ),
    (
        "train.step",
        "train.rs",
        "ReduceOp::Sum, bucket",
        "ReduceOp::Mean, bucket",
    ),
    (
        "train.gradients",
        "train.rs",
        "if !gradients.handle_non_finite(NonFinite::Error)? {",
        "let _ = NonFinite::Error;\n        if false {",
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
];

#[test]
fn a_wrong_edit_fails_a_test_that_names_the_site() {
    let project = Project::default_answers();
    for (site, file, right, wrong) in EDITS {
        let path = project.path().join("src").join(file);
        let source = fs::read_to_string(&path).unwrap();
        assert!(source.contains(right), "{file} has no `{right}`");
        fs::write(&path, source.replacen(right, wrong, 1)).unwrap();
        let output = project.try_cargo(&["test", "--test", "contract"]);
        fs::write(&path, source).unwrap();
        let printed = text(&output);
        assert!(!printed.contains("could not compile"), "{site}: {printed}");
        assert!(
            printed.contains(&format!("TODO({site}): ")),
            "{site} is not named: {printed}"
        );
    }
}
