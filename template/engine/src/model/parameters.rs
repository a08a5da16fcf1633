//! Reading and writing of a model's trainable parameters, in the order of its fields.

use std::hash::{DefaultHasher, Hasher};

use anyhow::{Result, ensure};
use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Tensor, TensorData},
};

use crate::{bytes::to_bytes, replica::read_all};

/// The path and values of each trainable parameter, in the order of
/// [`FlatGradients::iter`](crate::optim::FlatGradients::iter).
pub fn named_parameters<M: Module>(model: &M) -> Vec<(String, Vec<f32>)> {
    #[derive(Default)]
    struct Named {
        path: Vec<String>,
        paths: Vec<String>,
    }

    impl ModuleVisitor for Named {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_require_grad() {
                self.paths.push(self.path.join("."));
            }
        }
    }

    let mut named = Named::default();
    model.visit(&mut named);
    named.paths.into_iter().zip(values(model)).collect()
}

/// A hash of the bits of all parameters, to compare replicas.
pub fn hash_parameters<M: Module>(model: &M) -> u64 {
    let mut hash = DefaultHasher::new();
    // Running statistics differ between replicas.
    for values in values(model) {
        hash.write(&to_bytes(&values));
    }
    hash.finish()
}

/// The values of all parameters, concatenated.
pub fn parameters<M: Module>(model: &M) -> Vec<f32> {
    values(model).concat()
}

/// The values of each trainable parameter, in one read.
///
/// # Panics
/// A device failed.
fn values<M: Module>(model: &M) -> Vec<Vec<f32>> {
    #[derive(Default)]
    struct Collect(Vec<Tensor<1>>);

    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_require_grad() {
                let values = param.val(); // [..]
                let len = values.shape().num_elements();
                self.0.push(values.reshape([len])); // [len]
            }
        }
    }

    let mut all = Collect::default();
    model.visit(&mut all);
    read_all(all.0).expect("a device that gives the parameters")
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
}
