use std::sync::Arc;

use anyhow::Context;
use burn::{
    nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig},
    optim::GradientsParams,
    tensor::Device,
};

use super::*;
use crate::{
    anomalies::check_images,
    data::Shard,
    layers::{layer_norm, linear},
    loss::compute_average_loss,
    pipeline::Stage,
    strategy::{ModelParallelStrategy, Strategy},
    test_task::{self, Line, Points},
};

#[derive(Module, Debug)]
struct Weights {
    first: Param<Tensor<1>>,
    second: Param<Tensor<2>>,
}

/// The anomaly of the step of the loss `ln(first) + sum(second)^2`, without a layer that is seen.
fn of_weights(first: f32, second: [[f32; 2]; 1]) -> Option<String> {
    let device = Device::flex().autodiff();
    let model = Weights {
        first: Param::from_tensor(Tensor::from_floats([first], &device)),
        second: Param::from_tensor(Tensor::from_floats(second, &device)),
    };
    of_step(&model, 1, || {
        model.first.val().log() + model.second.val().sum().square() // [1]
    })
}

/// The anomaly of a step with the loss that `compute` gives, on as many examples, from example 100.
fn of_step<M: Module>(
    model: &M,
    examples: usize,
    compute: impl FnOnce() -> Tensor<1>,
) -> Option<String> {
    let trace = Trace::new((100..100 + examples).collect(), 1);
    let (losses, gradients) = trace.clone().during(|| {
        let loss = compute();
        let losses = Losses::new().with("loss", &loss);
        let gradients = GradientsParams::from_grads(loss.backward(), model);
        (losses, Gradients::new().with(gradients))
    });
    anomaly(model, &losses, &gradients, &trace).unwrap()
}

#[test]
fn losses_gradients_and_parameters_are_named() {
    assert_eq!(of_weights(1.0, [[2.0, 3.0]]), None);
    let of_batch =
        "all parameters were finite before this step: look at the batch, the layers and the loss";
    let inf = "the loss `loss` is -inf; the first gradient that is not finite is of `first`: inf";
    assert_eq!(
        of_weights(0.0, [[2.0, 3.0]]).unwrap(),
        format!("{inf}; {of_batch}")
    );
    let large = "the loss `loss` is inf; all gradients are finite";
    assert_eq!(
        of_weights(1.0, [[1e25, 0.0]]).unwrap(),
        format!("{large}; {of_batch}")
    );
    assert_eq!(
        of_weights(1.0, [[2.0, f32::NAN]]).unwrap(),
        "the loss `loss` is NaN; the first gradient that is not finite is of `second`: NaN; the parameter \
         `second` held NaN before this step: look at the update before it"
    );
}

/// Two layers that are seen, and one of Burn between them that is not.
#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: LayerNorm,
    last: Linear,
}

fn net() -> Net {
    let device = Device::flex().autodiff();
    let linear = |outputs| LinearConfig::new(2, outputs).init(&device);
    Net {
        first: with_weight(linear(2), [[1.0, 0.0], [0.0, 1.0]]),
        norm: LayerNormConfig::new(2).init(&device),
        last: with_weight(linear(1), [[1.0], [1.0]]),
    }
}

/// The layer with this weight, and no bias.
fn with_weight<const O: usize>(mut layer: Linear, weight: [[f32; O]; 2]) -> Linear {
    let device = Device::flex().autodiff();
    layer.weight = Param::from_tensor(Tensor::from_floats(weight, &device));
    layer.bias = None;
    layer
}

/// The output of the layers of a net for two examples, with `between` in the place of the norm; `[2]`.
fn output(net: &Net, x: [[f32; 2]; 2], between: impl FnOnce(Tensor<2>) -> Tensor<2>) -> Tensor<1> {
    let x = Tensor::from_floats(x, &Device::flex().autodiff()); // [2, 2]
    let x = between(linear(&net.first, x)); // [2, 2]
    linear(&net.last, x).reshape([2])
}

fn mean(per_example: Tensor<1>) -> Tensor<1> {
    compute_average_loss(per_example, None, 2).unwrap()
}

fn normed(net: &Net, x: [[f32; 2]; 2]) -> Option<String> {
    of_step(net, 2, || {
        mean(output(net, x, |x| net.norm.forward(x)).square())
    })
}

/// Asserts that the anomaly names a place.
#[track_caller]
fn assert_names(anomaly: Option<String>, place: &str) {
    let anomaly = anomaly.expect("an anomaly");
    assert!(anomaly.starts_with(place), "{anomaly}\n{place}");
}

const X: [[f32; 2]; 2] = [[1.0, 2.0], [4.0, 3.0]];

