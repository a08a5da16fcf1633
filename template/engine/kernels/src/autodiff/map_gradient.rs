//! The identity with a backward pass of the caller's.

use std::{
    fmt::{self, Debug, Formatter},
    sync::Arc,
};

#[cfg(feature = "gpu")]
use burn::backend::Cube;
#[cfg(feature = "cpu-layers")]
use burn::backend::Flex;
use burn::{
    backend::{DispatchKindConversion, DispatchTensor},
    tensor::Tensor,
};

use super::operation::{Operation, OperationBackend, Primitive, dispatched, on_backend, primitive};

/// `x`, whose gradient the backward pass replaces by `map(gradient)`. `None` without autodiff, and where custom
/// operations do not run: under gradient checkpointing, on devices of other machines, and in builds without the
/// features `cpu-layers` and `gpu`.
pub fn map_gradient<const D: usize>(
    x: &Tensor<D>,
    map: impl Fn(Tensor<D>) -> Tensor<D> + Send + Sync + 'static,
) -> Option<Tensor<D>> {
    if !x.is_autodiff() {
        return None;
    }
    let map = move |gradient| map(Tensor::from_dispatch(gradient)).into_dispatch();
    let identity = MapGradient(Arc::new(map));
    identity
        .record(x.clone().into_dispatch())
        .map(Tensor::from_dispatch)
}

/// The identity, with the function of its gradient.
#[derive(Clone)]
struct MapGradient(Arc<dyn Fn(DispatchTensor) -> DispatchTensor + Send + Sync>);

impl MapGradient {
    fn record(self, x: DispatchTensor) -> Option<DispatchTensor> {
        #[cfg(feature = "gpu")]
        if let Some(x) = on_backend::<Cube, _, 1>(self.clone(), [x.clone()]) {
            return Some(x);
        }
        #[cfg(feature = "cpu-layers")]
        if let Some(x) = on_backend::<Flex, _, 1>(self, [x]) {
            return Some(x);
        }
        None
    }
}

impl Debug for MapGradient {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("MapGradient")
    }
}

impl<B: OperationBackend> Operation<B> for MapGradient
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type Kept = ();

    fn forward(&self, inputs: &[Primitive<B>]) -> (Primitive<B>, ()) {
        (inputs[0].clone(), ())
    }

    fn backward(
        &self,
        _: &[Primitive<B>],
        (): (),
        gradient: Primitive<B>,
        _: &[bool],
    ) -> Vec<Option<Primitive<B>>> {
        let mapped = primitive::<B>((self.0)(dispatched::<B>(gradient)));
        vec![Some(mapped.expect("a gradient stays on its backend"))]
    }
}
