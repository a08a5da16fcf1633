//! Parameters, running statistics and random layers of models.

mod frozen;
mod parameters;
pub(crate) mod random_layers;
mod statistics;

pub(crate) use frozen::{all_float, freeze, frozen, keep_frozen, named_ids};
pub(crate) use parameters::{
    Choose, TRAINED, TRAINED_OR_FROZEN, first_non_finite, non_finite, read_parameters,
};
pub use parameters::{hash_parameters, load_parameters, named_parameters, parameters};
pub use random_layers::{
    ForwardPass, TrainingLayers, forward_pass, lock_generator, set_training_layers, training_layers,
};
pub(crate) use statistics::buffers;
pub use statistics::{has_running_statistics, load_running_statistics, running_statistics};
