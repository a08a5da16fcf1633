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
    tensor::{BackendPrimitive, DType, Float, Tensor},
};
#[cfg(feature = "cpu-layers")]
use burn::{
    backend::{Flex, flex::FlexTensor},
    tensor::{Shape, TensorData},
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

/// An operation on tensors of the backend `B`. One with a kernel has no generic parameters: generic code is compiled
/// with the program, which debug builds do not optimise.
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

/// A tensor of any rank.
pub trait Input<B: OperationBackend> {
    /// The element type.
    fn dtype(&self) -> DType;
    /// Whether it has autodiff.
    fn is_autodiff(&self) -> bool;
    /// The values; `None` on another backend.
    fn values(&self) -> Option<Primitive<B>>;
    /// The autodiff tensor; `None` on another backend, without autodiff or under gradient checkpointing.
    fn recorded(&self) -> Option<Primitive<Autodiff<B>>>;
}

impl<B: OperationBackend, const D: usize> Input<B> for Tensor<D>
where
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B>>,
{
    fn dtype(&self) -> DType {
        Tensor::dtype(self)
    }

    fn is_autodiff(&self) -> bool {
        Tensor::is_autodiff(self)
    }

    fn values(&self) -> Option<Primitive<B>> {
        self.clone().try_into_primitive::<B>().ok().map(B::laid_out)
    }

    fn recorded(&self) -> Option<Primitive<Autodiff<B>>> {
        self.clone().try_into_primitive::<Autodiff<B>>().ok()
    }
}

/// As [`on_backend`] on the CPU; `None` for other types than `f32`, too.
#[cfg(feature = "cpu-layers")]
pub fn on_cpu<O: Operation<Flex>, const N: usize, const D: usize>(
    operation: O,
    inputs: [&dyn Input<Flex>; N],
) -> Option<Tensor<D>> {
    let are_f32 = inputs.iter().all(|input| input.dtype() == DType::F32);
    are_f32.then(|| on_backend(operation, inputs)).flatten()
}

/// The output of `operation`, with autodiff if the first input has it; `None` if unsupported: another
/// backend, or gradient checkpointing.
pub fn on_backend<B, O, const N: usize, const D: usize>(
    operation: O,
    inputs: [&dyn Input<B>; N],
) -> Option<Tensor<D>>
where
    B: OperationBackend,
    O: Operation<B>,
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B>>,
{
    if !inputs.first()?.is_autodiff() {
        let values = all(inputs, |input| input.values())?;
        let (output, _) = operation.forward(&values);
        return Some(Tensor::from_primitive::<B>(output));
    }
    let inputs = all(inputs, |input| input.recorded())?;
    let nodes = inputs.each_ref().map(|input| input.node());
    let values = inputs.map(|input| B::laid_out(input.into_primitive()));
    let (output, kept) = operation.forward(&values);
    let prepared = Recorded(operation).prepare::<NoCheckpointing>(nodes);
    let output = match prepared.compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish((values, kept), output),
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    };
    Some(Tensor::from_primitive::<Autodiff<B>>(output))
}

fn all<B: OperationBackend, T, const N: usize>(
    inputs: [&dyn Input<B>; N],
    get: impl Fn(&dyn Input<B>) -> Option<T>,
) -> Option<[T; N]> {
    let all: Option<Vec<T>> = inputs.into_iter().map(get).collect();
    all?.try_into().ok()
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
