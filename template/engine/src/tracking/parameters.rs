//! The hyper-parameters of a run, for tables that compare runs.

use serde_json::{Value, json};

use super::Parameters;
use crate::run_record::RunRecord;

/// Options that do not change the results of a training, or that are of one start or one machine.
const LEFT_OUT: [&str; 24] = [
    "check-replicas",
    "checkpoint-epochs",
    "checkpoint-steps",
    "config",
    "data-dir",
    "detect-anomalies",
    "devices",
    "download",
    "hosts",
    "init-partial",
    "keep",
    "kernel-cache",
    "kernels",
    "log-every",
    "max-time",
    "mlflow",
    "mlflow-experiment",
    "output-dir",
    "prefetch",
    "profile",
    "replicas", // as given; the number in use is a parameter
    "resume",
    "timeout",
    "validation-epochs",
];

/// The options that may change the results, by name without dashes, in the order of definition, and the
/// number of replicas. Options without a value are left out, and those of subcommands.
pub(crate) fn parameters(run: &RunRecord) -> Parameters {
    let options = run.options.iter().flatten();
    let options = options.filter_map(|(name, option)| {
        let name = name.strip_prefix("--")?;
        let counts = !LEFT_OUT.contains(&name) && !is_empty(&option.value);
        counts.then(|| (name.to_owned(), option.value.clone()))
    });
    let more = [
        ("replicas", run.replicas),
        ("global-batch-size", run.global_batch_size),
    ];
    let more = more.into_iter();
    let more = more.filter_map(|(name, value)| Some((name.to_owned(), json!(value?))));
    options.chain(more).collect()
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}
