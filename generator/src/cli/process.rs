//! Child processes with a time limit, which are killed together with their descendants.

use std::{
    io,
    process::{Command, ExitStatus},
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use process_wrap::std::{ChildWrapper, CommandWrap};

use super::output::note;

/// The polling interval.
const POLL: Duration = Duration::from_millis(5);

/// Maximum time for a killed process to exit. A process that hangs in the kernel, for example in a
/// broken driver, never does and is abandoned.
const REAP: Duration = Duration::from_secs(2);

/// The number of SIGTERM, which is the same on every Unix.
#[cfg(unix)]
const SIGTERM: i32 = 15;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static LISTENING: Once = Once::new();

/// From now on, Ctrl-C and SIGTERM stop the running child process instead of ending Kiln at once.
pub(crate) fn listen() {
    LISTENING.call_once(|| {
        if let Err(error) = ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed)) {
            note(&format!(
                "warning: Ctrl-C will not stop child processes: {error}"
            ));
        }
    });
}

/// Whether the user pressed Ctrl-C.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Outcome of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The process exited.
    Exited(ExitStatus),
    /// The time limit expired, and the process was killed.
    TimedOut,
    /// The user pressed Ctrl-C, and the process was killed.
    Interrupted,
}

/// A running child process, which is killed on drop.
pub(crate) struct Running {
    child: Box<dyn ChildWrapper>,
    deadline: Option<Instant>,
    ended: bool,
}

impl Running {
    /// Starts a process with an optional time limit.
    ///
    /// # Errors
    /// The process cannot be started.
    pub(crate) fn start(command: Command, limit: Option<Duration>) -> io::Result<Self> {
        let mut command = CommandWrap::from(command);
        // Descendants are killed with the process.
        #[cfg(unix)]
        command.wrap(process_wrap::std::ProcessGroup::leader());
        #[cfg(windows)]
        command.wrap(process_wrap::std::JobObject);
        Ok(Self {
            child: command.spawn()?,
            deadline: limit.map(|limit| Instant::now() + limit),
            ended: false,
        })
    }

    /// Waits for the process to end.
    ///
    /// # Errors
    /// The operating system cannot report the status.
    pub(crate) fn wait(&mut self) -> io::Result<Ended> {
        let ended = self.wait_until(|| false)?;
        Ok(ended.unwrap_or(Ended::Interrupted))
    }

    /// Waits until the process ends or `condition` holds; returns `None` in the latter case.
    ///
    /// # Errors
    /// The operating system cannot report the status.
    pub(crate) fn wait_until(&mut self, condition: impl Fn() -> bool) -> io::Result<Option<Ended>> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.ended = true;
                return Ok(Some(Ended::Exited(status)));
            }
            if interrupted() {
                self.kill();
                return Ok(Some(Ended::Interrupted));
            }
            if self
                .deadline
                .is_some_and(|deadline| Instant::now() > deadline)
            {
                self.kill();
                return Ok(Some(Ended::TimedOut));
            }
            if condition() {
                return Ok(None);
            }
            thread::sleep(POLL);
        }
    }

    /// Sends SIGTERM. On Windows, kills the process, as console programs cannot be asked.
    pub(crate) fn ask_to_end(&mut self) {
        // If the process has just exited, waiting for it reports so.
        #[cfg(unix)]
        let _ = self.child.signal(SIGTERM);
        #[cfg(not(unix))]
        let _ = self.child.start_kill();
    }

    fn kill(&mut self) {
        self.ended = true;
        let until = Instant::now() + REAP;
        // The process may just have exited.
        let _ = self.child.start_kill();
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(POLL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.kill();
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Option<Duration>) -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Running::start(command, limit).unwrap()
    }

    #[test]
    fn a_program_that_is_late_ends_with_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("late");
        let script = format!("(sleep 1; touch '{}') & wait", file.display());
        let started = Instant::now();
        let ended = shell(&script, Some(Duration::from_millis(100))).wait();
        assert_eq!(ended.unwrap(), Ended::TimedOut);
        assert!(started.elapsed() < Duration::from_millis(900));
        thread::sleep(Duration::from_millis(1_300));
        assert!(!file.exists(), "a descendant is still running");
    }

    #[test]
    fn a_program_can_be_asked_to_end() {
        let mut running = shell(
            "trap 'exit 7' TERM; echo; while :; do sleep 0.01; done",
            None,
        );
        thread::sleep(Duration::from_millis(300));
        running.ask_to_end();
        let ended = running.wait().unwrap();
        assert!(
            matches!(ended, Ended::Exited(status) if status.code() == Some(7)),
            "{ended:?}"
        );
    }

    #[test]
    fn waiting_ends_when_a_condition_holds() {
        let mut running = shell("sleep 10", None);
        assert_eq!(running.wait_until(|| true).unwrap(), None);
    }
}
