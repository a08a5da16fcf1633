//! Training on several replicas: strategies, their threads, and what crosses between replicas.
//!
//! The names are those of `tf.distribute`: a [`Strategy`] runs a step on every replica with
//! [`run`](Strategy#method.run), replicas sum their gradients with [`CrossDeviceOps`], and
//! [`reduce`](Strategy#method.reduce) makes one value of one a replica.

mod callbacks;
mod cross_device_ops;
mod devices;
mod dropout;
mod gradients;
mod loss;
mod metric;
mod mirrored;
mod one_device;
mod optimizer;
mod per_replica;
mod rendezvous;
mod replica;
mod statistics;
mod strategy;

pub use callbacks::Callbacks;
pub use cross_device_ops::{CrossDeviceOps, ReduceOp, SharedMemory};
pub use devices::visible_devices;
pub use dropout::Dropout;
pub use gradients::{FlatGradients, Gradients, NonFinite, hash_parameters, named_parameters};
pub use loss::{Losses, Reduction, compute_average_loss, scale_regularization_loss};
pub use metric::{
    AreaUnderRoc, ConfusionMatrix, Mean, MergedMetric, Metric, MetricStates, mean_absolute_error,
    mean_squared_error, merge_metric_states, metric_results, metric_states,
    sparse_categorical_accuracy, sparse_top_k_categorical_accuracy,
};
pub use mirrored::MirroredStrategy;
pub use one_device::OneDeviceStrategy;
pub use optimizer::ScheduledOptimizer;
pub use per_replica::PerReplica;
pub(crate) use replica::panic_message;
pub use replica::{ReplicaContext, ReplicaState, ReplicaThreads, replica_context};
pub use statistics::{load_running_statistics, running_statistics};
pub use strategy::Strategy;
