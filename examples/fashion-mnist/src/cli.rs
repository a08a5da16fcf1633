//! The command-line options of this task and the engine.

use clap::{Parser, Subcommand, ValueEnum};
use kiln_engine::{
    checkpoint::Which,
    optim::Schedule,
    options::{
        Compare, Compile, EXIT_STATUS, Export, FindLr, Infer, Launch, Options, Serve, Sweep,
        positive,
    },
};

use crate::strategy::DEFAULT_STRATEGY;

/// What the help says of `--data-dir`.
const DATA_DIR: &str =
    "Folder of the four files of Fashion-MNIST [default: the digits that came with the project]";

/// Without a subcommand: train, then test.
#[derive(Parser, Clone, Debug)]
#[command(name = env!("CARGO_PKG_NAME"), version, about = env!("CARGO_PKG_DESCRIPTION"))]
#[command(long_about = concat!(env!("CARGO_PKG_DESCRIPTION"), "\n\nWithout a subcommand: train, then test."))]
#[command(after_help = EXIT_STATUS)]
// The defaults of this task; `--help` shows all options of the engine.
#[command(mut_arg("epochs", |epochs| epochs.default_value("10")))]
#[command(mut_arg("batch_size", |batch_size| batch_size.default_value("64")))]
#[command(mut_arg("strategy", |strategy| strategy.default_value(DEFAULT_STRATEGY)))]
#[command(mut_arg("checkpoint_epochs", |epochs| epochs.default_value("2")))]
#[command(mut_arg("data_dir", |folder| folder.help(DATA_DIR)))]
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

    /// Fetch Fashion-MNIST into --data-dir [default: data/fashion-mnist] first, unless it is there.
    #[arg(long, global = true)]
    pub download: bool,

    /// How an epoch goes over its batches; all train to the same weights.
    #[arg(long, global = true, value_enum, default_value_t = LoopStyle::Elements)]
    pub loop_style: LoopStyle,
}

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Train, and save checkpoints in the output folder.
    Train,
    /// Test a checkpoint.
    Test(Test),
    /// Predict with a checkpoint, on one device.
    Infer(Infer),
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

/// What `test` tests, and on what.
#[derive(clap::Args, Clone, Debug)]
pub struct Test {
    /// `latest` or `best` of the output folder, or the folder of a checkpoint.
    #[arg(long, value_name = "WHICH", default_value = "latest")]
    pub checkpoint: Which,

    /// Test on one device, without replicas.
    #[arg(long)]
    pub without_strategy: bool,
}

/// How an epoch goes over its batches.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopStyle {
    /// Over the elements of the dataset, until there is none.
    Elements,
    /// With an iterator that is asked for the next batch a number of times.
    Iterator,
    /// In one function for the whole epoch. It tells nothing and stops for nothing on its way.
    Function,
}
