//! Workers that do not handle SIGUSR1 yet. It ends these by its default action, and the workers that already handle
//! it report a lost one.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use super::{children, is_living};
use crate::{console::terminal, signals::SIGNALS};

/// The signal that the MPI launcher forwards.
const SIGUSR1: i32 = SIGNALS[2];

/// The polling interval.
const PAUSE: Duration = Duration::from_millis(10);

/// The workers of a launcher.
pub(super) struct Workers {
    /// The program that they run.
    pub(super) program: PathBuf,
    /// The least number of those on this host; workers on other hosts are not seen.
    pub(super) on_this_host: usize,
}

impl Workers {
    /// Waits until all workers of the process `launcher` have started and handle SIGUSR1, it has ended, or
    /// `deadline`; tells the user if it must wait. Returns at once where there is no `/proc`.
    pub(super) fn wait(&self, launcher: u32, deadline: Instant) {
        let must_wait =
            || Instant::now() < deadline && is_living(launcher) && !self.are_listening(launcher);
        if must_wait() {
            let left = deadline.saturating_duration_since(Instant::now());
            terminal::warn(format_args!(
                "stopping once all workers have started, in {:.0} s at the latest",
                left.as_secs_f64().ceil()
            ));
        }
        while must_wait() {
            thread::sleep(PAUSE);
        }
    }

    fn are_listening(&self, launcher: u32) -> bool {
        let mut workers = descendants(launcher);
        workers.retain(|process| runs(*process, &self.program));
        workers.len() >= self.on_this_host && workers.iter().all(|worker| handles(*worker, SIGUSR1))
    }
}

fn descendants(process: u32) -> Vec<u32> {
    let mut all = children(process);
    let mut next = 0;
    while let Some(process) = all.get(next) {
        all.extend(children(*process));
        next += 1;
    }
    all
}

fn runs(process: u32, program: &Path) -> bool {
    fs::read_link(format!("/proc/{process}/exe")).is_ok_and(|path| path == program)
}

/// Whether a process has a handler of its own for a signal: the field `SigCgt` of proc(5), a mask in hexadecimal.
fn handles(process: u32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let handled = status
        .lines()
        .find_map(|line| line.strip_prefix("SigCgt:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    handled.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{
        env,
        os::unix::process::CommandExt,
        process::{Child, Command},
    };

    use rustix::process::{Pid, Signal, kill_process_group};

    use super::*;

    /// A shell as a launcher, with two others as workers, one of which handles SIGUSR1 after 0.5 s.
    struct Launcher(Child);

    impl Launcher {
        fn start() -> Self {
            let worker = |pause| format!("sh -c 'sleep {pause}; trap : USR1; sleep 100; :'");
            let script = format!("{} | {}; :", worker("0"), worker("0.5"));
            let mut command = Command::new("sh");
            Self(
                command
                    .args(["-c", &script])
                    .process_group(0)
                    .spawn()
                    .unwrap(),
            )
        }

        /// The time until `count` workers are listening, or `limit` is over.
        fn waits(&self, count: usize, limit: Duration) -> Duration {
            let started = Instant::now();
            let shell = env::split_paths(&env::var_os("PATH").unwrap())
                .find_map(|folder| folder.join("sh").canonicalize().ok());
            let workers = Workers {
                program: shell.unwrap(),
                on_this_host: count,
            };
            workers.wait(self.0.id(), started + limit);
            started.elapsed()
        }
    }

    impl Drop for Launcher {
        fn drop(&mut self) {
            let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
            let _ = self.0.wait();
        }
    }

    #[test]
    fn all_workers_are_waited_for_until_they_listen() {
        let started = Instant::now();
        let mut launcher = Launcher::start();
        let [second, minute] = [1, 60].map(Duration::from_secs);
        assert!(launcher.waits(2, minute) < minute);
        assert!(started.elapsed() >= second / 2);
        // They do listen, but a third one has not started.
        assert!(launcher.waits(2, minute) < minute);
        assert!(launcher.waits(3, second / 4) >= second / 4);
        launcher.0.kill().unwrap();
        assert!(launcher.waits(3, minute) < minute);
    }
}
