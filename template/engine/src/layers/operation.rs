//! Custom operations on Burn's CPU backend.
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
    tensor::{
        BackendPrimitive, DType, Float, GradientCheckpointingStrategy, Shape, Tensor, TensorData,
    },
};

/// An operation on `N` contiguous tensors of `f32`.
pub trait Operation<const N: usize>: Clone + Debug + Send + 'static {
    /// The state for the backward pass, in addition to the inputs.
    type Kept: Clone + Debug + Send;

    /// The output, and the state for the backward pass.
    fn forward(&self, inputs: [&FlexTensor; N]) -> (FlexTensor, Self::Kept);

    /// The requested gradients of the inputs, from the contiguous gradient of the output.
    fn backward(
        &self,
        inputs: [&FlexTensor; N],
        kept: Self::Kept,
        gradient: FlexTensor,
        wanted: [bool; N],
    ) -> [Option<FlexTensor>; N];
}

/// A tensor of any rank.
pub trait Input {
    /// The element type.
    fn dtype(&self) -> DType;
    /// The checkpointing strategy; `None` without autodiff.
    fn checkpointing(&self) -> Option<GradientCheckpointingStrategy>;
    /// The values; `None` on another device.
    fn values(&self) -> Option<FlexTensor>;
    /// The autodiff tensor; `None` on another device or without autodiff.
    fn recorded(&self) -> Option<RecordedTensor>;
}

type RecordedTensor = <Float as BackendPrimitive<Autodiff<Flex>>>::Primitive;

impl<const D: usize> Input for Tensor<D> {
    fn dtype(&self) -> DType {
        Tensor::dtype(self)
    }

    fn checkpointing(&self) -> Option<GradientCheckpointingStrategy> {
        self.gradient_checkpointing_strategy()
    }

    fn values(&self) -> Option<FlexTensor> {
        let values = self.clone().try_into_primitive::<Flex>().ok()?;
        Some(values.to_contiguous())
    }

    fn recorded(&self) -> Option<RecordedTensor> {
        self.clone().try_into_primitive::<Autodiff<Flex>>().ok()
    }
}

/// The output of `operation`, with autodiff if the first input has it; `None` if unsupported: another
/// device or type, or gradient checkpointing.
pub fn on_cpu<O: Operation<N>, const N: usize, const D: usize>(
    operation: O,
    inputs: [&dyn Input; N],
) -> Option<Tensor<D>> {
    if inputs.iter().any(|input| input.dtype() != DType::F32) {
        return None;
    }
    let Some(checkpointing) = inputs.first()?.checkpointing() else {
        let values = all(inputs, |input| input.values())?;
        let (output, _) = operation.forward(values.each_ref());
        return Some(Tensor::from_primitive::<Flex>(output));
    };
    if checkpointing != GradientCheckpointingStrategy::Disabled {
        return None;
    }
    let inputs = all(inputs, |input| input.recorded())?;
    let nodes = inputs.each_ref().map(|input| input.node());
    let values = inputs.map(|input| input.into_primitive().to_contiguous());
    let (output, kept) = operation.forward(values.each_ref());
    let prepared = Recorded(operation).prepare::<NoCheckpointing>(nodes);
    let output = match prepared.compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish((values, kept), output),
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    };
    Some(Tensor::from_primitive::<Autodiff<Flex>>(output))
}

fn all<T, const N: usize>(
    inputs: [&dyn Input; N],
    get: impl Fn(&dyn Input) -> Option<T>,
) -> Option<[T; N]> {
    let all: Option<Vec<T>> = inputs.into_iter().map(get).collect();
    all?.try_into().ok()
}

/// A tensor of row-major values.
pub fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// An operation with a backward pass.
#[derive(Clone, Debug)]
struct Recorded<O>(O);

impl<O: Operation<N>, const N: usize> Backward<Flex, N> for Recorded<O> {
    type State = ([FlexTensor; N], O::Kept);

    fn backward(self, ops: Ops<Self::State, N>, recorded: &mut Gradients, _: &mut Checkpointer) {
        let gradient = recorded.consume::<Flex>(&ops.node).to_contiguous();
        let (inputs, kept) = ops.state;
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let gradients = self.0.backward(inputs.each_ref(), kept, gradient, wanted);
        for (node, gradient) in ops.parents.into_iter().zip(gradients) {
            if let (Some(node), Some(gradient)) = (node, gradient) {
                recorded.register::<Flex>(node.id, gradient);
            }
        }
    }
}
