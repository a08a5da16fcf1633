//! The command `compare`: the options, program and data in which runs differ, their metrics and time, as a
//! table, and their curves as a picture.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, bail, ensure};
use indexmap::{IndexMap, IndexSet};
use serde_json::{Map, Value};

use crate::{
    checkpoint::{Best, Goal},
    console::terminal,
    globals::Split,
    options::Compare,
    picture::{curves, runs},
    report::{RUN, log},
    run_record::{NOT_COMPARED, RunRecord, is_same, package, shown},
    task::Task,
};

/// Maximum number of runs that stand side by side; more stand in a row each.
const SIDE_BY_SIDE: usize = 4;

/// Characters of a hash that tell runs apart.
const SHORT: usize = 12;

/// Cell of a value that a run does not have.
const NONE: &str = "-";

/// Prints a table of runs, with a row for each differing option and each metric, and draws their curves.
///
/// # Errors
/// A run is damaged, unreadable or of another program; the others are compared. The picture cannot be written.
pub fn compare<T: Task>(options: &Compare) -> Result<()> {
    let (mut whole, mut refused) = (Vec::new(), Vec::new());
    for folder in &options.runs {
        match Run::read(folder) {
            Ok(run) => whole.push(run),
            Err(error) => refused.push(format!("{}: {error:#}", folder.display())),
        }
    }
    if !whole.is_empty() {
        terminal::print(table(&rows(&whole, T::BEST)));
        whole
            .iter()
            .filter_map(Run::early_end)
            .for_each(terminal::print);
        if let Some(svg) = &options.svg {
            let named: Vec<_> = whole.iter().map(|run| (&*run.name, &run.metrics)).collect();
            runs::draw(&named, svg)?;
        }
    }
    ensure!(
        refused.is_empty(),
        "{} of {} runs cannot be compared:\n{}",
        refused.len(),
        options.runs.len(),
        refused.join("\n")
    );
    Ok(())
}

/// A run from its output folder.
struct Run {
    name: String,
    record: RunRecord,
    metrics: runs::Metrics,
    /// Time of training and validation; not the time of a stopped epoch that was repeated.
    seconds: f64,
}

impl Run {
    /// # Errors
    /// The folder holds no run, its record or log is damaged, or it is of another program.
    fn read(folder: &Path) -> Result<Self> {
        ensure!(folder.is_dir(), "there is no such folder");
        let path = folder.join(RUN);
        ensure!(
            path.exists(),
            "it holds no {RUN}, and so no run that has started"
        );
        let text = fs::read(&path).with_context(|| format!("cannot read {RUN}"))?;
        let record: RunRecord =
            serde_json::from_slice(&text).with_context(|| format!("{RUN} is damaged"))?;
        let (program, this) = (&record.program.name, package().name);
        if program != this {
            bail!("it is a run of the program {program:?}, and this is {this:?}");
        }
        let log = folder.join(log::NAME);
        let text = match log.exists() {
            true => {
                fs::read_to_string(&log).with_context(|| format!("cannot read {}", log::NAME))?
            }
            // Before the end of its first epoch.
            false => String::new(),
        };
        let metrics = match text.is_empty() {
            true => runs::Metrics::new(),
            false => curves::parse(&text).with_context(|| format!("{} is damaged", log::NAME))?,
        };
        let name = folder.display().to_string();
        Ok(Run {
            name,
            record,
            metrics,
            seconds: seconds(&text),
        })
    }

    /// The number of trained epochs, and that of `--epochs`.
    fn epochs(&self) -> (u32, Option<u64>) {
        let of = |curves: &curves::Curves| curves.of(Split::Train).keys().copied().max();
        let trained = self.metrics.values().filter_map(of).max().unwrap_or(0);
        let options = self.record.options.as_ref();
        let epochs = options.and_then(|options| options.get("--epochs"));
        (trained, epochs.and_then(|epochs| epochs.value.as_u64()))
    }

    /// A line on a run with fewer epochs than planned: ended early on purpose, or unfinished.
    fn early_end(&self) -> Option<String> {
        let (trained, planned) = self.epochs();
        let planned = planned.filter(|planned| u64::from(trained) < *planned)?;
        if let Some(reason) = &self.record.ended_early {
            return Some(format!(
                "{} ended early, with {trained} of {planned} epochs: {reason}",
                self.name
            ));
        }
        let is_tested = self
            .metrics
            .values()
            .any(|curves| !curves.of(Split::Test).is_empty());
        (!is_tested).then(|| format!("{} is unfinished: {trained} of {planned} epochs", self.name))
    }

