//! The averaged tensors of a model.

use std::{collections::HashSet, mem, vec};

use anyhow::{Result, ensure};
#[cfg(feature = "cpu-layers")]
use burn::backend::Flex;
use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::{DType, Device, Tensor, TensorData},
};
use kiln_kernels::elementwise;

use crate::{
    device::{read_all, read_data},
    model::{buffers, frozen},
};

/// Averaged parameters and running statistics, each flattened, in the order of the model's fields.
#[derive(Clone)]
pub struct Average {
    parameters: Vec<Tensor<1>>,
    statistics: Vec<Tensor<1>>,
}

impl Average {
    /// The values of `model`, a model with autodiff.
    pub fn of<M: Module>(model: &M) -> Self {
        Average {
            parameters: parameters(model),
            statistics: statistics(model),
        }
    }

    /// Moves the averaged parameters towards those of `model`.
    ///
    /// # Errors
    /// Other parameters than before require a gradient.
    pub fn update_parameters<M: Module>(&mut self, model: &M, decay: f64) -> Result<()> {
        let values = parameters(model);
        ensure_same(self.parameters.len(), values.len())?;
        let pairs = mem::take(&mut self.parameters).into_iter().zip(values);
        self.parameters = pairs
            .map(|(average, value)| lerp(average, value, decay))
            .collect();
        Ok(())
    }

    /// Moves the averaged running statistics towards those of `model`.
    ///
    /// # Errors
    /// Other parameters than before require a gradient.
    pub fn update_statistics<M: Module>(&mut self, model: &M, decay: f64) -> Result<()> {
        let values = statistics(model);
        ensure_same(self.statistics.len(), values.len())?;
        let pairs = mem::take(&mut self.statistics).into_iter().zip(values);
        let moved = pairs.map(|(average, value)| {
            // A constant may be infinite, as in a mask: infinity minus infinity is not a number.
            let equal = average.clone().equal(value.clone());
            lerp(average, value.clone(), decay).mask_where(equal, value)
        });
        self.statistics = moved.collect();
        Ok(())
    }

    /// The averaged running statistics.
    pub fn statistics(&self) -> &[Tensor<1>] {
        &self.statistics
    }

    /// Replaces the averaged running statistics by `values`.
    ///
    /// # Errors
    /// Their number differs.
    pub fn load_statistics(&mut self, values: &[f32]) -> Result<()> {
        self.statistics = loaded(&self.statistics, values)?;
        Ok(())
    }

    /// The averaged parameters alone.
    pub fn without_statistics(&self) -> Self {
        Average {
            parameters: self.parameters.clone(),
            statistics: Vec::new(),
        }
    }

    /// Drops the averaged parameters.
    pub fn release_parameters(&mut self) {
        self.parameters.clear();
    }

    /// Takes the averaged parameters of `other`.
    pub fn take_parameters(&mut self, other: Average) {
        self.parameters = other.parameters;
    }

    /// The values of all averaged parameters, concatenated.
    ///
    /// # Errors
    /// A device failed.
    pub fn values(&self) -> Result<Vec<f32>> {
        Ok(read_all(self.parameters.clone())?.concat())
    }

    /// Replaces the averaged parameters by `values`.
    ///
    /// # Errors
    /// Their number differs.
    pub fn load_values(&mut self, values: &[f32]) -> Result<()> {
        self.parameters = loaded(&self.parameters, values)?;
        Ok(())
    }

    /// A copy that shares no memory of a device.
    ///
    /// # Errors
    /// A device failed.
    pub fn copy(&self) -> Result<Self> {
        let copy = |tensors: &[Tensor<1>]| loaded(tensors, &read_all(tensors.to_vec())?.concat());
        Ok(Average {
            parameters: copy(&self.parameters)?,
            statistics: copy(&self.statistics)?,
        })
    }

    /// A copy of `model` without autodiff, with the averaged parameters and with `statistics`.
    pub fn apply<M: Module>(&self, model: &M, statistics: &[f32]) -> M {
        let mut write = Write {
            buffers: buffers(model),
            frozen: frozen(model).into_values().collect(),
            parameters: self.parameters.clone().into_iter(),
            statistics,
        };
        model.valid().map(&mut write)
    }
}

fn ensure_same(averages: usize, values: usize) -> Result<()> {
    ensure!(
        averages == values,
        "the model has {values} tensors for {averages} averages of --ema: parameters must not begin or \
         cease to require a gradient during a training"
    );
    Ok(())
}

