//! Reading and writing of a model's trainable parameters, in the order of its fields.

use std::hash::{DefaultHasher, Hasher};

use anyhow::{Result, ensure};
use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::{Tensor, TensorData},
};

use super::frozen::is_frozen;
use crate::{
    bytes::to_bytes,
    device::{is_cpu, read_all},
};

/// The path and values of each trainable parameter, in the order of
/// [`FlatGradients::iter`](crate::optim::FlatGradients::iter), in one read.
///
/// # Panics
/// A device failed.
pub fn named_parameters<M: Module>(model: &M) -> Vec<(String, Vec<f32>)> {
    read_parameters(model, |_, is_trainable| is_trainable)
}

/// A hash of the bits of all parameters, to compare replicas.
///
/// # Panics
/// A device failed.
pub fn hash_parameters<M: Module>(model: &M) -> u64 {
    // Running statistics differ between replicas.
    hash(&named_parameters(model))
}

fn hash(named: &[(String, Vec<f32>)]) -> u64 {
    let mut hash = DefaultHasher::new();
    for (_, values) in named {
        hash.write(&to_bytes(values));
    }
    hash.finish()
}

/// The values of all parameters, concatenated.
///
/// # Panics
/// A device failed.
pub fn parameters<M: Module>(model: &M) -> Vec<f32> {
    let values = named_parameters(model).into_iter();
    values
        .map(|(_, values)| values)
        .collect::<Vec<_>>()
        .concat()
}

/// The path and values of each parameter for which `is_wanted` is true, given its id and whether it is
/// trainable, in the order of the model's fields, in one read.
///
/// # Panics
/// A device failed.
pub(crate) fn read_parameters<M: Module>(
    model: &M,
    is_wanted: impl Fn(ParamId, bool) -> bool,
) -> Vec<(String, Vec<f32>)> {
    read_chosen(model, Where(&is_wanted)).expect("a device that gives the parameters")
}

/// A choice of a tensor for each parameter of a model.
pub(crate) trait Choose {
    /// The tensor for `param`, such as its value or gradient; `None` for none.
    fn tensor<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Tensor<D>>;
}

/// The value of each parameter for which the function is true, given its id and whether it is trainable. One type for
/// all functions, as the program has the code of a visit of its model for each type.
pub(crate) struct Where<'a>(pub &'a dyn Fn(ParamId, bool) -> bool);

impl Choose for Where<'_> {
    fn tensor<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Tensor<D>> {
        self.0(param.id, param.is_require_grad()).then(|| param.val())
    }
}

/// The path and values of each chosen tensor, in the order of the model's fields, in one read.
///
/// # Errors
/// A device failed.
fn read_chosen<M: Module>(model: &M, choice: impl Choose) -> Result<Vec<(String, Vec<f32>)>> {
    read(find(model, choice))
}

fn find<M: Module, C: Choose>(model: &M, choice: C) -> Find<C> {
    let mut found = Find {
        choice,
        path: Vec::new(),
        paths: Vec::new(),
        values: Vec::new(),
    };
    model.visit(&mut found);
    found
}

fn read<C>(found: Find<C>) -> Result<Vec<(String, Vec<f32>)>> {
    let values = read_all(found.values)?;
    Ok(found.paths.into_iter().zip(values).collect())
}

/// The path and value of the first chosen value that is not finite.
///
/// # Errors
/// A device failed.
pub(crate) fn first_non_finite<M: Module>(
    model: &M,
    choice: impl Choose,
) -> Result<Option<(String, f32)>> {
    let found = find(model, choice);
    if sums_are_finite(&found.values)? {
        return Ok(None);
    }
    Ok(first_non_finite_of(read(found)?))
}

fn first_non_finite_of(named: Vec<(String, Vec<f32>)>) -> Option<(String, f32)> {
    let first = |(path, values): (String, Vec<f32>)| Some((path, non_finite(&values)?));
    named.into_iter().find_map(first)
}

/// The first value that is not finite.
pub(crate) fn non_finite(values: &[f32]) -> Option<f32> {
    values.iter().copied().find(|value| !value.is_finite())
}

/// True if tensors on the CPU have finite sums, and so finite values. A sum reads memory once, where a read of
/// the values copies it. A sum of finite values may overflow.
fn sums_are_finite(tensors: &[Tensor<1>]) -> Result<bool> {
    let plain = |tensor: &Tensor<1>| match tensor.device().is_autodiff() {
        true => tensor.clone().inner(),
        false => tensor.clone(),
    };
    let plain: Vec<_> = tensors.iter().map(plain).collect();
    // On a GPU, it would be a read more.
    if !plain.iter().all(|tensor| is_cpu(&[tensor.device()])) {
        return Ok(false);
    }
    let sums = read_all(plain.into_iter().map(Tensor::sum).collect())?;
    Ok(sums.iter().flatten().all(|sum| sum.is_finite()))
}

