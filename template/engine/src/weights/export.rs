//! The command `export`.

use anyhow::{Context, Result, anyhow, ensure};
use burn::{module::Module, tensor::Device};
use burn_store::{ModuleSnapshot, SafetensorsStore};

use super::{
    file::Layout,
    fit::{names, to_pytorch},
};
use crate::{
    checkpoint::Checkpoints,
    ema::Weights,
    options::{Export, Options, WeightFormat},
    report::terminal,
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
    write(&model, export)?;
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
        "{file} has the {count} {which} of {checkpoint}{note}"
    ))
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

/// Writes the weights of `model` atomically.
pub(super) fn write<M: Module>(model: &M, export: &Export) -> Result<()> {
    let store = SafetensorsStore::from_file(&export.output).overwrite(export.force);
    let mut store = match export.format {
        WeightFormat::Safetensors => store,
        // The metadata that PyTorch's programs expect.
        WeightFormat::PytorchNames => store
            .clear_metadata()
            .metadata("format", "pt")
            .skip_enum_variants(true)
            .with_to_adapter(to_pytorch()),
    };
    model
        .save_into(&mut store)
        .map_err(|error| anyhow!("{error}"))
        .with_context(|| format!("cannot write {}", export.output.display()))
}
