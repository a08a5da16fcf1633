//! Running statistics, as of batch normalisation: per replica in training, and averaged over replicas for
//! validation, test and inference.

use std::collections::HashSet;

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::{Tensor, TensorData},
};

use super::{frozen::is_frozen, parameters::read_parameters};

/// The running statistics of `model`, concatenated, in one read.
///
/// # Panics
/// A device failed.
pub fn running_statistics<M: Module>(model: &M) -> Vec<f32> {
    let buffers = buffers(model);
    if buffers.is_empty() {
        return Vec::new();
    }
    // Burn merges pending updates of running values only in `valid`.
    let read = read_parameters(&model.valid(), |id, _| buffers.contains(&id)).into_iter();
    let values: Vec<_> = read.map(|(_, values)| values).collect();
    values.concat()
}

/// True if `model` has running statistics, which its clones share.
pub fn has_running_statistics<M: Module>(model: &M) -> bool {
    !buffers(model).is_empty()
}

/// Replaces the running statistics of `model` by `values`, the inverse of [`running_statistics`]; the result
/// has autodiff.
pub fn load_running_statistics<M: Module>(model: &M, values: &[f32]) -> M {
    let mut write = Write {
        buffers: buffers(model),
        values,
    };
    // A copy, as clones of a model share their running statistics and pending updates.
    model.valid().map(&mut write).train()
}

/// The tensors that do not require a gradient while training, except frozen parameters.
pub(crate) fn buffers<M: Module>(model: &M) -> HashSet<ParamId> {
    struct Find(HashSet<ParamId>);

    impl ModuleVisitor for Find {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let trains = param.is_require_grad();
            if !trains && !is_frozen(param.id, trains) {
                self.0.insert(param.id);
            }
        }
    }

    let mut find = Find(HashSet::new());
    model.visit(&mut find);
    find.0
}

struct Write<'a> {
    buffers: HashSet<ParamId>,
    values: &'a [f32],
}

impl ModuleMapper for Write<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.buffers.contains(&param.id) {
            return param;
        }
        let shape = param.lazy_shape();
        let (values, rest) = self.values.split_at(shape.num_elements());
        self.values = rest;
        param.map(|old| Tensor::from_data(TensorData::new(values.to_vec(), shape), &old.device()))
    }
}

#[cfg(test)]
mod tests {
    use burn::{
        nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig},
        tensor::Device,
    };

    use super::*;

    #[derive(Module, Debug)]
    struct Normalised {
        linear: Linear,
        norm: BatchNorm,
    }

    fn trained(momentum: f64) -> Normalised {
        let device = Device::flex().autodiff();
        let model = Normalised {
            linear: LinearConfig::new(1, 1).init(&device),
            norm: BatchNormConfig::new(1)
                .with_momentum(momentum)
                .init(&device),
        };
        model
            .norm
            .forward(Tensor::<2>::from_floats([[1.0], [3.0]], &device));
        model
    }

    #[test]
    fn the_latest_statistics_are_read_and_nothing_else() {
        // Mean 2, variance 1 or 2 (by examples or degrees of freedom), and no weights.
        let values = running_statistics(&trained(1.0));
        assert_eq!(values.len(), 2);
        assert_eq!(values[0], 2.0);
        assert_eq!(running_statistics(&trained(0.0)), [0.0, 1.0]);
    }

    #[test]
    fn written_statistics_are_used_and_weights_stay() {
        let model = trained(1.0);
        let weight = model.linear.weight.val().into_data();
        let model = load_running_statistics(&model, &[5.0, 4.0]);
        assert_eq!(running_statistics(&model), [5.0, 4.0]);
        assert_eq!(model.linear.weight.val().into_data(), weight);
        assert!(model.linear.weight.is_require_grad());
        // (9 - 5) / sqrt(4 + epsilon)
        let input = Tensor::<2>::from_floats([[9.0]], &Device::flex());
        let output = model.valid().norm.forward(input).into_scalar::<f32>();
        assert!((output - 2.0).abs() < 1e-4, "{output}");
    }
}
