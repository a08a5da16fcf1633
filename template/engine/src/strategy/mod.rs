//! The strategies: where replicas run, and how they share updates. What all have in common is the trait [`Strategy`].

pub(crate) mod collective;
mod create;
mod mirrored;
mod model_parallel;
mod multi_worker;
mod one_device;
mod parameter_server;
mod places;

pub use create::create_strategy;
pub use mirrored::MirroredStrategy;
pub use model_parallel::ModelParallelStrategy;
pub use multi_worker::MultiWorkerMirroredStrategy;
pub use one_device::OneDeviceStrategy;
pub use parameter_server::{ParameterServerOptions, ParameterServerStrategy};
pub use places::{devices_of, share_devices};

pub use crate::distribution::{Asynchronous, Job, Output, Strategy};
