//! What a task registers on each thread.

use super::Task;

/// The state with types of the task, one per thread.
pub struct Registry<T: Task> {
    pub(crate) loss_objects: Option<T::LossObjects>,
    pub(crate) metrics: Option<[T::Metrics; 3]>,
    pub(crate) trainable: Option<T::Trainable>,
    /// The model for validation and test, until the next update.
    pub(crate) inference: Option<T::Model>,
}

impl<T: Task> Default for Registry<T> {
    fn default() -> Self {
        Registry {
            loss_objects: None,
            metrics: None,
            trainable: None,
            inference: None,
        }
    }
}
