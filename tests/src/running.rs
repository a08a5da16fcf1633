//! Programs that tests start. Each ends in time, or the test fails and tells what still runs: a test
//! that waits for ever says nothing.

use std::{
    fs,
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use kiln::snapshot::text;
use tempfile::NamedTempFile;

/// Much longer than any training of the tests takes.
pub const TRAINING: Duration = Duration::from_secs(300);
/// Much longer than any build takes, which compiles Burn at most.
pub const BUILD: Duration = Duration::from_secs(2400);

/// Between two looks at a program.
const PAUSE: Duration = Duration::from_millis(5);
/// For a program that is asked to end.
const GRACE: Duration = Duration::from_secs(2);
/// How long a launcher of MPI may have no processes, before it has started them or after they have ended.
const CHILDLESS: Duration = Duration::from_secs(15);

/// A program on its way. It writes into files: what outlives it, such as a worker on a host that is cut
/// off, would keep a pipe open.
pub struct Running {
    child: Child,
    command: String,
    /// Whether it is `mpirun`. That of Open MPI 4.1.4 can wait for itself for ever in `PMIx_server_finalize`
    /// when its processes have failed and ended, and is then killed.
    is_launcher: bool,
    stdout: NamedTempFile,
    stderr: NamedTempFile,
}

impl Running {
    /// Starts a program.
    ///
    /// # Panics
    /// It does not start.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let [stdout, stderr] = [(); 2].map(|()| NamedTempFile::new().expect("a temporary file"));
        let for_child = |file: &NamedTempFile| Stdio::from(file.reopen().expect("a second handle"));
        command
            .stdin(Stdio::null())
            .stdout(for_child(&stdout))
            .stderr(for_child(&stderr));
        let child = command.spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        Running {
            child,
            command: format!("{command:?}"),
            is_launcher: command.get_program() == "mpirun",
            stdout,
            stderr,
        }
    }

    /// The id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the program ends.
    ///
    /// # Panics
    /// It does not within `limit`, and is ended.
    #[track_caller]
    pub fn end(mut self, limit: Duration) -> Output {
        match self.wait(limit, || false) {
            First::Ended(status) => self.output(status),
            _ => self.fail(&format!("has not ended for {limit:?}")),
        }
    }

    /// Waits until something is so.
    ///
    /// # Panics
    /// It is not within a minute, or the program ends before.
    #[track_caller]
    pub fn wait_until(mut self, what: &str, is_so: impl Fn() -> bool) -> Self {
        match self.wait(Duration::from_secs(60), is_so) {
            First::IsSo => self,
            First::Ended(status) => self.fail(&format!("ended before {what}: {status}")),
            First::Neither => self.fail(&format!("has no {what} within a minute")),
        }
    }

    fn wait(&mut self, limit: Duration, is_so: impl Fn() -> bool) -> First {
        let deadline = Instant::now() + limit;
        let mut had_children = Instant::now();
        loop {
            if is_so() {
                return First::IsSo;
            }
            if let Some(status) = self.child.try_wait().expect("a process") {
                return First::Ended(status);
            }
            if Instant::now() > deadline {
                return First::Neither;
            }
            let is_due = had_children.elapsed() > GRACE;
            if !self.is_launcher || is_due && has_children(self.id()) {
                had_children = Instant::now();
            }
            if had_children.elapsed() > CHILDLESS {
                return First::Ended(self.kill_at_once());
            }
            thread::sleep(PAUSE);
        }
    }

    #[track_caller]
    fn fail(mut self, problem: &str) -> ! {
        let (command, processes) = (self.command.clone(), processes());
        let status = self.stop();
        panic!(
            "{command} {problem}.\nIt printed:\n{}\nThere run:\n{processes}",
            text(&self.output(status))
        );
    }

    /// Kills the program, as when the power fails.
    ///
    /// # Panics
    /// There is no such process.
    pub fn kill(mut self) -> Output {
        let status = self.kill_at_once();
        self.output(status)
    }

    fn kill_at_once(&mut self) -> ExitStatus {
        self.child.kill().expect("a process");
        self.child.wait().expect("a process")
    }

    /// Ends the program, and what it started: a launcher hands on a request to end, though it may take the
    /// first one for a request to save.
    fn stop(&mut self) -> ExitStatus {
        for _ in 0..2 {
            let _ = Command::new("kill").arg(self.id().to_string()).status();
            if let First::Ended(status) = self.wait(GRACE, || false) {
                return status;
            }
        }
        self.kill_at_once()
    }

    fn output(&self, status: ExitStatus) -> Output {
        let read = |file: &NamedTempFile| fs::read(file.path()).expect("what was printed");
        Output {
            status,
            stdout: read(&self.stdout),
            stderr: read(&self.stderr),
        }
    }
}

impl Drop for Running {
    /// A test that fails leaves nothing behind that would train on beside the next one.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.stop();
        }
    }
}

/// What happens first.
enum First {
    IsSo,
    Ended(ExitStatus),
    /// Time is up.
    Neither,
}

/// Runs a program and gives what it printed.
///
/// # Panics
/// It does not start, or does not end within `limit`.
#[track_caller]
pub fn output(command: &mut Command, limit: Duration) -> Output {
    Running::start(command).end(limit)
}

/// As [`output`], of a program that succeeds; gives the text.
///
/// # Panics
/// As `output`, or it fails.
#[track_caller]
pub fn succeeds(command: &mut Command, limit: Duration) -> String {
    let output = output(command, limit);
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    text(&output)
}

/// Whether a process has children, as Linux lists them; elsewhere it counts as having some.
fn has_children(process: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else {
        return true;
    };
    let children = threads.map(|thread| fs::read(thread?.path().join("children")));
    children
        .into_iter()
        .any(|children| !matches!(children, Ok(children) if children.is_empty()))
}

/// The threads of this machine, with what each waits for in the kernel.
fn processes() -> String {
    let columns = "pid,ppid,tid,stat,etimes,time,wchan:24,args";
    let list = Command::new("ps").args(["-eLo", columns]).output();
    list.map_or_else(
        |error| format!("cannot be told: {error}"),
        |list| text(&list),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_outlives_a_program_does_not_keep_a_test() {
        let output = output(&mut shell("sleep 20 & echo out; echo err >&2"), TRAINING);
        assert!(output.status.success());
        assert_eq!([output.stdout, output.stderr], [b"out\n", b"err\n"]);
    }

    #[test]
    fn what_a_test_leaves_is_ended_with_what_it_started() {
        let script = "trap 'kill $!; exit' TERM; sleep 77.25 & wait";
        let is_there = || processes().contains("sleep 77.25\n");
        let running = Running::start(&mut shell(script)).wait_until("a sleep", is_there);
        drop(running);
        assert!(!is_there());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn children_are_seen() {
        let script = "sleep 77.5 & wait";
        let is_there = || processes().contains("sleep 77.5\n");
        let mut running = Running::start(&mut shell(script)).wait_until("a sleep", is_there);
        assert!(has_children(running.id()));
        running.kill_at_once();
        let _ = Command::new("pkill").args(["-f", "sleep 77.5"]).status();
        let mut alone = Running::start(Command::new("sleep").arg("77.75"));
        assert!(!has_children(alone.id()));
        alone.kill_at_once();
    }

    #[test]
    #[should_panic(expected = "has not ended for 100ms.\nIt printed:\nstill here")]
    fn what_does_not_end_is_told() {
        output(
            &mut shell("echo still here; exec sleep 20"),
            Duration::from_millis(100),
        );
    }
}
