//! The manifest of a checkpoint: training progress, seed, metrics and run metadata.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Files, StoppingState,
    folder::{self, Unusable},
};
use crate::{metric::MetricStates, precision::LossScale, run_record::RunRecord};

/// Version of the manifest format.
const VERSION: u32 = 1;

/// File name of the manifest.
const NAME: &str = "manifest.json";

/// Training progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Number of updates of the parameters.
    pub step: usize,
    /// The current or next epoch, from 1.
    pub epoch: usize,
    /// Examples of that epoch used so far, over all replicas. Together with seed and epoch, this determines
    /// the remaining batches, for any number of replicas.
    pub examples: usize,
    /// Examples of all earlier epochs, over all replicas.
    pub drawn: usize,
}

impl Progress {
    /// Before the first step.
    pub const START: Progress = Progress {
        step: 0,
        epoch: 1,
        examples: 0,
        drawn: 0,
    };

    /// Advances to the next epoch, after the last batch of the current one.
    pub fn end_epoch(&mut self) {
        self.epoch += 1;
        self.drawn += self.examples;
        self.examples = 0;
    }
}

/// The metadata of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    version: u32,
    /// Training progress at the time of the save.
    #[serde(flatten)]
    pub progress: Progress,
    /// The seed; together with epoch and position in the data, it determines all random numbers.
    pub seed: u64,
    /// Examples in the training split.
    pub train_examples: usize,
    /// Number of replicas in all processes.
    pub replicas: usize,
    /// SHA-256 of the values of all parameters, to compare two trainings.
    pub parameters: String,
    /// SHA-256 of the values of all averaged weights, of trainings with `--ema`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ema: Option<String>,
    /// The states of the training metrics, by replica and metric, as bit patterns, since decimal digits
    /// would round them.
    metrics: Vec<Vec<Vec<u64>>>,
    /// The metrics of the last validation, by name, to select the best checkpoint; empty if one is not
    /// finite.
    pub validation: IndexMap<String, f64>,
    /// Run metadata.
    #[serde(default)]
    pub run: Option<RunRecord>,
    /// The state of early stopping and of the time limit; `None` without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopping: Option<StoppingState>,
    /// The state of the loss scale, of trainings with `--precision float16`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
}

impl Manifest {
    /// The manifest of a checkpoint. `metrics` holds the metric states of each replica.
    pub fn new(
        progress: Progress,
        seed: u64,
        train_examples: usize,
        parameters: String,
        metrics: &[MetricStates],
        validation: IndexMap<String, f64>,
        run: Option<RunRecord>,
    ) -> Self {
        let bits = |state: &Vec<f64>| state.iter().map(|value| value.to_bits()).collect();
        let of_replica = |states: &MetricStates| states.iter().map(bits).collect();
        Manifest {
            version: VERSION,
            progress,
            seed,
            train_examples,
            replicas: metrics.len(),
            parameters,
            ema: None,
            metrics: metrics.iter().map(of_replica).collect(),
            // A model whose loss is not a number is never the best, whatever its other metrics are.
            validation: match validation.values().all(|value| value.is_finite()) {
                true => validation,
                false => IndexMap::new(),
            },
            run,
            stopping: None,
            loss_scale: None,
        }
    }

    /// The states of the training metrics of each replica.
    pub fn metrics(&self) -> Vec<MetricStates> {
        let values = |bits: &Vec<u64>| bits.iter().map(|bits| f64::from_bits(*bits)).collect();
        let of_replica = |states: &Vec<Vec<u64>>| states.iter().map(values).collect();
        self.metrics.iter().map(of_replica).collect()
    }

    /// Adds the manifest to the files of its checkpoint.
    ///
    /// # Errors
    /// The manifest cannot be serialized.
    pub fn insert_into(&self, files: &mut Files) -> Result<()> {
        files.insert(NAME.to_owned(), serde_json::to_vec_pretty(self)?);
        Ok(())
    }

    /// Reads the manifest of the checkpoint at `path`, without verifying the other files.
    ///
    /// # Errors
    /// The manifest is missing, unreadable or of another version.
    pub fn peek(path: &Path) -> Result<Self, Unusable> {
        let bytes = folder::read_file(path, NAME)?;
        match serde_json::from_slice::<Value>(&bytes) {
            Ok(_) => Self::parse(&bytes).map_err(Unusable::Unreadable),
            Err(error) => Err(Unusable::Damaged(error.into())),
        }
    }

    /// Whether `other` has the same training state, so that both resume to the same results.
    pub fn is_same_state(&self, other: &Self) -> bool {
        (self.progress, self.seed, self.train_examples)
            == (other.progress, other.seed, other.train_examples)
            && (self.replicas, &self.parameters, &self.metrics)
                == (other.replicas, &other.parameters, &other.metrics)
            && (&self.ema, &self.validation, self.loss_scale)
                == (&other.ema, &other.validation, other.loss_scale)
    }

    /// The manifest among `files`.
    ///
    /// # Errors
    /// The manifest is missing or of another version.
    pub fn from_files(files: &Files) -> Result<Self> {
        let bytes = files.get(NAME);
        Self::parse(bytes.with_context(|| format!("it has no {NAME}"))?)
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        /// The version alone, as the rest of another version is not known.
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }

        let cannot = || format!("its {NAME} is not one of a checkpoint");
        let Version { version } = serde_json::from_slice(bytes).with_context(cannot)?;
        ensure!(
            version == VERSION,
            "its {NAME} is of version {version}, and this program reads version {VERSION}: use the \
             program that wrote it, or another --output-dir"
        );
        serde_json::from_slice(bytes).with_context(cannot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_comes_back_bit_for_bit() {
        let progress = Progress {
            step: 7,
            epoch: 2,
            examples: 96,
            drawn: 1_350,
        };
        let states = vec![vec![vec![0.1 + 0.2, f64::NAN], vec![]], vec![vec![-0.0]]];
        let validation = IndexMap::from([("loss".to_owned(), 0.1), ("f1".to_owned(), 0.5)]);
        let manifest = |validation| {
            Manifest::new(
                progress,
                42,
                1_350,
                "00ff".to_owned(),
                &states,
                validation,
                None,
            )
        };
        let not_a_number = IndexMap::from([("loss".to_owned(), f64::NAN), ("f1".to_owned(), 0.5)]);
        assert!(
            manifest(not_a_number).validation.is_empty(),
            "never the best"
        );
        let manifest = manifest(validation.clone());
        let mut files = Files::new();
        manifest.insert_into(&mut files).unwrap();
        let read = Manifest::from_files(&files).unwrap();
        assert_eq!(read, manifest);
        assert_eq!(read.progress, progress);
        assert_eq!(read.metrics()[0][0][0].to_bits(), (0.1_f64 + 0.2).to_bits());
        assert!(read.metrics()[0][0][1].is_nan());
        assert_eq!(read.validation, validation);
    }

    #[test]
    fn another_version_and_another_file_are_refused() {
        let with = |text: &str| Files::from_iter([(NAME.to_owned(), text.as_bytes().to_vec())]);
        let error = |files| format!("{:#}", Manifest::from_files(&files).unwrap_err());
        assert!(error(with("{\"version\": 9}")).contains("is of version 9"));
        assert!(error(with("[]")).contains("not one of a checkpoint"));
        assert!(error(Files::new()).contains("it has no manifest.json"));
    }
}
