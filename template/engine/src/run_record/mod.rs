//! Run metadata: the program, its sources, every option, the replicas and the data. A resumed run is
//! compared with the run that saved its checkpoint.

pub(crate) mod compare;
mod program;
mod run_file;
mod split;

use std::{env, process, time::SystemTime};

use anyhow::Result;
use clap::ValueEnum;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::{
    command_line::{self, parsed},
    data::Datasets,
    globals,
    options::Options as EngineOptions,
    precision, system,
};
pub(crate) use compare::{NOT_COMPARED, is_same};
pub use program::{Git, Program};
pub use run_file::RunFile;
pub use split::SplitRecord;

pub use crate::command_line::{OptionRecord, Options, Package, Source, parse, settings_of_job};
pub(crate) use crate::command_line::{matches, package, program, shown};

/// The metadata of a run. Fields that an older version of the program did not record have default values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunRecord {
    /// Start time in UTC, formatted as in RFC 3339.
    pub started: String,
    /// Host name of the process that wrote this record; `None` if unknown.
    pub host: Option<String>,
    /// Process id of the process that wrote this record.
    pub pid: u32,
    /// The program and how it was built.
    pub program: Program,
    /// Git state of the sources; `None` if Git does not track them.
    pub git: Option<Git>,
    /// The program and its arguments, as given.
    pub command_line: Vec<String>,
    /// Working directory at the start; `None` if unknown.
    pub working_directory: Option<String>,
    /// Every option, given or not; `None` if [`parse`] did not parse the command line.
    pub options: Option<Options>,
    /// The value of `--seed`.
    pub seed: Option<u64>,
    /// The value of `--strategy`.
    pub strategy: Option<String>,
    /// Number of replicas in all processes.
    pub replicas: Option<usize>,
    /// Number of processes of the job.
    pub processes: Option<usize>,
    /// Host name of each process, by index.
    pub hosts: Vec<String>,
    /// Examples in a full batch, over all replicas.
    pub global_batch_size: Option<usize>,
    /// The type of matrix products, which `--precision auto` chooses by the devices.
    pub precision: Option<String>,
    /// The data of each split, by its name.
    pub data: IndexMap<String, SplitRecord>,
    /// The file that the weights started from, before any resume; `None` without `--init-from`.
    pub initial_weights: Option<InitialWeights>,
    /// The checkpoint that this run resumed from; `None` if it started anew.
    pub resumed_from: Option<ResumedFrom>,
    /// Why training ended before its last epoch, as early stopping says; `None` if it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_early: Option<String>,
}

/// The checkpoint that a run resumed from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResumedFrom {
    /// Path of the checkpoint.
    pub checkpoint: String,
    /// Updates of the parameters up to the checkpoint.
    pub step: usize,
}

/// The file that the weights of a training started from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InitialWeights {
    /// Path of the file, or of the folder of a checkpoint.
    pub file: String,
    /// SHA-256 of the file; of its model for a checkpoint.
    pub sha256: String,
}

/// The options for `run.toml`; `None` if [`parse`] was not called, as in tests.
pub(crate) fn run_file() -> Option<RunFile> {
    let (program, matches) = command_line::program()?;
    Some(RunFile::new(program, matches, &parsed()?))
}

