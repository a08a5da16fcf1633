//! The values of a model's gradients in flat buckets: in the memory of this process, where the CPU
//! computes, or on the devices that computed them.

use std::{borrow::Cow, mem, ops::Range};

use anyhow::Result;
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};
use rayon::prelude::*;

use super::{PIECE, collective::Collective, cross_device_ops::add, on_all_threads, read_all};
use crate::vectors::vectorized;

/// Values that small parameters have in a bucket together; a parameter of as many has its own, which
/// is the memory of its tensor.
pub(super) const BUCKET_LEN: usize = 1 << 16;

/// Where in the buckets the values of a parameter are.
#[derive(Clone)]
pub(super) struct Place {
    pub bucket: usize,
    pub values: Range<usize>,
}

/// A parameter's gradient on its way into a bucket.
pub(super) struct Flat {
    pub len: usize,
    pub device: Device,
    pub dtype: DType,
    /// Shape `[len]`; zeros where there is none.
    pub gradient: Option<Tensor<1>>,
}

#[derive(Clone)]
pub(super) enum Buckets {
    Host(Vec<Vec<f32>>),
    /// Shape `[length of the bucket]` each. Gradients of GPUs stay there: nothing waits for a copy over
    /// the bus, unless replicas are to exchange them through the memory of this process.
    OnDevices(Vec<Tensor<1>>),
}

/// Puts parameters into buckets, in their order.
pub(super) fn places(gradients: &[Flat]) -> Vec<Place> {
    let mut buckets = 0;
    // The bucket for small parameters that was begun last: of which kind, where, and its length.
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
    /// The buckets of `gradients`, which are at `places`; those of the CPU in the memory of this process.
    ///
    /// # Errors
    /// A device failed.
    pub fn new(gradients: Vec<Flat>, places: &[Place]) -> Result<Self> {
        match gradients.iter().all(|flat| flat.device == Device::flex()) {
            true => Self::read(gradients, places),
            false => Ok(Self::on_devices(gradients, places)),
        }
    }

    /// Buckets of zeros in the memory of this process.
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
                // Not copied.
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

    /// The buckets in the memory of this process, where they then stay.
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

    /// All values, one bucket after the other.
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
                Cow::Owned(values.into_data().iter().collect())
            }
        }
    }

    /// The values at `place` as a tensor of shape `shape` on `device`, for the last time: what has a
    /// bucket of its own is not copied.
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
            Buckets::Host(buckets) => Ok(sum_of_all_squares(buckets)),
            Buckets::OnDevices(tensors) => {
                let squares = tensors.iter().map(squares_of).collect();
                let squares = read_all(squares)?.into_iter().flatten();
                Ok(squares.map(f64::from).sum())
            }
        }
    }

    pub fn scale(&mut self, factor: f32) {
        match self {
            Buckets::Host(buckets) => {
                for bucket in buckets {
                    on_all_threads(bucket.len(), || {
                        let pieces = bucket.par_chunks_mut(PIECE);
                        pieces
                            .for_each(|piece| piece.iter_mut().for_each(|value| *value *= factor));
                    });
                }
            }
            Buckets::OnDevices(tensors) => replace_each(tensors, |tensor| tensor * factor),
        }
    }

    /// Sums buckets on devices over the replicas of this process. Gives the mean of the sums of squares that
    /// the replicas have then; `None` where the buckets are in the memory of this process, and not summed.
    ///
    /// # Errors
    /// A device failed.
    pub fn sum_over(&mut self, collective: &dyn Collective, place: usize) -> Result<Option<f64>> {
        let Buckets::OnDevices(tensors) = self else {
            return Ok(None);
        };
        *tensors = collective.sum(place, mem::take(tensors));
        // Equal sums, but GPUs may add their squares up in another order. All are to clip alike.
        let squares = tensors.iter().map(squares_of).reduce(|sum, one| sum + one);
        let Some(squares) = squares else {
            return Ok(Some(0.0));
        };
        let mean = collective.sum(place, vec![squares / collective.replicas() as f64]);
        Ok(read_all(mean)?.concat().first().copied().map(f64::from))
    }

    /// Forgets all values, to make room for those of another replica.
    pub fn clear(&mut self) {
        let count = match self {
            Buckets::Host(buckets) => buckets.len(),
            Buckets::OnDevices(tensors) => tensors.len(),
        };
        *self = Buckets::Host(vec![Vec::new(); count]);
    }

    /// Puts zero in the place of what is not finite.
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

/// Shape `[1]`, in single precision whatever that of the bucket.
fn squares_of(bucket: &Tensor<1>) -> Tensor<1> {
    bucket.clone().cast(DType::F32).square().sum()
}

fn sum_of_all_squares(buckets: &[Vec<f32>]) -> f64 {
    // The same pieces whatever the threads, so that the sum has the same bits.
    let pieces = buckets.iter().flat_map(|bucket| bucket.chunks(PIECE));
    let pieces: Vec<&[f32]> = pieces.collect();
    let squares: Vec<f64> = on_all_threads(pieces.len() * PIECE, || {
        let pieces = pieces.into_par_iter();
        pieces
            .map(|piece| vectorized!(sum_of_squares(piece)))
            .collect()
    });
    squares.into_iter().sum()
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
