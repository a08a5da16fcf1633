//! Layers whose weights PyTorch stores in one tensor and Burn in several: attention and recurrent layers.

use std::collections::{BTreeMap, HashSet};

use burn::{
    module::{Module, ModuleVisitor},
    tensor::{Shape, TensorData},
};
use burn_store::{bridge, burn_pack::Tensor};
use indexmap::IndexMap;

/// Burn's layer for attention.
const ATTENTION_LAYER: &str = "Struct:MultiHeadAttention";

/// Suffixes of PyTorch's names of attention, and those of Burn for equal parts of the rows, in order.
///
/// Source: `torch.nn.MultiheadAttention`.
const ATTENTION: [(&str, &[&str]); 4] = [
    (
        "in_proj_weight",
        &["query.weight", "key.weight", "value.weight"],
    ),
    ("in_proj_bias", &["query.bias", "key.bias", "value.bias"]),
    ("out_proj.weight", &["output.weight"]),
    ("out_proj.bias", &["output.bias"]),
];

/// Suffixes of the names of one recurrent layer, and those of Burn within each gate.
const RECURRENT: [(&str, &str); 4] = [
    ("weight_ih_l0", "input_transform.weight"),
    ("weight_hh_l0", "hidden_transform.weight"),
    ("bias_ih_l0", "input_transform.bias"),
    ("bias_hh_l0", "hidden_transform.bias"),
];

/// A recurrent layer of Burn, that with both directions, and their gates in the order of PyTorch's rows.
struct Recurrent {
    one: &'static str,
    both: &'static str,
    gates: &'static [&'static str],
}

/// Source: `torch.nn.LSTM` (input, forget, cell, output), `torch.nn.GRU` (reset, update, new) and `torch.nn.RNN`.
const RECURRENT_LAYERS: [Recurrent; 3] = [
    Recurrent {
        one: "Struct:Lstm",
        both: "Struct:BiLstm",
        gates: &["input_gate", "forget_gate", "cell_gate", "output_gate"],
    },
    Recurrent {
        one: "Struct:Gru",
        both: "Struct:BiGru",
        gates: &["reset_gate", "update_gate", "new_gate"],
    },
    Recurrent {
        one: "Struct:Rnn",
        both: "Struct:BiRnn",
        gates: &["gate"],
    },
];

/// Fields of a recurrent layer of Burn with both directions, and the suffixes of PyTorch's names.
const DIRECTIONS: [(&str, &str); 2] = [("forward.", ""), ("reverse.", "_reverse")];

/// A layer with one direction has no field for it.
const ONE_DIRECTION: (&str, &str) = ("", "");

/// PyTorch's name of a fused tensor, and Burn's of its parts.
type Fused = (String, Vec<String>);

/// Splits the fused tensors of layers that `of_model` has in parts. Returns all tensors, and the number of fused ones.
pub fn split(tensors: Vec<Tensor>, of_model: &[(String, Shape)]) -> (Vec<Tensor>, usize) {
    let of_model: HashSet<&str> = of_model.iter().map(|(name, _)| name.as_str()).collect();
    let (mut all, mut fused) = (Vec::new(), 0);
    for tensor in tensors {
        let candidates = parts(&tensor.name);
        let is_of_model = |parts: &Vec<String>| parts.iter().all(|part| of_model.contains(&**part));
        let rows = tensor.shape.first().copied().unwrap_or_default();
        match candidates.into_iter().find(is_of_model) {
            Some(parts) if rows.is_multiple_of(parts.len()) => {
                fused += 1;
                let count = parts.len();
                let part = |(at, name)| rows_of(&tensor, name, at, count);
                all.extend(parts.into_iter().enumerate().map(part));
            }
            _ => all.push(tensor),
        }
    }
    (all, fused)
}

/// Joins `tensors`, which have PyTorch's layouts, of those layers of `model` that PyTorch stores fused: the inverse of
/// [`split`]. Layers of the task's own stay as they are, whatever their fields are called.
pub fn join<M: Module>(tensors: Vec<Tensor>, model: &M) -> Vec<Tensor> {
    let mut layers = FusedLayers::default();
    model.visit(&mut layers);
    let tensors = tensors.into_iter().map(|one| (one.name.clone(), one));
    let mut tensors: IndexMap<String, Tensor> = tensors.collect();
    for (whole, names) in layers.found.into_values().flatten() {
        // Without biases, these are missing.
        let parts: Option<Vec<Tensor>> = names
            .iter()
            .map(|name| tensors.get(name).cloned())
            .collect();
        if let Some(joined) = parts.and_then(|parts| joined(whole, parts)) {
            names
                .iter()
                .for_each(|name| drop(tensors.swap_remove(name)));
            tensors.insert(joined.name.clone(), joined);
        }
    }
    tensors.into_values().collect()
}

