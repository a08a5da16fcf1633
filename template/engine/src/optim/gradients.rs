//! Gradients of a step: flat buckets, their norm, and the policy for those that are not finite.

use std::{
    borrow::Cow,
    error::Error,
    fmt::{self, Display, Formatter},
    sync::Arc,
};

use anyhow::{Result, bail, ensure};
use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    optim::GradientsParams,
    tensor::Tensor,
};
use indexmap::IndexMap;

use super::updates::{set_gradient_norm, set_unread_gradient_norm};
use crate::{
    comm::{
        ExchangePrecision,
        buckets::{Buckets, Flat, Place, places},
        collective::Collective,
    },
    device::{read_all, updates_between_reads},
};

/// The policy for gradients that are not finite after the sum over replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonFinite {
    /// Stop with an error that names the parameter.
    Error,
    /// Skip the update and continue with the next step.
    Skip,
    /// Replace non-finite values by zero.
    Zero,
}

impl NonFinite {
    /// Applies the policy to the metrics of a validation, whose loss reveals parameters that became
    /// non-finite in the last update.
    ///
    /// # Errors
    /// With [`NonFinite::Error`], a loss is not finite. Losses are the first metric and those with `loss` in
    /// their names.
    pub fn handle_validation(self, metrics: &IndexMap<String, f64>) -> Result<()> {
        let is_loss =
            |(place, (name, _)): &(usize, (&String, &f64))| *place == 0 || name.contains("loss");
        let mut losses = metrics.iter().enumerate().filter(is_loss);
        match losses.find(|(_, (_, value))| !value.is_finite()) {
            Some((_, (name, value))) if self == NonFinite::Error => bail!(
                "the `{name}` of the validation is {value}: the training has diverged, or an example of \
                 the validation is not finite; resume from an earlier checkpoint with --resume and a lower \
                 --learning-rate, or choose another `NonFinite` policy at TODO(train.gradients)"
            ),
            _ => Ok(()),
        }
    }
}

/// The gradients of a step: of one model, or of several networks with separate losses.
#[derive(Default)]
pub struct Gradients(Vec<GradientsParams>);

impl Gradients {
    /// Creates an empty set; [`with`](Self::with) adds gradients.
    pub fn new() -> Self {
        Gradients::default()
    }

    /// Adds the gradients of a network, from `GradientsParams::from_grads`.
    #[must_use]
    pub fn with(mut self, gradients: GradientsParams) -> Self {
        self.0.push(gradients);
        self
    }

    /// The gradient of a parameter, summed over losses.
    pub(crate) fn get<const D: usize>(&self, id: ParamId) -> Option<Tensor<D>> {
        let of_each = self.0.iter().filter_map(|one| one.get::<D>(id));
        of_each.reduce(|sum, one| sum + one)
    }

    /// Removes the gradient of a parameter, summed over losses.
    fn remove<const D: usize>(&mut self, id: ParamId) -> Option<Tensor<D>> {
        let of_each = self.0.iter_mut().filter_map(|one| one.remove::<D>(id));
        of_each.reduce(|sum, one| sum + one)
    }
}

/// The gradients of a model in flat buckets, on the host or on the devices that computed them.
///
/// The buckets follow the model's fields and are equal on all replicas. A parameter without gradient, as on
/// a replica without examples, has zeros.
#[derive(Clone)]
pub struct FlatGradients {
    buckets: Buckets,
    parameters: Vec<Parameter>,
    /// Cached until the values change.
    norm: Norm,
}

/// The Euclidean norm over all values, as far as it is known.
#[derive(Clone, Default)]
struct Norm {
    read: Option<f64>,
    /// The sums of squares of each bucket on their device, `[buckets]`. It stays beside the value, as clipping
    /// must not depend on whether that was read.
    squares: Option<Box<Tensor<1>>>,
}

