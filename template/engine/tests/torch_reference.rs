//! Metrics and losses against PyTorch, torchvision, torchmetrics, scikit-learn and sacrebleu on the same
//! numbers: `fixtures/torch_reference.py` made `fixtures/torch_reference.json`.

use std::ops::Range;

use anyhow::Result;
use burn::tensor::{Device, Int, Tensor, TensorData, activation::softmax};
use kiln_engine::{
    loss::{
        BinaryCrossentropy, BinaryFocal, Ctc, Huber, SmoothL1, SparseCategoricalCrossentropy,
        SparseCategoricalFocal,
    },
    metric::{
        AreaUnderRoc, AveragePrecision, Bleu, CalibrationError, ConfusionMatrix, Metric,
        MulticlassAreaUnderRoc, PearsonCorrelation, Perplexity, R2Score, RootMeanSquaredError,
        Statistic, merge_metric_states, metric_states,
    },
    replica::read_data,
};
use serde_json::Value;

const EXAMPLES: usize = 61;

fn reference(part: &str) -> Value {
    let text = include_str!("fixtures/torch_reference.json");
    let reference: Value = serde_json::from_str(text).unwrap();
    reference[part].clone()
}

fn floats(value: &Value) -> Vec<f64> {
    let values = value.as_array().unwrap().iter();
    values.map(|value| value.as_f64().unwrap()).collect()
}

fn integers(value: &Value) -> Vec<i64> {
    let values = value.as_array().unwrap().iter();
    values.map(|value| value.as_i64().unwrap()).collect()
}

fn tensor<const D: usize>(value: &Value, shape: [usize; D], device: &Device) -> Tensor<D> {
    let values: Vec<f32> = floats(value)
        .into_iter()
        .map(|value| value as f32)
        .collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn labels<const D: usize>(value: &Value, shape: [usize; D], device: &Device) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(integers(value), shape), device)
}

fn part<const D: usize>(tensor: &Tensor<D>, examples: &Range<usize>) -> Tensor<D> {
    tensor.clone().narrow(0, examples.start, examples.len())
}

fn int_part<const D: usize>(tensor: &Tensor<D, Int>, examples: &Range<usize>) -> Tensor<D, Int> {
    tensor.clone().narrow(0, examples.start, examples.len())
}

/// The examples of each of 2 and 3 replicas, some without any: all ways to split them over two, and many over
/// three.
fn splits() -> Vec<Vec<Range<usize>>> {
    let two = (0..=EXAMPLES).map(|at| vec![0..at, at..EXAMPLES]);
    let three = (0..=EXAMPLES).step_by(6).flat_map(|first| {
        let second = (first..=EXAMPLES).step_by(9);
        second.map(move |second| vec![0..first, first..second, second..EXAMPLES])
    });
    two.chain(three).collect()
}

