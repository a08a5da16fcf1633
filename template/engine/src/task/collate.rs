//! Batches of a task.

use anyhow::Result;
use burn::{
    module::Module,
    tensor::{Device, Tensor},
};

/// A batch that is collated from examples: a struct of tensors that derives `Module`, so that it moves
/// between devices; other fields are marked `#[module(skip)]`.
///
/// Source: `collate_fn` of PyTorch's `DataLoader`.
pub trait Collate: Module {
    /// An element of the dataset.
    type Example;

    /// Collates examples, at least one, into the tensors of a batch on `device`.
    ///
    /// # Errors
    /// The examples do not fit into one batch, such as images of different sizes.
    fn collate(examples: Vec<Self::Example>, device: &Device) -> Result<Self>;

    /// The images `[batch, channels, height, width]` that the model gets, if examples are images. Contract
    /// tests compare them with the pictures of the examples.
    fn images(&self) -> Option<Tensor<4>> {
        None
    }

    /// The number of tokens, without padding, if examples are sequences: reports then have tokens per second.
    fn tokens(&self) -> Option<usize> {
        None
    }
}
