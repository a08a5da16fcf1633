use std::{mem, ops::Range};

use anyhow::{Context, Result, bail, ensure};
use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    optim::GradientsParams,
    tensor::{Device, Tensor, TensorData, Transaction},
};
use rayon::prelude::*;

use super::{PIECE, cross_device_ops::add, on_all_threads};
use crate::vectors::vectorized;

/// Values that small parameters have in a bucket together; a parameter of as many has its own, which
/// is the memory of its tensor where the device is the CPU.
const BUCKET_LEN: usize = 1 << 16;

/// What to do where the sum of the gradients over replicas is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonFinite {
    /// Stop with an error that names the parameter.
    Error,
    /// Leave the parameters as they are and go on with the next step.
    Skip,
    /// Replace what is not finite by zero.
    Zero,
}

/// The gradients of a step: of one model, or of several networks that each have a loss of their own.
#[derive(Default)]
pub struct Gradients(Vec<GradientsParams>);

impl Gradients {
    pub fn new() -> Self {
        Gradients::default()
    }

    /// Adds those of a network, as `GradientsParams::from_grads` takes them from its loss.
    #[must_use]
    pub fn with(mut self, gradients: GradientsParams) -> Self {
        self.0.push(gradients);
        self
    }

    /// The gradient of a parameter: the sum, where several losses feed it.
    fn remove<const D: usize>(&mut self, id: ParamId) -> Option<Tensor<D>> {
        let of_each = self.0.iter_mut().filter_map(|one| one.remove::<D>(id));
        of_each.reduce(|sum, one| sum + one)
    }
}

/// The gradients of a model in flat buckets.
///
/// The buckets are those of the model's fields, equal on all replicas. A parameter without a
/// gradient, as on a replica without examples, has zeros.
#[derive(Clone)]
pub struct FlatGradients {
    buckets: Vec<Vec<f32>>,
    parameters: Vec<Parameter>,
    /// The Euclidean norm over all values, from when it is asked for until they change.
    norm: Option<f64>,
}

#[derive(Clone)]
struct Parameter {
    path: String,
    id: ParamId,
    /// The bucket that holds its values, and where.
    bucket: usize,
    values: Range<usize>,
    /// Whether the optimizer gets to see it.
    trains: bool,
}

impl FlatGradients {
    /// Takes the gradients of `model` from their tensors, all of a device at once.
    ///
    /// # Errors
    /// A device failed.
    pub fn new<M: Module>(model: &M, gradients: Gradients) -> Result<Self> {
        let flat = FlatGradients {
            buckets: Vec::new(),
            parameters: Vec::new(),
            norm: None,
        };
        let mut flatten = Flatten {
            flat,
            small: None,
            gradients,
            path: Vec::new(),
            reads: Vec::new(),
        };
        model.visit(&mut flatten);
        flatten.read()
    }

    /// The gradients of a replica of `model` in another process, from their values in order.
    ///
    /// # Errors
    /// They are not as many as those of this model.
    pub fn from_values<M: Module>(model: &M, values: &[f32]) -> Result<Self> {
        let mut flat = Self::new(model, Gradients::new())?;
        let len: usize = flat.buckets.iter().map(Vec::len).sum();
        ensure!(
            values.len() == len,
            "{} gradients came, and the model has {len} parameters",
            values.len()
        );
        let places = flat.buckets.iter_mut().flatten();
        places
            .zip(values)
            .for_each(|(place, value)| *place = *value);
        Ok(flat)
    }

    /// All values, one bucket after the other.
    pub fn values(&self) -> impl Iterator<Item = f32> {
        self.buckets.iter().flatten().copied()
    }

    /// The buckets, to be reduced over replicas.
    pub fn buckets_mut(&mut self) -> &mut [Vec<f32>] {
        self.norm = None;
        &mut self.buckets
    }

    /// Applies `policy` to what is not finite, and tells whether the step goes on.
    ///
    /// # Errors
    /// With [`NonFinite::Error`], the parameter and the value.
    pub fn handle_non_finite(&mut self, policy: NonFinite) -> Result<bool> {
        if self.global_norm().is_finite() {
            return Ok(true);
        }
        match policy {
            NonFinite::Skip => Ok(false),
            NonFinite::Zero => {
                let values = self.buckets_mut().iter_mut().flatten();
                values
                    .filter(|value| !value.is_finite())
                    .for_each(|value| *value = 0.0);
                Ok(true)
            }
            NonFinite::Error => self.name_non_finite(),
        }
    }