const UNSEEN: &str = "(layers that are called by Burn's `forward` are not seen: `norm`)";

#[test]
fn a_finite_step_is_no_anomaly() {
    assert_eq!(normed(&net(), X), None);
}

#[test]
fn the_layer_that_overflows_is_named_with_the_example() {
    let mut net = net();
    net.first = with_weight(net.first, [[1e30, 0.0], [0.0, 1.0]]);
    let place = "in the forward pass, the output of `first` (linear, [2, 2] to [2, 2]) is the first that is not \
                 finite, with inf at example 101 of the training data, from a finite input; ";
    assert_names(normed(&net, [[1.0, 2.0], [1e10, 3.0]]), place);
    // Also if nothing that follows shows it.
    let hidden = of_step(&net, 2, || {
        mean(output(&net, [[1.0, 2.0], [1e10, 3.0]], |x| {
            x.clone().zeros_like().mask_where(x.clone().is_finite(), x)
        }))
    });
    let hidden = hidden.unwrap();
    assert!(hidden.contains("the losses are finite"), "{hidden}");
    assert_names(Some(hidden), place);
}

/// A net whose norm overflows.
fn with_large_norm() -> Net {
    let mut net = net();
    let large = || Param::from_tensor(Tensor::from_floats([3e38, 3e38], &net.norm.gamma.device()));
    (net.norm.gamma, net.norm.beta) = (large(), Some(large()));
    net
}

#[test]
fn a_norm_that_is_called_as_a_layer_is_seen() {
    let net = with_large_norm();
    let anomaly = of_step(&net, 2, || {
        mean(output(&net, X, |x| layer_norm(&net.norm, x)))
    });
    let place = "in the forward pass, the output of `norm` (layer_norm, [2, 2] to [2, 2]) is the first that is not \
                 finite, with inf at example 100 of the training data, from a finite input; ";
    assert_names(anomaly, place);
}

#[test]
fn a_layer_that_is_not_seen_is_between_two_that_are() {
    let net = with_large_norm();
    let place = format!(
        "in the forward pass, the input of `last` (linear, [2, 2] to [2, 1]) is the first that is not finite, with \
         inf at example 100 of the training data, and the output of `first` (linear, [2, 2] to [2, 2]) is finite: \
         look at what is computed between them {UNSEEN}; the loss `loss` is inf"
    );
    assert_names(normed(&net, X), &place);
}

#[test]
fn a_batch_that_is_not_finite_is_named() {
    let place = "in the forward pass, the input of `first` (linear, [2, 2] to [2, 2]), the first layer that is seen, \
                 is not finite, with NaN at example 101 of the training data: look at the data";
    assert_names(normed(&net(), [[1.0, 2.0], [f32::NAN, 3.0]]), place);
    let images = of_step(&net(), 2, || {
        let image = Tensor::<4>::ones([1, 1, 2, 2], &Device::flex());
        let images = Tensor::cat(vec![image.clone(), image / 0.0], 0); // [2, 1, 2, 2]
        check_images(|| Some(images));
        mean(output(&net(), [[f32::NAN; 2]; 2], |x| x))
    });
    assert_names(
        images,
        "the images of the batch hold inf at example 101 of the training data: look at the data, its augmentation",
    );
}

#[test]
fn losses_are_seen() {
    let net = net();
    let of_loss = |loss: fn(Tensor<1>) -> Tensor<1>| {
        of_step(&net, 2, || loss(output(&net, X, |x| net.norm.forward(x))))
    };
    assert_names(
        of_loss(|output| mean((output + 1000.0).exp())),
        "in the forward pass, the input of compute_average_loss after `last` ([2] to [1]) is the first that is not \
         finite, with inf at example 100 of the training data, and the output of `last` (linear, [2, 2] to [2, 1]) \
         is finite",
    );
    assert_names(
        of_loss(|output| mean(output + 3e38)),
        "in the forward pass, the output of compute_average_loss after `last` ([2] to [1]) is the first that is not \
         finite, with inf, from a finite input",
    );
    assert_names(
        of_loss(|output| mean(output + 3e37) * 1e30),
        "in the forward pass, all values are finite up to the output of compute_average_loss after `last` ([2] to [1]): \
         look at",
    );
}

#[test]
fn a_gradient_between_layers_is_named() {
    let mut net = net();
    net.first = with_weight(net.first, [[0.0; 2]; 2]);
    let place = "in the backward pass, the gradient of the output of `first` (linear, [2, 2] to [2, 2]) is the first \
                 that is not finite, with inf at example 100 of the training data, and that of the input of `last` \
                 (linear, [2, 2] to [2, 1]) is finite: look at what is computed between them";
    let anomaly = of_step(&net, 2, || mean(output(&net, X, Tensor::sqrt)));
    assert_names(anomaly.clone(), place);
    assert!(anomaly.unwrap().contains("the losses are finite"));
}

