//! Custom operations on one of Burn's backends, with a backward pass of their own.
//!
//! Source: the Burn Book, "Custom operations".

use std::fmt::Debug;

use burn::{
    backend::{
        Autodiff, Backend, DispatchKindConversion, DispatchTensor,
        autodiff::{
            checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
    },
    tensor::{BackendPrimitive, Float},
};
#[cfg(feature = "cpu-layers")]
use burn::{
    backend::{Flex, TensorMetadata, flex::FlexTensor},
    tensor::{DType, Shape, TensorData},
};

/// A tensor of the backend `B`.
pub type Primitive<B> = <Float as BackendPrimitive<B>>::Primitive;

/// A backend with operations.
pub trait OperationBackend: Backend {
    /// The tensor in the layout that operations read.
    fn laid_out(tensor: Primitive<Self>) -> Primitive<Self>;
}

#[cfg(feature = "cpu-layers")]
impl OperationBackend for Flex {
    /// Contiguous.
    fn laid_out(tensor: FlexTensor) -> FlexTensor {
        tensor.to_contiguous()
    }
}

/// All GPUs.
#[cfg(feature = "gpu")]
impl OperationBackend for burn::backend::Cube {
    /// Any: operations are made of those of Burn.
    fn laid_out(tensor: Primitive<Self>) -> Primitive<Self> {
        tensor
    }
}

/// An operation on tensors of the backend `B`. It has no generic parameters, and is recorded by functions that have
/// none: generic code is compiled with the program, which takes time there, and which debug builds do not optimise.
pub trait Operation<B: OperationBackend>: Clone + Debug + Send + 'static {
    /// The state for the backward pass, in addition to the inputs.
    type Kept: Clone + Debug + Send;

    /// The output, and the state for the backward pass.
    fn forward(&self, inputs: &[Primitive<B>]) -> (Primitive<B>, Self::Kept);

    /// The requested gradients of the inputs, in their order, from the gradient of the output.
    fn backward(
        &self,
        inputs: &[Primitive<B>],
        kept: Self::Kept,
        gradient: Primitive<B>,
        wanted: &[bool],
    ) -> Vec<Option<Primitive<B>>>;
}

/// As [`on_backend`] on the CPU; `None` for other types than `f32`, too.
#[cfg(feature = "cpu-layers")]
pub fn on_cpu<O: Operation<Flex>, const N: usize>(
    operation: O,
    inputs: [DispatchTensor; N],
) -> Option<DispatchTensor> {
    let are_f32 = inputs.iter().all(|input| input.dtype() == DType::F32);
    are_f32.then(|| on_backend(operation, inputs)).flatten()
}

/// The output of `operation` on tensors of any rank, with autodiff if they have it; `None` if unsupported: another
/// backend, some inputs with autodiff and some without, or gradient checkpointing.
pub fn on_backend<B, O, const N: usize>(
    operation: O,
    inputs: [DispatchTensor; N],
) -> Option<DispatchTensor>
where
    B: OperationBackend,
    O: Operation<B>,
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B>>,
{
    if let Some(values) = all_primitives::<B, N>(&inputs) {
        let (output, _) = operation.forward(&values.map(B::laid_out));
        return Some(dispatched::<B>(output));
    }
    let inputs = all_primitives::<Autodiff<B>, N>(&inputs)?;
    let nodes = inputs.each_ref().map(|input| input.node());
    let values = inputs.map(|input| B::laid_out(input.into_primitive()));
    let (output, kept) = operation.forward(&values);
    let prepared = Recorded(operation).prepare::<NoCheckpointing>(nodes);
    let output = match prepared.compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish((values, kept), output),
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    };
    Some(dispatched::<Autodiff<B>>(output))
}

/// The tensors on the backend `B`; `None` if one is on another.
fn all_primitives<B: Backend, const N: usize>(
    tensors: &[DispatchTensor; N],
) -> Option<[Primitive<B>; N]>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let primitives: Option<Vec<_>> = tensors.iter().cloned().map(primitive::<B>).collect();
    primitives?.try_into().ok()
}

/// The tensor on the backend `B`; `None` if it is on another.
pub fn primitive<B: Backend>(tensor: DispatchTensor) -> Option<Primitive<B>>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let tensor = <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor).ok()?;
    <Float as BackendPrimitive<B>>::try_into_primitive(tensor).ok()
}

/// A tensor of the backend `B`, for [`Tensor::from_dispatch`](burn::tensor::Tensor::from_dispatch).
pub fn dispatched<B: Backend>(tensor: Primitive<B>) -> DispatchTensor
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let tensor = <Float as BackendPrimitive<B>>::from_primitive(tensor);
    <DispatchTensor as DispatchKindConversion<B>>::from_backend(tensor)
}

/// A tensor of row-major values.
#[cfg(feature = "cpu-layers")]
pub fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// An operation, as a step of Burn's autodiff.
#[derive(Clone, Debug)]
struct Recorded<O>(O);

impl<B: OperationBackend, O: Operation<B>, const N: usize> Backward<B, N> for Recorded<O> {
    type State = ([Primitive<B>; N], O::Kept);

    fn backward(self, ops: Ops<Self::State, N>, recorded: &mut Gradients, _: &mut Checkpointer) {
        let gradient = B::laid_out(recorded.consume::<B>(&ops.node));
        let (inputs, kept) = ops.state;
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let gradients = self.0.backward(&inputs, kept, gradient, &wanted);
        for (node, gradient) in ops.parents.into_iter().zip(gradients) {
            if let (Some(node), Some(gradient)) = (node, gradient) {
                recorded.register::<B>(node.id, gradient);
            }
        }
    }
}
