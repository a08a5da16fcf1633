//! What a training writes for trackers is read by these themselves. In one program, as each test waits for packages of
//! Python and for its tracker, meanwhile another one has the processor.

mod mlflow;
mod tensorboard;
mod wandb;