/// The choice of parameters that train.
pub(crate) const TRAINED: Where = Where(&|_, trains| trains);

/// The choice of all parameters. Other tensors may be constants, such as a mask of minus infinity.
pub(crate) const TRAINED_OR_FROZEN: Where = Where(&|id, trains| trains || is_frozen(id, trains));

/// Collects the chosen tensors.
struct Find<C> {
    choice: C,
    /// Names of the fields down to the visited one.
    path: Vec<String>,
    paths: Vec<String>,
    /// Of one dimension each.
    values: Vec<Tensor<1>>,
}

impl<C: Choose> ModuleVisitor for Find<C> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(values) = self.choice.tensor(param) {
            let len = values.shape().num_elements();
            self.paths.push(self.path.join("."));
            self.values.push(values.reshape([len])); // [len]
        }
    }
}

/// Replaces the parameters of `model` by `values`, the inverse of [`parameters`].
///
/// # Errors
/// The number of values differs from the model.
pub fn load_parameters<M: Module>(model: M, values: &[f32]) -> Result<M> {
    struct Write<'a>(&'a [f32]);

    impl ModuleMapper for Write<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if !param.is_require_grad() {
                return param;
            }
            let shape = param.lazy_shape();
            let (values, rest) = self.0.split_at(shape.num_elements());
            self.0 = rest;
            let data = TensorData::new(values.to_vec(), shape);
            param.map(|old| Tensor::from_data(data, &old.device()).require_grad())
        }
    }

    let len = count_parameters(&model);
    ensure!(
        values.len() == len,
        "{} values came for the {len} parameters of the model",
        values.len()
    );
    Ok(model.map(&mut Write(values)))
}

fn count_parameters<M: Module>(model: &M) -> usize {
    struct Count(usize);

    impl ModuleVisitor for Count {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_require_grad() {
                self.0 += param.lazy_shape().num_elements();
            }
        }
    }

    let mut count = Count(0);
    model.visit(&mut count);
    count.0
}

#[cfg(test)]
mod tests {
    use burn::{
        nn::{Linear, LinearConfig},
        optim::GradientsParams,
        tensor::Device,
    };

    use super::*;

    #[test]
    fn parameters_come_back_and_still_train() {
        let device = Device::flex().autodiff();
        let layer = || -> Linear { LinearConfig::new(2, 1).init(&device) };
        let (from, to) = (layer(), layer());
        let id = to.weight.id;
        let loaded = load_parameters(to, &parameters(&from)).unwrap();
        assert_eq!(parameters(&loaded), parameters(&from));
        assert_eq!(hash_parameters(&loaded), hash_parameters(&from));
        assert_eq!(loaded.weight.id, id);
        let loss = loaded.forward(Tensor::<2>::ones([1, 2], &device)).sum();
        let gradients = GradientsParams::from_grads(loss.backward(), &loaded);
        assert_eq!(gradients.len(), 2);
        let error = load_parameters(loaded, &[0.0; 4]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "4 values came for the 3 parameters of the model"
        );
    }

    #[test]
    fn the_first_value_that_is_not_finite_is_found() {
        let device = Device::flex().autodiff();
        let layer = |values: [f32; 3]| -> Linear {
            load_parameters(LinearConfig::new(2, 1).init(&device), &values).unwrap()
        };
        let found = |values| first_non_finite(&layer(values), TRAINED).unwrap();
        assert_eq!(found([0.0, -1.0, 2.0]), None);
        assert_eq!(found([f32::MAX, f32::MAX, 0.0]), None, "of an infinite sum");
        let path = |path: &str, value| Some((path.to_owned(), value));
        assert_eq!(
            found([0.0, f32::INFINITY, 1.0]),
            path("weight", f32::INFINITY)
        );
        let infinity = f32::NEG_INFINITY;
        assert_eq!(found([0.0, 1.0, infinity]), path("bias", infinity));
        assert!(found([f32::NAN, 1.0, 1.0]).unwrap().1.is_nan());
        let opposite = [f32::INFINITY, f32::NEG_INFINITY, 1.0];
        assert_eq!(found(opposite), path("weight", f32::INFINITY));
    }
}
