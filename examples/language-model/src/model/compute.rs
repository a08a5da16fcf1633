//! Tensors that a forward pass keeps for the backward pass: gradient checkpointing.

use burn::{
    module::{Module, ModuleMapper, Param},
    nn::Linear,
    tensor::{GradientCheckpointingStrategy, Tensor},
};
use kiln_engine::layers::linear;

use crate::cli::Args;

/// Gradient checkpointing of a forward pass.
///
/// Burn's gradient checkpointing is a mark on tensors: the output of what is cheap to compute, as
/// all that goes element by element, is not kept for the backward pass, but computed again from the
/// last matrix product. Tensors with and without the mark do not mix, so a model marks its
/// parameters where it uses them, and takes the mark off what it returns. A mark on the device
/// would be lost with the copies of the model that replicas get.
#[derive(Clone, Copy, Debug)]
pub struct Compute {
    checkpointing: bool,
}

impl Compute {
    /// As the options say.
    pub fn new(args: &Args) -> Self {
        Compute {
            checkpointing: args.gradient_checkpointing,
        }
    }

    /// For a line on the terminal; none where all is kept.
    pub fn describe(&self) -> Option<&'static str> {
        let again = "cheap activations are computed again in the backward pass";
        self.checkpointing.then_some(again)
    }

    /// The layer as this pass uses it; its gradients go to the parameters of `layer`.
    pub fn layer<M: Module>(&self, layer: &M) -> M {
        layer.clone().map(&mut Used(*self))
    }

    /// From `[batch, time, in]` to `[batch, time, out]`.
    pub fn linear(&self, layer: &Linear, x: Tensor<3>) -> Tensor<3> {
        linear(&self.layer(layer), x)
    }

    /// Marks what a stage of the model gets.
    pub fn enter<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        match self.checkpointing {
            true => mark(x, GradientCheckpointingStrategy::Balanced),
            false => x,
        }
    }

    /// Takes the mark off what a stage of the model gives.
    pub fn leave<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        mark(x, GradientCheckpointingStrategy::Disabled)
    }
}

/// Without recording, as in validation, there is nothing to keep.
fn mark<const D: usize>(x: Tensor<D>, strategy: GradientCheckpointingStrategy) -> Tensor<D> {
    match x.is_autodiff() {
        true => x.with_gradient_checkpointing_strategy(strategy),
        false => x,
    }
}

/// Parameters as a pass uses them.
struct Used(Compute);

impl ModuleMapper for Used {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|values| self.0.enter(values))
    }
}

#[cfg(test)]
mod tests {
    use burn::{nn::LinearConfig, tensor::Device};

    use super::*;

    #[test]
    fn layers_and_activations_are_marked_and_parameters_are_not() {
        let compute = Compute {
            checkpointing: true,
        };
        let layer = LinearConfig::new(2, 2).init(&Device::flex().autodiff());
        let x = Tensor::<3>::ones([1, 1, 2], &Device::flex().autodiff());
        let y = compute.linear(&layer, compute.enter(x));
        let strategy = |y: &Tensor<3>| y.gradient_checkpointing_strategy();
        assert_eq!(strategy(&y), Some(GradientCheckpointingStrategy::Balanced));
        let y = compute.leave(y);
        assert_eq!(strategy(&y), Some(GradientCheckpointingStrategy::Disabled));
        let weight = layer.weight.val();
        let strategy = weight.gradient_checkpointing_strategy();
        assert_eq!(strategy, Some(GradientCheckpointingStrategy::Disabled));
    }
}
