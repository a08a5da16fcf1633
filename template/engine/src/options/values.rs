//! Values of options that are no numbers or texts.

use std::path::PathBuf;

use clap::ValueEnum;

/// The value of `--checkpoint`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The latest intact checkpoint.
    Latest,
    /// The best checkpoint by [`Task::BEST`](crate::task::Task::BEST).
    Best,
    /// The checkpoint in this folder.
    Path(PathBuf),
}

impl From<&str> for Which {
    fn from(text: &str) -> Self {
        match text {
            "latest" => Which::Latest,
            "best" => Which::Best,
            path => Which::Path(path.into()),
        }
    }
}

/// Weights of a training.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// The weights of the last update.
    Model,
    /// Their exponential moving average.
    Ema,
}

/// The values of `--precision`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// No rounding.
    Float32,
    /// 8 bits of precision and the range of float32.
    Bfloat16,
    /// 11 bits of precision and a small range, with a dynamic loss scale.
    Float16,
    /// `bfloat16` on GPUs that compute in it and CPUs with AMX or AVX-512-BF16, otherwise `float32`.
    Auto,
}