/// The names in Burn of the parts of a fused tensor, for each kind of layer that may have it.
fn parts(name: &str) -> Vec<Vec<String>> {
    let attention = ATTENTION.iter().filter_map(|(suffix, parts)| {
        let layer = name.strip_suffix(suffix)?;
        Some(of_attention(layer, parts))
    });
    let mut all: Vec<Vec<String>> = attention.collect();
    for (suffix, part) in RECURRENT {
        for direction in [&[ONE_DIRECTION][..], &DIRECTIONS].concat() {
            if let Some(layer) = name.strip_suffix(&format!("{suffix}{}", direction.1)) {
                let of = |of: &Recurrent| of_gates(layer, direction.0, of.gates, part);
                all.extend(RECURRENT_LAYERS.iter().map(of));
            }
        }
    }
    all
}

fn of_attention(layer: &str, parts: &[&str]) -> Vec<String> {
    parts.iter().map(|part| format!("{layer}{part}")).collect()
}

/// The names of `part` in each gate of a recurrent layer, in the field `direction` of `layer`.
fn of_gates(layer: &str, direction: &str, gates: &[&str], part: &str) -> Vec<String> {
    let of = |gate: &&str| format!("{layer}{direction}{gate}.{part}");
    gates.iter().map(of).collect()
}

/// Part `at` of `count` equal parts of the rows of a tensor.
fn rows_of(tensor: &Tensor, name: String, at: usize, count: usize) -> Tensor {
    let mut shape = tensor.shape.to_vec();
    shape[0] /= count;
    let (whole, dtype, shape) = (tensor.clone(), tensor.dtype, Shape::from(shape));
    bridge::deferred(name, dtype, shape.clone(), None, move || {
        let data = bridge::to_data(&whole)?;
        let bytes = data.as_bytes();
        let len = bytes.len() / count;
        let part = bytes[at * len..(at + 1) * len].to_vec();
        Ok(TensorData::from_bytes_vec(part, shape.clone(), dtype))
    })
}

/// A tensor with the rows of all `parts`; `None` if they differ in shape or type.
fn joined(name: String, parts: Vec<Tensor>) -> Option<Tensor> {
    let (shape, dtype) = (parts.first()?.shape.clone(), parts.first()?.dtype);
    let is_alike = |part: &Tensor| part.shape == shape && part.dtype == dtype;
    if !parts.iter().all(is_alike) {
        return None;
    }
    let mut shape = shape.to_vec();
    *shape.first_mut()? *= parts.len();
    let shape = Shape::from(shape);
    Some(bridge::deferred(
        name,
        dtype,
        shape.clone(),
        None,
        move || {
            let mut bytes = Vec::new();
            for part in &parts {
                bytes.extend_from_slice(bridge::to_data(part)?.as_bytes());
            }
            Ok(TensorData::from_bytes_vec(bytes, shape.clone(), dtype))
        },
    ))
}

/// The layers of a model that PyTorch stores fused, by their path.
#[derive(Default)]
struct FusedLayers {
    /// Names of fields from the model down, as in files of PyTorch: without variants of enums.
    path: Vec<String>,
    /// Types of the structs and enums around.
    containers: Vec<String>,
    found: BTreeMap<String, Vec<Fused>>,
}

impl FusedLayers {
    /// The tensors of the layer around the current field, if it is of type `container`.
    fn fused(&self, container: &str) -> Vec<Fused> {
        if container == ATTENTION_LAYER {
            let layer = prefix(&self.path);
            let of = |(whole, parts): &(&str, &[&str])| {
                (format!("{layer}{whole}"), of_attention(&layer, parts))
            };
            return ATTENTION.iter().map(of).collect();
        }
        let Some(of) = RECURRENT_LAYERS.iter().find(|of| of.one == container) else {
            return Vec::new();
        };
        let ((field, suffix), path) = self.direction(of);
        let layer = prefix(path);
        let of = |(whole, part)| {
            let parts = of_gates(&layer, field, of.gates, part);
            (format!("{layer}{whole}{suffix}"), parts)
        };
        RECURRENT.into_iter().map(of).collect()
    }

    /// The direction of a recurrent layer, and the path of the layer that PyTorch has for it.
    fn direction(&self, of: &Recurrent) -> ((&'static str, &'static str), &[String]) {
        let is_of_both = self.containers.last().is_some_and(|it| it == of.both);
        let direction = self.path.split_last().and_then(|(field, path)| {
            let known = |(name, _): &(&str, &str)| name.strip_suffix('.') == Some(field.as_str());
            Some((DIRECTIONS.into_iter().find(known)?, path))
        });
        match direction {
            Some(direction) if is_of_both => direction,
            _ => (ONE_DIRECTION, &self.path),
        }
    }
}

/// The start of the names of what is in a layer.
fn prefix(path: &[String]) -> String {
    path.iter().map(|name| format!("{name}.")).collect()
}

impl ModuleVisitor for FusedLayers {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        let path = prefix(&self.path);
        if !self.found.contains_key(&path) {
            let fused = self.fused(container_type);
            if !fused.is_empty() {
                self.found.insert(path, fused);
            }
        }
        self.containers.push(container_type.to_owned());
        if !container_type.starts_with("Enum:") {
            self.path.push(name.to_owned());
        }
    }

    fn exit_module(&mut self, _name: &str, container_type: &str) {
        self.containers.pop();
        if !container_type.starts_with("Enum:") {
            self.path.pop();
        }
    }
}
