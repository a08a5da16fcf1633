//! What a run is run with: the program, its sources, every option, the replicas and the data. A run
//! that goes on with a checkpoint is compared with the one that saved it.

mod compare;
mod options;
mod program;
mod split;

use std::{env, process, time::SystemTime};

use anyhow::{Context, Result};
use clap::ValueEnum;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{checkpoint::Checkpoint, cli::Args, dataset::Datasets, globals};
use compare::shown;

pub use options::{OptionRecord, Options, Source, parse};
pub use program::{Git, Program, host, utc};
pub use split::SplitRecord;

/// The record of a run. A part that an older version of this program did not record is empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunRecord {
    /// When it began, in UTC as in RFC 3339.
    pub started: String,
    /// The name of the machine of the process that wrote this record.
    pub host: Option<String>,
    pub pid: u32,
    pub program: Program,
    /// `None` where Git does not track the sources.
    pub git: Option<Git>,
    /// The program and its arguments, as they were given.
    pub command_line: Vec<String>,
    pub working_directory: Option<String>,
    /// Every option, given or not; `None` where [`parse`] did not parse the command line.
    pub options: Option<Options>,
    pub seed: Option<u64>,
    /// As `--strategy` names it.
    pub strategy: Option<String>,
    /// Those of all processes.
    pub replicas: Option<usize>,
    pub processes: Option<usize>,
    /// The host of each process.
    pub hosts: Vec<String>,
    /// Examples in a full batch, over all replicas.
    pub global_batch_size: Option<usize>,
    /// The data of each split, by its name.
    pub data: IndexMap<String, SplitRecord>,
    /// The checkpoint that this run goes on with.
    pub resumed_from: Option<ResumedFrom>,
}

/// The checkpoint that a run goes on with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResumedFrom {
    pub checkpoint: String,
    /// Updates of the parameters before.
    pub step: usize,
}

impl RunRecord {
    /// The record of this run; on the thread of `main`, once the strategy is registered. One process of
    /// several needs it for all.
    ///
    /// # Errors
    /// No strategy is registered, or a label cannot be read.
    pub fn of_this_run(args: &Args, datasets: &Datasets) -> Result<Self> {
        let strategy = globals::strategy()?;
        let (workers, host) = (strategy.workers(), program::host());
        let hosts = match (workers.count(), &host) {
            (1, Some(host)) => vec![host.clone()],
            _ => workers.hosts().to_vec(),
        };
        let kind = args.strategy.to_possible_value();
        let directory = env::current_dir().ok();
        let words = env::args_os();
        Ok(RunRecord {
            started: program::utc(SystemTime::now()),
            host,
            pid: process::id(),
            program: Program::this(),
            git: Git::of_sources(),
            command_line: words.map(|word| word.to_string_lossy().into()).collect(),
            working_directory: directory.map(|path| path.display().to_string()),
            options: options::parsed(),
            seed: Some(args.seed),
            strategy: kind.map(|kind| kind.get_name().to_owned()),
            replicas: Some(strategy.num_replicas()),
            processes: Some(workers.count()),
            hosts,
            global_batch_size: Some(globals::global_batch_size()?),
            data: split::records(datasets)?,
            resumed_from: None,
        })
    }

    /// Notes the checkpoint that this run goes on with, and returns a line for each value that differs from
    /// the run that saved it.
    ///
    /// # Errors
    /// That run had other data.
    pub fn resume(&mut self, checkpoint: &Checkpoint) -> Result<Vec<String>> {
        self.resumed_from = Some(ResumedFrom {
            checkpoint: checkpoint.path.display().to_string(),
            step: checkpoint.manifest.progress.step,
        });
        let Some(earlier) = &checkpoint.manifest.run else {
            return Ok(Vec::new());
        };
        self.ensure_same_data(earlier)
            .with_context(|| format!("cannot use the checkpoint {}", checkpoint.path.display()))?;
        Ok(self.differences(earlier))
    }

    /// The record as a table, as TensorBoard's text tab shows it.
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
                Source::Default => "default",
            });
            row(name.trim_start_matches("the "), &shown(&value), source);
        }
        for (split, data) in &self.data {
            row(&format!("{split} split"), &data.describe(), "");
        }
        if let Some(ResumedFrom { checkpoint, step }) = &self.resumed_from {
            row("resumed from", &format!("{checkpoint}, step {step}"), "");
        }
        table
    }
}

fn hex(hash: Sha256) -> String {
    let digest = hash.finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::{compare::tests::record, *};
    use crate::{dataset::create_datasets, strategy::create_strategy};

    #[test]
    fn a_run_records_what_it_is_run_with() {
        let words = [
            "program",
            "--strategy",
            "mirrored",
            "--replicas",
            "2",
            "--batch-size",
            "3",
        ];
        let args = Args::parse_from(words);
        let strategy = create_strategy(&args).unwrap();
        globals::register_strategy(&strategy, args.batch_size).unwrap();
        let datasets = create_datasets(&args).unwrap();
        let record = RunRecord::of_this_run(&args, &datasets).unwrap();
        assert_eq!(
            record.options, None,
            "the test did not parse its command line"
        );
        assert_eq!(record.strategy.as_deref(), Some("mirrored"));
        assert_eq!((record.replicas, record.processes), (Some(2), Some(1)));
        assert_eq!(
            (record.global_batch_size, record.seed),
            (Some(6), Some(args.seed))
        );
        assert_eq!((record.hosts.len(), record.pid), (1, process::id()));
        let splits: Vec<&str> = record.data.keys().map(String::as_str).collect();
        assert_eq!(splits, ["train", "validation", "test"]);
        assert_eq!(
            record.data["train"].examples,
            datasets.train.dataset().len()
        );
        let json = serde_json::to_string_pretty(&record).unwrap();
        assert!(json.contains("\"options\": null"), "{json}");
        assert_eq!(serde_json::from_str::<RunRecord>(&json).unwrap(), record);
        let again = RunRecord::of_this_run(&args, &create_datasets(&args).unwrap()).unwrap();
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
