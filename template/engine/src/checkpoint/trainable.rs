//! Serialization of models and optimizers as burnpack files.

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::{
    module::Module,
    optim::{OptimizerRecord, lr_scheduler::LrSchedulerRecord},
    store::ModuleRecord,
    tensor::Bytes,
};
use sha2::{Digest, Sha256};

use super::folder::Files;
use crate::{
    bytes::{hex, to_bytes, to_values},
    model::{
        first_non_finite, frozen, keep_frozen, load_running_statistics, named_ids, read_parameters,
        running_statistics, trains,
    },
    optim::ScheduledOptimizer,
    task::TrainState,
};

/// File of a model, with the mean of its running statistics over replicas, and file of the running
/// statistics of each replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelFiles {
    pub model: &'static str,
    pub statistics: &'static str,
}

/// The model of the last update.
pub const MODEL: ModelFiles = ModelFiles {
    model: "model.bpk",
    statistics: "statistics.bin",
};

/// The averaged weights.
pub const EMA: ModelFiles = ModelFiles {
    model: "ema.bpk",
    statistics: "ema-statistics.bin",
};

/// A model in host memory, from which a thread beside the training makes a file of a checkpoint.
pub struct ModelSnapshot {
    record: ModuleRecord,
    /// The values of the parameters, in the order of the model's fields.
    values: Vec<Vec<f32>>,
}

impl ModelSnapshot {
    /// Of a model without autodiff, as only then are its running statistics up to date.
    pub fn new(model: impl Module) -> Self {
        let values = read_parameters(&model, |_, _| true).into_iter();
        ModelSnapshot {
            values: values.map(|(_, values)| values).collect(),
            record: model.into_record(),
        }
    }

    /// Adds the file of the model. Returns its fingerprint: the SHA-256 of the values of all parameters in 32
    /// bits. The files of two equal trainings differ, as they contain the random parameter ids of Burn.
    ///
    /// # Errors
    /// The record of the model cannot be serialized.
    pub fn insert_into(self, files: &mut Files, of: ModelFiles) -> Result<String> {
        let fingerprint = hash(self.values);
        let bytes = self.record.into_bytes()?;
        files.insert(of.model.to_owned(), bytes.to_vec());
        Ok(fingerprint)
    }
}

/// A model and its optimizers in host memory.
pub struct Snapshot {
    model: ModelSnapshot,
    /// By the name of the optimizer.
    optimizers: Vec<(&'static str, OptimizerRecord, LrSchedulerRecord)>,
}

impl Snapshot {
    /// The optimizers of `trainable`, and `model`, which is its model without autodiff.
    pub fn new(model: impl Module, trainable: &mut impl TrainState) -> Self {
        let optimizers = trainable.optimizers_mut().into_iter();
        let records = optimizers.map(|(name, optimizer)| {
            let (state, schedule) = optimizer.to_records();
            (name, state, schedule)
        });
        Snapshot {
            optimizers: records.collect(),
            model: ModelSnapshot::new(model),
        }
    }

