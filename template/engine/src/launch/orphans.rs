//! Workers that outlive the MPI launcher, which does not wait for processes that it has killed: until they
//! are gone, they hold the lock of the output folder, and a resumed training would be refused.

use std::{
    process, thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};

use super::children;
use crate::console::terminal;

/// Time for the kernel to end a process that was killed, as it frees memory and completes writes.
const KILLED: Duration = Duration::from_secs(1);

/// The polling interval.
const PAUSE: Duration = Duration::from_millis(20);

/// Makes this process the parent of the workers on this host that the launcher leaves behind (Linux's
/// `PR_SET_CHILD_SUBREAPER`). Returns the children that it has already, which are no workers.
pub(super) fn adopt() -> Vec<u32> {
    if let Err(error) = set_child_subreaper(Some(getpid())) {
        terminal::warn(format_args!(
            "warning: workers that outlive the MPI launcher cannot be waited for: {error}"
        ));
    }
    children(process::id())
}

/// Waits until no worker on this host is left, and kills those that are left after `grace`. Called after the
/// launcher has ended; `others` are children that are no workers.
pub(super) fn wait(grace: Duration, others: &[u32]) {
    if wait_until_none(grace, others, |_| ()) || wait_until_none(KILLED, others, kill) {
        return;
    }
    let left = orphans(others).into_iter().map(|orphan| orphan.to_string());
    terminal::warn(format_args!(
        "warning: these workers were killed but have not ended, and may still hold the output folder: \
         process {}",
        left.collect::<Vec<_>>().join(", ")
    ));
}

fn kill(orphan: Pid) {
    // One that has ended meanwhile needs no signal.
    let _ = kill_process(orphan, Signal::KILL);
}

/// Looks for orphans until there are none, and calls `act` with each at every look: those of an orphan that was
/// killed are adopted in turn.
fn wait_until_none(limit: Duration, others: &[u32], act: impl Fn(Pid)) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let left = orphans(others);
        if left.is_empty() {
            return true;
        }
        left.into_iter().for_each(&act);
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(PAUSE);
    }
}

/// The children of this process except `others`.
fn orphans(others: &[u32]) -> Vec<Pid> {
    let children = children(process::id()).into_iter();
    let orphans = children.filter(|child| !others.contains(child));
    orphans
        .filter_map(|orphan| Pid::from_raw(orphan.cast_signed()))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_child_is_left_until_it_ends() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let id = Pid::from_child(&child);
        assert!(orphans(&[]).contains(&id));
        child.kill().unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        // A zombie from now on, as nobody has waited for it.
        while orphans(&[]).contains(&id) {
            assert!(Instant::now() < deadline, "a zombie counts as living");
            thread::sleep(PAUSE);
        }
        child.wait().unwrap();
    }
}
