//! Layers whose weights PyTorch stores in one tensor and Burn in several: attention, LSTM and GRU.

use std::collections::HashSet;

use burn::tensor::{Shape, TensorData};
use burn_store::{bridge, burn_pack::Tensor};

use super::names::Names;

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

/// The gates of LSTM and GRU in Burn, in the order of PyTorch's rows.
///
/// Source: `torch.nn.LSTM` (input, forget, cell, output) and `torch.nn.GRU` (reset, update, new).
const GATES: [&[&str]; 2] = [
    &["input_gate", "forget_gate", "cell_gate", "output_gate"],
    &["reset_gate", "update_gate", "new_gate"],
];

/// Splits the fused tensors of layers that `of_model` has in parts. Returns all tensors, and the number of fused ones.
pub fn split(tensors: Vec<Tensor>, of_model: &Names) -> (Vec<Tensor>, usize) {
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

/// The names in Burn of the parts of a fused tensor, for each kind of layer that may have it.
fn parts(name: &str) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for (suffix, parts) in ATTENTION {
        if let Some(layer) = name.strip_suffix(suffix) {
            all.push(parts.iter().map(|part| format!("{layer}{part}")).collect());
        }
    }
    for (suffix, part) in RECURRENT {
        let Some(layer) = name.strip_suffix(suffix) else {
            continue;
        };
        let of = |gate: &&str| format!("{layer}{gate}.{part}");
        all.extend(GATES.map(|gates| gates.iter().map(of).collect()));
    }
    all
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
