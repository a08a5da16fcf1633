//! Runs on an MLflow server, by its REST interface.

mod api;
mod queue;
mod sender;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Error, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{EndedRun, MLFLOW_RUN as RUN, MLFLOW_UNSENT as UNSENT, Outcome, StartedRun, Tracker};
use crate::{
    console::terminal,
    files::whole_file,
    globals::Split,
    metric::MergedMetric,
    run_record::{self, RunRecord},
};
use api::{Api, Failure};
use queue::Queue;
use sender::{REQUEST, Sender, key, milliseconds, parameter, point, tag};

/// The time for the last points, and for the end of the run.
const END: Duration = Duration::from_secs(15);

/// A run on a server. It sends on a thread of its own, so that a server that is slow or away does not stop
/// training.
pub struct Mlflow {
    api: Api,
    /// Name of the experiment.
    experiment: String,
    experiment_id: Option<String>,
    folder: PathBuf,
    active: Option<Active>,
    /// The time for the last points, and for the end of the run.
    end: Duration,
    is_warned: bool,
}

/// A started run.
struct Active {
    run: Identity,
    queue: Arc<Queue>,
    /// The last step of each metric that the queue had when this run resumed, which may log it again, as after a
    /// repeated validation or test.
    kept: HashMap<String, u64>,
    /// The command that sends what the server does not take.
    resume: String,
    /// Disconnected at the end of the thread that sends.
    ended: mpsc::Receiver<()>,
}

/// A run's identity on a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    uri: String,
    experiment: String,
    experiment_id: String,
    run_id: String,
}

impl Mlflow {
    /// The tracker of `--mlflow URI`; sends nothing.
    ///
    /// # Errors
    /// The URI is not the address of a server.
    pub fn new(uri: &str, experiment: Option<&str>, folder: &Path) -> Result<Self> {
        Ok(Self::with_api(Api::new(uri)?, experiment, folder))
    }

    fn with_api(api: Api, experiment: Option<&str>, folder: &Path) -> Self {
        Mlflow {
            api,
            experiment: experiment.unwrap_or(run_record::package().name).to_owned(),
            experiment_id: None,
            folder: folder.to_owned(),
            active: None,
            end: END,
            is_warned: false,
        }
    }

    /// The run that an earlier start of this training created on this server, if any.
    ///
    /// # Errors
    /// The file is damaged.
    fn earlier(&self) -> Result<Option<Identity>> {
        let path = self.folder.join(RUN);
        let Ok(text) = fs::read_to_string(&path) else {
            return Ok(None);
        };
        let run: Identity = serde_json::from_str(&text).with_context(|| {
            let path = path.display();
            format!("cannot read the MLflow run in {path}: remove the file to start another run")
        })?;
        Ok((run.uri == self.api.uri()).then_some(run))
    }

    /// The id of the experiment, which is created if missing.
    fn experiment_id(&self) -> Result<String> {
        let find = || {
            let query = [("experiment_name", self.experiment.as_str())];
            self.api.get("experiments/get-by-name", &query, REQUEST)
        };
        let found = match find() {
            Err(failure) if failure.is("RESOURCE_DOES_NOT_EXIST") => {
                let body = json!({ "name": self.experiment });
                match self.api.post("experiments/create", &body, REQUEST) {
                    Ok(created) => return text(&created["experiment_id"]),
                    // Another program was faster.
                    Err(failure) if failure.is("RESOURCE_ALREADY_EXISTS") => find()?,
                    Err(failure) => return Err(self.no_experiment(failure)),
                }
            }
            Err(failure) => return Err(failure.into()),
            Ok(found) => found,
        };
        let experiment = &found["experiment"];
        if experiment["lifecycle_stage"] == "deleted" {
            bail!(
                "the experiment {:?} is deleted: restore it, or give another --mlflow-experiment",
                self.experiment
            );
        }
        text(&experiment["experiment_id"])
    }

    fn no_experiment(&self, failure: Failure) -> Error {
        let name = &self.experiment;
        Error::from(failure).context(format!(
            "cannot create the experiment {name:?} (--mlflow-experiment chooses another)"
        ))
    }

    fn at_server(&self) -> String {
        format!("cannot track the run with MLflow at {}", self.api.uri())
    }

