//! The file, the plan and the table of a sweep.

mod errors;
#[cfg(unix)]
mod performing;
mod space;

use std::path::Path;

use clap::{Command, CommandFactory};

use super::{
    file::{Definition, parse},
    metric::{Metric, Reached},
    plan::Plan,
    table::{Row, Status, csv, ranking},
};
use crate::{
    checkpoint::{Best, Goal},
    globals::Split,
    test_task::Cli,
};

const BEST: Best = Best {
    metric: "accuracy",
    goal: Goal::Highest,
};

fn command() -> Command {
    let mut command = Cli::command();
    command.build();
    command
}

fn definition(text: &str) -> Definition {
    parse("a/tries.toml", text, &command(), BEST).unwrap_or_else(|errors| panic!("{errors:?}"))
}

fn plan_of(text: &str, words: &[&str]) -> Result<Plan, Vec<String>> {
    let given = Cli::command().get_matches_from([&["program"], words].concat());
    Plan::new(&definition(text), &command(), &given)
}

fn plan(text: &str) -> Plan {
    plan_of(text, &[]).unwrap_or_else(|errors| panic!("{errors:?}"))
}

fn values(plan: &Plan) -> Vec<String> {
    plan.runs.iter().map(|run| run.values.join(" ")).collect()
}

#[test]
fn a_file_has_options_of_all_runs_and_those_that_vary() {
    let text = r#"
        metric = "train.f1"
        direction = "lowest"
        output = "x/y"
        parallel = 2
        epochs = 3
        [grid]
        batch_size = [8, 0x10]
        drop_remainder = [true, false]
        [base]
        limit-train = 9
        [random]
        runs = 2
        seed = 7
        ema = { min = 0.9, max = 0.99, log = true }
    "#;
    let definition = definition(text);
    let metric = Metric {
        split: Split::Train,
        name: "f1".to_owned(),
        goal: Some(Goal::Lowest),
    };
    assert_eq!(definition.metric, metric);
    assert_eq!(
        (definition.output.as_path(), definition.parallel),
        (Path::new("x/y"), 2)
    );
    let plan = plan(text);
    assert_eq!(plan.keys, ["batch_size", "drop_remainder", "ema"]);
    assert_eq!(plan.runs.len(), 8);
    let last = plan.runs.last().unwrap();
    let words: Vec<_> = last
        .settings
        .iter()
        .flat_map(|one| one.words.clone())
        .collect();
    assert_eq!(
        words[..3],
        ["--epochs=3", "--limit-train=9", "--batch-size=16"]
    );
    assert_eq!(
        words[3].to_str().unwrap(),
        format!("--ema={}", last.values[2])
    );
    let defaults = self::definition("[grid]\nseed = [1]");
    assert_eq!(defaults.metric, Metric::of(BEST));
    assert_eq!(
        (defaults.output.to_str(), defaults.parallel),
        (Some("sweeps/tries"), 1)
    );
}

#[test]
fn options_of_all_runs_are_checked_together_and_the_command_line_precedes() {
    let words = |plan: &Plan| -> Vec<String> {
        let words = plan.runs[0].settings.iter().flat_map(|one| &one.words);
        words
            .map(|word| word.to_string_lossy().into_owned())
            .collect()
    };
    let text = "epochs = 3\ndrop_remainder = true\n[grid]\nkeep = [1, 2]";
    let given = plan_of(
        text,
        &["--epochs", "9", "--devices", "0,1", "train", "--seed=4"],
    )
    .unwrap();
    let expected = [
        "--epochs=9",
        "--devices=0,1",
        "--seed=4",
        "--drop-remainder",
        "--keep=1",
    ];
    assert_eq!(words(&given), expected);
    let errors = plan_of(text, &["--keep", "3"]).unwrap_err();
    assert!(
        errors[0].starts_with("a/tries.toml:4:1: `keep` varies, and is set on the command"),
        "{errors:?}"
    );
    let errors = plan_of(
        "drop_remainder = true\n[grid]\nsteps_per_epoch = [1, 2]",
        &[],
    )
    .unwrap_err();
    assert_eq!(errors.len(), 2);
    assert!(
        errors[0].starts_with("run 1 (steps_per_epoch 1): the argument ")
            && errors[0].contains("\n--drop-remainder is set in a/tries.toml:1:1"),
        "{errors:?}"
    );
    let errors = plan_of("[grid]\nmin_delta = [0.1]", &[]).unwrap_err();
    assert!(errors[0].contains("--patience"), "{errors:?}");
    let many = "[grid]\nseed = [1, 2]\n[random]\nruns = 6000\nema = { min = 0.1, max = 0.2 }";
    assert!(plan_of(many, &[]).unwrap_err()[0].contains("more than 10000 runs"));
}