#[test]
fn a_gradient_of_a_layer_is_named() {
    let mut net = net();
    net.last = with_weight(net.last, [[1e30], [1.0]]);
    let place = "in the backward pass, the gradient of the input of `last` (linear, [2, 2] to [2, 1]) is the first \
                 that is not finite, with inf at example 100 of the training data, from a finite gradient of its \
                 output";
    let anomaly = of_step(&net, 2, || mean(output(&net, [[0.0; 2]; 2], |x| x) * 1e10));
    assert_names(anomaly, place);
}

#[test]
fn a_replica_names_its_example() {
    let options = test_task::options(&["--replicas", "2", "--batch-size", "4"]);
    let strategy = test_task::set_up(&options).unwrap();
    let datasets = test_task::datasets(&options, 8).unwrap();
    let inputs = datasets.train.epoch(1).next().unwrap();
    let step = |shard: Shard<f32>| {
        let examples = shard.indices();
        let bad = examples.last().copied().context("an example")?;
        let batch: Points = shard.load()?.context("a batch")?;
        let layer = LinearConfig::new(2, 1).init(&batch.values.device());
        let result = checked::<Line>(examples, 1, || {
            let x = batch.values.slice_fill([3..4, 0..1], f32::NAN);
            linear(&layer, x);
            Ok((
                Losses::new().with("loss", &Tensor::from_floats([f32::NAN], &Device::flex())),
                Gradients::new(),
            ))
        });
        let error = result.map(drop).unwrap_err().to_string();
        assert!(
            error.contains(&format!("NaN at example {bad} of")),
            "{error}"
        );
        anyhow::bail!(error)
    };
    let error = format!("{:#}", strategy.train(inputs, step).unwrap_err());
    // On a GPU, the device comes in between.
    assert!(error.contains("of 2 failed"), "{error}");
    assert!(error.contains(": --detect-anomalies: in the"), "{error}");
}

/// A batch `[batch, 2]`.
#[derive(Module, Debug)]
struct Features {
    values: Tensor<2>,
}

const STAGES: &[Stage<Net, Features>] = &[
    Stage {
        layers: &["first"],
        forward: |net, batch, _| linear(&net.first, batch.values.clone()).into(),
    },
    Stage {
        layers: &["norm", "last"],
        forward: |net, _, x| linear(&net.last, x.tensor::<2>().sqrt()).into(),
    },
];

/// The anomaly of a step in stages on two micro-batches, of two and three examples.
fn of_stages(x: [[f32; 2]; 5]) -> Option<String> {
    let strategy =
        ModelParallelStrategy::new(&[Device::flex(), Device::flex()], STAGES.len(), 2).unwrap();
    let strategy: Arc<dyn Strategy> = Arc::new(strategy);
    let anomalies = strategy.run_on_all(move |context| {
        let (net, x) = (net(), Tensor::from_floats(x, context.device())); // [5, 2]
        let parts = [x.clone().narrow(0, 0, 2), x.narrow(0, 2, 3)];
        let parts = parts.map(|values| Features { values });
        let trace = Trace::new((100..105).collect(), 2);
        let (losses, gradients) = trace.clone().during(|| {
            let pipeline = context.pipeline().context("a pipeline")?;
            let mut step = pipeline.start(&net, STAGES, &parts)?;
            let mut losses = Vec::new();
            for _ in &parts {
                let loss = step.predict()?.tensor::<2>().sum(); // [1]
                step.backward(&loss)?;
                losses.push(Losses::new().with("loss", &loss));
            }
            anyhow::Ok((Losses::sum(losses), step.gradients()?))
        })?;
        anomaly(&net, &losses, &gradients, &trace)
    });
    anomalies.unwrap().into_iter().next().unwrap()
}

#[test]
fn stages_and_micro_batches_are_followed() {
    let mut x = [[1.0, 2.0]; 5];
    assert_eq!(of_stages(x), None);
    x[3] = [4.0, 0.0];
    assert_names(
        of_stages(x),
        "in the backward pass, the gradient of the output of `first` (linear, [3, 2] to [3, 2]) is the first that is \
         not finite, with inf at example 103 of the training data, and that of the input of `last` (linear, [3, 2] \
         to [3, 1]) is finite",
    );
    x[3] = [4.0, -1.0];
    assert_names(
        of_stages(x),
        "in the forward pass, the input of `last` (linear, [3, 2] to [3, 1]) is the first that is not finite, with \
         NaN at example 103 of the training data, and the output of `first` (linear, [3, 2] to [3, 2]) is finite",
    );
}
