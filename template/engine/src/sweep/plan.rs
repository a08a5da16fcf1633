//! The runs of a sweep, as they are checked before the first one begins and recorded in its folder.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use clap::{ArgMatches, Command, FromArgMatches};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::{
    file::{Definition, shown},
    space::{count, runs},
};
use crate::{
    configuration::{
        self,
        file::{Setting, key_of},
    },
    files::whole_file,
    options::Options,
    run_record::package,
};

/// File name of the record of a sweep.
const RECORD: &str = "sweep.json";

/// Maximum number of runs: more are a mistake in the file.
const MOST_RUNS: usize = 10_000;

/// Maximum number of differences, or of refused runs, in a message.
const MOST_SHOWN: usize = 8;

/// A run of a sweep.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    /// From 1.
    pub number: usize,
    /// The value of each option that varies, as text.
    pub values: Vec<String>,
    /// All options of the run.
    pub settings: Vec<Setting>,
}

/// All runs of a sweep.
#[derive(Debug)]
pub(super) struct Plan {
    /// Keys of the options that vary.
    pub keys: Vec<String>,
    pub runs: Vec<Planned>,
    record: Record,
}

/// Record of a sweep, in its folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Record {
    program: String,
    /// Options of all runs.
    base: IndexMap<String, String>,
    /// The options that vary, by run.
    runs: Vec<IndexMap<String, String>>,
}

impl Plan {
    /// The runs of a definition; options in `given`, which parsed the command line, precede it.
    ///
    /// # Errors
    /// A text per error: an option that varies is on the command line or in the environment, there are too many
    /// runs, or the options of a run do not fit together.
    pub fn new(
        definition: &Definition,
        command: &Command,
        given: &ArgMatches,
    ) -> Result<Self, Vec<String>> {
        let varied = &definition.varied;
        let fixed = varied
            .iter()
            .filter(|one| configuration::is_given(given, &one.id));
        let fixed: Vec<String> = fixed
            .map(|one| {
                format!(
                    "{}: `{}` varies, and is set on the command line, in the environment or in the file of \
                     --config: leave it out there or here",
                    one.place, one.key
                )
            })
            .collect();
        if !fixed.is_empty() {
            return Err(fixed);
        }
        let number = count(varied, definition.draws).filter(|number| *number <= MOST_RUNS);
        let Some(_) = number else {
            return Err(vec![format!(
                "the sweep has more than {MOST_RUNS} runs, all combinations of the grid with all draws"
            )]);
        };
        let mut base = configuration::given_settings(command, given);
        base.retain(|setting| !["output_dir", "resume"].contains(&&*setting.id));
        let of_file = definition.base.iter();
        base.extend(
            of_file
                .filter(|setting| !configuration::is_given(given, &setting.id))
                .cloned(),
        );
        let keys: Vec<String> = varied.iter().map(|one| one.key.clone()).collect();
        let of_base = |setting: &Setting| (key_of(&setting.long), shown(setting));
        let mut record = Record {
            program: package().name.to_owned(),
            base: base.iter().map(of_base).collect(),
            runs: Vec::new(),
        };
        let mut planned = Vec::new();
        for (settings, number) in runs(varied, definition.draws).into_iter().zip(1..) {
            let values: Vec<String> = settings.iter().map(shown).collect();
            let by_key = keys.iter().cloned().zip(values.iter().cloned());
            record.runs.push(by_key.collect());
            planned.push(Planned {
                number,
                values,
                settings: base.iter().cloned().chain(settings).collect(),
            });
        }
        let plan = Plan {
            keys,
            runs: planned,
            record,
        };
        plan.check(command)?;
        Ok(plan)
    }

    /// Parses the options of each run together.
    fn check(&self, command: &Command) -> Result<(), Vec<String>> {
        let refusals = self.runs.iter().filter_map(|run| {
            let refusal = parse(command, &run.settings).err()?;
            Some(format!(
                "run {} ({}): {refusal}",
                run.number,
                self.describe(run)
            ))
        });
        let refusals: Vec<String> = refusals.take(MOST_SHOWN).collect();
        match refusals.is_empty() {
            true => Ok(()),
            false => Err(refusals),
        }
    }

    /// The options of a run that vary, such as `learning_rate 0.001, epochs 3`.
    pub fn describe(&self, run: &Planned) -> String {
        let values = self.keys.iter().zip(&run.values);
        let values: Vec<String> = values
            .map(|(key, value)| format!("{key} {value}"))
            .collect();
        values.join(", ")
    }

    /// Checks that the sweep in `folder`, if there is one, has these runs first, and records all.
    ///
    /// # Errors
    /// The folder holds other runs; the message names what differs. The record cannot be read or written.
    pub fn record(&self, folder: &Path) -> Result<()> {
        let path = folder.join(RECORD);
        if path.exists() {
            let text =
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let earlier: Record = serde_json::from_slice(&text)
                .with_context(|| format!("{} is damaged", path.display()))?;
            let mut differences = self.record.differences(&earlier);
            let more = differences.len().saturating_sub(MOST_SHOWN);
            differences.truncate(MOST_SHOWN);
            if more > 0 {
                differences.push(format!("and {more} more"));
            }
            if !differences.is_empty() {
                bail!(
                    "{} holds another sweep:\n    {}\nGive another `output`, or the options as they were",
                    folder.display(),
                    differences.join("\n    ")
                );
            }
        }
        whole_file::write(&path, serde_json::to_vec_pretty(&self.record)?)
    }
}

impl Record {
    /// Differences from an earlier record, except for further runs.
    fn differences(&self, earlier: &Record) -> Vec<String> {
        let mut lines = Vec::new();
        if self.program != earlier.program {
            let (now, then) = (&self.program, &earlier.program);
            lines.push(format!("the program is {now}, and was {then}"));
        }
        let keys = self.base.keys().chain(earlier.base.keys());
        let keys: indexmap::IndexSet<&String> = keys.collect();
        for key in keys {
            let of = |record: &Record| {
                let value = record.base.get(key);
                value.map_or("not set".to_owned(), Clone::clone)
            };
            let (now, then) = (of(self), of(earlier));
            if now != then {
                lines.push(format!("`{key}` is {now}, and was {then}"));
            }
        }
        for (number, (now, then)) in (1..).zip(self.runs.iter().zip(&earlier.runs)) {
            if now != then {
                let (now, then) = (in_words(now), in_words(then));
                lines.push(format!("run {number} has {now}, and had {then}"));
            }
        }
        let (now, then) = (self.runs.len(), earlier.runs.len());
        if now < then {
            lines.push(format!("there are {now} runs, and were {then}"));
        }
        lines
    }
}

fn in_words(values: &IndexMap<String, String>) -> String {
    let values: Vec<String> = values
        .iter()
        .map(|(key, value)| format!("{key} {value}"))
        .collect();
    values.join(", ")
}

/// Checks the options of a run as its program will.
fn parse(command: &Command, settings: &[Setting]) -> Result<(), String> {
    let matches = configuration::parse_settings(command, settings)?;
    let options = Options::from_arg_matches(&matches);
    let options = options.map_err(|error| configuration::file::in_a_line(&error))?;
    let fit = options.ensure_fit_together();
    fit.map_err(|error| format!("{error:#}"))
}
