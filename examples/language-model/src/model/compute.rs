//! How a forward pass computes: in which precision, and what it keeps for the backward pass.

use anyhow::{Result, bail};
use burn::{
    module::{Module, ModuleMapper, Param},
    nn::Linear,
    tensor::{Device, FloatDType, GradientCheckpointingStrategy, Tensor},
};
use clap::ValueEnum;
use kiln_engine::layers::linear;

use crate::cli::Args;

/// In what matrix products are computed. Parameters, the optimizer and what adds up many numbers,
/// such as norms, softmax and the loss, stay in float32.
///
/// Source: P. Micikevicius and others, Mixed precision training, ICLR 2018. bfloat16 has the range
/// of float32, so the loss needs no scaling.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// bfloat16 on a GPU that computes with it, else float32.
    Auto,
    Float32,
    Bfloat16,
}

impl Precision {
    /// The type for `device`.
    ///
    /// # Errors
    /// bfloat16 is asked for, and the device does not compute with it.
    pub fn on(self, device: &Device) -> Result<FloatDType> {
        let is_supported = device.supports_dtype(FloatDType::BF16);
        self.choose(is_supported, *device == Device::flex())
    }

    fn choose(self, is_supported: bool, is_cpu: bool) -> Result<FloatDType> {
        Ok(match self {
            Precision::Float32 => FloatDType::F32,
            Precision::Bfloat16 if is_supported => FloatDType::BF16,
            Precision::Bfloat16 => bail!(
                "--precision bfloat16: this device does not compute with it; leave --precision \
                 out, which then takes float32"
            ),
            // Burn's CPU kernels compute with bfloat16 too, but by way of float32, and slower.
            Precision::Auto if is_supported && !is_cpu => FloatDType::BF16,
            Precision::Auto => FloatDType::F32,
        })
    }
}

/// How the forward pass of a model computes.
///
/// Burn's gradient checkpointing is a mark on tensors: the output of what is cheap to compute, as
/// all that goes element by element, is not kept for the backward pass, but computed again from the
/// last matrix product. Tensors with and without the mark do not mix, so a model marks its
/// parameters where it uses them, and takes the mark off what it returns. A mark on the device
/// would be lost with the copies of the model that replicas get.
#[derive(Clone, Copy, Debug)]
pub struct Compute {
    matmul: FloatDType,
    checkpointing: bool,
}

impl Compute {
    /// As the options say, on `device`.
    ///
    /// # Errors
    /// Those of [`Precision::on`].
    pub fn new(args: &Args, device: &Device) -> Result<Self> {
        Ok(Compute {
            matmul: args.precision.on(device)?,
            checkpointing: args.gradient_checkpointing,
        })
    }

    /// For a line on the terminal.
    pub fn describe(&self) -> String {
        let again = match self.checkpointing {
            true => "; cheap activations are computed again in the backward pass",
            false => "",
        };
        format!("matrix products in {:?}{again}", self.matmul)
    }

    /// The layer as this pass uses it; its gradients go to the parameters of `layer`.
    pub fn layer<M: Module>(&self, layer: &M) -> M {
        self.layer_in(layer, FloatDType::F32)
    }

    /// From `[batch, time, in]` to `[batch, time, out]`, in the type of matrix products.
    pub fn linear(&self, layer: &Linear, x: Tensor<3>) -> Tensor<3> {
        let layer = self.layer_in(layer, self.matmul);
        linear(&layer, x.cast(self.matmul))
    }

    /// Marks what a stage of the model gets.
    pub fn enter<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        match self.checkpointing {
            true => mark(x, GradientCheckpointingStrategy::Balanced),
            false => x,
        }
    }

    /// Takes the mark off what a stage of the model gives, which is in float32.
    pub fn leave<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        mark(
            x.cast(FloatDType::F32),
            GradientCheckpointingStrategy::Disabled,
        )
    }

    fn layer_in<M: Module>(&self, layer: &M, dtype: FloatDType) -> M {
        let compute = *self;
        layer.clone().map(&mut Used { compute, dtype })
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
struct Used {
    compute: Compute,
    dtype: FloatDType,
}

impl ModuleMapper for Used {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|values| self.compute.enter(values).cast(self.dtype))
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::LinearConfig;

    use super::*;

    #[test]
    fn layers_and_activations_are_marked_and_parameters_are_not() {
        let compute = Compute {
            matmul: FloatDType::BF16,
            checkpointing: true,
        };
        let layer = LinearConfig::new(2, 2).init(&Device::flex().autodiff());
        let x = Tensor::<3>::ones([1, 1, 2], &Device::flex().autodiff());
        let y = compute.linear(&layer, compute.enter(x));
        let strategy = |y: &Tensor<3>| y.gradient_checkpointing_strategy();
        assert_eq!(strategy(&y), Some(GradientCheckpointingStrategy::Balanced));
        let y = compute.leave(y);
        assert_eq!(strategy(&y), Some(GradientCheckpointingStrategy::Disabled));
        assert_eq!(FloatDType::from(y.dtype()), FloatDType::F32);
        let weight = layer.weight.val();
        assert_eq!(FloatDType::from(weight.dtype()), FloatDType::F32);
        let strategy = weight.gradient_checkpointing_strategy();
        assert_eq!(strategy, Some(GradientCheckpointingStrategy::Disabled));
    }

    #[test]
    fn auto_takes_bfloat16_on_gpus_that_have_it() {
        let auto = |is_supported, is_cpu| Precision::Auto.choose(is_supported, is_cpu).unwrap();
        assert_eq!(auto(true, false), FloatDType::BF16);
        assert_eq!(auto(false, false), FloatDType::F32);
        assert_eq!(auto(true, true), FloatDType::F32);
    }

    #[test]
    fn bfloat16_that_is_not_there_is_refused() {
        let error = Precision::Bfloat16.choose(false, false).unwrap_err();
        assert!(
            error.to_string().contains("--precision bfloat16"),
            "{error}"
        );
        let on_cpu = Precision::Bfloat16.on(&Device::flex()).unwrap();
        assert_eq!(on_cpu, FloatDType::BF16, "it is slow there, but works");
    }
}
