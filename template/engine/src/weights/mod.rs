//! Weights in files: initial weights of a training (`--init-from`), and `export`.
//!
//! Files are read and written by `burn-store`: safetensors, PyTorch's `.pt`, and burnpack, as in checkpoints. Nothing
//! in a file is executed: its reader interprets the pickle of a `.pt` as data.

mod export;
mod file;
mod fit;
mod fused;
mod names;
mod reversed;
#[cfg(test)]
mod tests;

use std::{path::Path, sync::Arc};

use anyhow::{Context, Result, bail, ensure};
use burn::{module::Module, tensor::Device};
use burn_store::ModuleSnapshot;
use serde::{Deserialize, Serialize};

use crate::{
    checkpoint::{Files, MODEL, Which, load_model, model_files},
    globals,
    model::{TRAINED_OR_FROZEN, first_non_finite, non_finite, running_statistics},
    options::{Export, Options, WeightFormat},
    task::Task,
};
use file::WeightFile;

pub use export::export;

pub use crate::{run_record::InitialWeights, task::WeightNames};

/// The initial weights of all processes.
#[derive(Serialize, Deserialize)]
struct Initial {
    record: InitialWeights,
    files: Files,
    /// Lines for the user.
    lines: Vec<String>,
}

/// Loads the weights of `--init-from` on all replicas of all processes; `None` without that option. The chief reads
/// the file. Returns its record and lines for the user.
///
/// # Errors
/// The file cannot be read, or does not fit the model.
pub(crate) fn initialise<T: Task>(
    options: &Options,
) -> Result<Option<(InitialWeights, Vec<String>)>> {
    let Some(path) = &options.init_from else {
        ensure!(
            !options.init_partial,
            "--init-partial needs a file of weights: --init-from FILE"
        );
        return Ok(None);
    };
    let strategy = globals::strategy()?;
    let initial = strategy.read_by_chief("the initial weights", || {
        read::<T>(path, options.init_partial)
    })?;
    let files = Arc::new(initial.files);
    globals::strategy()?.run_on_all(move |_| {
        globals::update_model::<T>(|model| load_model(model, &files, MODEL))
    })?;
    Ok(Some((initial.record, initial.lines)))
}

/// Reads a file and fits its weights to the model of the first replica.
fn read<T: Task>(path: &Path, partial: bool) -> Result<Initial> {
    let cannot = || format!("cannot start from {}", path.display());
    let file = file::read(path).with_context(cannot)?;
    let record = InitialWeights {
        file: path.display().to_string(),
        sha256: file.sha256.clone(),
    };
    let fitted = globals::strategy()?.run_on_first(move |_| {
        let model = globals::model::<T>()?;
        // Not an error of the replica.
        Ok(fitted(model, file, T::WEIGHT_NAMES, partial)
            .and_then(|(model, lines)| Ok((model_files(model)?, lines))))
    })?;
    let (files, mut lines) = fitted.with_context(cannot)?;
    lines.insert(0, format!("initial weights from {}:", path.display()));
    Ok(Initial {
        record,
        files,
        lines,
    })
}

/// `model` with the weights of the file at `path`, of any format of `--init-from`, as for a part of a model that was
/// trained elsewhere; `names` are renames, such as `WEIGHT_NAMES` of a project.
///
/// # Errors
/// The file cannot be read, or lacks a weight of the model or has it in another shape; the message lists what fits.
pub fn load<M: Module>(model: M, path: &Path, names: WeightNames) -> Result<M> {
    let cannot = || format!("cannot load {}", path.display());
    let trains = model.devices().iter().any(Device::is_autodiff);
    let file = file::read(path).with_context(cannot)?;
    let (model, _) = fitted(model, file, names, false).with_context(cannot)?;
    Ok(match trains {
        true => model.train(),
        false => model,
    })
}

/// Writes the weights of `model` to a new file at `path`, atomically, as `export` does. With the names of PyTorch, they
/// are those from which the renames `names`, as of [`load`], make the names of the model.
///
/// # Errors
/// The file exists or cannot be written, or `names` cannot be read backwards.
pub fn save<M: Module>(
    model: &M,
    path: &Path,
    format: WeightFormat,
    names: WeightNames,
) -> Result<()> {
    let export = Export {
        output: path.to_owned(),
        format,
        checkpoint: Which::Latest,
        force: false,
    };
    export::ensure_free(&export)?;
    export::write(&model.valid(), &export, names)
}

/// The model with the weights of a file, without autodiff, and lines that list what fits and what does not. With
/// `partial`, parameters that the file lacks or has in another shape keep their values.
fn fitted<M: Module>(
    model: M,
    file: WeightFile,
    names: WeightNames,
    partial: bool,
) -> Result<(M, Vec<String>)> {
    let layout = file.layout;
    let of_model = fit::names(&model, layout);
    let renamed = names::renamed(file.tensors, &of_model, layout, names)?;
    let read = format!(
        "  read       {} tensors: {}",
        renamed.tensors.len(),
        file.format
    );
    // A copy: clones of a model share their running statistics.
    let (model, fit) = fit::apply(model.valid(), renamed.tensors, layout)?;
    let lines: Vec<String> = [read]
        .into_iter()
        .chain(renamed.notes.iter().map(|note| format!("  {note}")))
        .chain(fit.lines(&of_model))
        .collect();
    if fit.applied.is_empty() {
        bail!(
            "no weight in it fits the model in src/model.rs\n{}\n{}",
            lines.join("\n"),
            "map its names at WEIGHT_NAMES in src/model.rs"
        );
    }
    if !fit.is_whole() && !partial {
        bail!(
            "it does not fit the model in src/model.rs\n{}\n{}",
            lines.join("\n"),
            "map its names at WEIGHT_NAMES in src/model.rs; or, with --init-partial, what is missing or misshapen \
             keeps its initial values"
        );
    }
    ensure_finite(&model)?;
    Ok((model, lines))
}

/// Checks the names that a task maps to: each pattern is a regular expression, and each replacement is part of the name
/// of a weight of `model`, as Burn or PyTorch name it.
///
/// # Errors
/// The first of `names` that does not fit; the message names the site.
pub fn ensure_names<M: Module>(model: &M, names: WeightNames) -> Result<()> {
    let of_pytorch = export::of_pytorch(model, &[])?;
    let of_burn = model.collect(None, None, true);
    let all = of_burn.into_iter().chain(of_pytorch);
    let of_model: Vec<String> = all.map(|tensor| tensor.name).collect();
    names::ensure_replacements(&of_model, names)
}

/// Checks that all values are finite, as nothing trains from others.
fn ensure_finite<M: Module>(model: &M) -> Result<()> {
    let model = model.clone().train();
    if let Some((path, value)) = first_non_finite(&model, TRAINED_OR_FROZEN)? {
        bail!("its `{path}` holds {value}");
    }
    let statistics = running_statistics(&model);
    if let Some(value) = non_finite(&statistics) {
        bail!("its running statistics hold {value}");
    }
    Ok(())
}
