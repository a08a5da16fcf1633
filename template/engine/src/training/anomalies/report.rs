//! Origin of the first value or gradient of a step that is not finite.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ParamId};

use crate::{
    anomalies::{Call, Check, Found, Place, Record},
    model::{all_float, named_ids},
};

/// The loss that is infinite for an example without an alignment, which a task may leave out.
const MAY_BE_INFINITE: &str = "Ctc";

/// Number of unseen layers that are named.
const NAMED: usize = 3;

/// Finiteness of the results of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finite {
    pub losses: bool,
    /// Of all parameters.
    pub gradients: bool,
}

impl Finite {
    pub fn all(self) -> bool {
        self.losses && self.gradients
    }
}

/// The first value or gradient of a step that is not finite: the layer, or the layers between which it arose. If
/// losses and gradients of parameters are finite, only an output that is not finite although its inputs are counts: an
/// input may hold infinity on purpose, as in a mask. `None` if there is none, or no layer was seen.
pub(super) fn place<M: Module>(model: &M, record: &Record, finite: Finite) -> Option<String> {
    let names = Names::of(model, record);
    let mut checks = record.checks.iter().enumerate();
    let first = checks.find_map(|(number, check)| {
        let found = check.found?;
        let counts = !finite.all() || is_made_by_layer(record, number);
        counts.then_some((number, found))
    });
    match first {
        Some((number, found)) => Some(describe(record, &names, number, found)),
        None if finite.all() => None,
        None if finite.losses => (!record.checks.is_empty()).then(|| {
            format!(
                "all values and gradients that pass between the layers that are seen are finite{}",
                names.unseen()
            )
        }),
        None => before_loss(record, &names),
    }
}

/// True if a call turned finite values into the value found, according to the check of the other side of the call.
fn is_made_by_layer(record: &Record, number: usize) -> bool {
    let check = &record.checks[number];
    if record.calls[check.call].name == MAY_BE_INFINITE {
        return false;
    }
    let other = match check.place {
        Place::Output => Place::Input,
        Place::InputGradient => Place::OutputGradient,
        Place::Batch | Place::Input | Place::OutputGradient => return false,
    };
    let before = record.checks[..number].iter();
    let mut others = before.filter(|one| (one.call, one.place) == (check.call, other));
    // At least one: a gradient may come without that of the output.
    others.next().is_some_and(|one| one.found.is_none()) && others.all(|one| one.found.is_none())
}

fn describe(record: &Record, names: &Names, number: usize, found: Found) -> String {
    let check = &record.checks[number];
    let layer = names.describe(record, check.call);
    let value = value(found);
    let before = before(record, number).map(|before| names.describe(record, before.call));
    let unseen = names.unseen();
    match (check.place, before) {
        (Place::Batch, _) => format!(
            "the images of the batch hold {value}: look at the data, its augmentation and the preparation of batches"
        ),
        (Place::Input, Some(before)) => format!(
            "in the forward pass, the input of {layer} is the first that is not finite, with {value}, and the output \
             of {before} is finite: look at what is computed between them{unseen}"
        ),
        (Place::Input, None) => format!(
            "in the forward pass, the input of {layer}, the first layer that is seen, is not finite, with {value}: \
             look at the data, and at what is computed before that layer{unseen}"
        ),
        (Place::Output, _) => format!(
            "in the forward pass, the output of {layer} is the first that is not finite, with {value}, from a finite \
             input"
        ),
        (Place::OutputGradient, Some(before)) => format!(
            "in the backward pass, the gradient of the output of {layer} is the first that is not finite, with \
             {value}, and that of the input of {before} is finite: look at what is computed between them{unseen}"
        ),
        (Place::OutputGradient, None) => format!(
            "in the backward pass, the gradient of the output of {layer} is the first that is not finite, with \
             {value}: look at what is computed from there to the loss{unseen}"
        ),
        (Place::InputGradient, _) => format!(
            "in the backward pass, the gradient of the input of {layer} is the first that is not finite, with \
             {value}, from a finite gradient of its output"
        ),
    }
}