/// The results of all examples, counted in batches on replicas of their own and merged into one: equal,
/// however they are split, and close to what is expected, by the part of the name after that of the metric.
#[track_caller]
fn check<M: Metric + Clone>(
    metric: &M,
    expected: &[(&str, f64)],
    update: impl Fn(&mut M, &Range<usize>) -> Result<()>,
) {
    let mut whole = metric.clone();
    update(&mut whole, &(0..EXAMPLES)).unwrap();
    let whole = whole.results();
    assert_eq!(whole.len(), expected.len(), "{whole:?}");
    for ((name, value), (suffix, expected)) in whole.iter().zip(expected) {
        assert_eq!(*name, format!("{}{suffix}", metric.name()));
        assert!(
            (value - expected).abs() < 1e-6,
            "{name} is {value}, not {expected}"
        );
    }
    for split in splits() {
        let states: Vec<_> = split
            .iter()
            .map(|examples| {
                let mut replica = metric.clone();
                for start in examples.clone().step_by(23) {
                    update(&mut replica, &(start..(start + 23).min(examples.end))).unwrap();
                }
                metric_states(&[&mut replica]).unwrap()
            })
            .collect();
        let mut merged = metric.clone();
        merge_metric_states(&mut [&mut merged], &states).unwrap();
        assert_eq!(merged.examples(), EXAMPLES);
        for ((name, value), (_, whole)) in merged.results().iter().zip(&whole) {
            let difference = (value - whole).abs();
            assert!(
                difference < 1e-12 * whole.abs().max(1.0),
                "{name}: {split:?}: {difference:e}"
            );
        }
        // A resume gives back the bits.
        let state = merged.state();
        merge_metric_states(&mut [&mut merged], &[vec![state.clone()]]).unwrap();
        assert_eq!(merged.state(), state);
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[test]
fn statistics_of_a_confusion_matrix() {
    let (expected, device) = (reference("classification"), Device::flex());
    let logits = tensor(&expected["logits"], [EXAMPLES, 4], &device);
    let labels = labels(&expected["labels"], [EXAMPLES], &device);
    let statistics = &[Statistic::BalancedAccuracy];
    check(
        &ConfusionMatrix::new("confusion", 4).reporting(statistics),
        &[("_balanced_accuracy", number(&expected["balanced_accuracy"]))],
        |confusion, at| confusion.update(&part(&logits, at), &int_part(&labels, at)),
    );
    let mut confusion = ConfusionMatrix::new("confusion", 4).reporting(&[Statistic::Specificity]);
    confusion.update(&logits, &labels).unwrap();
    let by_class = floats(&expected["specificity"]);
    assert_eq!(
        by_class.len(),
        floats(&expected["specificity_by_class"]).len()
    );
    for (class, expected) in by_class.iter().enumerate() {
        let value = confusion.specificity(class);
        assert!(
            (value - expected).abs() < 1e-6,
            "{class}: {value} and {expected}"
        );
    }
    let (name, mean) = confusion.results().remove(0);
    let expected = by_class.iter().sum::<f64>() / 4.0;
    assert_eq!(name, "confusion_specificity");
    assert!((mean - expected).abs() < 1e-6, "{mean} and {expected}");
}

#[test]
fn intersections_and_dice_are_those_of_scikit_learn_and_torchmetrics() {
    let (expected, device) = (reference("segmentation"), Device::flex());
    let masks = |name: &str| labels(&expected[name], [EXAMPLES, 2, 3], &device);
    let (labels, predicted) = (masks("labels"), masks("predicted"));
    let logits = predicted.one_hot::<4>(5).float(); // [examples, height, width, classes]
    let logits = logits.permute([0, 3, 1, 2]); // [examples, classes, height, width]
    let empty = ConfusionMatrix::new("mask", 5).ignoring(255);
    let update = |masks: &mut ConfusionMatrix, at: &Range<usize>| {
        masks.update(&part(&logits, at), &int_part(&labels, at))
    };
    for (iou, dice) in [("iou", "dice"), ("iou_of_torchmetrics", "f1")] {
        let expected = [
            ("_iou", number(&expected[iou])),
            ("_dice", number(&expected[dice])),
        ];
        let statistics = &[Statistic::Iou, Statistic::Dice];
        check(&empty.clone().reporting(statistics), &expected, update);
    }
    let by_class = ["iou_by_class", "f1_by_class", "dice_by_class"];
    let [ious, f1s, dices] = by_class.map(|name| floats(&expected[name]));
    let names = ["_iou_0", "_iou_1", "_iou_2", "_iou_3"];
    let occurring: Vec<_> = names.into_iter().zip(ious.iter().copied()).collect();
    let statistics = &[Statistic::PerClassIou];
    check(&empty.clone().reporting(statistics), &occurring, update);
    let mut all = empty;
    update(&mut all, &(0..EXAMPLES)).unwrap();
    assert_eq!((ious.len(), f1s.len(), dices.len()), (5, 5, 4));
    let of_classes = |value: fn(&ConfusionMatrix, usize) -> f64, expected: &[f64]| {
        for (class, expected) in expected.iter().enumerate() {
            let value = value(&all, class);
            assert!(
                (value - expected).abs() < 1e-6,
                "{class}: {value} and {expected}"
            );
        }
    };
    of_classes(ConfusionMatrix::iou, &ious);
    of_classes(ConfusionMatrix::f1, &f1s);
    of_classes(ConfusionMatrix::dice, &f1s);
    of_classes(ConfusionMatrix::dice, &dices);
}

#[test]
fn calibration_is_that_of_torchmetrics() {
    let (expected, device) = (reference("classification"), Device::flex());
    let logits = tensor(&expected["logits"], [EXAMPLES, 4], &device);
    let labels = labels(&expected["labels"], [EXAMPLES], &device);
    for bins in [1, 10, 15] {
        let error = &expected["calibration_error"][bins.to_string()];
        check(
            &CalibrationError::new("calibration").with_bins(bins),
            &[("", number(error))],
            |error, at| error.update(&part(&logits, at), &int_part(&labels, at)),
        );
    }
}

#[test]
fn perplexity_is_that_of_torchmetrics() {
    let (expected, device) = (reference("classification"), Device::flex());
    let logits: Tensor<3> = tensor(&expected["token_logits"], [EXAMPLES, 2, 5], &device);
    let logits = logits.swap_dims(1, 2); // [examples, classes, tokens]
    let labels = labels(&expected["token_labels"], [EXAMPLES, 2], &device);
    check(
        &Perplexity::new("perplexity").ignoring(-100),
        &[("", number(&expected["perplexity"]))],
        |perplexity, at| perplexity.update(&part(&logits, at), &int_part(&labels, at)),
    );
}

#[test]
fn rankings_are_those_of_scikit_learn() {
    let (expected, device) = (reference("binary"), Device::flex());
    let scores = tensor(&expected["scores"], [EXAMPLES], &device);
    let of_two = labels(&expected["labels"], [EXAMPLES], &device);
    check(
        &AveragePrecision::new("average_precision"),
        &[("", number(&expected["average_precision"]))],
        |precision, at| precision.update(&part(&scores, at), &int_part(&of_two, at)),
    );
    check(
        &AreaUnderRoc::new("auc"),
        &[("", number(&expected["area_under_roc"]))],
        |area, at| area.update(&part(&scores, at), &int_part(&of_two, at)),
    );
    let expected = reference("classification");
    let logits: Tensor<2> = tensor(&expected["logits"], [EXAMPLES, 4], &device);
    let of_three = labels(&expected["labels"], [EXAMPLES], &device);
    let probabilities = softmax(logits.narrow(1, 0, 3), 1); // [examples, 3]
    check(
        &MulticlassAreaUnderRoc::new("auc", 3),
        &[("", number(&expected["area_under_roc_of_three"]))],
        |area, at| area.update(&part(&probabilities, at), &int_part(&of_three, at)),
    );
}

#[test]
fn regressions_are_those_of_scikit_learn_and_torchmetrics() {
    let device = Device::flex();
    for name in ["regression", "regression_far_from_zero"] {
        let expected = reference(name);
        let [predictions, targets]: [Tensor<2>; 2] =
            ["predictions", "targets"].map(|name| tensor(&expected[name], [EXAMPLES, 2], &device));
        check(
            &RootMeanSquaredError::new("rmse"),
            &[("", number(&expected["rmse"]))],
            |rmse, at| rmse.update(&part(&predictions, at), &part(&targets, at)),
        );
        check(
            &R2Score::new("r2").with_outputs(2),
            &[("", number(&expected["r2"]))],
            |r2, at| r2.update(&part(&predictions, at), &part(&targets, at)),
        );
        let first = |tensor: &Tensor<2>| tensor.clone().narrow(1, 0, 1);
        let (of_predictions, of_targets) = (first(&predictions), first(&targets));
        check(
            &R2Score::new("r2"),
            &[("", number(&expected["r2_of_first"]))],
            |r2, at| r2.update(&part(&of_predictions, at), &part(&of_targets, at)),
        );
        let correlations = floats(&expected["pearson"]);
        check(
            &PearsonCorrelation::new("pearson").with_outputs(2),
            &[("_0", correlations[0]), ("_1", correlations[1])],
            |pearson, at| pearson.update(&part(&predictions, at), &part(&targets, at)),
        );
    }
}

#[test]
fn bleu_is_that_of_sacrebleu() {
    let all = reference("bleu");
    for (name, expected) in all.as_object().unwrap() {
        let lists = |value: &Value| {
            value
                .as_array()
                .unwrap()
                .iter()
                .map(integers)
                .collect::<Vec<_>>()
        };
        let hypotheses = lists(&expected["hypotheses"]);
        let references = expected["references"].as_array().unwrap().iter();
        let references: Vec<_> = references.map(lists).collect();
        let update = |bleu: &mut Bleu, examples: &Range<usize>| {
            for example in examples.clone() {
                let references: Vec<_> = references[example].iter().map(Vec::as_slice).collect();
                bleu.update(&hypotheses[example], &references)?;
            }
            Ok(())
        };
        let score = number(&expected["bleu"]);
        if hypotheses.len() == EXAMPLES {
            check(&Bleu::new("bleu"), &[("", score)], update);
        }
        let mut bleu = Bleu::new("bleu");
        update(&mut bleu, &(0..hypotheses.len())).unwrap();
        let result = bleu.result().unwrap();
        assert!(
            (result - score).abs() < 1e-6,
            "{name}: {result} and {score}"
        );
    }
}

/// Losses, and the gradient of their sum weighted by 1, 2, 3 .. by the input.
#[track_caller]
fn check_loss<const D: usize>(
    expected: &Value,
    input: &Value,
    shape: [usize; D],
    losses: impl Fn(Tensor<D>) -> Result<Tensor<1>>,
) {
    let device = Device::flex().autodiff();
    let input = tensor(input, shape, &device).require_grad();
    let losses = losses(input.clone()).unwrap();
    let weights = Tensor::<1, Int>::arange(1..shape[0] as i64 + 1, &device).float();
    let gradient = input.grad(&(losses.clone() * weights).sum().backward());
    assert_values(&losses.inner(), &expected["losses"]);
    assert_values(&gradient.unwrap().reshape([-1]), &expected["gradient"]);
}

#[track_caller]
fn assert_values(tensor: &Tensor<1>, expected: &Value) {
    let data = read_data(tensor.clone()).unwrap();
    let (values, expected): (Vec<f64>, _) = (data.iter().collect(), floats(expected));
    assert_eq!(values.len(), expected.len());
    for (value, expected) in values.into_iter().zip(expected) {
        let tolerance = 1e-6 * expected.abs().max(1.0);
        assert!(
            (value - expected).abs() < tolerance,
            "{value} and {expected}"
        );
    }
}

#[test]
fn cross_entropies_and_focal_losses_are_those_of_pytorch() {
    let (expected, device) = (reference("cross_entropy"), Device::flex().autodiff());
    let (logits, shape) = (&expected["logits"], [6, 3]);
    let labels = labels(&expected["labels"], [6], &device);
    let weights: Vec<f32> = floats(&expected["class_weights"])
        .iter()
        .map(|value| *value as f32)
        .collect();
    let weighted = SparseCategoricalCrossentropy::new().with_class_weights(weights.clone());
    check_loss(&expected["weighted"], logits, shape, |logits| {
        weighted.forward(logits, labels.clone())
    });
    let smoothed = weighted.with_label_smoothing(0.1);
    check_loss(
        &expected["weighted_and_smoothed"],
        logits,
        shape,
        |logits| smoothed.forward(logits, labels.clone()),
    );
    let focal = SparseCategoricalFocal::new();
    let of_half = focal.clone().with_gamma(0.5);
    check_loss(&expected["focal_of_half"], logits, shape, |logits| {
        of_half.forward(logits, labels.clone())
    });
    let weighted = focal.with_class_weights(weights);
    check_loss(&expected["focal"], logits, shape, |logits| {
        weighted.forward(logits, labels.clone())
    });
}

#[test]
fn binary_losses_are_those_of_pytorch_and_torchvision() {
    let (expected, device) = (reference("binary_losses"), Device::flex().autodiff());
    let (logits, shape) = (&expected["logits"], [6, 3]);
    let hard: Tensor<2> = tensor(&expected["targets"], shape, &device);
    let soft: Tensor<2> = tensor(&expected["soft_targets"], shape, &device);
    let weights = floats(&expected["positive_weights"]);
    let plain = BinaryCrossentropy::new();
    let weighted = plain.clone();
    let weighted =
        weighted.with_positive_weights(weights.iter().map(|value| *value as f32).collect());
    for (name, loss, targets) in [
        ("plain", &plain, &hard),
        ("soft", &plain, &soft),
        ("weighted", &weighted, &hard),
    ] {
        check_loss(&expected[name], logits, shape, |logits| {
            loss.forward(logits, targets.clone())
        });
    }
    let focal = BinaryFocal::new();
    check_loss(&expected["focal"], logits, shape, |logits| {
        focal.forward(logits, hard.clone())
    });
    let unweighted = focal.with_alpha(None).with_gamma(1.5);
    check_loss(&expected["focal_soft"], logits, shape, |logits| {
        unweighted.forward(logits, soft.clone())
    });
}

#[test]
fn huber_losses_are_those_of_pytorch() {
    let (expected, device) = (reference("regression_losses"), Device::flex().autodiff());
    let (predictions, shape) = (&expected["predictions"], [6, 3]);
    let targets: Tensor<2> = tensor(&expected["targets"], shape, &device);
    check_loss(&expected["huber"], predictions, shape, |predictions| {
        Huber::new()
            .with_delta(1.5)
            .forward(predictions, targets.clone())
    });
    check_loss(&expected["smooth_l1"], predictions, shape, |predictions| {
        SmoothL1::new()
            .with_beta(0.5)
            .forward(predictions, targets.clone())
    });
}

#[test]
fn ctc_is_that_of_pytorch() {
    let (expected, device) = (reference("ctc"), Device::flex().autodiff());
    let counts = |name: &str| labels(&expected[name], [4], &device);
    for (name, targets, blank) in [
        ("blank_first", "targets", 0),
        ("blank_last", "targets_of_last", 4),
    ] {
        let targets = labels(&expected[targets], [4, 4], &device);
        check_loss(&expected[name], &expected["logits"], [4, 9, 5], |logits| {
            let loss = Ctc::new().with_blank(blank);
            loss.forward(
                logits,
                targets.clone(),
                counts("input_lengths"),
                counts("target_lengths"),
            )
        });
    }
}
