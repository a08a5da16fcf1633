//! Optimizers, learning-rate schedules, gradients, and the number of updates so far.

mod adam;
mod gradients;
mod groups;
mod nadam;
mod optimizer;
mod schedule;
mod updates;

pub use adam::{Adam, AdamConfig, AdamState};
pub use gradients::{FlatGradients, Gradients, NonFinite};
pub(crate) use gradients::{NormCheck, NotFinite};
pub use groups::Group;
pub(crate) use groups::matching;
pub use nadam::{Nadam, NadamConfig, NadamState};
pub use optimizer::ScheduledOptimizer;
pub use schedule::Schedule;
pub use updates::{gradient_norm, read_gradient_norms, set_gradient_norm, set_step, step};
pub(crate) use updates::{read_with_norms, resume_at};