    /// The facts to compare, with short hashes.
    fn facts(&self) -> IndexMap<String, Value> {
        let mut facts = self.record.facts();
        // The number of replicas is a fact of its own, also where the option is left to the machine.
        facts.retain(|name, _| name != "--replicas" && !NOT_COMPARED.contains(&name.as_str()));
        for (split, data) in &self.record.data {
            let hash = short(&data.sha256);
            let data = format!("{} examples, {hash}", data.examples);
            facts.insert(format!("the {split} split"), data.into());
        }
        for (name, value) in &mut facts {
            if let (true, Value::String(hash)) =
                (name.contains("commit") || name.contains("SHA"), &mut *value)
            {
                *hash = short(hash).to_owned();
            }
        }
        facts
    }

    /// The last value of a metric of a split.
    fn last(&self, metric: &str, split: Split) -> Option<f64> {
        self.metrics
            .get(metric)?
            .of(split)
            .values()
            .next_back()
            .copied()
    }

    /// The best value of a metric of the validation, with its epoch.
    fn best(&self, by: Best) -> Option<(u32, f64)> {
        best_of(self.metrics.get(by.metric)?.of(Split::Validation), by.goal)
    }
}

/// The best finite value by epoch, with its epoch; of equal ones the first.
pub(crate) fn best_of(values: &BTreeMap<u32, f64>, goal: Goal) -> Option<(u32, f64)> {
    let finite = values.iter().filter(|(_, value)| value.is_finite());
    finite.fold(None, |best, (epoch, value)| match best {
        Some((_, highest)) if !goal.is_better(*value, highest) => best,
        _ => Some((*epoch, *value)),
    })
}

fn short(hash: &str) -> &str {
    hash.get(..SHORT).unwrap_or(hash)
}

/// Seconds of training and validation in the text of a log.
fn seconds(log: &str) -> f64 {
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Map<String, Value>>(line).ok());
    let lines = lines.filter(|line| {
        line.get("split")
            .is_some_and(|split| split != Split::Test.name())
    });
    let seconds = lines.filter_map(|line| line.get("seconds")?.as_f64());
    seconds.fold(0.0, |sum, seconds| sum + seconds) // the `sum` of none is -0.0
}

/// The table: the names of the runs, what differs between them, and what they reached.
fn rows(whole: &[Run], best: Best) -> Vec<Vec<String>> {
    let row = |name: &str, cell: &dyn Fn(&Run) -> String| {
        let cells = whole.iter().map(cell);
        [name.to_owned()]
            .into_iter()
            .chain(cells)
            .collect::<Vec<_>>()
    };
    let mut rows = vec![row("", &|run| run.name.clone())];
    let facts: Vec<_> = whole.iter().map(Run::facts).collect();
    for name in facts
        .iter()
        .flat_map(IndexMap::keys)
        .collect::<IndexSet<_>>()
    {
        let differs = facts
            .iter()
            .any(|other| match (other.get(name), facts[0].get(name)) {
                (Some(left), Some(right)) => !is_same(left, right),
                (left, right) => left.is_some() != right.is_some(),
            });
        if differs {
            let cells = facts
                .iter()
                .map(|facts| facts.get(name).map_or(NONE.to_owned(), shown));
            let name = name.trim_start_matches("the ").to_owned();
            rows.push([name].into_iter().chain(cells).collect());
        }
    }
    rows.push(row("epochs", &|run| match run.epochs() {
        (trained, Some(planned)) => format!("{trained} of {planned}"),
        (trained, None) => trained.to_string(),
    }));
    let metrics: IndexSet<&String> = whole.iter().flat_map(|run| run.metrics.keys()).collect();
    for split in [Split::Train, Split::Validation, Split::Test] {
        for metric in &metrics {
            let last = |run: &Run| run.last(metric, split);
            if whole.iter().any(|run| last(run).is_some()) {
                let cell = |run: &Run| last(run).map_or(NONE.to_owned(), number);
                rows.push(row(&format!("{} {metric}", split.name()), &cell));
            }
        }
    }
    rows.push(row(
        &format!("best validation {}", best.metric),
        &|run| match run.best(best) {
            Some((epoch, value)) => format!("{} in epoch {epoch}", number(value)),
            None => NONE.to_owned(),
        },
    ));
    rows.push(row("seconds", &|run| format!("{:.1}", run.seconds)));
    rows
}

fn number(value: f64) -> String {
    format!("{value:.4}")
}

/// The text of a table, with a row per run if there are many.
fn table(rows: &[Vec<String>]) -> String {
    let transposed: Vec<Vec<String>>;
    let rows = if rows.first().is_some_and(|row| row.len() > SIDE_BY_SIDE + 1) {
        transposed = (0..rows[0].len())
            .map(|column| rows.iter().map(|row| row[column].clone()).collect())
            .collect();
        &transposed
    } else {
        rows
    };
    aligned(rows)
}

