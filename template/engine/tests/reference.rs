//! Metrics and optimizers against scikit-learn and Keras on the same numbers: `fixtures/reference.py`
//! made `fixtures/reference.json`.

use burn::{
    module::{Module, Param},
    optim::{GradientsParams, ModuleOptimizer},
    tensor::{Device, Int, Tensor, TensorData},
};
use kiln_engine::{
    metric::{
        AreaUnderRoc, ConfusionMatrix, Mean, Metric, mean_absolute_error, mean_squared_error,
        merge_metric_states, metric_states, sparse_categorical_accuracy,
        sparse_top_k_categorical_accuracy,
    },
    optim::{AdamConfig, NadamConfig},
    replica::read_data,
};
use serde_json::Value;

/// Sizes of the shards of 61 examples for 1, 2, 3 and 5 replicas; the last ones have none or one.
const SHARES: [&[usize]; 4] = [&[61], &[31, 30], &[20, 0, 41], &[1, 7, 13, 40, 0]];

fn reference(part: &str) -> Value {
    let text = include_str!("fixtures/reference.json");
    let reference: Value = serde_json::from_str(text).unwrap();
    reference[part].clone()
}

fn floats(value: &Value) -> Vec<f32> {
    let values = value.as_array().unwrap().iter();
    values.map(|value| value.as_f64().unwrap() as f32).collect()
}

fn matrix(value: &Value, columns: usize) -> Tensor<2> {
    let values = floats(value);
    let rows = values.len() / columns;
    Tensor::from_data(TensorData::new(values, [rows, columns]), &Device::flex())
}

fn labels(value: &Value) -> Tensor<1, Int> {
    let values = value.as_array().unwrap().iter();
    let values: Vec<i32> = values.map(|value| value.as_i64().unwrap() as i32).collect();
    let len = values.len();
    Tensor::from_data(TensorData::new(values, [len]), &Device::flex())
}

#[track_caller]
fn assert_close(value: f64, expected: &Value) {
    let expected = expected.as_f64().unwrap();
    assert!((value - expected).abs() < 1e-6, "{value} and {expected}");
}

/// Counts the shares on replicas of their own, and merges them into one.
fn merged<M: Metric + Clone>(
    metric: M,
    shares: &[usize],
    update: impl Fn(&mut M, usize, usize),
) -> M {
    let mut start = 0;
    let states: Vec<_> = shares
        .iter()
        .map(|len| {
            let mut replica = metric.clone();
            if *len > 0 {
                update(&mut replica, start, *len);
            }
            start += len;
            metric_states(&[&mut replica]).unwrap()
        })
        .collect();
    let mut merged = metric;
    merge_metric_states(&mut [&mut merged], &states).unwrap();
    assert_eq!(merged.examples(), 61);
    merged
}

fn mean_of(shares: &[usize], values: impl Fn(usize, usize) -> Tensor<1>) -> f64 {
    let update = |mean: &mut Mean, start, len| mean.update(&values(start, len));
    merged(Mean::new("value"), shares, update).result()
}

#[test]
fn accuracies_are_those_of_scikit_learn() {
    let expected = reference("classification");
    let (logits, labels) = (matrix(&expected["logits"], 4), labels(&expected["labels"]));
    let part = |start, len| {
        (
            logits.clone().narrow(0, start, len),
            labels.clone().narrow(0, start, len),
        )
    };
    for shares in SHARES {
        let accuracy = mean_of(shares, |start, len| {
            let (logits, labels) = part(start, len);
            sparse_categorical_accuracy(&logits, &labels)
        });
        assert_close(accuracy, &expected["accuracy"]);
        let top_2 = mean_of(shares, |start, len| {
            let (logits, labels) = part(start, len);
            sparse_top_k_categorical_accuracy(&logits, &labels, 2)
        });
        assert_close(top_2, &expected["top_2_accuracy"]);
    }
}

#[test]
fn confusion_counts_and_what_follows_are_those_of_scikit_learn() {
    let expected = reference("classification");
    let (logits, labels) = (matrix(&expected["logits"], 4), labels(&expected["labels"]));
    for shares in SHARES {
        let update = |confusion: &mut ConfusionMatrix, start, len| {
            let (logits, labels) = (
                logits.clone().narrow(0, start, len),
                labels.clone().narrow(0, start, len),
            );
            confusion.update(&logits, &labels).unwrap();
        };
        let confusion = merged(ConfusionMatrix::new("confusion", 4), shares, update);
        for label in 0..4 {
            for predicted in 0..4 {
                assert_eq!(
                    confusion.get(label, predicted),
                    expected["confusion"][label][predicted]
                );
            }
            assert_close(
                confusion.precision(label),
                &expected["precision_by_class"][label],
            );
            assert_close(confusion.recall(label), &expected["recall_by_class"][label]);
            assert_close(confusion.f1(label), &expected["f1_by_class"][label]);
        }
        for (name, value) in confusion.results() {
            let name = name.strip_prefix("confusion_").unwrap();
            assert_close(value, &expected[name]);
        }
        assert_eq!(confusion.results().len(), 3);
    }
}

#[test]
fn the_area_under_roc_is_that_of_scikit_learn() {
    let expected = reference("binary");
    let scores: Tensor<1> = matrix(&expected["scores"], 1).squeeze_dim(1);
    let labels = labels(&expected["labels"]);
    for shares in SHARES {
        let update = |area: &mut AreaUnderRoc, start, len| {
            let (scores, labels) = (
                scores.clone().narrow(0, start, len),
                labels.clone().narrow(0, start, len),
            );
            area.update(&scores, &labels).unwrap();
        };
        let area = merged(AreaUnderRoc::new("auc"), shares, update).result();
        assert_close(area.unwrap(), &expected["area_under_roc"]);
        assert_eq!(
            area,
            merged(AreaUnderRoc::new("auc"), &[61], update).result(),
            "exactly"
        );
    }
}