/// Check of a gradient norm, which is read some updates late.
pub(crate) struct NormCheck {
    policy: NonFinite,
    /// Path and bucket of each parameter.
    parameters: Vec<(Arc<str>, usize)>,
}

impl NormCheck {
    /// The norm of the gradients of update number `step`, from the sums of squares of their buckets.
    ///
    /// # Errors
    /// It is not finite, and the policy is an error.
    pub fn check(&self, step: usize, squares: &[f32]) -> Result<f64> {
        let norm = norm_of(squares);
        if norm.is_finite() || self.policy != NonFinite::Error {
            return Ok(norm);
        }
        let is_broken = |bucket: &usize| squares.get(*bucket).is_some_and(|sum| !sum.is_finite());
        let broken = self
            .parameters
            .iter()
            .filter(|(_, bucket)| is_broken(bucket));
        let broken: Vec<String> = broken.map(|(path, _)| format!("`{path}`")).collect();
        Err(NotFinite(format!(
            "the gradients of step {step} are not finite, among them one of {}, or above 1e19, whose squares \
             are not: {LOOK_FOR}; --log-every 1 checks each step before its update",
            broken.join(", ")
        ))
        .into())
    }
}

/// The error for gradients or a norm that is not finite, by which a search for a learning rate knows divergence.
#[derive(Debug)]
pub(crate) struct NotFinite(String);

impl Display for NotFinite {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

impl Error for NotFinite {}

/// Causes of gradients that are not finite, and what to do.
const LOOK_FOR: &str = "look for a division by zero, a logarithm of zero or a learning rate that is too high, or \
                        choose another `NonFinite` policy at TODO(train.gradients)";

/// Copies the gradients of a model into its buckets.
///
/// # Errors
/// The number of values differs.
fn fill(buckets: &mut [Vec<f32>], values: &[f32]) -> Result<()> {
    let len: usize = buckets.iter().map(Vec::len).sum();
    ensure!(
        values.len() == len,
        "{} gradients came, and the model has {len} parameters",
        values.len()
    );
    let slots = buckets.iter_mut().flatten();
    slots.zip(values).for_each(|(slot, value)| *slot = *value);
    Ok(())
}

fn norm_of(squares: &[f32]) -> f64 {
    squares.iter().copied().map(f64::from).sum::<f64>().sqrt()
}

#[derive(Clone)]
struct Parameter {
    path: Arc<str>,
    id: ParamId,
    place: Place,
    /// Whether the optimizer updates the parameter.
    trains: bool,
}

impl FlatGradients {
    /// Flattens the gradients of `model`: those of the CPU into host memory; others stay on their devices
    /// until they are read.
    ///
    /// # Errors
    /// A device failed.
    pub fn new<M: Module>(model: &M, gradients: Gradients) -> Result<Self> {
        let flatten = Flatten::visit(model, gradients);
        let places = places(&flatten.flat);
        let buckets = Buckets::new(flatten.flat, &places)?;
        Ok(Self::in_buckets(buckets, flatten.parameters, places))
    }

    /// As [`new`](Self::new), but on devices even for the CPU.
    #[cfg(test)]
    pub(crate) fn on_devices<M: Module>(model: &M, gradients: Gradients) -> Result<Self> {
        let flatten = Flatten::visit(model, gradients);
        let places = places(&flatten.flat);
        let buckets = Buckets::on_devices(flatten.flat, &places);
        Ok(Self::in_buckets(buckets, flatten.parameters, places))
    }

    #[cfg(test)]
    pub(crate) fn are_on_devices(&self) -> bool {
        matches!(self.buckets, Buckets::OnDevices(_))
    }

    /// The gradients of a replica of `model` in another process, from [`to_values`](Self::to_values).
    ///
    /// # Errors
    /// The number of values differs from the model.
    pub fn from_values<M: Module>(model: &M, values: &[f32]) -> Result<Self> {
        let flatten = Flatten::visit(model, Gradients::new());
        let places = places(&flatten.flat);
        let mut buckets = Buckets::zeros(&places);
        fill(buckets.host()?, values)?;
        Ok(Self::in_buckets(buckets, flatten.parameters, places))
    }

