use anyhow::{Context, Result};
use burn::tensor::{Device, Tensor, Transaction};

/// The values of `tensors`, in one read per device: each read waits for all queued work of a GPU.
///
/// # Errors
/// A device failed.
pub fn read_all(tensors: Vec<Tensor<1>>) -> Result<Vec<Vec<f32>>> {
    let mut all = vec![Vec::new(); tensors.len()];
    let mut reads: Vec<Read> = Vec::new();
    for (place, tensor) in tensors.into_iter().enumerate() {
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
