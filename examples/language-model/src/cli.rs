//! The command-line options of this task and the engine.

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};
use kiln_engine::{
    checkpoint::Which,
    options::{
        Compare, Compile, EXIT_STATUS, Export, FindLr, Infer, Launch, Options, Serve, Sweep, Test,
        at_least_one,
    },
};

use crate::strategy::DEFAULT_STRATEGY;

/// Without a subcommand: train, then test.
#[derive(Parser, Clone, Debug)]
#[command(name = env!("CARGO_PKG_NAME"), version, about = env!("CARGO_PKG_DESCRIPTION"))]
#[command(long_about = concat!(env!("CARGO_PKG_DESCRIPTION"), "\n\nWithout a subcommand: train, then test."))]
#[command(after_help = EXIT_STATUS)]
// The defaults of this task; `--help` shows all options of the engine.
#[command(mut_arg("strategy", |strategy| strategy.default_value(DEFAULT_STRATEGY)))]
#[command(mut_arg("precision", |precision| precision.default_value("auto")))]
#[command(mut_subcommand("infer", |infer| infer.mut_arg("files", |files| files.help("Files of text to score"))))]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,

    #[command(flatten)]
    pub options: Options,

    /// Bytes that the model sees at once. Another one makes another model.
    #[arg(long, global = true, value_name = "BYTES", default_value_t = 64, value_parser = at_least_one)]
    pub context: usize,

    /// Highest step size of the optimizer, which the warm-up ends with.
    #[arg(long, global = true, default_value_t = 4e-3, value_parser = learning_rate)]
    pub learning_rate: f64,

    /// Updates in which the step size grows; it then falls to a tenth until the last update.
    #[arg(long, global = true, value_name = "UPDATES", default_value_t = 50)]
    pub warm_up: usize,

    /// Compute cheap activations again in the backward pass instead of keeping them.
    #[arg(long, global = true)]
    pub gradient_checkpointing: bool,
}

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Train, and save checkpoints in the output folder.
    Train,
    /// Test a checkpoint.
    Test(Test),
    #[command(flatten)]
    Infer(Use),
    /// Write the weights of a checkpoint to a file for other programs, or for --init-from.
    Export(Export),
    /// Compile and tune the GPU kernels of a training with these options, for --kernels on other machines.
    Compile(Compile),
    /// Start several processes with MPI, each a worker of `multi-worker-mirrored` or the `--strategy` given.
    Launch(Launch),
    /// Serve the devices of this machine to programs that train with `--strategy remote`.
    Serve(Serve),
    /// Compare runs: the options, program and data that differ, metrics and time.
    Compare(Compare),
    /// Train with many values of options, on a grid or drawn at random, and rank the runs.
    Sweep(Sweep),
    /// Find a learning rate: train with a growing one, and draw the loss over it.
    FindLr(FindLr),
}

/// What a trained model is used for.
#[derive(Subcommand, Clone, Debug)]
pub enum Use {
    /// Score the text of files with a checkpoint, on one device.
    Infer(Infer),
    /// Write text with a checkpoint, on one device.
    Sample(Sample),
}

/// What `sample` writes. The same seed and options give the same text.
#[derive(clap::Args, Clone, Debug)]
pub struct Sample {
    /// Text to go on from; the last bytes of it, where it is longer than --context.
    #[arg(long, value_name = "TEXT", default_value = "\n")]
    pub prompt: String,

    /// Bytes to write.
    #[arg(long, value_name = "BYTES", default_value_t = 200)]
    pub length: usize,

    /// Above 1 for more surprise, below 1 for less; 0 always takes the most probable byte.
    #[arg(long, default_value_t = 0.8, value_parser = not_negative)]
    pub temperature: f64,

    /// `latest` or `best` of the output folder, or the folder of a checkpoint.
    #[arg(long, value_name = "WHICH", default_value = "latest")]
    pub checkpoint: Which,
}

/// Burn's schedules take no other.
fn learning_rate(text: &str) -> Result<f64> {
    let number: f64 = text.parse()?;
    ensure!(
        number > 0.0 && number <= 1.0,
        "must be a number above 0 and at most 1"
    );
    Ok(number)
}

fn not_negative(text: &str) -> Result<f64> {
    let number: f64 = text.parse()?;
    ensure!(
        number.is_finite() && number >= 0.0,
        "must be a number, 0 or more"
    );
    Ok(number)
}