    fn in_buckets(
        buckets: Buckets,
        parameters: Vec<(String, ParamId)>,
        places: Vec<Place>,
    ) -> Self {
        let parameters = parameters.into_iter().zip(places);
        let parameters = parameters.map(|((path, id), place)| Parameter {
            path: path.into(),
            id,
            place,
            trains: true,
        });
        FlatGradients {
            buckets,
            parameters: parameters.collect(),
            norm: Norm::default(),
        }
    }

    /// All values, concatenated.
    ///
    /// # Errors
    /// A device failed.
    pub fn to_values(&self) -> Result<Vec<f32>> {
        self.buckets.to_values()
    }

    /// The buckets, moved to host memory, to be reduced over replicas.
    ///
    /// # Errors
    /// A device failed.
    pub fn buckets_mut(&mut self) -> Result<&mut [Vec<f32>]> {
        self.norm = Norm::default();
        Ok(self.buckets.host()?)
    }

    /// All-reduces gradients on devices over the replicas of this process, in the precision `exchange`; false if
    /// they are in host memory.
    ///
    /// # Errors
    /// The gradients of this replica are on several devices.
    pub(crate) fn sum_over(
        &mut self,
        collective: &dyn Collective,
        place: usize,
        exchange: ExchangePrecision,
    ) -> Result<bool> {
        let squares = self.buckets.sum_over(collective, place, exchange)?;
        let are_on_devices = squares.is_some();
        self.norm = Norm {
            read: None,
            squares: squares.map(Box::new),
        };
        Ok(are_on_devices)
    }

    /// Frees the values.
    pub(crate) fn clear(&mut self) {
        self.norm = Norm::default();
        self.buckets.clear();
    }

    /// Applies `policy` to non-finite gradients; false skips the update. Records the global norm for reports.
    ///
    /// On a GPU, the check of [`NonFinite::Error`] comes some updates late, but before a validation or a
    /// checkpoint, so that the GPU need not wait for it; with `--log-every 1`, before the update.
    /// [`NonFinite::Skip`] waits.
    ///
    /// # Errors
    /// With [`NonFinite::Error`], a gradient is not finite; the message has parameter and value. A device
    /// failed.
    pub fn handle_non_finite(&mut self, policy: NonFinite) -> Result<bool> {
        let may_be_late = policy != NonFinite::Skip && updates_between_reads() > 1;
        if may_be_late && let Some(squares) = self.squares() {
            let parameters = self.parameters.iter();
            let parameters = parameters.map(|one| (Arc::clone(&one.path), one.place.bucket));
            let parameters = parameters.collect();
            set_unread_gradient_norm(squares, NormCheck { policy, parameters })?;
            if policy == NonFinite::Zero {
                self.norm = Norm::default();
                self.buckets.zero_non_finite();
            }
            return Ok(true);
        }
        let norm = self.norm()?;
        set_gradient_norm(norm);
        if norm.is_finite() {
            return Ok(true);
        }
        match policy {
            NonFinite::Skip => Ok(false),
            NonFinite::Zero => {
                self.norm = Norm::default();
                self.buckets.zero_non_finite();
                Ok(true)
            }
            NonFinite::Error => self.name_non_finite(),
        }
    }

    /// Whether all values are finite, and so is their norm. Waits for a GPU.
    ///
    /// # Errors
    /// A device failed.
    pub(crate) fn are_finite(&mut self) -> Result<bool> {
        Ok(self.norm()?.is_finite())
    }

