//! Training on several replicas: strategies, their threads, and what crosses between replicas.
//!
//! The names are those of `tf.distribute`: a [`Strategy`] runs a step on every replica with
//! [`run`](Strategy#method.run), replicas sum their gradients with [`CrossDeviceOps`], and
//! [`reduce`](Strategy#method.reduce) makes one value of one a replica.

mod buckets;
mod callbacks;
mod collective;
mod create;
mod cross_device_ops;
mod cross_entropy;
mod devices;
mod dropout;
mod gradients;
mod launch;
mod loss;
mod metric;
mod mirrored;
mod model_parallel;
mod multi_worker;
mod one_device;
mod optimizer;
mod parameter_server;
mod parameters;
mod per_replica;
mod pipeline;
mod polling;
mod queues;
mod random_layers;
mod read;
#[cfg(feature = "remote")]
mod remote;
#[cfg(not(feature = "remote"))]
#[path = "no_remote.rs"]
mod remote;
mod rendezvous;
mod replica;
mod shared_update;
mod statistics;
mod strategy;
mod update;
mod workers;

pub use callbacks::{CallbackContext, Callbacks};
pub use collective::{Collective, CrossDevice};
pub use create::{create_strategy, devices_of};
pub use cross_device_ops::{CrossDeviceOps, ReduceOp, SharedMemory, add};
pub use cross_entropy::SparseCategoricalCrossentropy;
pub use devices::{chosen_devices, is_cpu, visible_devices};
pub use dropout::Dropout;
pub use gradients::{FlatGradients, Gradients, NonFinite};
pub use launch::launch;
pub use loss::{Losses, Reduction, compute_average_loss, scale_regularization_loss};
pub use metric::{
    AreaUnderRoc, ConfusionMatrix, Mean, MergedMetric, Metric, MetricStates, Statistic,
    mean_absolute_error, mean_squared_error, merge_metric_states, metric_results, metric_states,
    sparse_categorical_accuracy, sparse_top_k_categorical_accuracy,
};
pub use mirrored::MirroredStrategy;
pub use model_parallel::ModelParallelStrategy;
pub use multi_worker::MultiWorkerMirroredStrategy;
pub use one_device::OneDeviceStrategy;
pub use optimizer::ScheduledOptimizer;
pub use parameter_server::{ParameterServer, ParameterServerOptions, ParameterServerStrategy};
pub use parameters::{hash_parameters, load_parameters, named_parameters, parameters};
pub use per_replica::PerReplica;
pub use pipeline::{Activation, Pipeline, PipelinedStep, Stage, ensure_split, place, run_stages};
pub use random_layers::{
    ForwardPass, TrainingLayers, forward_pass, lock_generator, set_training_layers, training_layers,
};
pub use read::read_all;
pub use remote::{connect_servers, serve};
pub(crate) use replica::panic_message;
pub use replica::{Part, ReplicaContext, ReplicaState, ReplicaThreads, Role, replica_context};
pub use shared_update::{PIECE, check_replicas, on_all_threads};
pub use statistics::{has_running_statistics, load_running_statistics, running_statistics};
pub use strategy::{Asynchronous, Strategy};
pub use update::{apply_gradients, train_shard, update_parameters};
pub use workers::{
    Alone, OnHost, PendingSum, Workers, ensure_started_alone, exit_at_once, install_hint,
    join_workers, join_workers_if_started,
};
