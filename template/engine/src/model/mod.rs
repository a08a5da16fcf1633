//! Parameters, running statistics and random layers of models.

mod parameters;
pub(crate) mod random_layers;
mod statistics;

pub(crate) use parameters::read_parameters;
pub use parameters::{hash_parameters, load_parameters, named_parameters, parameters};
pub use random_layers::{
    ForwardPass, TrainingLayers, forward_pass, lock_generator, set_training_layers, training_layers,
};
pub(crate) use statistics::buffers;
pub use statistics::{has_running_statistics, load_running_statistics, running_statistics};
