//! The names of weights in files, brought to those of the model.

use std::collections::{HashMap, HashSet};

use anyhow::{Result, anyhow, bail};
use burn::tensor::Shape;
use burn_store::{KeyRemapper, burn_pack::Tensor, map_indices_contiguous};

use super::{WeightNames, file::Layout, fused};
use crate::similar::nearest;

/// Names and shapes of a model's parameters and running statistics, in the order of its fields.
pub type Names = Vec<(String, Shape)>;

/// Prefixes of wrappers around a whole network: `DataParallel`, `torch.compile`, a field of another class.
const WRAPPERS: [&str; 3] = ["module.", "_orig_mod.", "model."];

/// Keys of the weights in files that hold more, such as the state of an optimizer.
const SECTIONS: [&str; 4] = ["state_dict.", "model_state_dict.", "model.", "weights."];

/// First words of the other parts of such files.
const OTHER_SECTIONS: [&str; 5] = ["optim", "scheduler", "lr_scheduler", "scaler", "ema"];

/// The names of scale and shift of a normalisation in Burn and in PyTorch.
pub const NORMALISATION: [(&str, &str); 2] = [("gamma", "weight"), ("beta", "bias")];

/// Tensors with the names of the model, as far as they are known.
pub struct Renamed {
    pub tensors: Vec<Tensor>,
    /// Changes of the names, for messages.
    pub notes: Vec<String>,
}

/// Brings the names of `tensors` to those of a model: without the prefixes that all share, then renamed by `names`,
/// with the indices of layers without gaps if more names fit then.
///
/// # Errors
/// A pattern in `names` is not a regular expression, or two tensors get one name.
pub fn renamed(
    mut tensors: Vec<Tensor>,
    of_model: &Names,
    layout: Layout,
    names: WeightNames,
) -> Result<Renamed> {
    let mut notes = Vec::new();
    if layout == Layout::PyTorch {
        // Batches counted by batch normalisation, of use without a momentum only.
        tensors.retain(|tensor| !tensor.name.ends_with("num_batches_tracked"));
    }
    while let Some(prefix) = shared_prefix(&tensors, of_model) {
        let before = tensors.len();
        tensors.retain(|tensor| tensor.name.starts_with(prefix));
        for tensor in &mut tensors {
            tensor.name.drain(..prefix.len());
        }
        let others = match before - tensors.len() {
            0 => String::new(),
            others => format!(", and {others} other tensors left out"),
        };
        notes.push(format!("prefix     `{prefix}` taken off all names{others}"));
    }
    let mapped = mapped(tensors.clone(), names)?;
    match fitting(&mapped, of_model) < fitting(&tensors, of_model) {
        // Such as an export of this program, whereas the site is for files of another one.
        true => notes.push("names      as in the file, as WEIGHT_NAMES would fit fewer".to_owned()),
        false => tensors = mapped,
    }
    if layout == Layout::PyTorch {
        let (contiguous, _) = map_indices_contiguous(tensors.clone());
        let [contiguous, as_is] = [contiguous, tensors].map(|all| fused::split(all, of_model));
        let has_gaps = fitting(&contiguous.0, of_model) > fitting(&as_is.0, of_model);
        let split;
        (tensors, split) = match has_gaps {
            true => contiguous,
            false => as_is,
        };
        if has_gaps {
            notes.push("indices    of layers numbered without gaps".to_owned());
        }
        if split > 0 {
            notes.push(format!(
                "split      {split} tensors of attention and recurrent layers"
            ));
        }
    }
    Ok(Renamed { tensors, notes })
}

/// A known prefix that stands before all names, or before those of the weights in a file that holds more, and that
/// the model does not have.
fn shared_prefix(tensors: &[Tensor], of_model: &Names) -> Option<&'static str> {
    let is_wrapper = |prefix: &str| tensors.iter().all(|one| one.name.starts_with(prefix));
    let is_section = |prefix: &str| {
        let mut others = tensors.iter().filter(|one| !one.name.starts_with(prefix));
        let is_known = |one: &Tensor| OTHER_SECTIONS.iter().any(|of| one.name.starts_with(of));
        others.all(is_known) && tensors.iter().any(|one| one.name.starts_with(prefix))
    };
    let is_of_model = |prefix: &str| of_model.iter().any(|(name, _)| name.starts_with(prefix));
    let wrapper = WRAPPERS.into_iter().find(|prefix| is_wrapper(prefix));
    let prefix = wrapper.or_else(|| SECTIONS.into_iter().find(|prefix| is_section(prefix)))?;
    (!tensors.is_empty() && !is_of_model(prefix)).then_some(prefix)
}

/// Renames `tensors` by the site of the task.
fn mapped(tensors: Vec<Tensor>, names: WeightNames) -> Result<Vec<Tensor>> {
    if names.is_empty() {
        return Ok(tensors);
    }
    let (tensors, renames) = remapper(names.iter().copied())?.remap(tensors);
    let mut seen: HashMap<&str, &str> = HashMap::new();
    for (new, old) in &renames {
        if let Some(other) = seen.insert(new, old) {
            bail!("WEIGHT_NAMES in src/model.rs renames `{other}` and `{old}` to `{new}`");
        }
    }
    Ok(tensors)
}

/// The renames of the site of a task.
///
/// # Errors
/// A pattern is not a regular expression.
pub fn remapper<'a>(names: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<KeyRemapper> {
    let mut remapper = KeyRemapper::new();
    for (pattern, replacement) in names {
        let added = remapper.add_pattern(pattern, replacement);
        remapper = added.map_err(|error| {
            anyhow!("TODO(model.weights): WEIGHT_NAMES has {pattern:?}, which is no regular expression: {error}")
        })?;
    }
    Ok(remapper)
}

/// The number of names of the model that `tensors` have, as Burn or PyTorch name them.
fn fitting(tensors: &[Tensor], of_model: &Names) -> usize {
    let there: HashSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let of_pytorch = |name: &str| {
        let mut renames = NORMALISATION.into_iter();
        renames.find_map(|(burn, pytorch)| Some(format!("{}{pytorch}", name.strip_suffix(burn)?)))
    };
    let fits = |name: &str| {
        there.contains(name) || of_pytorch(name).is_some_and(|name| there.contains(&*name))
    };
    of_model.iter().filter(|(name, _)| fits(name)).count()
}

/// Checks the site of a task: its patterns are regular expressions, and each replacement is part of a name in
/// `of_model`.
///
/// # Errors
/// A pattern is not a regular expression, or a replacement is part of no name; the message names the site.
pub fn ensure_replacements(of_model: &[String], names: WeightNames) -> Result<()> {
    remapper(names.iter().copied())?;
    for (pattern, replacement) in names {
        let is_group = |text: char| text == '$';
        // Between groups, such as `$1` and `${name}`.
        let literal = replacement.split(is_group).map(|part| {
            let part = part.trim_start_matches('{');
            match part.split_once('}') {
                Some((_, rest)) => rest,
                None => part.trim_start_matches(|text: char| text.is_ascii_digit()),
            }
        });
        for part in literal.filter(|part| !part.is_empty()) {
            if !of_model.iter().any(|name| name.contains(part)) {
                let hint = nearest(part, of_model.iter().map(String::as_str));
                let hint = hint.map_or(String::new(), |(_, name)| format!("; it has `{name}`"));
                bail!(
                    "TODO(model.weights): WEIGHT_NAMES renames {pattern:?} to {replacement:?}, and no weight of \
                     the model has {part:?} in its name{hint}"
                );
            }
        }
    }
    Ok(())
}
