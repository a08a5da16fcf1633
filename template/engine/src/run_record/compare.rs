//! Comparison of a resumed run with the run that saved its checkpoint.

use anyhow::{Result, ensure};
use indexmap::IndexMap;
use serde_json::{Value, json};

use super::RunRecord;
use crate::{command_line::shown, split::Split};

/// Options that do not change the result of training.
pub(crate) const NOT_COMPARED: [&str; 3] = ["--config", "--resume", "--output-dir"];

/// Options that choose examples of the training and validation splits.
const CHOOSE_EXAMPLES: [&str; 3] = ["--limit-train", "--limit-validation", "--overfit-batches"];

impl RunRecord {
    /// The differences from the run that saved a checkpoint, one line each, such as `--learning-rate is
    /// 0.001, and was 0.002`. Values missing in one of the records are left out, and so are the splits of
    /// [`ensure_same_data`](Self::ensure_same_data).
    pub fn differences(&self, earlier: &RunRecord) -> Vec<String> {
        let (now, then) = (self.facts(), earlier.facts());
        let differs = |(name, now): (&String, &Value)| {
            let then = then.get(name)?;
            let counts = !NOT_COMPARED.contains(&name.as_str()) && !is_same(now, then);
            counts.then(|| format!("{name} is {}, and was {}", shown(now), shown(then)))
        };
        let mut lines: Vec<String> = now.iter().filter_map(differs).collect();
        let test = Split::Test.name();
        if let (Some(now), Some(then)) = (self.data.get(test), earlier.data.get(test))
            && !now.fits(then)
        {
            let (now, then) = (now.describe(), then.describe());
            lines.push(format!("the {test} split is {now}, and was {then}"));
        }
        lines
    }

    /// Checks that the training and validation data are those of the run that saved a checkpoint. Test data
    /// may differ.
    ///
    /// # Errors
    /// The number of training or validation examples, or their labels, differ.
    pub fn ensure_same_data(&self, earlier: &RunRecord) -> Result<()> {
        for split in [Split::Train, Split::Validation].map(Split::name) {
            if let (Some(now), Some(then)) = (self.data.get(split), earlier.data.get(split)) {
                ensure!(
                    now.fits(then),
                    "the {split} split has {}, but the run that saved the checkpoint had {}: use the \
                     data of that run ({}), or start over without --resume",
                    now.describe(),
                    then.describe(),
                    self.what_chooses_other_data(earlier)
                );
            }
        }
        Ok(())
    }

    /// The options that explain other data, with their values in the earlier run.
    fn what_chooses_other_data(&self, earlier: &RunRecord) -> String {
        let of = |run: &RunRecord, name: &str| {
            let option = run.options.as_ref().and_then(|options| options.get(name));
            option
                .map(|option| option.value.clone())
                .unwrap_or_default()
        };
        let other = CHOOSE_EXAMPLES.into_iter().filter_map(|name| {
            let (now, then) = (of(self, name), of(earlier, name));
            (now != then).then(|| format!("{name} was {}", shown(&then)))
        });
        let other: Vec<String> = other.collect();
        match other.is_empty() {
            true => "--data-dir".to_owned(),
            false => other.join(", "),
        }
    }

    /// The known values to compare runs by, with their names in messages.
    pub(crate) fn facts(&self) -> IndexMap<String, Value> {
        let (program, git) = (&self.program, self.git.as_ref());
        let state = git.map(|git| if git.dirty { "dirty" } else { "clean" });
        let mut facts = IndexMap::from([
            ("the program", json!(program.name)),
            ("the version of the program", json!(program.version)),
            ("the version of Burn", json!(program.burn)),
            ("the SHA-256 of Cargo.lock", json!(program.cargo_lock)),
            ("the target", json!(program.target)),
            ("the profile", json!(program.profile)),
            ("the list of features", json!(program.features)),
            ("the commit", json!(git.map(|git| &git.commit))),
            ("the working tree", json!(state)),
            ("--strategy", json!(self.strategy)),
            ("--seed", json!(self.seed)),
            ("the number of replicas", json!(self.replicas)),
            ("the number of processes", json!(self.processes)),
            ("the number of hosts", json!(number_of(&self.hosts))),
            ("the global batch size", json!(self.global_batch_size)),
            ("the type of matrix products", json!(self.precision)),
        ]);
        facts.retain(|_, fact| ![json!(null), json!(""), json!([])].contains(fact));
        let facts = facts
            .into_iter()
            .map(|(name, fact)| (name.to_owned(), fact));
        let options = self.options.iter().flatten();
        let options = options.map(|(name, option)| (name.clone(), option.value.clone()));
        facts.chain(options).collect()
    }
}

/// Number of different hosts; `None` if unknown.
fn number_of(hosts: &[String]) -> Option<usize> {
    let mut hosts = hosts.to_vec();
    hosts.sort();
    hosts.dedup();
    Some(hosts.len()).filter(|number| *number > 0)
}