#[test]
fn another_sweep_in_the_folder_is_refused_and_further_runs_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let record = |text: &str| {
        plan(text)
            .record(folder.path())
            .map_err(|error| error.to_string())
    };
    let text = "epochs = 3\n[random]\nruns = 2\nema = { min = 0.1, max = 0.2 }\nkeep = { min = 1, max = 9 }";
    record(text).unwrap();
    record(text).unwrap();
    record(&text.replace("runs = 2", "runs = 4")).unwrap();
    record(&format!(
        "metric = 'train.loss'\n{}",
        text.replace("runs = 2", "runs = 5")
    ))
    .unwrap();
    let error = record(text).unwrap_err();
    assert!(error.contains("there are 2 runs, and were 5"), "{error}");
    let other = text
        .replace("epochs = 3", "batch_size = 4")
        .replace("runs = 2", "runs = 5\nseed = 1");
    let error = record(&other).unwrap_err();
    for part in [
        " holds another sweep:\n",
        "`batch_size` is 4, and was not set",
        "`epochs` is not set, and was 3",
        "run 1 has ema ",
        "Give another `output`",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

fn row(number: usize, best: Option<(u32, f64)>, status: Status) -> Row {
    Row {
        number,
        values: vec![format!("{number},0"), "a".to_owned()],
        reached: Some(Reached { best, epochs: 3 }),
        status,
    }
}

#[test]
fn the_table_is_by_number_and_the_ranking_by_value() {
    let failed = Status::Failed("why".to_owned());
    let rows = [
        row(1, Some((2, 0.5)), Status::Finished),
        row(2, None, Status::Finished),
        row(3, Some((1, 0.9)), failed),
        row(4, Some((3, 0.1 + 0.2)), Status::Finished),
        Row {
            reached: None,
            ..row(5, None, Status::Waiting)
        },
        row(6, Some((1, 0.5)), Status::Finished),
    ];
    let keys = ["sizes", "name"].map(str::to_owned);
    let mut metric = Metric::of(BEST);
    let table = String::from_utf8(csv(&keys, &metric, &rows).unwrap()).unwrap();
    let expected = "\
run,sizes,name,validation.accuracy,best_epoch,trained_epochs,status
1,\"1,0\",a,0.5,2,3,finished
2,\"2,0\",a,,,3,finished
3,\"3,0\",a,0.9,1,3,failed
4,\"4,0\",a,0.3,3,3,finished
5,\"5,0\",a,,,,waiting
6,\"6,0\",a,0.5,1,3,finished
";
    assert_eq!(table, expected);
    let ranking = |metric: &Metric| -> Vec<String> {
        let text = ranking(&keys, metric, &rows);
        text.lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    };
    let expected = [
        "run sizes name validation.accuracy epoch status",
        "1 1,0 a 0.5000 2 of 3 finished",
        "6 6,0 a 0.5000 1 of 3 finished",
        "4 4,0 a 0.3000 3 of 3 finished",
        "2 2,0 a - - finished",
        "3 3,0 a 0.9000 1 of 3 failed",
        "5 5,0 a - - waiting",
    ];
    assert_eq!(ranking(&metric), expected);
    metric.goal = Some(Goal::Lowest);
    assert!(
        ranking(&metric)[1].starts_with("4 "),
        "{:?}",
        ranking(&metric)
    );
}