/// Tensors with the lengths and devices of `tensors` and with `values`.
fn loaded(tensors: &[Tensor<1>], mut values: &[f32]) -> Result<Vec<Tensor<1>>> {
    let len: usize = tensors.iter().map(|tensor| tensor.dims()[0]).sum();
    ensure!(
        values.len() == len,
        "{} values came for an average of {len}",
        values.len()
    );
    let load = |tensor: &Tensor<1>| {
        let (own, rest) = values.split_at(tensor.dims()[0]);
        values = rest;
        Tensor::from_data(TensorData::from(own), &tensor.device())
    };
    Ok(tensors.iter().map(load).collect())
}

/// The float tensors of a model that a filter chooses, flattened, without autodiff.
struct Collect<'a> {
    chosen: &'a dyn Fn(ParamId, bool) -> bool,
    tensors: Vec<Tensor<1>>,
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !(self.chosen)(param.id, param.is_require_grad()) {
            return;
        }
        let mut tensor = param.val();
        if tensor.device().is_autodiff() {
            tensor = tensor.inner();
        }
        if tensor.dtype() != DType::F32 {
            tensor = tensor.cast(DType::F32);
        }
        let len = tensor.shape().num_elements();
        self.tensors.push(tensor.reshape([len])); // [len]
    }
}

fn collect<M: Module>(model: &M, chosen: &dyn Fn(ParamId, bool) -> bool) -> Vec<Tensor<1>> {
    let mut collect = Collect {
        chosen,
        tensors: Vec::new(),
    };
    model.visit(&mut collect);
    collect.tensors
}

fn parameters<M: Module>(model: &M) -> Vec<Tensor<1>> {
    collect(model, &|_, is_trained| is_trained)
}

fn statistics<M: Module>(model: &M) -> Vec<Tensor<1>> {
    let buffers = buffers(model);
    match buffers.is_empty() {
        true => Vec::new(),
        // Burn merges pending updates of running values only in `valid`.
        false => collect(&model.valid(), &|id, _| buffers.contains(&id)),
    }
}

struct Write<'a> {
    buffers: HashSet<ParamId>,
    frozen: HashSet<ParamId>,
    parameters: vec::IntoIter<Tensor<1>>,
    statistics: &'a [f32],
}

impl ModuleMapper for Write<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shape = param.lazy_shape();
        if self.buffers.contains(&param.id) {
            let (values, rest) = self.statistics.split_at(shape.num_elements());
            self.statistics = rest;
            let data = TensorData::new(values.to_vec(), shape);
            return param.map(|old| {
                let mean: Tensor<D> = Tensor::from_data(data, &old.device());
                mean.cast(old.dtype())
            });
        }
        if self.frozen.contains(&param.id) {
            return param;
        }
        let average = self
            .parameters
            .next()
            .expect("an average of each parameter");
        param.map(|old| average.reshape(shape).cast(old.dtype()))
    }
}

/// `average` moved towards `value` by a share of 1 - `decay`, in place where possible.
///
/// Source: `torch.lerp`, which begins at the nearer end.
fn lerp(average: Tensor<1>, value: Tensor<1>, decay: f64) -> Tensor<1> {
    if decay == 0.0 {
        return value;
    }
    if average.device() == Device::flex() {
        return lerp_in_place(average, value, 1.0 - decay);
    }
    let difference = value.clone() - average.clone();
    match decay > 0.5 {
        true => average + difference * (1.0 - decay),
        false => value - difference * decay,
    }
}

/// On the CPU, reading a tensor without other owners, and creating one from the values, copies nothing.
fn lerp_in_place(average: Tensor<1>, value: Tensor<1>, weight: f64) -> Tensor<1> {
    let mut averages = values(average);
    with_values(value, |values| {
        elementwise::lerp(&mut averages, values, weight);
    });
    let len = averages.len();
    Tensor::from_data(TensorData::new(averages, [len]), &Device::flex())
}

fn values(tensor: Tensor<1>) -> Vec<f32> {
    let values = read_data(tensor).expect("a tensor on the CPU can be read");
    values.try_into_vec().expect("a tensor of f32")
}

/// Calls `read` with the values of a tensor on the CPU, which has other owners.
#[cfg(feature = "cpu-layers")]
fn with_values<R>(tensor: Tensor<1>, read: impl FnOnce(&[f32]) -> R) -> R {
    let tensor = tensor.try_into_primitive::<Flex>();
    let tensor = tensor.expect("a tensor on the CPU").to_contiguous();
    read(tensor.storage::<f32>())
}

#[cfg(not(feature = "cpu-layers"))]
fn with_values<R>(tensor: Tensor<1>, read: impl FnOnce(&[f32]) -> R) -> R {
    read(&values(tensor))
}
