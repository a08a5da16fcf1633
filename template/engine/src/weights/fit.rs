//! Loading of tensors into a model by name, and what fitted.

use anyhow::{Result, bail};
use burn::{
    module::Module,
    tensor::{DType, Shape},
};
use burn_store::{
    Applier, ApplyError, BurnToPyTorchAdapter, FloatCastAdapter, ModuleAdapter, ModuleContext,
    ModuleSnapshot, PyTorchToBurnAdapter, burn_pack::Tensor,
};

use super::{
    file::Layout,
    names::{NORMALISATION, Names},
};
use crate::similar::nearest;

/// Names in a list of a message.
const LISTED: usize = 10;

/// Comparison of the tensors of a file with the weights of a model.
#[derive(Debug, Default)]
pub struct Fit {
    /// Names of the weights that were loaded.
    pub applied: Vec<String>,
    /// Names of those of the model that the file lacks.
    missing: Vec<String>,
    /// Names of those of the file that the model lacks.
    unused: Vec<String>,
    /// Names with the shapes in the model and in the file.
    misshapen: Vec<(String, Shape, Shape)>,
    /// Element types other than 32-bit floats, and the number of loaded tensors of each.
    converted: Vec<(DType, usize)>,
}

/// The names and shapes of all weights of `model`, as in files of this layout.
pub fn names<M: Module>(model: &M, layout: Layout) -> Names {
    let tensors = model.collect(None, None, layout == Layout::PyTorch);
    tensors
        .into_iter()
        .map(|tensor| (tensor.name, tensor.shape))
        .collect()
}

/// Loads `tensors` into `model` by name, as 32-bit floats.
///
/// # Errors
/// The values of a tensor cannot be read.
pub fn apply<M: Module>(model: M, mut tensors: Vec<Tensor>, layout: Layout) -> Result<(M, Fit)> {
    let mut converted = Vec::new();
    for tensor in &mut tensors {
        // The parameters keep their ids.
        tensor.param_id = None;
        converted.push((tensor.name.clone(), tensor.dtype));
    }
    let cast = FloatCastAdapter::to(DType::F32);
    let adapter: Box<dyn ModuleAdapter> = match layout {
        Layout::Burn => Box::new(cast),
        Layout::PyTorch => Box::new(PyTorchToBurnAdapter.chain(InstanceNorms).chain(cast)),
    };
    let mut applier = Applier::new(tensors, None, Some(adapter), layout == Layout::PyTorch);
    let model = model.map(&mut applier);
    let result = applier.into_result();
    let mut fit = Fit {
        applied: result.applied,
        missing: result.missing.into_iter().map(|(name, _)| name).collect(),
        unused: result.unused,
        ..Fit::default()
    };
    for error in result.errors {
        match error {
            ApplyError::ShapeMismatch {
                path,
                expected,
                found,
            } => fit.misshapen.push((path, expected, found)),
            error => bail!("{error}"),
        }
    }
    converted.retain(|(name, dtype)| {
        dtype.is_float() && *dtype != DType::F32 && !fit.unused.contains(name)
    });
    for (_, dtype) in converted {
        match fit.converted.iter_mut().find(|(other, _)| *other == dtype) {
            Some((_, count)) => *count += 1,
            None => fit.converted.push((dtype, 1)),
        }
    }
    Ok((model, fit))
}

impl Fit {
    /// Whether the file has each weight of the model.
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty() && self.misshapen.is_empty()
    }

    /// Lines for the user: the numbers, and the first names of what does not fit.
    pub fn lines(&self, of_model: &Names) -> Vec<String> {
        let mut lines = vec![format!(
            "  matched    {} of the {} weights of the model",
            self.applied.len(),
            of_model.len()
        )];
        lines.extend(list("missing", &self.missing, |name| {
            match nearest(name, self.unused.iter().map(String::as_str)) {
                Some((_, other)) => format!("`{name}` (the file has `{other}`)"),
                None => format!("`{name}`"),
            }
        }));
        lines.extend(list("misshapen", &self.misshapen, |(name, here, there)| {
            let (here, there) = (&here[..], &there[..]);
            format!("`{name}`: {here:?} in the model, {there:?} in the file")
        }));
        lines.extend(list("unused", &self.unused, |name| format!("`{name}`")));
        for (dtype, count) in &self.converted {
            let from = format!("{dtype:?}").to_lowercase();
            lines.push(format!("  converted  {count} from {from} to f32"));
        }
        lines
    }
}

/// The number and the first of `items`; none without items.
fn list<I>(title: &str, items: &[I], show: impl Fn(&I) -> String) -> Option<String> {
    let names: Vec<String> = items.iter().take(LISTED).map(show).collect();
    let more = match items.len().saturating_sub(LISTED) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let (count, names) = (items.len(), names.join(", "));
    (count > 0).then(|| format!("  {title:<10} {count}: {names}{more}"))
}

/// Names of instance normalisation, which the adapters of `burn-store` leave as they are: PyTorch's weight and bias
/// are Burn's gamma and beta.
#[derive(Clone, Debug)]
pub struct InstanceNorms;

fn is_instance_norm(module_type: &str) -> bool {
    module_type == "Struct:InstanceNorm"
}

impl ModuleAdapter for InstanceNorms {
    /// Gives the names of PyTorch on export; on import, the applier has found the tensor.
    fn adapt(&self, mut tensor: Tensor, context: ModuleContext<'_>) -> Tensor {
        if context.module_type().is_some_and(is_instance_norm) {
            for (burn, pytorch) in NORMALISATION {
                if let Some(layer) = tensor.name.strip_suffix(burn) {
                    tensor.name = format!("{layer}{pytorch}");
                    break;
                }
            }
        }
        tensor
    }

    fn get_alternative_param_name(&self, name: &str, module_type: &str) -> Option<String> {
        let mut known = NORMALISATION.into_iter();
        let known = known.find(|(burn, _)| *burn == name && is_instance_norm(module_type));
        known.map(|(_, pytorch)| pytorch.to_owned())
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}

/// The adapter that gives PyTorch's names and layouts.
pub fn to_pytorch() -> impl ModuleAdapter {
    BurnToPyTorchAdapter.chain(InstanceNorms)
}