    /// Creates a run in the experiment.
    fn create(&self, name: &str) -> Result<Identity> {
        let experiment_id = match &self.experiment_id {
            Some(id) => id.clone(),
            None => self.experiment_id()?,
        };
        let body = json!({
            "experiment_id": experiment_id,
            "run_name": name,
            "start_time": milliseconds(),
        });
        let created = self.api.post("runs/create", &body, REQUEST)?;
        let run = Identity {
            uri: self.api.uri().to_owned(),
            experiment: self.experiment.clone(),
            experiment_id,
            run_id: text(&created["run"]["info"]["run_id"])?,
        };
        whole_file::write(&self.folder.join(RUN), serde_json::to_vec_pretty(&run)?)?;
        Ok(run)
    }

    /// Begins to send, after a first request that shows whether the run can be used.
    fn begin(&mut self, run: Identity, started: &StartedRun<'_>, is_new: bool) -> Result<()> {
        let unsent = self.folder.join(UNSENT);
        let cannot = || format!("cannot write {}", unsent.display());
        let kept = keep_points(&unsent, started).with_context(cannot)?;
        let queue = Arc::new(Queue::open(&unsent).with_context(cannot)?);
        let parameters = started.parameters.iter();
        let mut sender = Sender {
            api: self.api.clone(),
            run: run.run_id.clone(),
            parameters: parameters
                .map(|(name, value)| (key(name), parameter(value)))
                .collect(),
            tags: tags(started.folder, started.record),
            queue: Arc::clone(&queue),
            known: None,
            is_warned: false,
        };
        match sender.connect(REQUEST) {
            // A job that is started again should train also if the server is away.
            Err(failure) if !is_new && failure.is_temporary() => sender.warn(&failure),
            connected => connected.with_context(|| {
                format!(
                    "the run {}: remove {RUN} in the output folder to start another",
                    run.run_id
                )
            })?,
        }
        let (end, ended) = mpsc::channel();
        thread::Builder::new()
            .name("mlflow".to_owned())
            .spawn(move || {
                sender.run();
                drop(end);
            })?;
        let verb = if is_new { "is" } else { "goes on" };
        terminal::print(format_args!(
            "the MLflow run {verb} at {}",
            self.api.page(&run.experiment_id, &run.run_id)
        ));
        self.active = Some(Active {
            run,
            queue,
            kept,
            resume: resume_command(&started.record.command_line),
            ended,
        });
        Ok(())
    }

    /// Queues points; a failure to write the file costs the points only.
    fn push<'a>(&mut self, step: usize, values: impl Iterator<Item = (&'a str, f64)>) {
        let Some(active) = &self.active else {
            return;
        };
        for (tag, value) in values {
            let point = point(tag, step, value);
            let kept = active.kept.get(point["key"].as_str().unwrap_or_default());
            if kept.is_some_and(|last| step as u64 <= *last) {
                continue;
            }
            if let Err(error) = active.queue.push(&point)
                && !std::mem::replace(&mut self.is_warned, true)
            {
                terminal::warn(format_args!(
                    "warning: cannot write {UNSENT} ({error}): MLflow lacks metrics from step {step} on"
                ));
            }
        }
    }
}

impl Tracker for Mlflow {
    fn connect(&mut self, resumes: bool) -> Result<()> {
        if resumes && self.earlier()?.is_some() {
            return Ok(());
        }
        self.experiment_id = Some(self.experiment_id().with_context(|| self.at_server())?);
        Ok(())
    }

    fn start(&mut self, run: &StartedRun<'_>) -> Result<()> {
        let earlier = if run.resumes { self.earlier()? } else { None };
        let (identity, is_new) = match earlier {
            Some(identity) => (identity, false),
            None => (
                self.create(&run.name).with_context(|| self.at_server())?,
                true,
            ),
        };
        let begun = self.begin(identity, run, is_new);
        begun.with_context(|| self.at_server())
    }

    fn metrics(&mut self, split: Split, step: usize, metrics: &[MergedMetric]) -> Result<()> {
        let name = |metric: &MergedMetric| format!("{}/{}", split.name(), metric.name);
        let names: Vec<String> = metrics.iter().map(name).collect();
        let values = metrics.iter().map(|metric| metric.value);
        self.push(step, names.iter().map(String::as_str).zip(values));
        Ok(())
    }

