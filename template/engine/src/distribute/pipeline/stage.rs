//! Splitting a model into pipeline stages, and placing its layers on their devices.

use anyhow::{Result, ensure};
use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Device, Int, Tensor},
};

/// The activation that one stage passes to the next: a tensor of any rank.
#[derive(Clone)]
pub struct Activation {
    values: Tensor<1>,
    shape: Vec<usize>,
}

impl<const D: usize> From<Tensor<D>> for Activation {
    fn from(tensor: Tensor<D>) -> Self {
        let shape = tensor.dims();
        Activation {
            values: tensor.reshape([shape.iter().product::<usize>()]),
            shape: shape.to_vec(),
        }
    }
}

/// Integers, such as tokens, are passed as floats, which are exact up to 2^24.
impl<const D: usize> From<Tensor<D, Int>> for Activation {
    fn from(tensor: Tensor<D, Int>) -> Self {
        tensor.float().into()
    }
}

impl Activation {
    /// The activation as a tensor of rank `D`.
    ///
    /// # Panics
    /// The activation has another rank.
    pub fn tensor<const D: usize>(self) -> Tensor<D> {
        let shape: [usize; D] = self.shape.try_into().unwrap_or_else(|shape: Vec<usize>| {
            panic!("a stage takes a tensor of rank {D}, and the one before it gives {shape:?}")
        });
        self.values.reshape(shape)
    }

    /// A leaf with the same values on `device`, which is one without autodiff.
    pub(super) fn begin_at(self, device: &Device, has_gradient: bool) -> Self {
        let values = Tensor::from_inner(self.values.inner().to_device(device));
        Activation {
            values: values.set_require_grad(has_gradient),
            shape: self.shape,
        }
    }

    /// The values without their autodiff graph.
    pub(super) fn detached(&self) -> Self {
        Activation {
            values: self.values.clone().inner(),
            shape: self.shape.clone(),
        }
    }

    pub(super) fn values(&self) -> &Tensor<1> {
        &self.values
    }
}

/// A pipeline stage of a model, with a device of its own.
pub struct Stage<M: 'static> {
    /// Names of the model's fields that hold the layers of the stage.
    pub layers: &'static [&'static str],
    /// The forward pass: from the output of the previous stage, or the features, to the input of the next.
    pub forward: fn(&M, Activation) -> Activation,
}

// Derived, they would ask the same of the model.
impl<M> Clone for Stage<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Stage<M> {}

/// Checks that each parameter is in exactly one stage.
///
/// # Errors
/// A stage names a layer that the model lacks, or a layer is in no stage or in several.
pub fn ensure_split<M: Module>(model: &M, stages: &[Stage<M>]) -> Result<()> {
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
pub fn place<M: Module>(model: M, stages: &[Stage<M>], devices: &[Device]) -> M {
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
