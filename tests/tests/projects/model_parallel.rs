//! Models in stages train to the results of whole models, and an invalid split is refused.

use kiln_tests::{
    idx::idx_data,
    job::{Job, assert_close},
    rendered::{EXAMPLES, Project, text},
};

/// The global batch size; 54 examples give a last batch of 6.
const GLOBAL_BATCH: usize = 24;

#[test]
#[ignore = "long"]
fn stages_train_to_the_weights_of_the_whole_model() {
    let (job, _folder) = Job::apart(Project::default_answers(), &EXAMPLES, "model-parallel");
    idx_data(&job.folder.join("small"), 8);
    let train = |strategy: &str, replicas: usize, micro_batches: &str, runs: &str| {
        let batch_size = (GLOBAL_BATCH / replicas).to_string();
        let replicas = replicas.to_string();
        let strategy = ["--strategy", strategy, "--replicas", &replicas];
        let batch = [
            "--batch-size",
            &batch_size,
            "--micro-batches",
            micro_batches,
        ];
        let data = ["--data-dir", "small", "--epochs", "3", "--output-dir", runs];
        job.runs_alone(&[&strategy[..], &batch, &data].concat());
        (job.weights(runs), job.metrics(runs))
    };
    let one = train("one-device", 1, "1", "runs/one");
    // One part; more parts than examples in a batch; more parts than examples; more replicas than examples.
    for (replicas, micro_batches) in [(1, "1"), (1, "5"), (2, "4"), (3, "100"), (8, "2")] {
        let runs = format!("runs/{replicas}-{micro_batches}");
        let (weights, metrics) = train("model-parallel", replicas, micro_batches, &runs);
        let what = format!("{replicas} replicas with {micro_batches} parts");
        assert_close(&weights, &one.0, &format!("weights of {what}"));
        assert_close(&metrics, &one.1, &format!("metrics of {what}"));
    }
    train("model-parallel", 2, "4", "runs/again");
    let parameters = |runs| job.manifest(runs)["parameters"].clone();
    assert_eq!(
        parameters("runs/again"),
        parameters("runs/2-4"),
        "bit for bit"
    );
}

#[test]
#[ignore = "long"]
fn a_split_that_cannot_be_is_refused() {
    let project = Project::to_edit();
    project.edit("model.rs", "layers: &[\"conv1\"]", "layers: &[\"conv0\"]");
    let output = project.try_cargo(&["run", "--", "--strategy", "model-parallel"]);
    let printed = text(&output);
    assert!(!output.status.success(), "{printed}");
    assert!(!printed.contains("panicked"), "{printed}");
    assert!(
        printed.contains(
            "TODO(model.split): stage 0 names the layer `conv0`, and those of the model are conv1, \
             conv2, output"
        ),
        "{printed}"
    );
}
