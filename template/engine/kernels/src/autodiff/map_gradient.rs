//! The identity with a backward pass of the caller's.

use std::fmt::{self, Debug, Formatter};

#[cfg(feature = "gpu")]
use burn::backend::Cube;
#[cfg(feature = "cpu-layers")]
use burn::backend::Flex;
use burn::{
    backend::{DispatchKindConversion, DispatchTensor},
    tensor::Tensor,
};

use super::operation::{Operation, OperationBackend, Primitive, on_backend};

/// `x`, whose gradient the backward pass replaces by `map(gradient)`. `None` without autodiff, and where custom
/// operations do not run: under gradient checkpointing, on devices of other machines, and in builds without the
/// features `cpu-layers` and `gpu`.
pub fn map_gradient<const D: usize>(
    x: &Tensor<D>,
    map: impl Fn(Tensor<D>) -> Tensor<D> + Clone + Send + 'static,
) -> Option<Tensor<D>> {
    if !x.is_autodiff() {
        return None;
    }
    let identity = MapGradient(map);
    #[cfg(feature = "gpu")]
    if let Some(x) = on_backend::<Cube, _, 1, D>(identity.clone(), [x]) {
        return Some(x);
    }
    #[cfg(feature = "cpu-layers")]
    if let Some(x) = on_backend::<Flex, _, 1, D>(identity.clone(), [x]) {
        return Some(x);
    }
    None
}

/// The identity, with the function of its gradient, of `D` dimensions.
#[derive(Clone)]
struct MapGradient<F, const D: usize>(F);

impl<F, const D: usize> Debug for MapGradient<F, D> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("MapGradient")
    }
}

impl<B, F, const D: usize> Operation<B> for MapGradient<F, D>
where
    B: OperationBackend,
    F: Fn(Tensor<D>) -> Tensor<D> + Clone + Send + 'static,
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
        let mapped = (self.0)(Tensor::from_primitive::<B>(gradient));
        let mapped = mapped.try_into_primitive::<B>();
        vec![Some(mapped.expect("a gradient stays on its backend"))]
    }
}