    fn name_non_finite(&self) -> Result<bool> {
        for (path, values) in self.iter() {
            if let Some(value) = values.iter().find(|value| !value.is_finite()) {
                let broken = format!("the gradient of `{path}` holds {value}: {LOOK_FOR}");
                return Err(NotFinite(broken).into());
            }
        }
        let large = "the norm of the gradients is too large for a number: lower the learning rate";
        Err(NotFinite(large.to_owned()).into())
    }

    /// The Euclidean norm over all parameters.
    ///
    /// # Panics
    /// A device failed.
    pub fn global_norm(&mut self) -> f64 {
        self.norm().expect("a device that gives the norm")
    }

    fn norm(&mut self) -> Result<f64> {
        if let Some(norm) = self.norm.read {
            return Ok(norm);
        }
        let norm = match self.squares() {
            Some(squares) => norm_of(&read_all(vec![squares])?.concat()),
            None => self.buckets.sum_of_squares()?.sqrt(),
        };
        self.norm.read = Some(norm);
        Ok(norm)
    }

    /// The sums of squares of the buckets, `[buckets]`; `None` in host memory or on several devices.
    fn squares(&mut self) -> Option<Tensor<1>> {
        if self.norm.squares.is_none() {
            self.norm.squares = self.buckets.squares().map(Box::new);
        }
        self.norm.squares.as_deref().cloned()
    }

    /// Scales all gradients down so that their global norm is at most `max_norm`. On a GPU without a read.
    ///
    /// # Panics
    /// A device failed.
    ///
    /// Source: `tf.clip_by_global_norm`.
    pub fn clip_by_global_norm(&mut self, max_norm: f64) {
        if let Some(squares) = self.squares() {
            let norm = squares.sum().sqrt(); // [1]
            let factor = (norm.recip() * max_norm).clamp_max(1.0); // [1]
            self.norm = Norm::default();
            return self.buckets.scale_by(&factor);
        }
        let norm = self.global_norm();
        if norm > max_norm {
            self.norm = Norm::default();
            self.buckets.scale((max_norm / norm) as f32);
        }
    }

    /// Adds the gradients of another batch of the same model.
    ///
    /// # Errors
    /// A device failed.
    pub fn accumulate(&mut self, other: &FlatGradients) -> Result<()> {
        self.norm = Norm::default();
        self.buckets.add(&other.buckets)
    }

    /// Freezes the parameters whose path `is_trainable` rejects: their values do not change, whatever the
    /// optimizer state.
    pub fn retain(&mut self, is_trainable: impl Fn(&str) -> bool) {
        for parameter in &mut self.parameters {
            parameter.trains &= is_trainable(&parameter.path);
        }
    }

    /// The path and gradient of each parameter, read from its device.
    ///
    /// # Panics
    /// A device failed.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Cow<'_, [f32]>)> {
        let values = |parameter: &Parameter| self.buckets.values(&parameter.place);
        let parameters = self.parameters.iter();
        parameters.map(move |parameter| (&*parameter.path, values(parameter)))
    }

    /// As [`iter`](Self::iter), in memory of their own.
    ///
    /// # Panics
    /// A device failed.
    pub fn to_named(&self) -> Vec<(String, Vec<f32>)> {
        let all = self.iter();
        all.map(|(path, values)| (path.to_owned(), values.into_owned()))
            .collect()
    }

    /// Takes the gradients of `module`, the model or a part of it, as tensors for its optimizer. Large ones
    /// are moved, not copied.
    pub fn take<M: Module>(&mut self, module: &M) -> GradientsParams {
        self.norm = Norm::default();
        let mut unflatten = Unflatten {
            flat: self,
            gradients: GradientsParams::new(),
        };
        module.visit(&mut unflatten);
        unflatten.gradients
    }

    /// Removes the place of a trainable parameter.
    fn take_place(&mut self, id: ParamId) -> Option<Place> {
        let wanted = |parameter: &Parameter| parameter.id == id && parameter.trains;
        let at = self.parameters.iter().position(wanted)?;
        Some(self.parameters.remove(at).place)
    }
}

