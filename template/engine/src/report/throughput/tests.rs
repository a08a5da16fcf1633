//! Rates and their texts, and trainings that report them.

use std::{fs, sync::Arc, thread, time::Duration};

use burn::tensor::Device;
use serde_json::{Map, Value};

use super::{rates::percent, *};
use crate::{
    data::{Dataset, Datasets},
    replica::visible_devices,
    test_task::{self, on_a_thread, replica_step, set_up},
    training::Callbacks,
};

fn throughput(incomplete: &[&str], peak: Option<f64>) -> Throughput {
    Throughput {
        is_on: true,
        peak,
        flops: Some(Flops {
            per_example: 2.5e9,
            incomplete: incomplete.iter().map(|name| (*name).to_owned()).collect(),
        }),
    }
}

fn work(tokens: usize, waited: u64) -> Work {
    Work {
        examples: 400,
        counted: Counted {
            examples: 100,
            tokens,
        },
        time: Duration::from_secs(10),
        waited: Duration::from_millis(waited),
    }
}

#[test]
fn rates_are_of_all_processes_and_of_the_peak() {
    let rates = throughput(&[], Some(4e11)).rates(&work(5_000, 1_250));
    let expected = Rates {
        examples: 40.0,
        tokens: Some(2_000.0),
        flops: Some(1e11),
        at_least: false,
        utilisation: Some(0.25),
        data_wait: 0.125,
    };
    assert_eq!(rates, expected);
    let text = "2,000 tokens/s  100 GFLOP/s (25% of peak)  12% waiting for data";
    assert_eq!(rates.text().join("  "), text);
}

#[test]
fn what_is_not_known_is_not_told() {
    let off = Throughput::default().rates(&work(0, 0));
    assert_eq!(off.text(), ["40 examples/s"]);
    let names: Vec<_> = off.named().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["examples_per_second", "data_wait"]);
    let mut object = Map::new();
    off.write(&mut object);
    assert!(!object.contains_key("flops_complete"));
    let rates = throughput(&["blocks.0"], None).rates(&work(0, 0));
    assert_eq!(rates.text(), ["40 examples/s", "≥100 GFLOP/s"]);
    rates.write(&mut object);
    assert_eq!(object["flops_complete"], false);
    assert!(!object.contains_key("mfu"));
}

#[test]
fn a_count_that_is_not_complete_says_so() {
    let tell = |incomplete: &[&str], peak| {
        let throughput = throughput(incomplete, peak);
        throughput.describe(throughput.flops.as_ref().unwrap())
    };
    let expected = "2.50 GFLOP per example, forward and backward; peak 989 TFLOP/s";
    assert_eq!(tell(&[], Some(9.89e14)), expected);
    let text = tell(&["a", "b", "c", "d", "e", "f"], None);
    assert!(
        text.starts_with("at least 2.50 GFLOP per example"),
        "{text}"
    );
    assert!(text.contains("give --peak-flops"), "{text}");
    assert!(
        text.contains("not counted in full: a, b, c, d and 2 more."),
        "{text}"
    );
}

#[test]
fn numbers_have_three_digits() {
    for (number, text) in [
        (0.0, "0.00 "),
        (12.0, "12.0 "),
        (7_213_056.0, "7.21 M"),
        (5.23e10, "52.3 G"),
        (9.89e14, "989 T"),
    ] {
        assert_eq!(with_prefix(number), text);
    }
    assert_eq!([0.0123, 0.0996, 0.345].map(percent), ["1.2%", "10%", "34%"]);
}

/// Examples in [0, 1), each of which takes a time to be read.
struct Slow(Duration);

impl Dataset for Slow {
    type Example = f32;

    fn len(&self) -> usize {
        40
    }

    fn get(&self, index: usize) -> Result<f32> {
        thread::sleep(self.0);
        Ok(index as f32 / 40.0)
    }
}

