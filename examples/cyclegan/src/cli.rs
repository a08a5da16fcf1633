//! The command-line options of this task and the engine.

use anyhow::{Result, ensure};
use clap::Parser;
use kiln_engine::{
    optim::Schedule,
    options::{EXIT_STATUS, Options, at_least_one, positive},
};

pub use kiln_engine::options::Command;

use crate::{
    dataset::{MULTIPLE, SMALLEST},
    strategy::DEFAULT_STRATEGY,
};

/// What `--data-dir` is here.
const DATA: &str =
    "Folder with the folders trainA, trainB, testA and testB [default: textures are generated]";

/// Without a subcommand: train, then test.
#[derive(Parser, Clone, Debug)]
#[command(name = env!("CARGO_PKG_NAME"), version, about = env!("CARGO_PKG_DESCRIPTION"))]
#[command(long_about = concat!(env!("CARGO_PKG_DESCRIPTION"), "\n\nWithout a subcommand: train, then test."))]
#[command(after_help = EXIT_STATUS)]
// The defaults of this task; `--help` shows all options of the engine.
#[command(mut_arg("batch_size", |batch_size| batch_size.default_value("4")))]
#[command(mut_arg("strategy", |strategy| strategy.default_value(DEFAULT_STRATEGY)))]
#[command(mut_arg("data_dir", |data_dir| data_dir.help(DATA)))]
#[command(mut_subcommand("infer", |infer| infer.mut_arg("files", |files| files.help("Images to translate, of any size"))))]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,

    #[command(flatten)]
    pub options: Options,

    /// Step size of the four optimizers.
    #[arg(long, global = true, default_value_t = 2e-4, value_parser = positive)]
    pub learning_rate: f64,

    /// Learning-rate schedule after the warm-up.
    #[arg(long, global = true, value_enum, default_value_t)]
    pub schedule: Schedule,

    /// Updates of the linear learning-rate warm-up, at most half of the training.
    #[arg(long, global = true, value_name = "UPDATES", default_value_t = 0)]
    pub warm_up: usize,

    /// Side of the images that the networks see.
    #[arg(long, global = true, value_name = "PIXELS", default_value_t = 16, value_parser = image_size)]
    pub image_size: usize,

    /// Filters of the first layer of each network.
    #[arg(long, global = true, value_name = "N", default_value_t = 8, value_parser = at_least_one)]
    pub filters: usize,

    /// Residual blocks of each generator.
    #[arg(long, global = true, value_name = "N", default_value_t = 2, value_parser = at_least_one)]
    pub blocks: usize,
}

fn image_size(text: &str) -> Result<usize> {
    let side: usize = text.parse()?;
    ensure!(
        side >= SMALLEST && side.is_multiple_of(MULTIPLE),
        "must be a multiple of {MULTIPLE}, at least {SMALLEST}"
    );
    Ok(side)
}
