//! Serialization of models and optimizers as burnpack files.

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    optim::{OptimizerRecord, lr_scheduler::LrSchedulerRecord},
    store::ModuleRecord,
    tensor::{Bytes, Tensor, TensorData},
};
use sha2::{Digest, Sha256};

use super::Files;
use crate::{
    bytes::{hex, to_bytes, to_values},
    model::{
        TRAINED, first_non_finite, frozen, keep_frozen, load_running_statistics, named_ids,
        read_parameters, running_statistics,
    },
    optim::ScheduledOptimizer,
    replica::{is_cpu, read_data},
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

/// Values of which the bytes are hashed together.
const HASHED_TOGETHER: usize = 1 << 14;

/// The state of a training at the time of a save, from which a thread beside the training makes the files of a
/// checkpoint.
///
/// On the CPU it shares its tensors with the training until [`separate`](Self::separate). They never change:
/// an operation that would reuse the memory of a tensor copies it as long as there is another owner. Values on
/// other devices are copied at once, as their memory may not suffice for two states. They are serialized, too: the
/// bytes of a read may change with later ones (seen with CubeCL 0.11.3 and wgpu).
pub struct Snapshot<M> {
    model: ModelSnapshot<M>,
    /// By the name of the optimizer.
    optimizers: Vec<(&'static str, OptimizerSnapshot)>,
}

impl<M: Module> Snapshot<M> {
    /// The optimizers of `trainable`, and `model`, as for [`ModelSnapshot::new`].
    ///
    /// # Errors
    /// A record cannot be serialized.
    pub fn new(model: M, trainable: &mut impl TrainState) -> Result<Self> {
        let shares = is_cpu(&model.devices());
        let optimizers = trainable.optimizers_mut().into_iter();
        let optimizers = optimizers.map(|(name, optimizer)| {
            let shared = OptimizerSnapshot::Shared(optimizer.clone());
            match shares {
                true => Ok((name, shared)),
                false => Ok((name, shared.serialized()?)),
            }
        });
        Ok(Snapshot {
            optimizers: optimizers.collect::<Result<_>>()?,
            model: ModelSnapshot::new(model)?,
        })
    }

    /// The same state in memory of its own, so that the training copies nothing. The sooner, the better: an
    /// update meanwhile copies what is not yet separate.
    #[must_use]
    pub fn separate(self) -> Self {
        let optimizers = self.optimizers.into_iter();
        Snapshot {
            // First, as it releases each tensor that it has copied.
            model: self.model.separate(),
            optimizers: optimizers
                .map(|(name, optimizer)| (name, optimizer.separate()))
                .collect(),
        }
    }

    /// The files, and the fingerprint of the model.
    ///
    /// # Errors
    /// A record cannot be serialized.
    pub fn into_files(self) -> Result<(Files, String)> {
        let mut files = Files::new();
        let fingerprint = self.model.insert_into(&mut files, MODEL)?;
        for (name, optimizer) in self.optimizers {
            let [state, schedule] = optimizer.into_bytes()?;
            files.insert(optimizer_file(name), state);
            files.insert(schedule_file(name), schedule);
        }
        Ok((files, fingerprint))
    }
}

/// A model of a [`Snapshot`].
pub enum ModelSnapshot<M> {
    /// On the CPU.
    Tensors(M),
    /// From other devices.
    Copied {
        /// The serialized record.
        record: Vec<u8>,
        /// The values of the parameters, in the order of the model's fields.
        values: Vec<Vec<f32>>,
    },
}

impl<M: Module> ModelSnapshot<M> {
    /// Of a model without autodiff, which has running statistics of its own: only then are they up to date,
    /// and stay so.
    ///
    /// # Errors
    /// The record of the model cannot be serialized.
    pub fn new(model: M) -> Result<Self> {
        if is_cpu(&model.devices()) {
            return Ok(ModelSnapshot::Tensors(model));
        }
        let values = read_parameters(&model, |_, _| true).into_iter();
        Ok(ModelSnapshot::Copied {
            values: values.map(|(_, values)| values).collect(),
            record: to_vec(model.into_record().into_bytes()?),
        })
    }

    /// As [`Snapshot::separate`].
    #[must_use]
    pub fn separate(self) -> Self {
        match self {
            ModelSnapshot::Tensors(model) => ModelSnapshot::Tensors(model.map(&mut Separate)),
            copied @ ModelSnapshot::Copied { .. } => copied,
        }
    }

    /// Adds the file of the model. Returns its fingerprint: the SHA-256 of the values of all parameters in 32
    /// bits. The files of two equal trainings differ, as they contain the random parameter ids of Burn.
    ///
    /// # Errors
    /// The record of the model cannot be serialized.
    pub fn insert_into(self, files: &mut Files, of: ModelFiles) -> Result<String> {
        let mut hash = Fingerprint::default();
        let record = match self {
            ModelSnapshot::Tensors(model) => {
                model.visit(&mut hash);
                to_vec(model.into_record().into_bytes()?)
            }
            ModelSnapshot::Copied { record, values } => {
                values.iter().for_each(|values| hash.add(values));
                record
            }
        };
        files.insert(of.model.to_owned(), record);
        Ok(hex(hash.0))
    }
}

/// An optimizer of a [`Snapshot`].
enum OptimizerSnapshot {
    /// With the tensors of the training.
    Shared(ScheduledOptimizer),
    Copied(OptimizerRecord, LrSchedulerRecord),
    /// The files of state and schedule.
    Serialized([Vec<u8>; 2]),
}

impl OptimizerSnapshot {
    fn separate(self) -> Self {
        match self {
            OptimizerSnapshot::Shared(optimizer) => {
                let (state, schedule) = optimizer.to_records();
                OptimizerSnapshot::Copied(state, schedule)
            }
            separate => separate,
        }
    }

    fn serialized(self) -> Result<Self> {
        self.into_bytes().map(OptimizerSnapshot::Serialized)
    }

    /// The files of state and schedule.
    fn into_bytes(self) -> Result<[Vec<u8>; 2]> {
        let (state, schedule) = match self {
            OptimizerSnapshot::Shared(optimizer) => optimizer.to_records(),
            OptimizerSnapshot::Copied(state, schedule) => (state, schedule),
            OptimizerSnapshot::Serialized(files) => return Ok(files),
        };
        Ok([to_vec(state.into_bytes()?), to_vec(schedule.into_bytes()?)])
    }
}

/// Copies the memory of each parameter on the CPU, unless it has no other owner any more.
struct Separate;

impl ModuleMapper for Separate {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| {
            let (device, dtype) = (tensor.device(), tensor.dtype());
            Tensor::from_data(on_cpu(tensor), (&device, dtype))
        })
    }
}

