//! Child processes of tests, with time limits. On a timeout, the test fails and lists the running processes.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use kiln::snapshot::text;
use tempfile::NamedTempFile;

/// The time limit of a training, much longer than any in the tests.
pub const TRAINING: Duration = Duration::from_secs(300);
/// The time limit of a build, much longer than a build of Burn.
pub const BUILD: Duration = Duration::from_secs(2400);

/// The polling interval.
const PAUSE: Duration = Duration::from_millis(5);
/// The time that a process has to end on request.
const GRACE: Duration = Duration::from_secs(2);
/// The time that an MPI launcher may have no running child processes, before it has started them or after
/// they have ended.
const CHILDLESS: Duration = Duration::from_secs(15);

/// A running process. Its output goes to files, as a process that outlives it, such as a worker on
/// an unreachable host, would keep a pipe open.
pub struct Running {
    child: Child,
    command: String,
    /// Whether the process is `mpirun`. That of Open MPI 4.1.4 can hang after its processes have failed, in
    /// `PMIx_server_finalize` or before it has waited for all of them; it is then killed.
    is_launcher: bool,
    stdout: NamedTempFile,
    stderr: NamedTempFile,
}

impl Running {
    /// Starts a program.
    ///
    /// # Panics
    /// The program cannot be started.
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

    /// Waits until the process ends.
    ///
    /// # Panics
    /// The process exceeds `limit` and is killed.
    #[track_caller]
    pub fn end(mut self, limit: Duration) -> Output {
        match self.wait(limit, || false) {
            First::Ended(status) => self.output(status),
            _ => self.fail(&format!("has not ended for {limit:?}")),
        }
    }

    /// Waits for a condition.
    ///
    /// # Panics
    /// The condition does not hold within a minute, or the process ends first.
    #[track_caller]
    pub fn wait_until(mut self, what: &str, is_so: impl Fn() -> bool) -> Self {
        match self.wait(Duration::from_secs(60), is_so) {
            First::IsSo => self,
            First::Ended(status) => self.fail(&format!("ended before {what}: {status}")),
            First::Neither => self.fail(&format!("has no {what} within a minute")),
        }
    }

    /// Waits until the process prints `words`.
    ///
    /// # Panics
    /// As for [`wait_until`](Self::wait_until).
    #[track_caller]
    pub fn wait_until_printed(self, words: &str) -> Self {
        let files = [&self.stdout, &self.stderr].map(|file| file.path().to_owned());
        let is_in =
            |file: &PathBuf| fs::read_to_string(file).is_ok_and(|text| text.contains(words));
        self.wait_until(words, || files.iter().any(is_in))
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
            if !self.is_launcher || is_due && has_running_children(self.id()) {
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

    /// Kills the process, as a power failure would.
    ///
    /// # Panics
    /// The process does not exist.
    pub fn kill(mut self) -> Output {
        let status = self.kill_at_once();
        self.output(status)
    }

    fn kill_at_once(&mut self) -> ExitStatus {
        self.child.kill().expect("a process");
        self.child.wait().expect("a process")
    }

    /// Ends the process and its descendants: a launcher forwards the request to end, but may take
    /// the first one as a request to save.
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
    /// A failed test must not leave a training that runs beside the next test.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.stop();
        }
    }
}

/// The first event.
enum First {
    IsSo,
    Ended(ExitStatus),
    /// The time limit expired.
    Neither,
}

/// Runs a program; returns its output.
///
/// # Panics
/// The program cannot be started or exceeds `limit`.
#[track_caller]
pub fn output(command: &mut Command, limit: Duration) -> Output {
    Running::start(command).end(limit)
}

/// Like [`output`], for a program that must succeed; returns the text.
///
/// # Panics
/// As for `output`, or the program fails.
#[track_caller]
pub fn succeeds(command: &mut Command, limit: Duration) -> String {
    let output = output(command, limit);
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    text(&output)
}

/// Writes a program that runs `script` in a shell.
///
/// # Panics
/// The file cannot be written.
pub fn write_program(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}\n")).expect("a program");
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("a program");
}

/// Whether a process has children that are no zombies, according to Linux; true on other platforms.
fn has_running_children(process: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else {
        return true;
    };
    threads.into_iter().any(|thread| {
        let children = thread.and_then(|thread| fs::read_to_string(thread.path().join("children")));
        children.map_or(true, |children| children.split_whitespace().any(is_running))
    })
}

/// False if a process has ended, even if nobody has waited for it.
fn is_running(process: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status"));
    status.is_ok_and(|status| !status.contains("\nState:\tZ"))
}

/// The threads of this machine, with the kernel function that each waits in.
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
        assert!(has_running_children(running.id()));
        running.kill_at_once();
        let _ = Command::new("pkill").args(["-f", "sleep 77.5"]).status();
        let mut alone = Running::start(Command::new("sleep").arg("77.75"));
        assert!(!has_running_children(alone.id()));
        alone.kill_at_once();
        // A zombie: nobody waits for this child.
        let left = Running::start(&mut shell("sleep 0.1 & echo $!; exec sleep 77.125"));
        let left = left.wait_until_printed("\n");
        let child = fs::read_to_string(left.stdout.path()).expect("an id");
        let mut left = left.wait_until("an end", || !is_running(child.trim()));
        assert!(Path::new("/proc").join(child.trim()).exists());
        assert!(!has_running_children(left.id()));
        left.kill_at_once();
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
