//! Reads of values from devices. Each waits for all queued work of a GPU, which then idles until the next
//! operations come: the losses and norms of training are read by interval and all at once.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use burn::tensor::{Device, Tensor, TensorData, Transaction, kind::Basic};

use super::is_cpu;

/// Reads of GPUs in this process.
static READS: AtomicU64 = AtomicU64::new(0);

/// Updates between two reads without `--log-every`. It bounds the work queued on a GPU, which a stop request
/// waits for.
const INTERVAL: usize = 64;

static UPDATES_BETWEEN: AtomicUsize = AtomicUsize::new(INTERVAL);

/// The number of reads of GPUs in this process, for tests and profiles. Those of a task's own code are counted if
/// they are by [`read_all`] or [`read_data`].
pub fn reads() -> u64 {
    READS.load(Ordering::Relaxed)
}

/// The number of updates after which values that need not be exact at each are read.
pub(crate) fn updates_between_reads() -> usize {
    UPDATES_BETWEEN.load(Ordering::Relaxed)
}

/// Sets [`updates_between_reads`] to those of `--log-every`, if given.
pub(crate) fn set_updates_between_reads(log_every: Option<usize>) {
    UPDATES_BETWEEN.store(log_every.unwrap_or(INTERVAL), Ordering::Relaxed);
}

/// The data of a tensor of any kind, in one read.
///
/// # Errors
/// A device failed.
pub fn read_data<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> Result<TensorData> {
    let device = tensor.device();
    count(&device);
    #[allow(clippy::disallowed_methods, reason = "it is counted")]
    let data = tensor.try_into_data();
    data.with_context(|| format!("cannot read from {device:?}"))
}

/// Counts a read that waits for a GPU.
fn count(device: &Device) {
    if !is_cpu(&[device.clone().without_autodiff()]) {
        READS.fetch_add(1, Ordering::Relaxed);
    }
}

/// The values of `tensors`, in one read per device.
///
/// # Errors
/// A device failed.
pub fn read_all(tensors: Vec<Tensor<1>>) -> Result<Vec<Vec<f32>>> {
    let mut all = vec![Vec::new(); tensors.len()];
    let mut reads: Vec<Read> = Vec::new();
    for (place, tensor) in tensors.into_iter().enumerate() {
        // A transaction is of one backend, and a device is equal to itself with autodiff.
        let tensor = match tensor.device().is_autodiff() {
            true => tensor.inner(),
            false => tensor,
        };
        let device = tensor.device();
        let mut read = match reads.iter().position(|read| read.device == device) {
            Some(at) => reads.swap_remove(at),
            None => Read::of(device),
        };
        read.transaction = read.transaction.register(tensor);
        read.places.push(place);
        reads.push(read);
    }
    for read in reads {
        count(&read.device);
        let values = read.transaction.try_execute();
        let values = values.with_context(|| format!("cannot read from {:?}", read.device))?;
        for (place, data) in read.places.into_iter().zip(values) {
            let values = data.convert::<f32>().try_into_vec();
            all[place] = values.context("a tensor is not of f32")?;
        }
    }
    Ok(all)
}

/// The tensors of one device, and their indices in the result.
struct Read {
    device: Device,
    transaction: Transaction,
    places: Vec<usize>,
}

impl Read {
    fn of(device: Device) -> Self {
        Read {
            device,
            transaction: Transaction::default(),
            places: Vec::new(),
        }
    }
}
