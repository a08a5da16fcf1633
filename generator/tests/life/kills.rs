//! Runs commands that are killed, and run again as a user would.

use std::{
    collections::BTreeMap,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::random::Random;

pub struct Kills {
    pub random: Random,
    /// The kills so far.
    pub count: usize,
    /// Those by a signal.
    pub by_signal: usize,
    /// No more than these.
    pub most: usize,
    /// For each command, about the number of its operations on files.
    operations: BTreeMap<String, usize>,
}

impl Kills {
    pub fn new(random: Random, most: usize) -> Self {
        Self {
            random,
            count: 0,
            by_signal: 0,
            most,
            operations: BTreeMap::new(),
        }
    }

    /// Runs a command until nobody kills it; `after` each kill, something can be checked. Returns
    /// its output and whether it was killed before.
    pub fn run(&mut self, folder: &Path, args: &[&str], after: impl Fn()) -> (Output, bool) {
        let mut was_killed = false;
        while self.count < self.most && !self.random.once_in(8) {
            let output = if self.random.once_in(4) {
                self.by_signal(folder, args)
            } else {
                self.by_number(folder, args)
            };
            match output {
                Ok(output) => return (output, was_killed),
                Err(killed) => was_killed |= killed,
            }
            after();
        }
        (kiln(folder, args).output().unwrap(), was_killed)
    }

    /// Ends the command before one of its operations on files.
    fn by_number(&mut self, folder: &Path, args: &[&str]) -> Result<Output, bool> {
        let bound = self.operations.entry(key(args)).or_insert(60);
        let at = self.random.below(*bound);
        let mut command = kiln(folder, args);
        command.env("KILN_TEST_KILL_BEFORE", at.to_string());
        let output = command.output().unwrap();
        if output.status.code() != Some(137) {
            *bound = at.max(10);
            return Ok(output);
        }
        if at * 10 > *bound * 9 {
            *bound *= 2;
        }
        self.count += 1;
        Err(true)
    }

    /// Kills the process at some moment. It may have been complete.
    fn by_signal(&mut self, folder: &Path, args: &[&str]) -> Result<Output, bool> {
        let mut command = kiln(folder, args);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let start = Instant::now();
        let mut child = command.spawn().unwrap();
        // Reading comes before writing: half of the kills wait for that.
        let hidden = folder.join(kiln::project::transaction::FOLDER);
        let patient = self.random.once_in(2);
        while patient && !hidden.exists() && start.elapsed() < Duration::from_millis(100) {
            thread::sleep(Duration::from_micros(50));
        }
        let delay = self.random.below(60_000);
        thread::sleep(Duration::from_micros(delay as u64));
        let _ = child.kill();
        let killed = child.wait().unwrap().signal() == Some(9);
        self.count += usize::from(killed);
        self.by_signal += usize::from(killed);
        // A command that was complete ran unseen, as one that was killed at its end.
        Err(true)
    }
}

fn key(args: &[&str]) -> String {
    let options = args.iter().filter(|arg| !arg.contains('/'));
    options.copied().collect::<Vec<_>>().join(" ")
}

pub fn kiln(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.args(args).current_dir(folder);
    command
}
