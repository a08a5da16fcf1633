//! Layers that differ in training: those that draw random numbers, such as dropout, and those that keep
//! statistics, such as batch normalisation. They are found by their flags `training`, in whatever module
//! they are.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use burn::module::{Flag, Module, ModuleMapper, ModuleVisitor, Param};
use rand::RngExt;

use crate::{
    performance::profile::{Phase, Span, span},
    replica::replica_context,
};

/// The names of the layers of a model that differ in training.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrainingLayers {
    /// Layers that draw random numbers, such as `encoder.layers.0.dropout`.
    pub random: Vec<String>,
    /// Layers that normalise by the statistics of a batch, and keep them.
    pub normalising: Vec<String>,
    /// Whether a random layer draws from the generator of Burn.
    draws_from_burn: bool,
}

/// Finds the enabled layers of `model` that differ in training.
pub fn training_layers<M: Module>(model: &M) -> TrainingLayers {
    let mut find = Find::default();
    model.visit(&mut find);
    find.found
}

/// Enables or disables all layers that differ in training. When disabled, they act in training as in
/// validation, so that results do not depend on the random numbers of a replica or the statistics of its
/// shard.
pub fn set_training_layers<M: Module>(model: M, enabled: bool) -> M {
    struct Set(bool);

    impl ModuleMapper for Set {
        fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
            flag.with_value(self.0)
        }
    }

    model.map(&mut Set(enabled))
}

#[derive(Default)]
struct Find {
    found: TrainingLayers,
    /// Names of the fields down to the visited one, each with the type that has it.
    path: Vec<(String, String)>,
}

impl ModuleVisitor for Find {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.path.push((name.to_owned(), container_type.to_owned()));
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        let Some(((_, layer_type), layer)) = self.path.split_last() else {
            return;
        };
        if !flag.is_enabled() {
            return;
        }
        let names: Vec<&str> = layer.iter().map(|(name, _)| name.as_str()).collect();
        let name = names.join(".");
        if layer_type == "Struct:BatchNorm" {
            self.found.normalising.push(name);
            return;
        }
        // `layers::Dropout` holds a layer of Burn, and draws from the generator of its replica.
        let is_own = layer
            .last()
            .is_some_and(|(_, holder)| layer_type == "Struct:Dropout" && holder == layer_type);
        self.found.draws_from_burn |= !is_own;
        self.found.random.push(name);
    }
}

/// The generator that the random layers of Burn draw from: one for all replicas of a process.
static GENERATOR: Mutex<()> = Mutex::new(());

/// Waits until nothing else draws from the generator of Burn that takes this lock, as forward passes with
/// random layers do: for models that are drawn while others train, as in tests. Burn draws a parameter when it is
/// first read, which must be before the guard is dropped.
pub fn lock_generator() -> MutexGuard<'static, ()> {
    GENERATOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A forward pass in training.
#[must_use = "a forward pass ends when its guard is dropped"]
pub struct ForwardPass {
    _span: Span<'static>,
    /// Held while random layers of Burn draw.
    _generator: Option<MutexGuard<'static, ()>>,
}

/// Begins a forward pass in training, until the guard is dropped.
///
/// If the model has random layers of Burn, such as `burn::nn::Dropout`, their generator is seeded for this
/// replica and batch, so that a run repeats bit for bit. As a process has only one such generator,
/// replicas then take turns in the forward pass; [`Dropout`](crate::layers::Dropout) does not need that.
///
/// # Errors
/// No replica runs on this thread.
pub fn forward_pass() -> Result<ForwardPass> {
    begin_forward_pass(replica_context()?.draws_from_burn())
}

/// As [`forward_pass`], on any thread with a replica context, such as that of a pipeline stage.
pub(crate) fn begin_forward_pass(draws_from_burn: bool) -> Result<ForwardPass> {
    let generator = match draws_from_burn {
        true => {
            let generator = lock_generator();
            let replica = replica_context()?;
            let seed = replica.with_random(|random| random.random());
            replica.device().seed(seed);
            Some(generator)
        }
        false => None,
    };
    Ok(ForwardPass {
        // Excludes the wait for other replicas.
        _span: span(Phase::Forward),
        _generator: generator,
    })
}

impl TrainingLayers {
    pub(crate) fn draws_from_burn(&self) -> bool {
        self.draws_from_burn
    }

    /// True without such layers.
    pub fn is_empty(&self) -> bool {
        self.random.is_empty() && self.normalising.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn::{
        nn::{
            BatchNorm, BatchNormConfig,
            transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput},
        },
        tensor::{Device, Tensor},
    };

    use super::*;
    use crate::{
        data::BatchInfo,
        layers::Dropout,
        strategy::{MirroredStrategy, Strategy},
    };

    #[derive(Module, Debug)]
    struct Layers {
        encoder: TransformerEncoder,
        norm: BatchNorm,
        own: Dropout,
    }

    fn layers(device: &Device) -> Layers {
        Layers {
            encoder: encoder(device),
            norm: BatchNormConfig::new(4).init(device),
            own: Dropout::new(0.5),
        }
    }

    fn encoder(device: &Device) -> TransformerEncoder {
        TransformerEncoderConfig::new(4, 8, 2, 1)
            .with_dropout(0.5)
            .init(device)
    }

    #[test]
    fn layers_are_found_in_whatever_module_they_are() {
        let model = layers(&Device::flex());
        let found = training_layers(&model);
        assert_eq!(found.normalising, ["norm"]);
        let is_dropout = |name: &String| name.contains("dropout") || name == "own.layer";
        assert!(found.random.len() > 2, "{found:?}");
        assert!(found.random.iter().all(is_dropout), "{found:?}");
        assert!(found.draws_from_burn);
        let own = training_layers(&model.own);
        assert!(!own.draws_from_burn && own.random == ["layer"], "{own:?}");
        let disabled = set_training_layers(model, false);
        assert!(training_layers(&disabled).is_empty());
        let enabled = training_layers(&set_training_layers(disabled, true));
        assert_eq!(enabled, found);
    }

    /// The outputs of a model on two replicas that run at the same time, several times each.
    fn outputs(model: &TransformerEncoder, seed: u64) -> Vec<Vec<f32>> {
        let strategy = MirroredStrategy::new(vec![Device::flex(); 2], None).unwrap();
        let strategy: Arc<dyn Strategy> = Arc::new(strategy);
        let draws_from_burn = training_layers(model).draws_from_burn;
        let model = model.clone();
        let outputs = strategy.run_on_all(move |replica| {
            let mut values = Vec::new();
            for position in 0..20 {
                replica.begin_batch(BatchInfo {
                    seed,
                    epoch: 1,
                    position,
                    examples: 1,
                    examples_in_update: 1,
                    batches_in_update: 1,
                    completes_update: true,
                    ends_epoch: true,
                });
                let _forward = begin_forward_pass(draws_from_burn)?;
                let x = Tensor::<3>::ones([2, 3, 4], replica.device());
                let y = model.forward(TransformerEncoderInput::new(x));
                values.extend(y.into_data().iter::<f32>());
            }
            Ok(values)
        });
        outputs.unwrap().into_iter().collect()
    }

    #[test]
    fn dropout_of_burn_repeats_by_seed_and_differs_by_replica() {
        let model = encoder(&Device::flex().autodiff());
        let first = outputs(&model, 7);
        assert_ne!(first[0], first[1]);
        assert_ne!(outputs(&model, 8), first);
        // Other tests of this process also draw from Burn's generator, without taking turns.
        let repeats = || outputs(&model, 7) == outputs(&model, 7);
        assert!((0..20).any(|_| repeats()), "it never repeats");
    }
}
