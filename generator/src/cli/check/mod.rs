//! `kiln check`: checks that a project builds, passes its contract tests, trains and resumes.

mod args;
mod logs;
mod problem;
mod project;
mod report;
mod training;

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode, ExitStatus},
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{
    output::{Format, note, print},
    process::{self, Ended, Running},
};
use crate::{
    display::counted,
    error::{Error, Result},
    project::todo,
};
pub(crate) use args::CheckArgs;
use logs::Log;
use problem::{Checked, Problem, cannot_wait, failed, skipped, wait};
use project::Project;
use report::{Check, Outcome, Report};
use training::{Numbers, Training};

/// The exit status if a check failed.
const FAILED: u8 = 1;

/// The exit status of a training stopped by SIGTERM: 128 + the signal.
const STOPPED: i32 = 143;

/// The long help of `kiln check`.
pub(crate) const WHAT: &str = "\
Check that a project builds, passes its contract tests, trains and resumes.

The checks, in order, with Cargo's dev profile, so that `cargo test` has nothing left to compile:
  build           `cargo test --test contract --no-run`, which also builds the program
  contract tests  `cargo test --test contract`
  one replica     trains two epochs of four steps, then tests: the program succeeds, logs each
                  epoch, and every number is finite
  two replicas    the same training with the same global batch on two replicas: as many steps and
                  examples. Other numbers may differ, for example with dropout or batch
                  normalisation; where they must be equal, the contract tests compare them
  resume          the same training, stopped and resumed: it loads its checkpoint and ends with
                  exactly the numbers of the uninterrupted training

Trainings write into the build folder, never into `runs`. They validate and test with all of the
data; to use less, pass for example `-- --data-dir small`, a path relative to the project's folder.
On GPUs, two replicas need two; on a machine with one GPU, the check is skipped.";

/// Runs `kiln check`.
///
/// # Errors
/// The folder has no project, an option is reserved for `check`, a program or file cannot be used,
/// or the user pressed Ctrl-C.
pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode> {
    let scan = todo::scan(&args.path)?;
    training::refuse(&args.options)?;
    process::listen();
    let started = Instant::now();
    let checks = Checks::prepare(args)?;
    let mut report = Report::new(checks.project.name.clone(), &scan, checks.logs.clone());
    checks.run(&mut report)?;
    report.seconds = started.elapsed().as_secs_f64();
    match args.format {
        Format::Text => print(&report.text())?,
        Format::Json => print(&(report.json()? + "\n"))?,
    }
    Ok(if report.passed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FAILED)
    })
}

/// The common state of all checks.
struct Checks<'a> {
    args: &'a CheckArgs,
    project: Project,
    logs: PathBuf,
    /// The output folder of trainings. It lies in the build folder, as checkpoints may be large.
    scratch: TempDir,
}

impl<'a> Checks<'a> {
    fn prepare(args: &'a CheckArgs) -> Result<Self> {
        let project = Project::find(&args.path)?;
        let logs = project.target.join("kiln-check");
        logs::prepare(&logs)?;
        let scratch = tempfile::Builder::new().prefix("runs-").tempdir_in(&logs);
        let scratch = scratch.map_err(|cause| Error::io("write to the folder", &logs, cause))?;
        Ok(Self {
            args,
            project,
            logs,
            scratch,
        })
    }

    fn run(&self, report: &mut Report) -> Result<()> {
        let program = self.check(report, "build", |log| self.build(log))?;
        self.check(report, "contract tests", |log| match program {
            Some(_) => self.contract_tests(log),
            None => skipped("the project does not build"),
        })?;
        let program = program.as_deref();
        let training = |replicas| Training::new(program, replicas, &self.args.options);
        let one = self.check(report, "one replica", |log| {
            self.train(&training(1)?, "one", log)
        })?;
        let two = self.check(report, "two replicas", |log| {
            let two = self.train(&training(2)?, "two", log)?;
            match &one {
                Some(one) => two.ensure_as_many_as(one).map(|()| two),
                None => Ok(two),
            }
        })?;
        self.check(report, "resume", |log| match (&two, &one) {
            (Some(two), _) => self.resume(&training(2)?, two, log),
            (None, Some(one)) => self.resume(&training(1)?, one, log),
            (None, None) => skipped("no training passed that a resumed one could be compared with"),
        })?;
        Ok(())
    }

