//! The command-line options of this task and the engine.

use anyhow::{Result, ensure};
use clap::Parser;
use kiln_engine::{
    optim::Schedule,
    options::{EXIT_STATUS, Options, positive},
};

pub use kiln_engine::options::Command;

use crate::strategy::DEFAULT_STRATEGY;

/// Without a subcommand: train, then test.
#[derive(Parser, Clone, Debug)]
#[command(name = env!("CARGO_PKG_NAME"), version, about = env!("CARGO_PKG_DESCRIPTION"))]
#[command(long_about = concat!(env!("CARGO_PKG_DESCRIPTION"), "\n\nWithout a subcommand: train, then test."))]
#[command(after_help = EXIT_STATUS)]
// The defaults of this task; `--help` shows all options of the engine.
#[command(mut_arg("epochs", |epochs| epochs.default_value("15")))]
#[command(mut_arg("batch_size", |batch_size| batch_size.default_value("32")))]
#[command(mut_arg("strategy", |strategy| strategy.default_value(DEFAULT_STRATEGY)))]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,

    #[command(flatten)]
    pub options: Options,

    /// Learning rate of the optimizer.
    #[arg(long, global = true, default_value_t = 1e-3, value_parser = positive)]
    pub learning_rate: f64,

    /// Learning-rate schedule after the warm-up.
    #[arg(long, global = true, value_enum, default_value_t)]
    pub schedule: Schedule,

    /// Updates of the linear learning-rate warm-up, at most half of the training.
    #[arg(long, global = true, value_name = "UPDATES", default_value_t = 0)]
    pub warm_up: usize,

    /// Share of the values before the last layer that training sets to zero.
    #[arg(long, global = true, value_name = "SHARE", default_value_t = 0.5, value_parser = share)]
    pub dropout: f64,
}

fn share(text: &str) -> Result<f64> {
    let number: f64 = text.parse()?;
    ensure!(
        (0.0..1.0).contains(&number),
        "must be at least 0 and below 1"
    );
    Ok(number)
}