impl RunRecord {
    /// The metadata of this run; on the thread of `main`, once the strategy is registered. Needs no
    /// communication: one process of a job can record it for all.
    ///
    /// # Errors
    /// No strategy is registered, or a label cannot be read.
    pub fn of_this_run<E: Send + 'static>(
        options: &EngineOptions,
        datasets: &Datasets<E>,
    ) -> Result<Self> {
        let strategy = globals::strategy()?;
        let (workers, host) = (strategy.workers(), system::host());
        let hosts = match (workers.count(), &host) {
            (1, Some(host)) => vec![host.clone()],
            _ => workers.hosts().to_vec(),
        };
        let kind = options.strategy.to_possible_value();
        let directory = env::current_dir().ok();
        let words = env::args_os();
        Ok(RunRecord {
            started: system::utc(SystemTime::now()),
            host,
            pid: process::id(),
            program: Program::this(),
            git: Git::of_sources(),
            command_line: words.map(|word| word.to_string_lossy().into()).collect(),
            working_directory: directory.map(|path| path.display().to_string()),
            options: parsed(),
            seed: Some(options.seed),
            strategy: kind.map(|kind| kind.get_name().to_owned()),
            replicas: Some(strategy.num_replicas()),
            processes: Some(workers.count()),
            hosts,
            global_batch_size: Some(globals::global_batch_size()?),
            precision: Some(
                strategy
                    .run_on_first(|_| Ok(precision::name_of_active()))?
                    .to_owned(),
            ),
            data: split::records(datasets)?,
            initial_weights: None,
            resumed_from: None,
            ended_early: None,
        })
    }

    /// The metadata as a Markdown table, for TensorBoard's text tab.
    pub fn to_markdown(&self) -> String {
        let mut table = "| | | |\n|---|---|---|\n".to_owned();
        let mut row = |name: &str, value: &str, source: &str| {
            let value = value.replace(['\n', '`'], " "); // which would end the row or the code
            table += &format!("| {name} | `{value}` | {source} |\n");
        };
        let unknown = || "unknown".to_owned();
        row("started", &self.started, "");
        row("host", &self.host.clone().unwrap_or_else(unknown), "");
        row("process", &self.pid.to_string(), "");
        row("command line", &self.command_line.join(" "), "");
        let directory = self.working_directory.clone();
        row("working directory", &directory.unwrap_or_else(unknown), "");
        for (name, value) in self.facts() {
            let option = self.options.as_ref().and_then(|all| all.get(&name));
            let source = option.map_or("", |option| match option.source {
                Source::CommandLine => "command line",
                Source::Environment => "environment",
                Source::File => "configuration file",
                Source::Default => "default",
            });
            row(name.trim_start_matches("the "), &shown(&value), source);
        }
        for (split, data) in &self.data {
            row(&format!("{split} split"), &data.describe(), "");
        }
        if let Some(InitialWeights { file, sha256 }) = &self.initial_weights {
            row("initial weights", &format!("{file}, SHA-256 {sha256}"), "");
        }
        if let Some(ResumedFrom { checkpoint, step }) = &self.resumed_from {
            row("resumed from", &format!("{checkpoint}, step {step}"), "");
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{compare::tests::record, *};
    use crate::test_task::{self, datasets, set_up};

    #[test]
    fn a_run_records_what_it_is_run_with() {
        let words = [
            "--strategy",
            "mirrored",
            "--replicas",
            "2",
            "--batch-size",
            "3",
            "--precision",
            "float16",
        ];
        let options = test_task::options(&words);
        set_up(&options).unwrap();
        let splits = datasets(&options, 12).unwrap();
        let record = RunRecord::of_this_run(&options, &splits).unwrap();
        assert_eq!(
            record.options, None,
            "the test did not parse its command line"
        );
        assert_eq!(record.strategy.as_deref(), Some("mirrored"));
        assert_eq!((record.replicas, record.processes), (Some(2), Some(1)));
        assert_eq!(
            (record.global_batch_size, record.seed),
            (Some(6), Some(options.seed))
        );
        assert_eq!((record.hosts.len(), record.pid), (1, process::id()));
        assert_eq!(record.precision.as_deref(), Some("float16"));
        let names: Vec<&str> = record.data.keys().map(String::as_str).collect();
        assert_eq!(names, ["train", "validation", "test"]);
        assert_eq!(record.data["train"].examples, splits.train.dataset().len());
        let json = serde_json::to_string_pretty(&record).unwrap();
        assert!(json.contains("\"options\": null"), "{json}");
        assert_eq!(serde_json::from_str::<RunRecord>(&json).unwrap(), record);
        let again = RunRecord::of_this_run(&options, &datasets(&options, 12).unwrap()).unwrap();
        assert_eq!(again.data, record.data);
    }

    #[test]
    fn the_table_has_a_row_for_each_part() {
        let mut record = record(json!({"--data-dir": "a|b"}));
        record.resumed_from = Some(ResumedFrom {
            checkpoint: "runs/checkpoints/step-7".to_owned(),
            step: 7,
        });
        let table = record.to_markdown();
        for row in [
            "| --data-dir | `a|b` | command line |",
            "| commit | `abc` |  |",
            "| resumed from | `runs/checkpoints/step-7, step 7` |  |",
            "| train split | `3 examples with SHA-256 ",
        ] {
            assert!(table.contains(row), "{row}\n{table}");
        }
    }
}