/// All examples as the tokens of one.
#[test]
fn tokens_give_the_values_of_as_many_examples() {
    let expected = reference("classification");
    let (logits, tokens) = (matrix(&expected["logits"], 4), labels(&expected["labels"]));
    let logits = logits.transpose().unsqueeze_dim::<3>(0); // [1, 4, tokens]
    let tokens = tokens.unsqueeze_dim::<2>(0); // [1, tokens]
    for (correct, name) in [
        (sparse_categorical_accuracy(&logits, &tokens), "accuracy"),
        (
            sparse_top_k_categorical_accuracy(&logits, &tokens, 2),
            "top_2_accuracy",
        ),
    ] {
        let mut mean = Mean::new("accuracy");
        mean.update_observations(&correct, None).unwrap(); // [1, tokens]
        assert_close(mean.result(), &expected[name]);
        assert_eq!((mean.examples(), mean.observations()), (1, 61));
    }
    let expected = reference("binary");
    let scores = matrix(&expected["scores"], 1).transpose(); // [1, tokens]
    let tokens = labels(&expected["labels"]).unsqueeze_dim::<2>(0); // [1, tokens]
    let mut area = AreaUnderRoc::new("auc");
    area.update(&scores, &tokens).unwrap();
    assert_close(area.result().unwrap(), &expected["area_under_roc"]);
    assert_eq!((area.examples(), area.observations()), (1, 61));
}

#[test]
fn what_is_not_defined_or_does_not_fit_is_told() {
    let device = Device::flex();
    let labels = |values: [i32; 2]| Tensor::<1, Int>::from_ints(values, &device);
    let scores = |values: [f32; 2]| Tensor::<1>::from_floats(values, &device);
    let mut area = AreaUnderRoc::new("auc");
    area.update(&scores([0.1, 0.9]), &labels([1, 1])).unwrap();
    assert_eq!((area.result(), area.results()), (None, vec![]));
    assert!(area.update(&scores([0.1, 0.9]), &labels([0, 2])).is_err());
    let mut confusion = ConfusionMatrix::new("confusion", 3);
    let logits = Tensor::<2>::from_floats([[1.0, 2.0, 0.0], [0.0, 1.0, 2.0]], &device);
    assert!(confusion.update(&logits, &labels([0, 3])).is_err());
    assert!(
        confusion
            .update(&logits.clone().narrow(1, 0, 2), &labels([0, 1]))
            .is_err()
    );
    assert!(
        confusion
            .update(&logits, &labels([0, 1]).narrow(0, 0, 1))
            .is_err()
    );
    assert_eq!(
        confusion.examples(),
        0,
        "nothing of what was refused is counted"
    );
    assert!(confusion.add_state(&[1.0]).is_err());
    assert!(Mean::new("loss").add_state(&[1.0]).is_err());
}

#[test]
fn errors_of_several_columns_are_those_of_scikit_learn() {
    let expected = reference("regression");
    let [targets, predictions] = ["targets", "predictions"].map(|name| matrix(&expected[name], 3));
    let part = |tensor: &Tensor<2>, start, len| tensor.clone().narrow(0, start, len);
    for shares in SHARES {
        let absolute = mean_of(shares, |start, len| {
            let (predictions, targets) =
                (part(&predictions, start, len), part(&targets, start, len));
            mean_absolute_error(&predictions, &targets).unwrap()
        });
        assert_close(absolute, &expected["mean_absolute_error"]);
        let squared = mean_of(shares, |start, len| {
            let (predictions, targets) =
                (part(&predictions, start, len), part(&targets, start, len));
            mean_squared_error(&predictions, &targets).unwrap()
        });
        assert_close(squared, &expected["mean_squared_error"]);
    }
}

#[derive(Module, Debug)]
struct Weights {
    values: Param<Tensor<1>>,
}

/// Takes the steps of the reference, each from a record, so that the state is whole.
fn check_optimizer(init: impl Fn() -> ModuleOptimizer, part: &str, after: &str) {
    let expected = reference(part);
    let device = Device::flex().autodiff();
    let vector = |value: &Value| Tensor::<1>::from_floats(floats(value).as_slice(), &device);
    let mut model = Weights {
        values: Param::from_tensor(vector(&expected["weights"])),
    };
    let mut optimizer = init();
    let gradients = expected["gradients"].as_array().unwrap().iter();
    for (gradient, after) in gradients.zip(expected[after].as_array().unwrap()) {
        let loss = (model.values.val() * vector(gradient)).sum();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        optimizer = init().load_record(optimizer.to_record());
        let learning_rate = expected["learning_rate"].as_f64().unwrap();
        model = optimizer.step(learning_rate, model, gradients);
        let values = read_data(model.values.val()).unwrap();
        for (value, expected) in values.iter::<f64>().zip(floats(after)) {
            let difference = (value - f64::from(expected)).abs();
            assert!(difference < 1e-6, "{value} and {expected}");
        }
    }
}

#[test]
fn adam_takes_the_steps_of_keras() {
    let init = || AdamConfig::keras().with_epsilon(1e-3).init();
    check_optimizer(init, "adam", "after");
}

#[test]
fn nadam_takes_the_steps_of_keras() {
    // Keras has let the momentum warm up faster since version 3.
    let init = || NadamConfig::new().with_momentum_decay(1.0).init();
    check_optimizer(init, "nadam", "after");
}

#[test]
fn nadam_takes_the_steps_of_the_paper_by_default() {
    let init = || NadamConfig::new().init();
    check_optimizer(init, "nadam", "after_with_slow_momentum");
}
