use burn::tensor::Device;
use kiln_kernels::{
    elementwise::{from_bfloat16, to_bfloat16},
    threads::PIECE,
};

use super::*;
use crate::test_task::{PLAIN, Trained, options, set_up, train_by};

/// Values with their neighbour in bfloat16, from their bits: half a unit of the last place is 0x8000.
const ROUNDED: [(u32, u32); 11] = [
    (0x3f80_0000, 0x3f80_0000),
    (0x3f80_7fff, 0x3f80_0000),
    (0x3f80_8000, 0x3f80_0000), // a tie, to even
    (0x3f80_8001, 0x3f81_0000),
    (0x3f81_8000, 0x3f82_0000), // a tie, to even
    (0xbf81_8000, 0xbf82_0000),
    (0x0000_0001, 0x0000_0000),
    (0x8000_0000, 0x8000_0000), // -0
    (0x7f80_0000, 0x7f80_0000), // infinity
    (0xff80_0000, 0xff80_0000),
    (0x7f7f_ffff, 0x7f80_0000), // the largest float32
];

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn values_are_rounded_to_the_nearest_ties_to_even() {
    let values = ROUNDED.map(|(value, _)| f32::from_bits(value));
    let expected = ROUNDED.map(|(_, rounded)| rounded);
    let mut buckets = [values.to_vec(), Vec::new()];
    ExchangePrecision::Float32.round(&mut buckets);
    assert_eq!(bits(&buckets[0]), bits(&values));
    ExchangePrecision::Bfloat16.round(&mut buckets);
    assert_eq!(bits(&buckets[0]), expected);
    let sent = to_bfloat16(&values).into_iter().map(from_bfloat16);
    assert_eq!(bits(&sent.collect::<Vec<_>>()), expected);
    // The CPU of Burn has no subnormal numbers of bfloat16 to agree on.
    let normal = &values[..6];
    let tensor = Tensor::from_floats(normal, &Device::flex());
    let tensor = ExchangePrecision::Bfloat16.round_tensor(tensor).into_data();
    assert_eq!(
        bits(&tensor.iter().collect::<Vec<f32>>()),
        expected[..normal.len()]
    );
}

#[test]
fn what_is_not_a_number_stays_so() {
    // One whose upper half alone would be infinity.
    let values = [f32::NAN, f32::from_bits(0x7f80_0001)];
    let mut buckets = [values.to_vec()];
    ExchangePrecision::Bfloat16.round(&mut buckets);
    assert!(buckets[0].iter().all(|value| value.is_nan()));
    let sent = to_bfloat16(&values);
    assert!(sent.into_iter().map(from_bfloat16).all(f32::is_nan));
}

#[test]
fn pieces_of_long_buckets_are_all_rounded() {
    let mut buckets = [vec![1.001; 3 * PIECE + 5], vec![-1.001; 7]];
    ExchangePrecision::Bfloat16.round(&mut buckets);
    assert!(buckets[0].iter().all(|value| *value == 1.0));
    assert_eq!(buckets[1], [-1.0; 7]);
}

#[test]
fn tensors_of_other_types_are_kept() {
    let doubles = Tensor::<1>::ones([1], (&Device::flex(), DType::F64)) * 1.001;
    let kept = ExchangePrecision::Bfloat16.round_tensor(doubles.clone());
    assert_eq!(kept.dtype(), DType::F64);
    assert_eq!(kept.into_data(), doubles.into_data());
}

/// Trains with these options in a new folder.
fn train(words: &[&str]) -> Trained {
    let folder = tempfile::tempdir().unwrap();
    train_by(PLAIN, folder.path(), words).unwrap()
}

const ROUNDED_EXCHANGE: [&str; 2] = ["--exchange-precision", "bfloat16"];

#[test]
fn each_strategy_rounds_what_its_replicas_exchange() {
    for (strategy, replicas) in [
        ("mirrored", "3"),
        ("model-parallel", "2"),
        ("parameter-server", "1"),
    ] {
        let options = [
            "--strategy",
            strategy,
            "--replicas",
            replicas,
            "--epochs",
            "3",
        ];
        let exact = train(&options);
        let rounded = train(&[&options[..], &ROUNDED_EXCHANGE].concat());
        let pairs = exact.parameters.iter().zip(&rounded.parameters);
        let largest = pairs.map(|(one, other)| (one - other).abs());
        let largest = largest.fold(0.0, f32::max);
        println!("{strategy}: the largest difference of a parameter is {largest}");
        // Of up to 0.25, after steps of 1e-3.
        assert!(largest > 0.0 && largest < 1e-4, "{strategy}: {largest}");
    }
}

#[test]
fn a_replica_alone_has_nobody_to_send_to() {
    let options = ["--strategy", "mirrored", "--replicas", "1", "--epochs", "1"];
    let rounded = train(&[&options[..], &ROUNDED_EXCHANGE].concat());
    assert_eq!(train(&options).hashes, rounded.hashes);
}

#[test]
fn a_resume_has_the_bits_of_a_training_in_one_go() {
    let folder = tempfile::tempdir().unwrap();
    let train = |name: &str, more: &[&str]| {
        let options = [
            "--strategy",
            "mirrored",
            "--replicas",
            "2",
            "--accumulate",
            "2",
        ];
        let options = [&options[..], &ROUNDED_EXCHANGE, &["--epochs"], more].concat();
        train_by(PLAIN, &folder.path().join(name), &options).unwrap()
    };
    let whole = train("whole", &["2"]);
    train("parts", &["1"]);
    let parts = train("parts", &["2", "--resume"]);
    assert_eq!(parts.saved, whole.saved);
    assert_eq!(
        parts.hashes,
        whole.hashes[whole.hashes.len() - parts.hashes.len()..]
    );
}

#[test]
fn strategies_that_send_no_gradients_refuse_the_option() {
    for (strategy, reason) in [
        ("one-device", "its only replica exchanges no gradients"),
        ("remote", "as tensors of Burn in float32"),
    ] {
        let words = ["--strategy", strategy];
        let refused = set_up(&options(&[&words[..], &ROUNDED_EXCHANGE].concat()));
        let message = format!("{:#}", refused.err().unwrap());
        let named = format!("--exchange-precision bfloat16 is not for --strategy {strategy}: ");
        assert!(
            message.contains(&named) && message.contains(reason),
            "{message}"
        );
    }
}