/// The SHA-256 of the values of all visited parameters.
#[derive(Default)]
struct Fingerprint(Sha256);

impl Fingerprint {
    fn add(&mut self, values: &[f32]) {
        // In parts, as another copy of a large tensor would count.
        for part in values.chunks(HASHED_TOGETHER) {
            self.0.update(to_bytes(part));
        }
    }
}

impl ModuleVisitor for Fingerprint {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let values = on_cpu(param.val()).convert::<f32>();
        self.add(values.as_slice().expect("values of f32"));
    }
}

fn on_cpu<const D: usize>(tensor: Tensor<D>) -> TensorData {
    read_data(tensor).expect("a tensor on the CPU can be read")
}

/// The same bytes, without a copy if they allow it.
fn to_vec(bytes: Bytes) -> Vec<u8> {
    bytes.try_into_vec().unwrap_or_else(|bytes| bytes.to_vec())
}

/// Checks that all trainable parameters are finite, as a checkpoint of others is useless.
///
/// # Errors
/// A parameter is not finite, and the message names it; a device failed.
pub fn ensure_finite<M: Module>(model: &M) -> Result<()> {
    match first_non_finite(model, TRAINED)? {
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
    ModelSnapshot::new(model)?.insert_into(&mut files, MODEL)?;
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
    fn a_snapshot_from_a_gpu_gives_the_same_file_and_fingerprint() {
        let model = layers(3);
        let values = read_parameters(&model, |_, _| true).into_iter();
        let copied = ModelSnapshot::<Layers>::Copied {
            values: values.map(|(_, values)| values).collect(),
            record: to_vec(model.clone().into_record().into_bytes().unwrap()),
        };
        let shared = ModelSnapshot::new(model).unwrap();
        assert!(matches!(shared, ModelSnapshot::Tensors(_)));
        let [of_shared, of_copied] = [shared.separate(), copied.separate()].map(|snapshot| {
            let mut files = Files::new();
            let fingerprint = snapshot.insert_into(&mut files, MODEL).unwrap();
            (fingerprint, files)
        });
        assert_eq!(of_shared, of_copied);
    }

    /// The place in memory of the values of a parameter.
    #[cfg(feature = "cpu-layers")]
    fn address(snapshot: &ModelSnapshot<Layers>) -> *const f32 {
        let ModelSnapshot::Tensors(model) = snapshot else {
            panic!("it is copied")
        };
        let weight = model.hidden.weight.val();
        let weight = weight.try_into_primitive::<burn::backend::Flex>().unwrap();
        weight.storage::<f32>().as_ptr()
    }

    #[test]
    #[cfg(feature = "cpu-layers")]
    fn a_snapshot_copies_only_what_the_training_still_has_and_only_once_separate() {
        let model = layers(3);
        let snapshot = ModelSnapshot::new(model.clone()).unwrap();
        let shared = address(&snapshot);
        assert_eq!(address(&ModelSnapshot::new(model.clone()).unwrap()), shared);
        let separate = snapshot.separate();
        assert_ne!(address(&separate), shared);
        let copy = address(&separate);
        assert_eq!(address(&separate.separate()), copy, "of no other owner");
        drop(model);
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
