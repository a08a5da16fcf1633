//! The command line.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};

use crate::strategy::{DEFAULT_STRATEGY, StrategyKind};

/// Without a subcommand: train, then test.
#[derive(Parser, Clone, Debug)]
#[command(name = env!("CARGO_PKG_NAME"), version, about = env!("CARGO_PKG_DESCRIPTION"))]
#[command(long_about = concat!(env!("CARGO_PKG_DESCRIPTION"), "\n\nWithout a subcommand: train, then test."))]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Passes over the training examples.
    #[arg(long, global = true, default_value_t = 20, value_parser = at_least_one)]
    pub epochs: usize,

    /// Examples a replica takes at each step; the global batch is this times the replicas.
    #[arg(long, global = true, default_value_t = 16, value_parser = at_least_one)]
    pub batch_size: usize,

    /// Step size of the optimizer.
    #[arg(long, global = true, default_value_t = 2e-3, value_parser = positive)]
    pub learning_rate: f64,

    /// How training is spread over replicas.
    #[arg(long, global = true, value_enum, default_value_t = DEFAULT_STRATEGY)]
    pub strategy: StrategyKind,

    /// Replicas of the model [default: 1 for one-device; for mirrored 2 on the CPU, else one a GPU].
    #[arg(long, global = true, value_parser = at_least_one)]
    pub replicas: Option<usize>,

    /// Seed of the initial weights and of the order of the examples.
    #[arg(long, global = true, default_value_t = 42)]
    pub seed: u64,

    /// Folder of the IDX files, gzipped or plain [default: the digits that came with the project].
    #[arg(long, global = true, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// Folder for the log and the trained weights.
    #[arg(long, global = true, value_name = "DIR", default_value = "runs")]
    pub output_dir: PathBuf,

    /// Leave out the last batch of an epoch where it is not full.
    #[arg(long, global = true, conflicts_with = "steps_per_epoch")]
    pub drop_remainder: bool,

    /// Steps an epoch, all with full batches that run on across the ends of the dataset.
    #[arg(long, global = true, value_name = "N", value_parser = at_least_one)]
    pub steps_per_epoch: Option<usize>,
}

#[derive(Subcommand, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Train, and save the weights in the output folder.
    Train,
    /// Test the weights saved in the output folder.
    Test,
}

impl Args {
    pub fn trains(&self) -> bool {
        self.command != Some(Command::Test)
    }

    pub fn tests(&self) -> bool {
        self.command != Some(Command::Train)
    }

    /// The file of the trained weights.
    pub fn weights(&self) -> PathBuf {
        self.output_dir.join("model.bpk")
    }
}

fn at_least_one(text: &str) -> Result<usize> {
    let number: usize = text.parse()?;
    ensure!(number > 0, "must be at least 1");
    Ok(number)
}

fn positive(text: &str) -> Result<f64> {
    let number: f64 = text.parse()?;
    ensure!(
        number.is_finite() && number > 0.0,
        "must be a number above 0"
    );
    Ok(number)
}