    fn name_non_finite(&self) -> Result<bool> {
        for (path, values) in self.iter() {
            if let Some(value) = values.iter().find(|value| !value.is_finite()) {
                bail!(
                    "the gradient of `{path}` holds {value}: look for a division by zero, a \
                     logarithm of zero or a learning rate that is too high, or choose another \
                     `NonFinite` policy at TODO(train.gradients)"
                );
            }
        }
        bail!("the norm of the gradients is too large for a number: lower the learning rate")
    }

    /// The Euclidean norm over all parameters.
    pub fn global_norm(&mut self) -> f64 {
        *self.norm.get_or_insert_with(|| {
            // The same pieces whatever the threads, so that the sum has the same bits.
            let pieces = self.buckets.iter().flat_map(|bucket| bucket.chunks(PIECE));
            let pieces: Vec<&[f32]> = pieces.collect();
            let squares: Vec<f64> = on_all_threads(pieces.len() * PIECE, || {
                let pieces = pieces.into_par_iter();
                pieces
                    .map(|piece| vectorized!(sum_of_squares(piece)))
                    .collect()
            });
            squares.into_iter().sum::<f64>().sqrt()
        })
    }

    /// Scales all gradients down so that their global norm is at most `max_norm`.
    ///
    /// Source: `tf.clip_by_global_norm`.
    pub fn clip_by_global_norm(&mut self, max_norm: f64) {
        let norm = self.global_norm();
        if norm > max_norm {
            let scale = (max_norm / norm) as f32;
            for bucket in self.buckets_mut() {
                on_all_threads(bucket.len(), || {
                    let pieces = bucket.par_chunks_mut(PIECE);
                    pieces.for_each(|piece| piece.iter_mut().for_each(|value| *value *= scale));
                });
            }
        }
    }

    /// Adds the gradients of another batch of the same model.
    pub fn accumulate(&mut self, other: &FlatGradients) {
        for (sums, values) in self.buckets_mut().iter_mut().zip(&other.buckets) {
            add(sums, values);
        }
    }

    /// Leaves parameters out of the update for whose path `is_trainable` says no: their values
    /// stay as they are, whatever the optimizer remembers of them.
    pub fn retain(&mut self, is_trainable: impl Fn(&str) -> bool) {
        for parameter in &mut self.parameters {
            parameter.trains &= is_trainable(&parameter.path);
        }
    }

    /// Each parameter's path in the model with its gradient.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[f32])> {
        self.parameters
            .iter()
            .map(|parameter| (parameter.path.as_str(), self.values_of(parameter)))
    }

    fn values_of(&self, parameter: &Parameter) -> &[f32] {
        &self.buckets[parameter.bucket][parameter.values.clone()]
    }

    /// Takes the gradients of `module`, the model or a part of it, as tensors for its optimizer. What is
    /// large is not copied; afterwards it is gone from here.
    pub fn take<M: Module>(&mut self, module: &M) -> GradientsParams {
        self.norm = None;
        let mut unflatten = Unflatten {
            flat: self,
            gradients: GradientsParams::new(),
        };
        module.visit(&mut unflatten);
        unflatten.gradients
    }

    /// The values of a parameter that trains.
    fn take_values(&mut self, id: ParamId) -> Option<Vec<f32>> {
        let wanted = |parameter: &Parameter| parameter.id == id && parameter.trains;
        let parameter = self
            .parameters
            .remove(self.parameters.iter().position(wanted)?);
        let bucket = &mut self.buckets[parameter.bucket];
        Some(match bucket.len() == parameter.values.len() {
            true => mem::take(bucket),
            false => bucket[parameter.values].to_vec(),
        })
    }
}