/// Collects the gradients and paths of a model's parameters, in the order of its fields.
struct Flatten {
    gradients: Gradients,
    path: Vec<String>,
    flat: Vec<Flat>,
    parameters: Vec<(String, ParamId)>,
}

impl Flatten {
    fn visit<M: Module>(model: &M, gradients: Gradients) -> Self {
        let mut flatten = Flatten {
            gradients,
            path: Vec::new(),
            flat: Vec::new(),
            parameters: Vec::new(),
        };
        model.visit(&mut flatten);
        flatten
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
        let gradient = self.gradients.remove::<D>(param.id);
        self.flat.push(Flat {
            len,
            device: param.lazy_device().without_autodiff(),
            dtype: param.dtype(),
            gradient: gradient.map(|gradient| gradient.reshape([len])),
        });
        self.parameters.push((self.path.join("."), param.id));
    }
}

struct Unflatten<'a> {
    flat: &'a mut FlatGradients,
    gradients: GradientsParams,
}

impl ModuleVisitor for Unflatten<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(place) = self.flat.take_place(param.id) {
            let device = param.lazy_device().without_autodiff();
            let shape = param.lazy_shape();
            let gradient = self.flat.buckets.take::<D>(&place, shape, &device);
            self.gradients.register(param.id, gradient);
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Int};

    use super::*;
    use crate::{
        comm::buckets::BUCKET_LEN,
        optim::{gradient_norm, read_gradient_norms, set_step},
    };

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

    type New = fn(&Weights, Gradients) -> Result<FlatGradients>;

    /// In host memory, and on devices.
    const BOTH: [New; 2] = [FlatGradients::new, FlatGradients::on_devices];

    /// The gradients of the sum of squares of `used`.
    fn flat(model: &Weights, new: New) -> FlatGradients {
        let loss = model.used.val().square().sum();
        let gradients = GradientsParams::from_grads(loss.backward(), model);
        new(model, Gradients::new().with(gradients)).unwrap()
    }

    fn gradients(used: [f32; 2], new: New) -> FlatGradients {
        flat(&weights(used), new)
    }

    fn listed(gradients: &FlatGradients) -> Vec<(&str, Vec<f32>)> {
        gradients
            .iter()
            .map(|(path, values)| (path, values.to_vec()))
            .collect()
    }

    #[test]
    fn gradients_are_named_in_order_and_zero_where_there_is_none() {
        for new in BOTH {
            let unused = ("unused", vec![0.0, 0.0]);
            assert_eq!(
                listed(&gradients([5.0, 6.0], new)),
                [("used", vec![10.0, 12.0]), unused.clone()]
            );
            assert_eq!(
                listed(&gradients([7.0, 8.0], new)),
                [("used", vec![14.0, 16.0]), unused]
            );
        }
    }

    fn gradient(params: &GradientsParams, of: &Param<Tensor<1>>) -> Option<Vec<f32>> {
        let gradient = params.get::<1>(of.id)?.into_data();
        Some(gradient.iter::<f32>().collect())
    }

    #[test]
    fn tensors_come_back_as_they_were_but_for_what_does_not_train() {
        for new in BOTH {
            let model = weights([5.0, 6.0]);
            let mut flat = flat(&model, new);
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
    }

    #[test]
    fn each_loss_feeds_its_own_network() {
        let model = weights([5.0, 6.0]);
        let [used, unused] = [&model.used, &model.unused].map(|param| param.val());
        // Both losses depend on both networks, as for a generator and a discriminator.
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
        let lens = flat.buckets_mut().unwrap().iter().map(Vec::len);
        let lens: Vec<usize> = lens.collect();
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
        let all = flat.to_values().unwrap();
        let again = FlatGradients::from_values(&model, &all).unwrap();
        assert!(again.iter().eq(flat.iter()));
    }

    #[test]
    fn batches_add_up() {
        for new in BOTH {
            let model = weights([5.0, 6.0]);
            let mut sum = flat(&model, new);
            sum.accumulate(&flat(&model, new)).unwrap();
            assert_eq!(listed(&sum)[0].1, [20.0, 24.0]);
        }
    }

    #[test]
    fn clipping_scales_by_the_norm_over_all_parameters() {
        for new in BOTH {
            let mut gradients = gradients([1.5, 2.0], new); // [3, 4], norm 5
            gradients.clip_by_global_norm(5.0);
            assert_eq!(listed(&gradients)[0].1, [3.0, 4.0]);
            gradients.clip_by_global_norm(1.0);
            assert!((gradients.global_norm() - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn reports_see_the_norm_from_before_clipping() {
        for new in BOTH {
            set_step(1);
            assert_eq!(gradient_norm().unwrap(), None);
            let mut gradients = gradients([1.5, 2.0], new); // [3, 4], norm 5
            assert!(gradients.handle_non_finite(NonFinite::Error).unwrap());
            gradients.clip_by_global_norm(1.0);
            assert_eq!(gradient_norm().unwrap(), Some(5.0));
        }
    }

    /// As on a GPU, whose queue a read would empty.
    #[test]
    fn gradients_on_devices_are_checked_and_clipped_without_a_read() {
        set_step(3);
        let mut gradients = gradients([1.5, 2.0], FlatGradients::on_devices); // [3, 4], norm 5
        assert!(gradients.handle_non_finite(NonFinite::Error).unwrap());
        gradients.clip_by_global_norm(1.0);
        assert_eq!(gradients.norm.read, None);
        assert_eq!(gradient_norm().unwrap(), Some(5.0));
        let clipped = listed(&gradients)[0].1.clone();
        assert!((clipped[0] - 0.6).abs() < 1e-6 && (clipped[1] - 0.8).abs() < 1e-6);
    }

    /// Else options of logs and policies would change parameters.
    #[test]
    fn a_norm_that_was_read_clips_to_the_same_bits() {
        let clipped = |weight: f32, policy: Option<NonFinite>| {
            let mut gradients = gradients([weight, 2.3], FlatGradients::on_devices);
            match policy {
                Some(policy) => assert!(gradients.handle_non_finite(policy).unwrap()),
                None => assert!(gradients.global_norm() > 4.6),
            }
            gradients.clip_by_global_norm(0.7);
            listed(&gradients)[0].1.clone()
        };
        // Many norms, as the factors of some have the same bits in 64 and 32 bits.
        for weight in (1..=50).map(|number| number as f32 / 7.0) {
            let late = clipped(weight, Some(NonFinite::Error));
            let before_update = clipped(weight, Some(NonFinite::Skip));
            assert_eq!(before_update, late, "{weight}, read before the update");
            assert_eq!(clipped(weight, None), late, "{weight}, read by the task");
        }
    }

    #[test]
    fn what_is_not_finite_is_named_skipped_or_zeroed() {
        for new in BOTH {
            let broken = || gradients([f32::INFINITY, 2.0], new);
            set_step(7);
            let error = broken()
                .handle_non_finite(NonFinite::Error)
                .and_then(|_| read_gradient_norms())
                .unwrap_err()
                .to_string();
            let expected = match broken().are_on_devices() {
                true => {
                    "the gradients of step 7 are not finite, among them one of `used`, `unused`, or"
                }
                false => "the gradient of `used` holds inf",
            };
            assert!(error.starts_with(expected), "{error}");
            assert!(!broken().handle_non_finite(NonFinite::Skip).unwrap());
            let mut zeroed = broken();
            assert!(zeroed.handle_non_finite(NonFinite::Zero).unwrap());
            assert_eq!(listed(&zeroed)[0].1, [0.0, 4.0]);
            assert!(
                gradients([1.0, 2.0], new)
                    .handle_non_finite(NonFinite::Error)
                    .unwrap()
            );
        }
    }
}