    fn scalar(&mut self, step: usize, tag: &str, value: f64) -> Result<()> {
        self.push(step, [(tag, value)].into_iter());
        Ok(())
    }

    fn finish(&mut self, ended: &EndedRun) -> Result<()> {
        let Some(active) = self.active.take() else {
            return Ok(());
        };
        let deadline = Instant::now() + self.end;
        active.queue.close(self.end);
        let _ = active.ended.recv_timeout(self.end); // disconnected at the end of the thread
        if !active.queue.is_empty() {
            bail!(
                "MLflow at {} lacks the last metrics, and the end of the run: they are kept in {}. Once the server is \
                 there, this sends them; a training that has reached its end trains no further:\n  {}",
                self.api.uri(),
                self.folder.join(UNSENT).display(),
                active.resume
            );
        }
        if !active.kept.is_empty() {
            terminal::print(format_args!("MLflow has what {UNSENT} kept"));
        }
        let _ = fs::remove_file(self.folder.join(UNSENT)); // empty
        let left = || {
            let left = deadline.saturating_duration_since(Instant::now());
            left.clamp(Duration::from_secs(1), REQUEST)
        };
        let run = &active.run;
        for file in &ended.files {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let path = format!("{}/{}/artifacts/{name}", run.experiment_id, run.run_id);
            // Some servers do not take files; the tag `output_dir` says where they are.
            if self.api.upload(&path, file, left()).is_err() {
                break;
            }
        }
        let status = match ended.outcome {
            Outcome::Finished => "FINISHED",
            Outcome::Failed => "FAILED",
            Outcome::Killed => "KILLED",
        };
        let body = json!({ "run_id": run.run_id, "status": status, "end_time": milliseconds() });
        let updated = self.api.post("runs/update", &body, left());
        updated
            .with_context(|| format!("the end of the MLflow run {} is not recorded", run.run_id))?;
        Ok(())
    }
}

/// Removes the points of `unsent` that a resumed run logs again, and returns the last step of each metric of the
/// others. What an earlier training left is removed.
fn keep_points(unsent: &Path, run: &StartedRun<'_>) -> io::Result<HashMap<String, u64>> {
    let mut kept = HashMap::new();
    queue::cut(unsent, |point| {
        let step = point["step"]
            .as_u64()
            .filter(|step| *step <= run.step as u64);
        let (Some(key), Some(step), true) = (point["key"].as_str(), step, run.resumes) else {
            return false;
        };
        let last = kept.entry(key.to_owned()).or_insert(step);
        *last = (*last).max(step);
        true
    })?;
    Ok(kept)
}

/// The command that resumes the run of a command line, in the words of a shell.
fn resume_command(words: &[String]) -> String {
    let is_resumed = words.iter().any(|word| word == "--resume");
    let resume = (!is_resumed).then_some("--resume");
    shell_words::join(words.iter().map(String::as_str).chain(resume))
}

/// The tags of a run, of which MLflow shows some by their names.
fn tags(folder: &Path, record: &RunRecord) -> Vec<(String, String)> {
    let git = record.git.as_ref();
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let program = &record.program;
    let tags = [
        ("mlflow.source.name", Some(program.name.clone())),
        ("mlflow.source.type", Some("LOCAL".to_owned())),
        (
            "mlflow.source.git.commit",
            git.map(|git| git.commit.clone()),
        ),
        ("git.dirty", git.map(|git| git.dirty.to_string())),
        ("program.version", Some(program.version.clone())),
        ("burn.version", Some(program.burn.clone())),
        ("host", record.host.clone()),
        ("command_line", Some(record.command_line.join(" "))),
        ("output_dir", Some(folder.display().to_string())),
        (
            "checkpoints",
            Some(folder.join("checkpoints").display().to_string()),
        ),
    ];
    let tags = tags.into_iter();
    let tags = tags.filter_map(|(name, value)| Some((name.to_owned(), tag(&value?))));
    tags.collect()
}

/// An id in a response.
fn text(value: &Value) -> Result<String> {
    let text = value.as_str().map(str::to_owned);
    text.context("the response lacks an id: is it an MLflow server?")
}