/// In parts that vector instructions sum at once, always the same ones.
#[inline(always)]
fn sum_of_squares(values: &[f32]) -> f64 {
    let square = |value: &f32| f64::from(*value) * f64::from(*value);
    let (whole, rest) = values.as_chunks::<16>();
    let mut sums = [0.0; 16];
    for values in whole {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += square(value);
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(square).sum::<f64>()
}

struct Flatten {
    flat: FlatGradients,
    /// The bucket for small parameters that was begun last.
    small: Option<usize>,
    gradients: Gradients,
    path: Vec<String>,
    /// What is read of each device, and for which parameters.
    reads: Vec<Read>,
}

struct Read {
    device: Device,
    transaction: Transaction,
    parameters: Vec<usize>,
}

impl Flatten {
    /// The bucket for a parameter of `len` values, and where in it.
    fn place(&mut self, len: usize) -> (usize, Range<usize>) {
        let buckets = &mut self.flat.buckets;
        if len >= BUCKET_LEN {
            // Filled by the gradient itself, which is read later.
            buckets.push(Vec::new());
            return (buckets.len() - 1, 0..len);
        }
        let begun = self
            .small
            .filter(|small| buckets[*small].len() + len <= BUCKET_LEN);
        let small = begun.unwrap_or_else(|| {
            buckets.push(Vec::new());
            buckets.len() - 1
        });
        self.small = Some(small);
        let start = buckets[small].len();
        buckets[small].resize(start + len, 0.0);
        (small, start..start + len)
    }

    fn read_later<const D: usize>(&mut self, gradient: Tensor<D>, parameter: usize) {
        let device = gradient.device();
        let mut read = match self.reads.iter().position(|read| read.device == device) {
            Some(place) => self.reads.swap_remove(place),
            None => Read {
                device,
                transaction: Transaction::default(),
                parameters: Vec::new(),
            },
        };
        read.transaction = read.transaction.register(gradient);
        read.parameters.push(parameter);
        self.reads.push(read);
    }

    fn read(mut self) -> Result<FlatGradients> {
        for read in self.reads {
            let all = read.transaction.try_execute();
            let all = all.context("cannot read the gradients")?;
            for (parameter, data) in read.parameters.into_iter().zip(all) {
                let parameter = &self.flat.parameters[parameter];
                let gradient = data.convert::<f32>().try_into_vec::<f32>();
                let gradient = gradient
                    .with_context(|| format!("cannot read the gradient of `{}`", parameter.path))?;
                let bucket = &mut self.flat.buckets[parameter.bucket];
                match bucket.is_empty() {
                    true => *bucket = gradient,
                    false => bucket[parameter.values.clone()].copy_from_slice(&gradient),
                }
            }
        }
        for parameter in &self.flat.parameters {
            let bucket = &mut self.flat.buckets[parameter.bucket];
            bucket.resize(bucket.len().max(parameter.values.end), 0.0);
        }
        Ok(self.flat)
    }
}

impl ModuleVisitor for Flatten {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            return;
        }
        let len = param.lazy_shape().num_elements();
        let (bucket, values) = self.place(len);
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            self.read_later(gradient, self.flat.parameters.len());
        }
        self.flat.parameters.push(Parameter {
            path: self.path.join("."),
            id: param.id,
            bucket,
            values,
            trains: true,
        });
    }
}

struct Unflatten<'a> {
    flat: &'a mut FlatGradients,
    gradients: GradientsParams,
}

impl ModuleVisitor for Unflatten<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(values) = self.flat.take_values(param.id) {
            let data = TensorData::new(values, param.lazy_shape());
            let device = param.lazy_device().without_autodiff();
            self.gradients
                .register(param.id, Tensor::<D>::from_data(data, &device));
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Int;

    use super::*;

    #[derive(Module, Debug)]
    struct Weights {
        used: Param<Tensor<1>>,
        unused: Param<Tensor<1>>,
    }

    fn weights(used: [f32; 2]) -> Weights {
        let device = Device::flex().autodiff();
        let param = |values| Param::from_tensor(Tensor::from_floats(values, &device));
        Weights {
            used: param(used),
            unused: param([1.0, 1.0]),
        }
    }

    /// The gradients of the sum of the squares of `used`.
    fn flat(model: &Weights) -> FlatGradients {
        let loss = model.used.val().square().sum();
        let gradients = GradientsParams::from_grads(loss.backward(), model);
        FlatGradients::new(model, Gradients::new().with(gradients)).unwrap()
    }

    fn gradients(used: [f32; 2]) -> FlatGradients {
        flat(&weights(used))
    }

    fn listed(gradients: &FlatGradients) -> Vec<(&str, Vec<f32>)> {
        gradients
            .iter()
            .map(|(path, values)| (path, values.to_vec()))
            .collect()
    }

    #[test]
    fn gradients_are_named_in_order_and_zero_where_there_is_none() {
        let unused = ("unused", vec![0.0, 0.0]);
        assert_eq!(
            listed(&gradients([5.0, 6.0])),
            [("used", vec![10.0, 12.0]), unused.clone()]
        );
        assert_eq!(
            listed(&gradients([7.0, 8.0])),
            [("used", vec![14.0, 16.0]), unused]
        );
    }

    fn gradient(params: &GradientsParams, of: &Param<Tensor<1>>) -> Option<Vec<f32>> {
        let gradient = params.get::<1>(of.id)?.into_data();
        Some(gradient.iter::<f32>().collect())
    }

