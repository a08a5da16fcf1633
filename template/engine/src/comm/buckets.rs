//! Gradient buckets: flat values of a model's gradients, in host memory for the CPU or on the GPU that
//! computed them.

use std::{borrow::Cow, mem, ops::Range};

use anyhow::{Result, ensure};
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};
use kiln_kernels::elementwise::{add, scale, sum_of_squares};

use super::{collective::Collective, exchange::ExchangePrecision};
use crate::device::{read_all, read_data};

/// Capacity of a bucket of small parameters, in values; a parameter of at least this size has its own
/// bucket, which is the memory of its tensor.
pub(crate) const BUCKET_LEN: usize = 1 << 16;

/// The bucket and offset of a parameter's values.
#[derive(Clone)]
pub(crate) struct Place {
    pub bucket: usize,
    pub values: Range<usize>,
}

/// A parameter's flattened gradient.
pub(crate) struct Flat {
    pub len: usize,
    pub device: Device,
    pub dtype: DType,
    /// Shape `[len]`; zeros if missing.
    pub gradient: Option<Tensor<1>>,
}

#[derive(Clone)]
pub(crate) enum Buckets {
    Host(Vec<Vec<f32>>),
    /// Shape `[length of the bucket]` each. Gradients stay on the GPU, without a copy to the host,
    /// unless replicas exchange them through host memory.
    OnDevices(Vec<Tensor<1>>),
}

/// Assigns parameters to buckets, in order.
pub(crate) fn places(gradients: &[Flat]) -> Vec<Place> {
    let mut buckets = 0;
    // The open bucket for small parameters: kind, index and length.
    let mut small = None;
    let places = gradients.iter().map(|flat| {
        let (kind, is_small) = ((&flat.device, flat.dtype), flat.len < BUCKET_LEN);
        let begun = small
            .filter(|(begun, _, len)| is_small && *begun == kind && len + flat.len <= BUCKET_LEN);
        let (bucket, start) = begun.map_or((buckets, 0), |(_, bucket, len)| (bucket, len));
        buckets = buckets.max(bucket + 1);
        let values = start..start + flat.len;
        if is_small {
            small = Some((kind, bucket, values.end));
        }
        Place { bucket, values }
    });
    places.collect()
}

impl Buckets {
    /// Collects `gradients` into buckets by `places`; those of the CPU in host memory.
    ///
    /// # Errors
    /// A device failed.
    pub fn new(gradients: Vec<Flat>, places: &[Place]) -> Result<Self> {
        match gradients.iter().all(|flat| flat.device == Device::flex()) {
            true => Self::read(gradients, places),
            false => Ok(Self::on_devices(gradients, places)),
        }
    }

    /// Zero buckets in host memory.
    pub fn zeros(places: &[Place]) -> Self {
        Buckets::Host(lens(places).into_iter().map(|len| vec![0.0; len]).collect())
    }

    fn read(gradients: Vec<Flat>, places: &[Place]) -> Result<Self> {
        let lens = lens(places);
        let mut buckets = vec![Vec::new(); lens.len()];
        let there = gradients.into_iter().zip(places);
        let there = there.filter_map(|(flat, place)| Some((flat.gradient?, place)));
        let (tensors, places): (Vec<_>, Vec<_>) = there.unzip();
        for (values, place) in read_all(tensors)?.into_iter().zip(places) {
            let bucket = &mut buckets[place.bucket];
            match values.len() == lens[place.bucket] {
                // Moved, not copied.
                true => *bucket = values,
                false => {
                    bucket.resize(lens[place.bucket], 0.0);
                    bucket[place.values.clone()].copy_from_slice(&values);
                }
            }
        }
        for (bucket, len) in buckets.iter_mut().zip(lens) {
            bucket.resize(len, 0.0);
        }
        Ok(Buckets::Host(buckets))
    }

    pub fn on_devices(gradients: Vec<Flat>, places: &[Place]) -> Self {
        let mut parts = vec![Vec::new(); lens(places).len()];
        for (flat, place) in gradients.into_iter().zip(places) {
            let zeros = || Tensor::zeros([flat.len], (&flat.device, flat.dtype));
            parts[place.bucket].push(flat.gradient.unwrap_or_else(zeros));
        }
        let join = |mut parts: Vec<Tensor<1>>| match parts.len() {
            1 => parts.remove(0),
            _ => Tensor::cat(parts, 0), // [bucket]
        };
        Buckets::OnDevices(parts.into_iter().map(join).collect())
    }