/// The text of rows of cells, with aligned columns.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;

    use super::*;
    use crate::{run_record::compare::tests::record, test_task::Line};

    /// Writes a run of this program with losses of the validation.
    fn write(folder: &Path, options: Value, losses: &[f64], end: &str) -> PathBuf {
        fs::create_dir_all(folder).unwrap();
        let record = record(options);
        fs::write(folder.join(RUN), serde_json::to_vec(&record).unwrap()).unwrap();
        let lines = (1..).zip(losses).map(|(epoch, loss)| {
            format!(
                "{{\"split\":\"train\",\"epoch\":{epoch},\"loss\":{loss},\"seconds\":2.0}}\n\
                 {{\"split\":\"validation\",\"epoch\":{epoch},\"loss\":{loss},\"seconds\":0.5}}\n"
            )
        });
        fs::write(folder.join(log::NAME), lines.collect::<String>() + end).unwrap();
        folder.to_owned()
    }

    #[test]
    fn the_table_has_what_differs_and_what_was_reached() {
        let folder = tempfile::tempdir().unwrap();
        let test = "{\"split\":\"test\",\"epoch\":3,\"loss\":0.75,\"seconds\":9.0}\n{\"spl";
        let options = json!({"--epochs": 3, "--rate": 0.1, "--seed": 1, "--output-dir": "a"});
        write(&folder.path().join("a"), options, &[3.0, 1.0, 2.0], test);
        let options = json!({"--epochs": 4, "--rate": 0.1, "--sizes": [1, 2], "--replicas": 2});
        write(&folder.path().join("b"), options, &[4.0], "");
        let runs = ["a", "b"].map(|name| {
            let run = Run::read(&folder.path().join(name)).unwrap();
            Run {
                name: name.to_owned(),
                ..run
            }
        });
        let rows = rows(&runs, Line::BEST);
        let expected = "\
                                      a                    b
--epochs               3                    4
--sizes                -                    1,2
epochs                 3 of 3               1 of 4
train loss             2.0000               4.0000
validation loss        2.0000               4.0000
test loss              0.7500               -
best validation loss   1.0000 in epoch 2    4.0000 in epoch 1
seconds                7.5                  2.5";
        let words = |text: &str| -> Vec<Vec<String>> {
            let line = |line: &str| line.split_whitespace().map(str::to_owned).collect();
            text.lines().map(line).collect()
        };
        assert_eq!(words(&table(&rows)), words(expected));
        let unfinished: Vec<_> = runs.iter().filter_map(Run::early_end).collect();
        assert_eq!(unfinished, ["b is unfinished: 1 of 4 epochs"]);
        let [_, mut early] = runs;
        early.record.ended_early = Some("out of patience".to_owned());
        let expected = "b ended early, with 1 of 4 epochs: out of patience";
        assert_eq!(early.early_end().as_deref(), Some(expected));
        let wide: Vec<Vec<String>> = rows
            .iter()
            .map(|row| [&row[..], &row[1..], &row[1..]].concat())
            .collect();
        let table = table(&wide);
        assert_eq!(
            table.lines().count(),
            7,
            "a row per run, and one of names: {table}"
        );
    }

    #[test]
    fn runs_that_cannot_be_compared_are_named_and_the_others_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let whole = write(&path("whole"), json!({}), &[1.0], "");
        let begun = write(&path("begun"), json!({"--epochs": 2}), &[], "");
        let half = write(&path("half"), json!({}), &[1.0], "");
        let text = fs::read_to_string(half.join(RUN)).unwrap();
        fs::write(half.join(RUN), &text[..text.len() / 2]).unwrap();
        let log = write(&path("log"), json!({}), &[1.0], "no JSON\n");
        let other = write(&path("other"), json!({}), &[1.0], "");
        fs::write(
            other.join(RUN),
            text.replace("\"name\":\"kiln-engine\"", "\"name\":\"dogs\""),
        )
        .unwrap();
        fs::create_dir(path("empty")).unwrap();
        let svg = path("runs.svg");
        let compare = |runs: Vec<PathBuf>| {
            let error = compare::<Line>(&Compare {
                runs,
                svg: Some(svg.clone()),
            });
            error.map_err(|error| format!("{error:#}"))
        };
        compare(vec![whole.clone(), begun]).unwrap();
        assert!(fs::read_to_string(&svg).unwrap().contains("validation"));
        fs::remove_file(&svg).unwrap();
        let error = compare(vec![
            half,
            whole,
            log,
            other,
            path("empty"),
            path("missing"),
        ])
        .unwrap_err();
        for part in [
            "5 of 6 runs cannot be compared:\n",
            "/half: run.json is damaged: EOF",
            "/log: metrics.jsonl is damaged: line 3 is no JSON object",
            "/other: it is a run of the program \"dogs\", and this is \"kiln-engine\"",
            "/empty: it holds no run.json",
            "/missing: there is no such folder",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(svg.exists(), "the whole run is drawn");
    }
}