/// True if two values are equal up to JSON's rounding of fractions.
pub(crate) fn is_same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right)
                    .all(|(left, right)| is_same(left, right))
        }
        (Value::Number(left), Value::Number(right)) if left.is_f64() || right.is_f64() => {
            let (left, right) = (left.as_f64().unwrap_or(0.0), right.as_f64().unwrap_or(0.0));
            (left - right).abs() <= 1e-12 * left.abs().max(right.abs())
        }
        _ => left == right,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::run_record::{Git, OptionRecord, Program, Source, split::tests::labelled};

    /// The record of a run with `options`.
    pub fn record(options: Value) -> RunRecord {
        let options: IndexMap<String, Value> = serde_json::from_value(options).unwrap();
        let with_source = |(name, value)| {
            let source = Source::CommandLine;
            (name, OptionRecord { value, source })
        };
        RunRecord {
            program: Program::this(),
            git: Some(Git {
                commit: "abc".to_owned(),
                dirty: false,
            }),
            options: Some(options.into_iter().map(with_source).collect()),
            seed: Some(1),
            replicas: Some(2),
            hosts: vec!["a".to_owned(), "b".to_owned(), "a".to_owned()],
            data: IndexMap::from([
                ("train".to_owned(), labelled(&[1, 2, 3])),
                ("test".to_owned(), labelled(&[4, 5])),
            ]),
            ..RunRecord::default()
        }
    }

    fn through_json(record: &RunRecord) -> RunRecord {
        serde_json::from_str(&serde_json::to_string(record).unwrap()).unwrap()
    }

    #[test]
    fn a_run_does_not_differ_from_itself_read_back() {
        // JSON may round the last digits of this number.
        let record = record(json!({"--epsilon": 5e-324_f64.max(1.234_567_890_123_456_7e-30)}));
        assert_eq!(record.differences(&through_json(&record)), [""; 0]);
        record.ensure_same_data(&through_json(&record)).unwrap();
    }

    #[test]
    fn a_record_of_another_version_differs_in_nothing_that_is_not_known() {
        let record = record(json!({"--epochs": 3}));
        for json in [
            "{}",
            r#"{"git": {}, "options": {"--epochs": {"value": 3}}, "new": 1}"#,
        ] {
            let other: RunRecord = serde_json::from_str(json).unwrap();
            assert_eq!(record.differences(&other), [""; 0], "{json}");
            assert_eq!(other.differences(&record), [""; 0], "{json}");
            record.ensure_same_data(&other).unwrap();
            other.ensure_same_data(&record).unwrap();
        }
    }

    #[test]
    fn each_difference_is_a_line() {
        let options =
            json!({"--rate": 0.002, "--devices": [0, 1], "--resume": false, "--limit": null});
        let earlier = through_json(&record(options));
        let options = json!({"--rate": 0.001, "--devices": [0], "--resume": true, "--limit": 3});
        let mut now = record(options);
        now.program.burn = "9.0.0".to_owned();
        now.git = Some(Git {
            commit: "abd".to_owned(),
            dirty: true,
        });
        (now.seed, now.replicas) = (Some(7), Some(4));
        now.hosts.pop();
        now.hosts[0] = "b".to_owned();
        let burn = &earlier.program.burn;
        let expected = [
            &format!("the version of Burn is 9.0.0, and was {burn}"),
            "the commit is abd, and was abc",
            "the working tree is dirty, and was clean",
            "--seed is 7, and was 1",
            "the number of replicas is 4, and was 2",
            "the number of hosts is 1, and was 2",
            "--rate is 0.001, and was 0.002",
            "--devices is 0, and was 0,1",
            "--limit is 3, and was none",
        ];
        assert_eq!(now.differences(&earlier), expected);
    }

    #[test]
    fn other_data_for_training_are_refused_and_for_the_test_told() {
        let earlier = record(json!({}));
        let set = |split: &str, labels: &[u8]| {
            let mut now = earlier.clone();
            let data = labelled(labels);
            now.data.insert(split.to_owned(), data);
            now
        };
        for labels in [&[1, 3, 2][..], &[1, 2, 3, 4]] {
            let error = set("train", labels).ensure_same_data(&earlier).unwrap_err();
            let error = error.to_string();
            let sizes = format!("the train split has {} examples", labels.len());
            assert!(error.starts_with(&sizes), "{error}");
            for hash in [&set("train", labels).data["train"], &earlier.data["train"]] {
                assert!(error.contains(&hash.sha256), "{error}");
            }
        }
        let error = set("train", &[1]).ensure_same_data(&earlier).unwrap_err();
        assert!(
            error.to_string().contains("of that run (--data-dir)"),
            "{error}"
        );
        let mut limited = set("train", &[1]);
        limited.options = record(json!({"--limit-train": 1, "--limit-validation": null})).options;
        let error = limited.ensure_same_data(&earlier).unwrap_err().to_string();
        assert!(
            error.contains("of that run (--limit-train was none)"),
            "{error}"
        );
        let error = earlier.ensure_same_data(&limited).unwrap_err().to_string();
        assert!(
            error.contains("of that run (--limit-train was 1)"),
            "{error}"
        );
        let now = set("test", &[4]);
        now.ensure_same_data(&earlier).unwrap();
        let lines = now.differences(&earlier);
        assert!(
            lines[0].starts_with("the test split is 1 examples"),
            "{lines:?}"
        );
        assert_eq!(lines.len(), 1);
    }
}