    /// Moves the buckets to host memory.
    ///
    /// # Errors
    /// A device failed.
    pub fn host(&mut self) -> Result<&mut Vec<Vec<f32>>> {
        if let Buckets::OnDevices(tensors) = self {
            *self = Buckets::Host(read_all(mem::take(tensors))?);
        }
        match self {
            Buckets::Host(buckets) => Ok(buckets),
            Buckets::OnDevices(_) => unreachable!("they were read"),
        }
    }

    /// All values, concatenated.
    ///
    /// # Errors
    /// A device failed.
    pub fn to_values(&self) -> Result<Vec<f32>> {
        match self {
            Buckets::Host(buckets) => Ok(buckets.concat()),
            Buckets::OnDevices(tensors) => Ok(read_all(tensors.clone())?.concat()),
        }
    }

    /// The values at `place`.
    ///
    /// # Panics
    /// A device failed.
    pub fn values(&self, place: &Place) -> Cow<'_, [f32]> {
        match self {
            Buckets::Host(buckets) => Cow::Borrowed(&buckets[place.bucket][place.values.clone()]),
            Buckets::OnDevices(tensors) => {
                let values = tensors[place.bucket].clone().slice([place.values.clone()]);
                let values = read_data(values).expect("a device that gives the gradients");
                Cow::Owned(values.iter().collect())
            }
        }
    }

    /// Takes the values at `place` as a tensor of shape `shape` on `device`; a parameter with its own
    /// bucket is moved, not copied.
    pub fn take<const D: usize>(
        &mut self,
        place: &Place,
        shape: Shape,
        device: &Device,
    ) -> Tensor<D> {
        match self {
            Buckets::Host(buckets) => {
                let bucket = &mut buckets[place.bucket];
                let values = match bucket.len() == place.values.len() {
                    true => mem::take(bucket),
                    false => bucket[place.values.clone()].to_vec(),
                };
                Tensor::from_data(TensorData::new(values, shape), device)
            }
            Buckets::OnDevices(tensors) => {
                let bucket = &mut tensors[place.bucket];
                let values = match bucket.dims() == [place.values.len()] {
                    true => mem::replace(bucket, Tensor::empty([0], device)),
                    false => bucket.clone().slice([place.values.clone()]),
                };
                values.reshape::<D, Shape>(shape)
            }
        }
    }

    /// The sum of the squares of all values.
    ///
    /// # Errors
    /// A device failed.
    pub fn sum_of_squares(&self) -> Result<f64> {
        match self {
            Buckets::Host(buckets) => Ok(sum_of_squares(buckets)),
            Buckets::OnDevices(tensors) => {
                let squares = tensors.iter().map(squares_of).collect();
                let squares = read_all(squares)?.into_iter().flatten();
                Ok(squares.map(f64::from).sum())
            }
        }
    }

    pub fn scale(&mut self, factor: f32) {
        match self {
            Buckets::Host(buckets) => buckets.iter_mut().for_each(|bucket| scale(bucket, factor)),
            Buckets::OnDevices(tensors) => replace_each(tensors, |tensor| tensor * factor),
        }
    }

    /// The sum of the squares of each bucket, `[buckets]`, on their device; `None` in host memory, on several
    /// devices, or without buckets.
    pub fn squares(&self) -> Option<Tensor<1>> {
        let Buckets::OnDevices(tensors) = self else {
            return None;
        };
        are_on_one_device(tensors).then(|| squares_of_each(tensors))
    }

    /// Multiplies all values by `factor`, `[1]`, on its device.
    pub fn scale_by(&mut self, factor: &Tensor<1>) {
        if let Buckets::OnDevices(tensors) = self {
            replace_each(tensors, |tensor| {
                let factor = factor.clone().cast(tensor.dtype());
                tensor * factor
            });
        }
    }

    /// All-reduces buckets on devices over the replicas of this process. Returns the sums of squares of the
    /// result, `[buckets]`, averaged over replicas; `None` if the buckets are in host memory, without summing
    /// them. Values and sums are rounded to `exchange`, and sent in float32.
    ///
    /// # Errors
    /// The buckets of this replica are on several devices.
    pub fn sum_over(
        &mut self,
        collective: &dyn Collective,
        place: usize,
        exchange: ExchangePrecision,
    ) -> Result<Option<Tensor<1>>> {
        let Buckets::OnDevices(tensors) = self else {
            return Ok(None);
        };
        if tensors.is_empty() {
            return Ok(Some(Tensor::empty([0], &Device::flex())));
        }
        ensure!(
            are_on_one_device(tensors),
            "the gradients of a replica are on several devices, and the devices' collective sums those of \
             one device per replica: use --cross-device-ops host"
        );
        replace_each(tensors, |tensor| exchange.round_tensor(tensor));
        *tensors = collective.sum(place, mem::take(tensors));
        replace_each(tensors, |tensor| exchange.round_tensor(tensor));
        // GPUs may add up squares in different orders; the mean makes all replicas clip alike.
        let squares = squares_of_each(tensors) / collective.replicas() as f64; // [buckets]
        Ok(collective.sum(place, vec![squares]).pop())
    }

    /// Frees all values.
    pub fn clear(&mut self) {
        let count = match self {
            Buckets::Host(buckets) => buckets.len(),
            Buckets::OnDevices(tensors) => tensors.len(),
        };
        *self = Buckets::Host(vec![Vec::new(); count]);
    }

    /// Replaces non-finite values with zero.
    pub fn zero_non_finite(&mut self) {
        match self {
            Buckets::Host(buckets) => buckets
                .iter_mut()
                .flatten()
                .filter(|value| !value.is_finite())
                .for_each(|value| *value = 0.0),
            Buckets::OnDevices(tensors) => replace_each(tensors, |tensor| {
                let broken = tensor.clone().is_finite().bool_not();
                tensor.mask_fill(broken, 0.0)
            }),
        }
    }

    /// Adds buckets of the same lengths.
    ///
    /// # Errors
    /// A device failed.
    pub fn add(&mut self, other: &Buckets) -> Result<()> {
        match (&mut *self, other) {
            (Buckets::Host(sums), Buckets::Host(values)) => add_each(sums, values),
            (Buckets::OnDevices(sums), Buckets::OnDevices(values)) => {
                let mut values = values.iter().cloned();
                replace_each(sums, |sum| match values.next() {
                    Some(values) => sum + values,
                    None => sum,
                });
            }
            _ => add_each(self.host()?, other.clone().host()?),
        }
        Ok(())
    }
}