/// The text for a loss that is not finite after finite values; `None` without any.
fn before_loss(record: &Record, names: &Names) -> Option<String> {
    let mut checks = record.checks.iter().rev();
    let last = checks.find(|check| check.place.is_forward())?;
    Some(format!(
        "in the forward pass, all values are finite up to the output of {}: look at what is computed from there to \
         the loss{}",
        names.describe(record, last.call),
        names.unseen()
    ))
}

/// The check that precedes a check of the same micro-batch in the same pass, on the side of another call.
fn before(record: &Record, number: usize) -> Option<&Check> {
    let check = &record.checks[number];
    let part = record.calls[check.call].part;
    let precedes = match check.place {
        Place::Input | Place::Output => Place::Output,
        _ => Place::InputGradient,
    };
    let mut before = record.checks[..number].iter().rev();
    before.find(|one| one.place == precedes && record.calls[one.call].part == part)
}

/// A value, and the example to which it belongs.
fn value(found: Found) -> String {
    let Found { value, example } = found;
    match example {
        Some(example) => format!("{value} at example {example} of the training data"),
        None => value.to_string(),
    }
}

/// The paths of a model's layers.
struct Names {
    /// Of the layer of each parameter.
    layers: HashMap<ParamId, String>,
    /// Layers with parameters that were not called through functions of the engine.
    unseen: Vec<String>,
}

impl Names {
    fn of<M: Module>(model: &M, record: &Record) -> Self {
        let layers: HashMap<_, _> = all_float(model)
            .into_iter()
            .map(|(name, id, _)| (id, layer_of(&name).to_owned()))
            .collect();
        let weights = record.calls.iter().filter_map(|call| call.weight);
        let seen: HashSet<_> = weights.filter_map(|id| layers.get(&id)).collect();
        let mut unseen: Vec<String> = Vec::new();
        for (name, _) in named_ids(model) {
            let layer = layer_of(&name).to_owned();
            if !seen.contains(&layer) && !unseen.contains(&layer) {
                unseen.push(layer);
            }
        }
        Names { layers, unseen }
    }

    /// A call by the path of its layer, such as "`conv1` (conv2d, [8, 1, 28, 28] to [8, 32, 28, 28])", or by the
    /// layer called before it, such as "gelu after `conv1` ([8, 32] to [8, 32])".
    fn describe(&self, record: &Record, call: usize) -> String {
        let Call { name, shapes, .. } = &record.calls[call];
        let [input, output] = shapes;
        let shapes = match output.is_empty() {
            // Of an operation that has not ended.
            true => format!("{input:?}"),
            false => format!("{input:?} to {output:?}"),
        };
        if let Some(path) = self.path(&record.calls[call]) {
            return format!("`{path}` ({name}, {shapes})");
        }
        let part = record.calls[call].part;
        let earlier = record.calls[..call].iter().rev();
        let earlier = earlier.filter(|call| call.part == part);
        match earlier.filter_map(|call| self.path(call)).next() {
            Some(path) => format!("{name} after `{path}` ({shapes})"),
            None => format!("{name} ({shapes})"),
        }
    }

    fn path(&self, call: &Call) -> Option<&str> {
        self.layers.get(&call.weight?).map(String::as_str)
    }

    /// A note on layers that are not seen; empty if all are.
    fn unseen(&self) -> String {
        let named: Vec<_> = self.unseen.iter().take(NAMED).collect();
        let named: Vec<_> = named.iter().map(|name| format!("`{name}`")).collect();
        let more = match self.unseen.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} others"),
        };
        match named.is_empty() {
            true => String::new(),
            false => format!(
                " (layers that are called by Burn's `forward` are not seen: {}{more})",
                named.join(", ")
            ),
        }
    }
}

/// The path of the layer of a parameter: `conv1` of `conv1.weight`. A parameter of the model itself is its own layer.
fn layer_of(parameter: &str) -> &str {
    parameter
        .rsplit_once('.')
        .map_or(parameter, |(layer, _)| layer)
}
