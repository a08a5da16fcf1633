//! Collective operations between threads, devices and processes.

pub(crate) mod buckets;
mod checks;
pub(crate) mod collective;
pub(crate) mod cross_device_ops;
pub(crate) mod exchange;
mod gradient_server;
pub(crate) mod polling;
pub(crate) mod queues;
mod rendezvous;

pub use checks::check_replicas;
pub(crate) use checks::checks_replicas;
pub use collective::{Collective, CrossDevice};
pub use cross_device_ops::{CrossDeviceOps, ReduceOp, SharedMemory};
pub use exchange::ExchangePrecision;
pub use gradient_server::GradientServer;

pub use kiln_kernels::elementwise::add;
