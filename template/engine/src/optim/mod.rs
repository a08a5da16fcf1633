//! Optimizers, learning-rate schedules and gradients.

mod adam;
mod gradients;
mod groups;
mod nadam;
mod optimizer;
mod schedule;

pub use adam::{Adam, AdamConfig, AdamState};
pub use gradients::{FlatGradients, Gradients, NonFinite};
pub(crate) use gradients::{NormCheck, NotFinite};
pub use groups::Group;
pub(crate) use groups::{assign_groups, freeze_named};
pub use nadam::{Nadam, NadamConfig, NadamState};
pub use optimizer::ScheduledOptimizer;
pub use schedule::Schedule;