    /// Runs a check and adds its row to the report; returns the result of a check that passed.
    fn check<T>(
        &self,
        report: &mut Report,
        name: &'static str,
        check: impl FnOnce(&Log) -> Checked<T>,
    ) -> Result<Option<T>> {
        let log = Log::new(&self.logs, name);
        note(&format!("{name} ... {}", log.path().display()));
        let started = Instant::now();
        let (outcome, problem, given) = match check(&log) {
            Ok(given) => (Outcome::Passed, None, Some(given)),
            Err(Problem::Failed(why)) => (Outcome::Failed, Some(why), None),
            Err(Problem::Skipped(why)) => (Outcome::Skipped, Some(why), None),
            Err(Problem::Broken(error)) => return Err(error),
        };
        report.checks.push(Check {
            check: name,
            result: outcome,
            seconds: started.elapsed().as_secs_f64(),
            problem,
            log: log.path().exists().then(|| log.path().to_owned()),
        });
        Ok(given)
    }

    /// Builds the program and the contract tests; returns the path of the program.
    fn build(&self, log: &Log) -> Checked<PathBuf> {
        let messages = self.scratch.path().join("build.json");
        let mut command = self.project.cargo_test(self.args);
        command.args(["--no-run", "--message-format=json-render-diagnostics"]);
        let running = log.start_with(command, &messages, None)?;
        self.expect_success(running, log, logs::of_build)?;
        match self.project.program(&logs::read(&messages)?) {
            Ok(program) => Ok(program),
            Err(why) => failed(why),
        }
    }

    fn contract_tests(&self, log: &Log) -> Checked<()> {
        let command = self.project.cargo_test(self.args);
        let running = log.start(command, Some(self.limit()))?;
        self.expect_success(running, log, logs::of_tests)
    }

    /// Runs a whole training; returns the logged numbers.
    fn train(&self, training: &Training, folder: &str, log: &Log) -> Checked<Numbers> {
        let folder = self.scratch.path().join(folder);
        let running = log.start(self.command(training, &folder), Some(self.limit()))?;
        self.expect_success(running, log, logs::of_program)?;
        Numbers::read(&folder)?.ensure_whole()
    }

    /// Stops a training, resumes it, and compares it with an uninterrupted training.
    fn resume(&self, training: &Training, whole: &Numbers, log: &Log) -> Checked<()> {
        let folder = self.scratch.path().join("resumed");
        let mut running = log.start(self.command(training, &folder), Some(self.limit()))?;
        let first = || training::first_checkpoint(&folder);
        let early = running.wait_until(|| first().is_some());
        if let Some(ended) = early.map_err(|cause| cannot_wait(&cause))? {
            self.expect_end(ended, log, logs::of_program)?;
        } else {
            running.ask_to_end();
            let ended = wait(&mut running)?;
            let stopped = matches!(&ended, Ended::Exited(status) if status.code() == Some(STOPPED));
            // Without signals, the training was killed instead.
            if cfg!(unix) && !stopped {
                self.expect_end(ended, log, logs::of_program)?;
            }
        }
        let Some(checkpoint) = first() else {
            return failed("the training wrote no checkpoint");
        };
        training::cut_back(&folder, whole, &checkpoint)?;
        let mut command = self.command(training, &folder);
        command.arg("--resume");
        let running = log.start(command, Some(self.limit()))?;
        self.expect_success(running, log, logs::of_program)?;
        if !checkpoint.is_still_there() {
            return failed("`--resume` started a new training instead of loading the checkpoint");
        }
        Numbers::read(&folder)?.ensure_equal_to(whole)
    }

    fn command(&self, training: &Training, folder: &Path) -> Command {
        let mut command = training.command(folder);
        command.current_dir(&self.project.root);
        command
    }

    fn expect_success(
        &self,
        mut running: Running,
        log: &Log,
        find: impl Fn(&str) -> Option<String>,
    ) -> Checked<()> {
        self.expect_end(wait(&mut running)?, log, find)
    }

    /// Fails if a program did not exit successfully, with the message that `find` extracts from its log.
    fn expect_end(
        &self,
        ended: Ended,
        log: &Log,
        find: impl Fn(&str) -> Option<String>,
    ) -> Checked<()> {
        match ended {
            Ended::Exited(status) if status.success() => Ok(()),
            Ended::Exited(status) => failed(explain(status, find(&logs::read(log.path())?))),
            Ended::Interrupted => Err(Problem::Broken(Error::interrupted())),
            Ended::TimedOut => failed(format!(
                "killed after the time limit of {}; `--timeout` sets the limit",
                self.limit_in_words()
            )),
        }
    }

    fn limit_in_words(&self) -> String {
        let seconds = usize::try_from(self.args.timeout).unwrap_or(usize::MAX);
        counted(seconds, "second")
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(self.args.timeout)
    }
}

/// Omits the exit status if Cargo or the program printed a message.
fn explain(status: ExitStatus, found: Option<String>) -> String {
    match (found, status.code()) {
        (Some(found), Some(_)) => found,
        (Some(found), None) => format!("{status}: {found}"),
        (None, _) => format!("{status}, without a message"),
    }
}
