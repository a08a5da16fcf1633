//! Collective operations between threads, devices and processes.

pub(crate) mod buckets;
pub(crate) mod collective;
pub(crate) mod cross_device_ops;
pub(crate) mod exchange;
mod gradient_server;
pub(crate) mod polling;
mod queues;
mod rendezvous;
pub(crate) mod shared_update;

pub use collective::{Collective, CrossDevice};
pub use cross_device_ops::{CrossDeviceOps, ReduceOp, SharedMemory, add};
pub use exchange::ExchangePrecision;
pub use gradient_server::GradientServer;
pub use shared_update::{PIECE, check_replicas, on_all_threads};