    #[test]
    fn tensors_come_back_as_they_were_but_for_what_does_not_train() {
        let model = weights([5.0, 6.0]);
        let mut flat = flat(&model);
        let params = flat.clone().take(&model);
        assert_eq!(gradient(&params, &model.used), Some(vec![10.0, 12.0]));
        assert_eq!(gradient(&params, &model.unused), Some(vec![0.0, 0.0]));
        flat.retain(|path| path != "unused");
        let params = flat.take(&model);
        assert_eq!(gradient(&params, &model.used), Some(vec![10.0, 12.0]));
        assert_eq!(gradient(&params, &model.unused), None);
        let again = flat.take(&model);
        assert_eq!(gradient(&again, &model.used), None, "it was taken");
    }

    #[test]
    fn each_loss_feeds_its_own_network() {
        let model = weights([5.0, 6.0]);
        let [used, unused] = [&model.used, &model.unused].map(|param| param.val());
        // Both losses see both networks, as those of a generator and a discriminator do.
        let first = (used.clone() * unused.clone()).sum().backward();
        let second = (used.square() * unused).sum().backward();
        let of = |mut gradients, param: &Param<Tensor<1>>| {
            let mut own = GradientsParams::new();
            let tensor = param.val().grad_remove(&mut gradients).unwrap();
            own.register(param.id, tensor);
            own
        };
        let gradients = Gradients::new()
            .with(of(first, &model.used))
            .with(of(second, &model.unused));
        let flat = FlatGradients::new(&model, gradients).unwrap();
        assert_eq!(
            listed(&flat),
            [("used", vec![1.0, 1.0]), ("unused", vec![25.0, 36.0])]
        );
    }

    #[test]
    fn large_parameters_have_buckets_of_their_own() {
        let device = Device::flex().autodiff();
        let param = |len: usize| {
            let values = Tensor::<1, Int>::arange(0..len as i64, &device).float();
            Param::from_tensor(values / len as f64)
        };
        let large = BUCKET_LEN + 3;
        let model = vec![param(2), param(large), param(3), param(large)];
        let loss = (model[1].val().square() / 2.0).sum() + model[2].val().sum();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        let mut flat = FlatGradients::new(&model, Gradients::new().with(gradients)).unwrap();
        let lens: Vec<usize> = flat.buckets_mut().iter().map(Vec::len).collect();
        assert_eq!(lens, [5, large, large]);
        let expected: Vec<f32> = model[1].val().into_data().iter().collect();
        let listed = listed(&flat);
        let values: Vec<&[f32]> = listed.iter().map(|(_, values)| values.as_slice()).collect();
        assert_eq!(
            values,
            [&[0.0; 2], &expected[..], &[1.0; 3], &vec![0.0; large][..]]
        );
        let squares = expected.iter().map(|value| f64::from(*value).powi(2));
        let norm = (squares.sum::<f64>() + 3.0).sqrt();
        assert!((flat.global_norm() / norm - 1.0).abs() < 1e-12);
        let all: Vec<f32> = flat.values().collect();
        let again = FlatGradients::from_values(&model, &all).unwrap();
        assert!(again.iter().eq(flat.iter()));
    }

    #[test]
    fn batches_add_up() {
        let model = weights([5.0, 6.0]);
        let mut sum = flat(&model);
        sum.accumulate(&flat(&model));
        assert_eq!(listed(&sum)[0].1, [20.0, 24.0]);
    }

    #[test]
    fn clipping_scales_by_the_norm_over_all_parameters() {
        let mut gradients = gradients([1.5, 2.0]); // [3, 4], norm 5
        gradients.clip_by_global_norm(5.0);
        assert_eq!(listed(&gradients)[0].1, [3.0, 4.0]);
        gradients.clip_by_global_norm(1.0);
        assert!((gradients.global_norm() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn what_is_not_finite_is_named_skipped_or_zeroed() {
        let broken = || gradients([f32::INFINITY, 2.0]);
        let error = broken()
            .handle_non_finite(NonFinite::Error)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("the gradient of `used` holds inf"),
            "{error}"
        );
        assert!(!broken().handle_non_finite(NonFinite::Skip).unwrap());
        let mut zeroed = broken();
        assert!(zeroed.handle_non_finite(NonFinite::Zero).unwrap());
        assert_eq!(listed(&zeroed)[0].1, [0.0, 4.0]);
        assert!(
            gradients([1.0, 2.0])
                .handle_non_finite(NonFinite::Error)
                .unwrap()
        );
    }
}
