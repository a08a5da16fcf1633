//! Splitting a model into pipeline stages, and placing its layers on their devices.

use anyhow::{Result, ensure};
use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Device, Int, Tensor},
};

/// The activation that one stage passes to the next: one tensor of any rank, or several.
#[derive(Clone)]
pub struct Activation {
    /// The values of all tensors, concatenated.
    values: Tensor<1>,
    shapes: Vec<Vec<usize>>,
}

impl<const D: usize> From<Tensor<D>> for Activation {
    fn from(tensor: Tensor<D>) -> Self {
        let shape = tensor.dims();
        Activation {
            values: tensor.reshape([shape.iter().product::<usize>()]),
            shapes: vec![shape.to_vec()],
        }
    }
}

/// Several tensors; [`Activation::split`] is the inverse.
impl<const N: usize> From<[Activation; N]> for Activation {
    fn from(activations: [Activation; N]) -> Self {
        let (values, shapes): (Vec<_>, Vec<_>) = activations
            .into_iter()
            .map(|activation| (activation.values, activation.shapes))
            .unzip();
        Activation {
            values: Tensor::cat(values, 0),
            shapes: shapes.concat(),
        }
    }
}

impl<const D: usize> From<Activation> for Tensor<D> {
    fn from(activation: Activation) -> Self {
        activation.tensor()
    }
}

/// Integers, such as tokens, are passed as floats, which are exact up to 2^24.
impl<const D: usize> From<Tensor<D, Int>> for Activation {
    fn from(tensor: Tensor<D, Int>) -> Self {
        tensor.float().into()
    }
}

impl Activation {
    /// The input of the first stage, which reads the batch.
    pub(super) fn empty(device: &Device) -> Self {
        Activation {
            values: Tensor::zeros([1], device),
            shapes: Vec::new(),
        }
    }

    /// The activation as a tensor of rank `D`.
    ///
    /// # Panics
    /// The activation has another rank, or is several tensors.
    pub fn tensor<const D: usize>(self) -> Tensor<D> {
        let shape = match &self.shapes[..] {
            [shape] => <[usize; D]>::try_from(&shape[..]).ok(),
            _ => None,
        };
        let shape = shape.unwrap_or_else(|| {
            let shapes = &self.shapes;
            panic!("a stage takes a tensor of rank {D}, and the one before it gives {shapes:?}")
        });
        self.values.reshape(shape)
    }

    /// The `N` tensors of the activation.
    ///
    /// # Panics
    /// The activation has another number of tensors.
    pub fn split<const N: usize>(self) -> [Activation; N] {
        let shapes: [Vec<usize>; N] = self.shapes.try_into().unwrap_or_else(|shapes: Vec<_>| {
            panic!(
                "a stage takes {N} tensors, and the one before it gives {}",
                shapes.len()
            )
        });
        let mut start = 0;
        shapes.map(|shape| {
            let len = shape.iter().product();
            let values = self.values.clone().narrow(0, start, len);
            start += len;
            Activation {
                values,
                shapes: vec![shape],
            }
        })
    }

    /// The activation on `device`.
    pub(super) fn on(self, device: &Device) -> Self {
        Activation {
            values: self.values.to_device(device),
            shapes: self.shapes,
        }
    }

    /// A leaf of the autodiff graph with the same values on `device`, a device without autodiff.
    pub(super) fn begin_at(self, device: &Device, has_gradient: bool) -> Self {
        let values = Tensor::from_inner(self.values.inner().to_device(device));
        Activation {
            values: values.set_require_grad(has_gradient),
            shapes: self.shapes,
        }
    }

    /// The values without their autodiff graph.
    pub(super) fn detached(&self) -> Self {
        Activation {
            values: self.values.clone().inner(),
            shapes: self.shapes.clone(),
        }
    }

    pub(super) fn values(&self) -> &Tensor<1> {
        &self.values
    }
}

/// A pipeline stage of a model, with a device of its own.
pub struct Stage<M: 'static, B: 'static> {
    /// Names of the model's fields that hold the layers of the stage.
    pub layers: &'static [&'static str],
    /// The forward pass: from the prepared batch and the output of the previous stage, to the input of the
    /// next. The first stage has the batch alone.
    pub forward: fn(&M, &B, Activation) -> Activation,
}

// A derived `Clone` would require `M: Clone`.
impl<M, B> Clone for Stage<M, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M, B> Copy for Stage<M, B> {}

/// Checks that each parameter is in exactly one stage.
///
/// # Errors
/// A stage names a layer that the model lacks, or a layer is in no stage or in several.
pub fn ensure_split<M: Module, B>(model: &M, stages: &[Stage<M, B>]) -> Result<()> {
    let layers = layers(model);
    let listed = layers.join(", ");
    for (number, stage) in stages.iter().enumerate() {
        for layer in stage.layers {
            ensure!(
                layers.iter().any(|name| name == layer),
                "TODO(model.split): stage {number} names the layer `{layer}`, and those of the \
                 model are {listed}"
            );
        }
    }
    for layer in &layers {
        let count = stages
            .iter()
            .flat_map(|stage| stage.layers)
            .filter(|name| *name == layer)
            .count();
        ensure!(
            count == 1,
            "TODO(model.split): the layer `{layer}` is in {count} stages, and has to be in one"
        );
    }
    Ok(())
}

/// Moves each layer to the device of its stage.
pub fn place<M: Module, B>(model: M, stages: &[Stage<M, B>], devices: &[Device]) -> M {
    let device_of = stages
        .iter()
        .zip(devices)
        .flat_map(|(stage, device)| stage.layers.iter().map(move |layer| (*layer, device)));
    model.map(&mut Place {
        device_of: device_of.collect(),
        layer: None,
        depth: 0,
    })
}

struct Place<'a> {
    device_of: Vec<(&'static str, &'a Device)>,
    layer: Option<String>,
    depth: usize,
}

impl Place<'_> {
    fn device(&self) -> Option<Device> {
        let layer = self.layer.as_deref()?;
        let found = self.device_of.iter().find(|(name, _)| *name == layer);
        found.map(|(_, device)| (*device).clone())
    }
}

impl ModuleMapper for Place<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        if self.depth == 0 {
            self.layer = Some(name.to_owned());
        }
        self.depth += 1;
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.depth -= 1;
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.device() {
            Some(device) => param.fork(&device),
            None => param,
        }
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        match self.device() {
            Some(device) => param.fork(&device),
            None => param,
        }
    }
}

/// Names of the model's fields that hold parameters.
fn layers<M: Module>(model: &M) -> Vec<String> {
    #[derive(Default)]
    struct Layers {
        path: Vec<String>,
        names: Vec<String>,
    }

    impl ModuleVisitor for Layers {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, _param: &Param<Tensor<D>>) {
            let layer = self.path.first().cloned().unwrap_or_default();
            if !self.names.contains(&layer) {
                self.names.push(layer);
            }
        }
    }

    let mut layers = Layers::default();
    model.visit(&mut layers);
    layers.names
}
