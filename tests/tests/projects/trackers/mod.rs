//! What a training writes for trackers is read by these themselves.

mod mlflow;
mod tensorboard;
mod wandb;
