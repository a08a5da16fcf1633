use std::{fs, thread};

use clap::Parser;

use super::*;
use crate::{
    globals,
    options::Command,
    test_task::{self, Cli, Line, set_up, train_step},
    training::{apply_gradients, train_shard},
};

fn step(inputs: Inputs<f32>) -> Result<Losses> {
    globals::strategy()?.train(inputs, |shard| {
        let (losses, gradients) = train_shard::<Line>(shard, train_step)?;
        apply_gradients::<Line>(gradients)?;
        Ok(losses)
    })
}

/// The values of the curve, by row: update, learning rate, loss, smoothed loss.
fn found(words: &[&str]) -> Result<Vec<[f64; 4]>> {
    let folder = tempfile::tempdir()?;
    let svg = folder.path().join("curve.svg");
    let output = folder.path().join("runs");
    let paths = [svg.to_str().unwrap(), output.to_str().unwrap()];
    let mut words = [&["test", "find-lr", "--output-dir", paths[1]], words].concat();
    if !words.contains(&"--svg") {
        words.extend(["--svg", paths[0]]);
    }
    let cli = Cli::try_parse_from(words)?;
    let Some(Command::FindLr(find)) = cli.command else {
        panic!("another command")
    };
    // The registry is per thread.
    thread::scope(|scope| {
        let run = || {
            set_up(&cli.options)?;
            let datasets = test_task::datasets(&cli.options, 24)?;
            find_learning_rate::<Line>(&find, &cli.options, &datasets, step)
        };
        scope.spawn(run).join().unwrap()
    })?;
    assert_eq!(
        fs::read_dir(folder.path())?.count(),
        2,
        "a picture and values"
    );
    assert!(fs::read_to_string(&svg)?.contains("\nsuggestion "));
    let mut rows = csv::Reader::from_path(svg.with_extension("csv"))?;
    let rows = rows.deserialize::<[f64; 4]>().map(|row| Ok(row?));
    rows.collect()
}

#[test]
fn the_loss_is_that_of_a_training_with_a_growing_rate_on_any_number_of_replicas() {
    let words = ["--min", "1e-5", "--max", "1e-1", "--steps", "21"];
    let one = ["--strategy", "one-device", "--batch-size", "12"];
    let one = found(&[&words[..], &one].concat()).unwrap();
    assert!((one[0][1] - 1e-5).abs() < 1e-15);
    for (place, row) in one.iter().enumerate() {
        let rate = 1e-5 * 10_f64.powf(place as f64 / 5.0);
        assert!((row[1] / rate - 1.0).abs() < 1e-9, "{row:?}");
        assert_eq!(row[0], (place + 1) as f64);
    }
    assert!(one.len() > 15, "{one:?}");
    let three = ["--replicas", "3", "--batch-size", "4"];
    let [three, again] = [(); 2].map(|()| found(&[&words[..], &three].concat()).unwrap());
    assert_eq!(three, again, "the same seed");
    assert_eq!(one.len(), three.len());
    for (one, three) in one.iter().zip(&three) {
        assert!(
            (one[2] - three[2]).abs() < 1e-4 * one[2].abs().max(1.0),
            "{one:?} {three:?}"
        );
    }
    let accumulated = [
        "--strategy",
        "one-device",
        "--batch-size",
        "6",
        "--accumulate",
        "2",
    ];
    let accumulated = found(&[&words[..], &accumulated].concat()).unwrap();
    assert!((accumulated[9][2] - one[9][2]).abs() < 1e-4);
}

#[test]
fn a_divergence_ends_the_search() {
    let words = ["--min", "1e-4", "--max", "1e9", "--steps", "60"];
    let rows = found(&[&words[..], &["--strategy", "one-device"]].concat()).unwrap();
    assert!((FEWEST..50).contains(&rows.len()), "{}", rows.len());
}

#[test]
fn options_that_do_not_fit_are_errors() {
    for (words, expected) in [
        (
            &["--min", "1", "--max", "0.1"][..],
            "--min 1 is not below --max 0.1",
        ),
        (&["--steps", "3"], "--steps 3 are too few"),
        (&["--svg", "a.png"], "--svg a.png must end in .svg"),
        (&["--svg", "none/a.svg"], "there is no folder none"),
        (&["--resume"], "leave out --resume"),
        (
            &["--strategy", "parameter-server"],
            "use another --strategy",
        ),
        (&["--min", "0"], "above 0"),
        (&["--smoothing", "1"], "below 1"),
        (&["--freeze", "hiden"], "--freeze"),
    ] {
        let error = format!("{:#}", found(words).err().unwrap());
        assert!(error.contains(expected), "{error}");
    }
}
