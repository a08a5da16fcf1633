//! The command `export`.

use std::{borrow::Cow, collections::HashMap};

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::{
    module::Module,
    tensor::{BoolStore, DType, Device, TensorData},
};
use burn_store::{
    ModuleSnapshot, SafetensorsStore, bridge,
    burn_pack::{AtomicFile, Tensor},
};
use safetensors::{Dtype, View, serialize_to_file};

use super::{
    WeightNames,
    file::Layout,
    fit::{names, to_pytorch},
    fused,
    reversed::reversed,
};
use crate::{
    checkpoint::Checkpoints,
    console::terminal,
    ema::Weights,
    options::{Export, Options, WeightFormat},
    task::{Task, TrainState},
};

/// Writes the weights of a checkpoint to a file of another format, and says which: the averaged ones if it has any, or
/// those of `--weights`. `create` creates the model on the CPU.
///
/// # Errors
/// The checkpoint cannot be used or lacks the weights, or the file exists or cannot be written.
pub fn export<T: Task>(
    options: &Options,
    export: &Export,
    create: impl FnOnce(&Device) -> Result<T::Trainable>,
) -> Result<()> {
    terminal::print(exported::<T>(options, export, create)?);
    Ok(())
}

/// As [`export`]; returns what to say.
pub(super) fn exported<T: Task>(
    options: &Options,
    export: &Export,
    create: impl FnOnce(&Device) -> Result<T::Trainable>,
) -> Result<String> {
    ensure_free(export)?;
    let checkpoint = Checkpoints::new::<T>(options).find(&export.checkpoint)?;
    let created = create(&Device::flex())?.model().clone();
    let model = checkpoint.load_model(created)?.valid();
    let names_note = write_or_say_why_not(&model, export, T::WEIGHT_NAMES)?;
    let count = names(&model, Layout::Burn).len();
    let (which, note) = match (checkpoint.weights()?, checkpoint.has_averages()) {
        (Weights::Ema, _) => (
            "averaged weights",
            "; --weights model exports those of the last update",
        ),
        (Weights::Model, true) => (
            "weights of the last update",
            "; --weights ema exports the averaged ones",
        ),
        (Weights::Model, false) => ("weights", ""),
    };
    let (file, checkpoint) = (export.output.display(), checkpoint.path.display());
    Ok(format!(
        "{file} has the {count} {which} of {checkpoint}{note}{names_note}"
    ))
}

/// As [`write`]. If `names` cannot be read backwards, the weights have the names of the model; returns what to say.
pub(super) fn write_or_say_why_not<M: Module>(
    model: &M,
    export: &Export,
    names: WeightNames,
) -> Result<String> {
    if export.format == WeightFormat::PytorchNames
        && let Err(error) = of_pytorch(model, names)
    {
        write(model, export, &[])?;
        return Ok(format!(
            "\nits names are those of src/model.rs, in the layers of PyTorch: {error:#}"
        ));
    }
    write(model, export, names)?;
    Ok(String::new())
}

pub(super) fn ensure_free(export: &Export) -> Result<()> {
    let path = export.output.display();
    ensure!(
        !export.output.is_dir(),
        "cannot write {path}: it is a folder"
    );
    ensure!(
        export.force || export.output.symlink_metadata().is_err(),
        "{path} exists: choose another --output, or --force to replace it"
    );
    Ok(())
}

/// Writes the weights of `model` atomically. With the names of PyTorch, these are before the renames `names`.
pub(super) fn write<M: Module>(model: &M, export: &Export, names: WeightNames) -> Result<()> {
    let written = match export.format {
        WeightFormat::Safetensors => {
            let store = SafetensorsStore::from_file(&export.output);
            let saved = model.save_into(&mut store.overwrite(export.force));
            saved.map_err(|error| anyhow!("{error}"))
        }
        WeightFormat::PytorchNames => {
            of_pytorch(model, names).and_then(|tensors| write_for_pytorch(tensors, export))
        }
    };
    written.with_context(|| format!("cannot write {}", export.output.display()))
}

/// The weights of `model` with the names and layouts of PyTorch's layers, before the renames `names`.
pub(super) fn of_pytorch<M: Module>(model: &M, names: WeightNames) -> Result<Vec<Tensor>> {
    let split = model.collect(None, Some(Box::new(to_pytorch())), true);
    reversed(fused::join(split, model), names)
}

/// Writes a safetensors file with the metadata that PyTorch's programs expect. All values are in memory at once.
fn write_for_pytorch(tensors: Vec<Tensor>, export: &Export) -> Result<()> {
    let tensors: Result<Vec<_>> = tensors.into_iter().map(Values::read).collect();
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let (file, handle) = AtomicFile::create(&export.output)?;
    // Windows replaces no file that is open.
    drop(handle);
    serialize_to_file(tensors?, Some(metadata), file.path())?;
    match export.force {
        true => file.commit()?,
        false => file.commit_new()?,
    }
    Ok(())
}

/// The values of a tensor in a safetensors file.
struct Values {
    dtype: Dtype,
    shape: Vec<usize>,
    data: TensorData,
}

impl Values {
    /// With the name of the tensor.
    fn read(tensor: Tensor) -> Result<(String, Self)> {
        let name = tensor.name.clone();
        let values = Values {
            dtype: dtype_of(tensor.dtype).with_context(|| format!("cannot write `{name}`"))?,
            shape: tensor.shape.to_vec(),
            data: bridge::into_data(tensor)?,
        };
        Ok((name, values))
    }
}

impl View for Values {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.data.as_bytes().into()
    }

    fn data_len(&self) -> usize {
        self.data.as_bytes().len()
    }
}

/// The element type in a safetensors file.
///
/// # Errors
/// There is none, as for quantized values.
fn dtype_of(dtype: DType) -> Result<Dtype> {
    Ok(match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 | DType::Flex32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::I8 => Dtype::I8,
        DType::U64 => Dtype::U64,
        DType::U32 => Dtype::U32,
        DType::U8 => Dtype::U8,
        DType::Bool(BoolStore::Native) => Dtype::BOOL,
        DType::Bool(BoolStore::U32) => Dtype::U32,
        DType::Bool(BoolStore::U8) => Dtype::U8,
        other => bail!("safetensors files have no values of type {other:?}"),
    })
}