/// The last lines of `steps.jsonl` and of the training in `metrics.jsonl`, after an epoch of 40 examples.
fn train(words: &[&str], times: [Duration; 2]) -> [Value; 2] {
    let folder = tempfile::tempdir().unwrap();
    let common = ["--epochs", "1", "--batch-size", "8", "--log-every", "3"];
    let words = [&common[..], words].concat();
    on_a_thread(folder.path(), &words, |options| train_here(options, times)).unwrap();
    ["steps.jsonl", "metrics.jsonl"].map(|name| {
        let text = fs::read_to_string(folder.path().join(name)).unwrap();
        let mut lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let of_training = |line: &Value| line["split"] != "validation";
        lines.rfind(of_training).unwrap()
    })
}

fn train_here(options: &Options, [reading, computing]: [Duration; 2]) -> Result<()> {
    options.ensure_fit_together()?;
    set_up(options)?;
    let examples = || Arc::new(Slow(reading)) as Arc<dyn Dataset<Example = f32>>;
    let splits = [examples(), Arc::new(Slow(Duration::ZERO)), examples()];
    let datasets = Datasets::distribute(options, splits, |example, _| Ok(example))?;
    test_task::train(options, &datasets, Callbacks::new(), move |shard| {
        thread::sleep(computing);
        replica_step(shard)
    })
}

const TIME: Duration = Duration::from_millis(5);

fn number(line: &Value, name: &str) -> f64 {
    line[name]
        .as_f64()
        .unwrap_or_else(|| panic!("{name}: {line}"))
}

const FAST: [Duration; 2] = [Duration::ZERO; 2];

/// FLOPs of `Line` on an example of two tokens, once per token: a linear layer of 2 x 300 forward and for its weight,
/// and a matrix that is not known to be a factor.
const FLOPS: f64 = 2.0 * 2.0 * 600.0 * 2.0;

#[test]
fn an_epoch_has_its_throughput_if_asked_for() {
    for words in [
        &["--replicas", "1"][..],
        &["--replicas", "2"],
        &["--replicas", "1", "--accumulate", "2"],
        &["--strategy", "parameter-server", "--replicas", "2"],
        &["--strategy", "model-parallel"],
    ] {
        let [step, epoch] = train(
            &[words, &["--throughput", "--peak-flops", "1T"]].concat(),
            FAST,
        );
        for line in [&step, &epoch] {
            let examples = number(line, "examples_per_second");
            let close = |value: f64, expected: f64| (value / expected - 1.0).abs() < 1e-9;
            assert!(
                close(number(line, "tokens_per_second"), 2.0 * examples),
                "{words:?} {line}"
            );
            let flops = number(line, "flops_per_second");
            assert!(close(flops, FLOPS * examples), "{words:?} {line}");
            assert!(close(number(line, "mfu"), flops / 1e12), "{words:?} {line}");
            assert_eq!(line["flops_complete"], false);
        }
    }
}

#[test]
fn without_the_option_flops_are_not_counted() {
    let [step, epoch] = train(&["--replicas", "2"], FAST);
    assert!(number(&step, "tokens_per_second") > 0.0);
    for (line, name) in [
        (&step, "flops_per_second"),
        (&step, "mfu"),
        (&epoch, "examples_per_second"),
    ] {
        assert!(line.get(name).is_none(), "{line}");
    }
    assert!(number(&epoch, "data_seconds") >= 0.0);
}

#[test]
fn the_share_of_time_spent_waiting_for_data_is_known() {
    if visible_devices()[0] != Device::flex() {
        return println!("skipped: a step takes longer on a GPU in software than the data here");
    }
    for prefetch in ["0", "2"] {
        let words = [
            "--replicas",
            "2",
            "--prefetch",
            prefetch,
            "--throughput",
            "--peak-flops",
            "1T",
        ];
        let share = |times| {
            let [step, epoch] = train(&words, times);
            let share = number(&epoch, "data_seconds") / number(&epoch, "seconds");
            let difference = share - number(&epoch, "data_wait");
            assert!(difference.abs() < 0.05, "{epoch}");
            number(&step, "data_wait")
        };
        let (slow, fast) = (
            share([TIME, Duration::ZERO]),
            share([Duration::ZERO, 4 * TIME]),
        );
        assert!(slow > 0.5 && slow <= 1.0, "--prefetch {prefetch}: {slow}");
        assert!(fast < 0.5, "--prefetch {prefetch}: {fast}");
    }
}