fn add_each(sums: &mut [Vec<f32>], values: &[Vec<f32>]) {
    for (sums, values) in sums.iter_mut().zip(values) {
        add(sums, values);
    }
}

/// The length of each bucket.
fn lens(places: &[Place]) -> Vec<usize> {
    let buckets = places.iter().map(|place| place.bucket + 1).max();
    let mut lens = vec![0; buckets.unwrap_or(0)];
    for place in places {
        lens[place.bucket] = lens[place.bucket].max(place.values.end);
    }
    lens
}

fn replace_each(tensors: &mut Vec<Tensor<1>>, new: impl FnMut(Tensor<1>) -> Tensor<1>) {
    *tensors = mem::take(tensors).into_iter().map(new).collect();
}

/// False without tensors.
fn are_on_one_device(tensors: &[Tensor<1>]) -> bool {
    let device = tensors.first().map(Tensor::device);
    device.is_some_and(|device| tensors.iter().all(|tensor| tensor.device() == device))
}

/// The sum of the squares of each bucket, `[buckets]`.
fn squares_of_each(buckets: &[Tensor<1>]) -> Tensor<1> {
    Tensor::cat(buckets.iter().map(squares_of).collect(), 0)
}

/// Sum of squares, shape `[1]`, in single precision whatever that of the bucket.
fn squares_of(bucket: &Tensor<1>) -> Tensor<1> {
    bucket.clone().cast(DType::F32).square().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two replicas with equal gradients.
    struct Twins;

    impl Collective for Twins {
        fn replicas(&self) -> usize {
            2
        }

        fn sum(&self, _place: usize, tensors: Vec<Tensor<1>>) -> Vec<Tensor<1>> {
            tensors.into_iter().map(|tensor| tensor * 2.0).collect()
        }
    }

    #[test]
    fn sums_on_devices_come_with_their_squares() {
        let device = Device::flex();
        let buckets = [[1.0, 2.0], [3.0, 0.0]].map(|bucket| Tensor::from_floats(bucket, &device));
        let mut buckets = Buckets::OnDevices(buckets.into());
        let squares = buckets
            .sum_over(&Twins, 0, ExchangePrecision::Float32)
            .unwrap()
            .expect("on devices");
        assert_eq!(read_all(vec![squares]).unwrap(), [[20.0, 36.0]]);
        assert_eq!(buckets.to_values().unwrap(), [2.0, 4.0, 6.0, 0.0]);
    }

    #[test]
    fn no_buckets_have_no_squares_and_those_in_host_memory_are_not_summed() {
        let squares = Buckets::OnDevices(Vec::new())
            .sum_over(&Twins, 0, ExchangePrecision::Float32)
            .unwrap();
        assert_eq!(squares.expect("on devices").dims(), [0]);
        let mut host = Buckets::Host(vec![vec![1.0]]);
        assert!(
            host.sum_over(&Twins, 0, ExchangePrecision::Float32)
                .unwrap()
                .is_none()
        );
        assert_eq!(host.to_values().unwrap(), [1.0]);
    }
}
