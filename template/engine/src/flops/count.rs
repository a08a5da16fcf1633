//! The FLOPs of a model from the recorded layers and its parameters.

use std::collections::HashSet;

use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    tensor::Tensor,
};

use super::recording::{Kind, Observed};

/// The FLOPs of training on one example.
#[derive(Clone, Debug, PartialEq)]
pub struct Flops {
    /// FLOPs of the forward and the backward pass.
    pub per_example: f64,
    /// Layers that may compute more than is counted for them; empty if the count is complete.
    pub incomplete: Vec<String>,
}

impl Flops {
    /// A number that the task gives.
    pub fn given(per_example: f64) -> Self {
        Flops {
            per_example,
            incomplete: Vec::new(),
        }
    }
}

/// The FLOPs of training on one of `examples` examples, of which `tokens` are the tokens, from the recorded uses of
/// layers.
///
/// A linear layer that was not recorded counts once per token, or once per example. That is known to be all if it
/// gets the flattened output of the last convolution, or the output of a layer with one vector per example. Other
/// layers with weights, and linear layers for which it is not known, are named as incomplete.
pub fn count<M: Module>(
    model: &M,
    observed: &[Observed],
    examples: usize,
    tokens: Option<usize>,
) -> Flops {
    let mut weights = Weights::default();
    model.visit(&mut weights);
    let recorded = observed.iter().map(|used| used.forward + used.backward);
    let mut rest = Rest::new(observed, examples, tokens);
    let mut trained_before = false;
    for weight in &weights.0 {
        rest.add(weight, trained_before);
        trained_before |= weight.trained;
    }
    Flops {
        per_example: (recorded.sum::<f64>() + rest.flops) / examples.max(1) as f64,
        incomplete: rest.incomplete,
    }
}

/// Burn's layers that multiply their input by a weight.
const WITH_PRODUCTS: [&str; 8] = [
    "Linear",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "DeformConv2d",
];

/// The linear and convolutional layers of Burn in `model` whose weights no recorded use has: paths and types.
/// Parameters of the model's own are left out, as they may be in no product.
pub(crate) fn unrecorded<M: Module>(model: &M, observed: &[Observed]) -> Vec<(String, String)> {
    let mut weights = Weights::default();
    model.visit(&mut weights);
    let recorded: HashSet<_> = observed.iter().filter_map(|used| used.weight).collect();
    let weights = weights.0.into_iter().filter(|weight| {
        WITH_PRODUCTS.contains(&&*weight.layer_type) && !recorded.contains(&weight.id)
    });
    weights
        .map(|weight| (weight.layer, weight.layer_type))
        .collect()
}

/// The layers that were not recorded.
struct Rest {
    recorded: HashSet<ParamId>,
    examples: usize,
    tokens: Option<usize>,
    /// Channels of the last recorded convolution.
    channels: Option<usize>,
    /// Numbers of values that layers give as one vector per example.
    widths: HashSet<usize>,
    flops: f64,
    incomplete: Vec<String>,
}

impl Rest {
    fn new(observed: &[Observed], examples: usize, tokens: Option<usize>) -> Self {
        let channels = observed.iter().rev().find_map(|used| match used.kind {
            Kind::Convolution { outputs } => Some(outputs),
            _ => None,
        });
        let widths = observed.iter().filter_map(|used| match used.kind {
            Kind::Product { rows, outputs } => (rows == examples).then_some(outputs),
            _ => None,
        });
        Rest {
            recorded: observed.iter().filter_map(|used| used.weight).collect(),
            examples,
            tokens: tokens.filter(|tokens| *tokens != examples),
            channels,
            widths: widths.collect(),
            flops: 0.0,
            incomplete: Vec::new(),
        }
    }

    fn add(&mut self, weight: &Weight, has_input_gradient: bool) {
        if self.recorded.contains(&weight.id) || weight.is_lookup() {
            return;
        }
        let is_linear = weight.layer_type == "Linear";
        let has_one_vector = is_linear && self.has_one_vector(weight.shape[0]);
        if has_one_vector {
            self.widths.extend(weight.shape.last());
        } else {
            self.incomplete.push(weight.layer.clone());
        }
        let uses = match self.tokens {
            _ if has_one_vector || weight.layer_type.starts_with("Conv") => self.examples,
            Some(tokens) if is_linear => tokens,
            None if is_linear => self.examples,
            // A matrix of the task's own may be a factor, or a summand, which has no product.
            _ => 0,
        };
        let passes = 1 + usize::from(weight.trained) + usize::from(has_input_gradient);
        let values: usize = weight.shape.iter().product();
        self.flops += 2.0 * values as f64 * (uses * passes) as f64;
    }

    /// Whether the `inputs` values of a linear layer are one vector per example.
    fn has_one_vector(&self, inputs: usize) -> bool {
        let is_flattened =
            |channels: usize| channels > 0 && inputs > channels && inputs.is_multiple_of(channels);
        self.tokens.is_none()
            && (self.channels.is_some_and(is_flattened) || self.widths.contains(&inputs))
    }
}

/// A parameter of two or more dimensions.
struct Weight {
    id: ParamId,
    layer: String,
    layer_type: String,
    shape: Vec<usize>,
    trained: bool,
}

impl Weight {
    /// Whether rows are looked up, without a product.
    fn is_lookup(&self) -> bool {
        self.layer_type == "Embedding"
    }
}

#[derive(Default)]
struct Weights(Vec<Weight>, Vec<(String, String)>);

impl ModuleVisitor for Weights {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.1.push((name.into(), container_type.into()));
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.1.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if D > 1 {
            let shape = param.lazy_shape().to_vec();
            self.add(param.id, shape, param.is_require_grad());
        }
    }
}

impl Weights {
    fn add(&mut self, id: ParamId, shape: Vec<usize>, trained: bool) {
        let names: Vec<&str> = self.1.iter().map(|(name, _)| name.as_str()).collect();
        let layer_type = self.1.last().map_or("", |(_, container)| container);
        let layer_type = layer_type.rsplit(':').next().unwrap_or_default();
        let is_of_burn =
            ["Linear", "Embedding"].contains(&layer_type) || layer_type.starts_with("Conv");
        let layer = match is_of_burn {
            true => &names[..names.len().saturating_sub(1)],
            // A field of the task's own.
            false => &names[..],
        };
        self.0.push(Weight {
            id,
            layer: layer.join("."),
            layer_type: layer_type.into(),
            shape,
            trained,
        });
    }
}