    /// The files, and the fingerprint of the model.
    ///
    /// # Errors
    /// A record cannot be serialized.
    pub fn into_files(self) -> Result<(Files, String)> {
        let mut files = Files::new();
        let fingerprint = self.model.insert_into(&mut files, MODEL)?;
        for (name, state, schedule) in self.optimizers {
            files.insert(optimizer_file(name), state.into_bytes()?.to_vec());
            files.insert(schedule_file(name), schedule.into_bytes()?.to_vec());
        }
        Ok((files, fingerprint))
    }
}

/// SHA-256 of values, in hexadecimal digits.
fn hash(values: Vec<Vec<f32>>) -> String {
    let mut hash = Sha256::new();
    for values in values {
        hash.update(to_bytes(&values));
    }
    hex(hash)
}

/// Checks that all trainable parameters are finite, as a checkpoint of others is useless.
///
/// # Errors
/// A parameter is not finite, and the message names it; a device failed.
pub fn ensure_finite<M: Module>(model: &M) -> Result<()> {
    match first_non_finite(model, trains)? {
        Some((path, value)) => bail!(
            "the parameter `{path}` holds {value}: the training has diverged; resume from an earlier \
             checkpoint with a lower --learning-rate"
        ),
        None => Ok(()),
    }
}

/// Loads the parameters in `files` into `model`.
///
/// # Errors
/// The file is missing, or does not match the model: the message names the first mismatch with its shapes.
pub fn load_model<M: Module>(model: M, files: &Files, of: ModelFiles) -> Result<M> {
    let record = ModuleRecord::from_bytes(bytes(files, of.model)?).map_err(damaged(of.model))?;
    let frozen = frozen(&model);
    let loaded = model.try_load_record(record);
    let loaded =
        loaded.map_err(|error| anyhow!("it does not match the model in src/model.rs: {error}"))?;
    keep_frozen(&frozen, &loaded);
    Ok(loaded)
}

/// The file of the model in `files`.
///
/// # Errors
/// It is missing.
pub fn model_bytes(files: &Files, of: ModelFiles) -> Result<&[u8]> {
    let bytes = files.get(of.model);
    Ok(bytes.with_context(|| format!("it has no {}", of.model))?)
}

/// The file of a model without autodiff, as only then are its running statistics up to date.
///
/// # Errors
/// The record of the model cannot be serialized.
pub fn model_files(model: impl Module) -> Result<Files> {
    let mut files = Files::new();
    ModelSnapshot::new(model).insert_into(&mut files, MODEL)?;
    Ok(files)
}

/// Loads the model and the states of all optimizers from `files`.
///
/// # Errors
/// A file is missing, or does not match the model or optimizer.
pub fn load<S>(trainable: S, files: &Files) -> Result<S>
where
    S: TrainState<Model: Module>,
{
    let model = load_model(trainable.model().clone(), files, MODEL)?;
    // The parameters have the ids of the file.
    let parameters = named_ids(&model);
    let mut trainable = trainable.with_model(model);
    for (name, optimizer) in trainable.optimizers_mut() {
        optimizer.assign_groups(&parameters)?;
        load_optimizer(optimizer, name, files)?;
    }
    Ok(trainable)
}

fn load_optimizer(optimizer: &mut ScheduledOptimizer, name: &str, files: &Files) -> Result<()> {
    let (state, schedule) = (optimizer_file(name), schedule_file(name));
    let record = OptimizerRecord::from_bytes(bytes(files, &state)?).map_err(damaged(&state))?;
    let tensors = record.len();
    let schedule_record =
        LrSchedulerRecord::from_bytes(bytes(files, &schedule)?).map_err(damaged(&schedule))?;
    optimizer.load_records(record, schedule_record);
    // Burn ignores mismatched tensors, and would reset the state of their parameters.
    let loaded = optimizer.to_records().0.len();
    ensure!(
        loaded == tensors,
        "its {state} has {tensors} tensors, of which the optimizer of src/model.rs accepts {loaded}: \
         the optimizer differs"
    );
    Ok(())
}

/// Adds the running statistics of each replica, if the model has any.
pub fn insert_statistics(files: &mut Files, of: ModelFiles, per_replica: &[Vec<f32>]) {
    let values = to_bytes(&per_replica.concat());
    if !values.is_empty() {
        files.insert(of.statistics.to_owned(), values);
    }
}

/// Restores the running statistics of replica `rank` of `replicas`.
///
/// # Errors
/// The statistics do not match the model.
pub fn load_statistics<M: Module>(
    model: M,
    files: &Files,
    of: ModelFiles,
    rank: usize,
    replicas: usize,
) -> Result<M> {
    let Some(bytes) = files.get(of.statistics) else {
        return Ok(model);
    };
    let values = to_values(bytes);
    let len = running_statistics(&model).len();
    ensure!(
        values.len() == len * replicas,
        "its {} has {} values, and {replicas} replicas have {len} each",
        of.statistics,
        values.len()
    );
    Ok(load_running_statistics(
        &model,
        &values[rank * len..(rank + 1) * len],
    ))
}

fn optimizer_file(name: &str) -> String {
    format!("{name}.bpk")
}

fn schedule_file(name: &str) -> String {
    format!("{name}.schedule.bpk")
}

fn bytes(files: &Files, name: &str) -> Result<Bytes> {
    let bytes = files
        .get(name)
        .with_context(|| format!("it has no {name}"))?;
    Ok(Bytes::from_bytes_vec(bytes.clone()))
}

fn damaged<E: std::fmt::Display>(name: &str) -> impl FnOnce(E) -> anyhow::Error {
    let name = name.to_owned();
    move |error| anyhow!("its {name} cannot be read: {error}")
}

#[cfg(test)]
mod tests {
    use burn::{
        nn::{Linear, LinearConfig},
        tensor::Device,
    };

    use std::collections::HashSet;

    use super::*;
    use crate::model::freeze;

    #[derive(Module, Debug)]
    struct Layers {
        hidden: Linear,
        output: Linear,
    }

    fn layers(hidden: usize) -> Layers {
        let device = Device::flex();
        Layers {
            hidden: LinearConfig::new(2, hidden).init(&device),
            output: LinearConfig::new(hidden, 1).init(&device),
        }
    }

    fn files(layers: Layers) -> Files {
        let bytes = layers.into_record().into_bytes().unwrap();
        Files::from_iter([(MODEL.model.to_owned(), bytes.to_vec())])
    }

    #[test]
    fn a_model_comes_back_with_its_values_and_ids() {
        let saved = layers(3);
        let loaded = load_model(layers(3), &files(saved.clone()), MODEL).unwrap();
        let [saved, loaded] = [saved.hidden.weight, loaded.hidden.weight];
        assert_eq!(saved.id, loaded.id);
        assert_eq!(saved.val().into_data(), loaded.val().into_data());
    }

    #[test]
    fn frozen_parameters_are_frozen_with_the_ids_of_a_file() {
        let model = layers(3).train();
        let ids = HashSet::from([model.hidden.weight.id]);
        let model = freeze(model, &ids).unwrap();
        let loaded = load_model(model, &files(layers(3)), MODEL).unwrap();
        assert!(!ids.contains(&loaded.hidden.weight.id));
        assert_eq!(running_statistics(&loaded), [0.0; 0]);
        let of_loaded = frozen(&loaded);
        assert_eq!(of_loaded["hidden.weight"], loaded.hidden.weight.id);
        assert_eq!((of_loaded.len(), named_ids(&loaded).len()), (1, 4));
    }

    #[test]
    fn a_parameter_of_another_shape_is_named_with_both_shapes() {
        let error = load_model(layers(4), &files(layers(3)), MODEL)
            .unwrap_err()
            .to_string();
        for part in ["hidden.weight", "output.weight", "[2, 4]", "[2, 3]"] {
            assert!(error.contains(part), "no {part} in: {error}");
        }
    }

    #[test]
    fn a_file_that_is_missing_or_no_model_is_named() {
        let error = |files| format!("{:#}", load_model(layers(3), &files, MODEL).unwrap_err());
        assert!(error(Files::new()).contains("it has no model.bpk"));
        let broken = Files::from_iter([(MODEL.model.to_owned(), vec![1, 2, 3])]);
        assert!(error(broken).contains("its model.bpk cannot be read"));
    }
}
