//! Model summary: layers, shapes, numbers of parameters.

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Bool, DType, Int, Shape, Tensor},
};

use crate::console::thousands;

/// A table of the parameters of `model` by layer, with totals.
///
/// Columns are layer path, layer type, parameter, shape, number of values, and whether it is trained;
/// running statistics, as of batch normalisation, are not. Layers without parameters, such as activations,
/// have no row, as Burn's visitor cannot distinguish them from a missing bias; `println!("{model}")` shows
/// them. Output shapes are missing, as they depend on the input and Burn modules have no hook for them:
/// see the comments of `forward`.
pub fn summarize(model: &impl Module) -> String {
    let mut collect = Collect::default();
    model.visit(&mut collect);
    let parameters = collect.parameters;
    let header = ["layer", "type", "parameter", "shape", "values", "trained"].map(String::from);
    let rows: Vec<Row> = std::iter::once(header).chain(rows(&parameters)).collect();
    format!("{}\n{}", table(&rows), totals(&parameters))
}

type Row = [String; 6];

/// The column of right-aligned numbers.
const NUMBERS: usize = 4;

/// A parameter or a running statistic.
struct Parameter {
    layer: String,
    /// The type of the layer.
    kind: String,
    name: String,
    shape: Shape,
    dtype: DType,
    trained: bool,
}

impl Parameter {
    fn values(&self) -> usize {
        self.shape.num_elements()
    }

    fn bytes(&self) -> usize {
        self.values() * self.dtype.size()
    }
}

#[derive(Default)]
struct Collect {
    parameters: Vec<Parameter>,
    /// The path of the current module: field names, each with the type of its parent.
    path: Vec<(String, String)>,
}

impl Collect {
    fn add(&mut self, shape: Shape, dtype: DType, trained: bool) {
        let names: Vec<&str> = self.path.iter().map(|(name, _)| name.as_str()).collect();
        let (name, layer) = names
            .split_last()
            .map_or(("", &[][..]), |(name, layer)| (*name, layer));
        let container = self
            .path
            .last()
            .map_or("", |(_, container)| container.as_str());
        let kind = container.rsplit(':').next().unwrap_or_default();
        self.parameters.push(Parameter {
            layer: layer.join("."),
            kind: kind.into(),
            name: name.into(),
            shape,
            dtype,
            trained,
        });
    }
}

impl ModuleVisitor for Collect {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.path.push((name.into(), container_type.into()));
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        self.add(value.shape(), value.dtype(), param.is_require_grad());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let value = param.val();
        self.add(value.shape(), value.dtype(), false);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let value = param.val();
        self.add(value.shape(), value.dtype(), false);
    }
}

/// A row for each parameter; the first one of a layer has its name.
fn rows(parameters: &[Parameter]) -> impl Iterator<Item = Row> {
    let mut layer = None;
    parameters.iter().map(move |parameter| {
        let begins = layer.replace(&parameter.layer) != Some(&parameter.layer);
        let once = |text: &String| if begins { text.clone() } else { String::new() };
        [
            once(&parameter.layer),
            once(&parameter.kind),
            parameter.name.clone(),
            format!("{:?}", parameter.shape.as_slice()),
            thousands(parameter.values()),
            if parameter.trained { "yes" } else { "no" }.into(),
        ]
    })
}

/// Formats rows as columns, with a rule below the header.
fn table(rows: &[Row]) -> String {
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or_default()
    };
    let widths: [usize; 6] = std::array::from_fn(width);
    let line = |row: &Row| {
        let cells = row.iter().zip(widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match column {
            NUMBERS => format!("{cell:>width$}"),
            _ => format!("{cell:<width$}"),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        line.trim_end().to_owned()
    };
    let mut lines: Vec<String> = rows.iter().map(line).collect();
    let rule = "─".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1));
    lines.insert(1, rule.clone());
    lines.push(rule);
    lines.join("\n")
}

fn totals(parameters: &[Parameter]) -> String {
    let sum = |trained: bool| {
        let of_kind = parameters
            .iter()
            .filter(|parameter| parameter.trained == trained);
        of_kind.map(Parameter::values).sum::<usize>()
    };
    let bytes = parameters.iter().map(Parameter::bytes).sum();
    format!(
        "{} parameters in {} bytes: {} trained, {} not",
        thousands(sum(true) + sum(false)),
        thousands(bytes),
        thousands(sum(true)),
        thousands(sum(false))
    )
}

#[cfg(test)]
mod tests {
    use burn::{
        nn::{BatchNorm, BatchNormConfig, Gelu, Linear, LinearConfig},
        tensor::Device,
    };

    use super::*;

    #[derive(Module, Debug)]
    struct Block {
        linear: Linear,
        norm: BatchNorm,
        activation: Gelu,
    }

    #[derive(Module, Debug)]
    struct Network {
        blocks: Vec<Block>,
        output: Linear,
    }

    #[test]
    fn a_table_names_layers_shapes_and_numbers() {
        let device = Device::flex().autodiff();
        let network = Network {
            blocks: vec![Block {
                linear: LinearConfig::new(30, 50).init(&device),
                norm: BatchNormConfig::new(50).init(&device),
                activation: Gelu::new(),
            }],
            output: LinearConfig::new(50, 2).with_bias(false).init(&device),
        };
        let expected = "\
layer            type       parameter     shape     values  trained
───────────────────────────────────────────────────────────────────
blocks.0.linear  Linear     weight        [30, 50]   1,500  yes
                            bias          [50]          50  yes
blocks.0.norm    BatchNorm  gamma         [50]          50  yes
                            beta          [50]          50  yes
                            running_mean  [50]          50  no
                            running_var   [50]          50  no
output           Linear     weight        [50, 2]      100  yes
───────────────────────────────────────────────────────────────────
1,850 parameters in 7,400 bytes: 1,750 trained, 100 not";
        assert_eq!(summarize(&network), expected);
    }

    #[test]
    fn parameters_that_do_not_train_are_told() {
        let linear = LinearConfig::new(2, 3).init(&Device::flex().autodiff());
        let text = summarize(&linear.no_grad());
        assert!(
            text.ends_with("9 parameters in 36 bytes: 0 trained, 9 not"),
            "{text}"
        );
    }
}
