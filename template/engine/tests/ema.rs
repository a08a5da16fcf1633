//! Averages of weights against timm's `ModelEmaV3` on the same numbers: `fixtures/ema.py` made
//! `fixtures/ema.json`.

use burn::{
    module::{Module, Param, ParamId, RunningState},
    tensor::{Device, Int, Tensor},
};
use kiln_engine::{
    ema::{Average, EmaConfig, Weights},
    replica::read_data,
};
use serde_json::Value;

/// A model with each kind of tensor.
#[derive(Module, Debug)]
struct Everything {
    /// Two parameters, of 6 values and of 1.
    matrix: Param<Tensor<2>>,
    scalar: Param<Tensor<1>>,
    statistic: RunningState<Tensor<1>>,
    frozen: Param<Tensor<1>>,
    count: Param<Tensor<1, Int>>,
}

/// The model after update number `step`: only parameters and statistics come from the fixture.
fn model(parameters: &Value, statistics: &Value, step: i32) -> Everything {
    let device = Device::flex().autodiff();
    let vector = |values: &[f32]| Tensor::<1>::from_floats(values, &device);
    let parameters = floats(parameters);
    let mask = vector(&[f32::NEG_INFINITY, 0.1]);
    Everything {
        matrix: Param::from_tensor(vector(&parameters[..6]).reshape([2, 3])),
        scalar: Param::from_tensor(vector(&parameters[6..])),
        statistic: RunningState::new(vector(&floats(statistics))),
        frozen: Param::from_tensor(mask).set_require_grad(false),
        count: Param::initialized(ParamId::new(), Tensor::from_ints([step], &device)),
    }
}

fn floats(values: &Value) -> Vec<f32> {
    let values = values.as_array().unwrap().iter();
    values.map(|value| value.as_f64().unwrap() as f32).collect()
}

#[track_caller]
fn assert_close(values: Vec<f32>, expected: &Value) {
    let expected = floats(expected);
    assert_eq!(values.len(), expected.len());
    for (value, expected) in values.iter().zip(&expected) {
        assert!((value - expected).abs() <= 1e-6, "{value} and {expected}");
    }
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    read_data(tensor).unwrap().try_into_vec().unwrap()
}

#[test]
fn averages_after_50_updates_are_those_of_timm() {
    let reference: Value = serde_json::from_str(include_str!("fixtures/ema.json")).unwrap();
    let model = |step: usize| {
        let [parameters, statistics] =
            ["parameters", "statistics"].map(|part| &reference[part][step]);
        model(parameters, statistics, step as i32)
    };
    for case in reference["cases"].as_array().unwrap() {
        let config = EmaConfig {
            decay: case["decay"].as_f64().unwrap(),
            warmup: case["warmup"].as_bool().unwrap(),
            evaluated: Weights::Ema,
        };
        let mut average = Average::of(&model(0));
        for step in 1..=50 {
            let decay = config.decay_at(step);
            assert!((decay - case["decays"][step - 1].as_f64().unwrap()).abs() < 1e-12);
            average.update_parameters(&model(step), decay).unwrap();
            average.update_statistics(&model(step), decay).unwrap();
        }
        let statistics = average
            .statistics()
            .iter()
            .cloned()
            .flat_map(values)
            .collect::<Vec<_>>();
        let averaged = average.apply(&model(50), &statistics);
        let parameters = [values(averaged.matrix.val()), values(averaged.scalar.val())].concat();
        assert_close(parameters, &case["parameters"]);
        assert_close(values(averaged.statistic.value()), &case["statistics"]);
        assert_eq!(values(averaged.frozen.val()), [f32::NEG_INFINITY, 0.1]);
        assert_eq!(
            read_data(averaged.count.val())
                .unwrap()
                .iter::<i64>()
                .next(),
            Some(50)
        );
    }
}

#[test]
fn a_parameter_that_ceases_to_train_is_refused() {
    let reference: Value = serde_json::from_str(include_str!("fixtures/ema.json")).unwrap();
    let model = || model(&reference["parameters"][0], &reference["statistics"][0], 0);
    let mut average = Average::of(&model());
    let mut other = model();
    other.scalar = other.scalar.set_require_grad(false);
    let error = average
        .update_parameters(&other, 0.9)
        .unwrap_err()
        .to_string();
    assert!(error.contains("1 tensors for 2 averages"), "{error}");
}
