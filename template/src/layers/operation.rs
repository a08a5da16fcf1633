//! Layers of one's own on Burn's CPU backend, by its interface for custom operations.
//!
//! Source: the Burn Book, "Custom operations".

use std::fmt::Debug;

use burn::{
    backend::{
        Autodiff, Flex,
        autodiff::{
            checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
        flex::FlexTensor,
    },
    module::Param,
    tensor::{DType, GradientCheckpointingStrategy, Shape, Tensor, TensorData},
};

/// A layer of an input, a weight and a bias, in `f32` and contiguous.
pub trait Operation: Clone + Debug + Send + 'static {
    /// What the backward pass needs beside input and weight.
    type Kept: Clone + Debug + Send;

    /// How many biases there are.
    fn outputs(&self) -> usize;

    /// The output.
    fn forward(&self, parameters: [&FlexTensor; 3]) -> (FlexTensor, Self::Kept);

    /// The gradients of input, weight and bias, where they are wanted, from that of the output.
    fn backward(
        &self,
        of_forward: (&FlexTensor, &FlexTensor, &Self::Kept),
        gradient: &FlexTensor,
        wanted: [bool; 3],
    ) -> [Option<FlexTensor>; 3];
}

/// What `operation` gives, recorded where `x` is, or none where it is not for this module: on another
/// device, in another type, or where activations are computed again to save memory.
pub fn on_cpu<O: Operation, const D: usize, const W: usize>(
    operation: O,
    x: &Tensor<D>,
    weight: &Param<Tensor<W>>,
    bias: Option<&Param<Tensor<1>>>,
) -> Option<Tensor<D>> {
    let weight = weight.val();
    let bias = bias.map(Param::val);
    let of_bias = bias.as_ref().map_or(DType::F32, Tensor::dtype);
    if [x.dtype(), weight.dtype(), of_bias] != [DType::F32; 3] {
        return None;
    }
    let bias = bias.unwrap_or_else(|| Tensor::zeros([operation.outputs()], &x.device()));
    let x = x.clone();
    let Some(checkpointing) = x.gradient_checkpointing_strategy() else {
        let x = x.try_into_primitive::<Flex>().ok()?;
        let weight = weight.try_into_primitive::<Flex>().ok()?;
        let bias = bias.try_into_primitive::<Flex>().ok()?;
        let parameters = [&x, &weight, &bias].map(FlexTensor::to_contiguous);
        let (output, _) = operation.forward(parameters.each_ref());
        return Some(Tensor::from_primitive::<Flex>(output));
    };
    if checkpointing != GradientCheckpointingStrategy::Disabled {
        return None;
    }
    let x = x.try_into_primitive::<Autodiff<Flex>>().ok()?;
    let weight = weight.try_into_primitive::<Autodiff<Flex>>().ok()?;
    let bias = bias.try_into_primitive::<Autodiff<Flex>>().ok()?;
    let nodes = [x.node(), weight.node(), bias.node()];
    let [x, weight, bias] = [x, weight, bias].map(|it| it.into_primitive().to_contiguous());
    let (output, kept) = operation.forward([&x, &weight, &bias]);
    let prepared = Recorded(operation).prepare::<NoCheckpointing>(nodes);
    let output = match prepared.compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish((x, weight, kept), output),
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    };
    Some(Tensor::from_primitive::<Autodiff<Flex>>(output))
}

/// A tensor of values in the order of rows.
pub fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// An operation that takes part in the backward pass.
#[derive(Clone, Debug)]
struct Recorded<O>(O);

impl<O: Operation> Backward<Flex, 3> for Recorded<O> {
    type State = (FlexTensor, FlexTensor, O::Kept);

    fn backward(self, ops: Ops<Self::State, 3>, recorded: &mut Gradients, _: &mut Checkpointer) {
        let gradient = recorded.consume::<Flex>(&ops.node).to_contiguous();
        let (x, weight, kept) = &ops.state;
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let gradients = self.0.backward((x, weight, kept), &gradient, wanted);
        for (node, gradient) in ops.parents.into_iter().zip(gradients) {
            if let (Some(node), Some(gradient)) = (node, gradient) {
                recorded.register::<Flex>(node.id, gradient);
            }
        }
    }
}
