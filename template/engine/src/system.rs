//! What the system says: the name of this host, the time in UTC, and the answers of other programs.

use std::{
    fs,
    io::Read,
    process::{Command, Stdio},
    sync::mpsc::channel,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Timeout of queries to other programs, such as Git.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// The host name, if available.
pub fn host() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let ask = || answer(&mut Command::new("hostname"), Instant::now() + PATIENCE);
    let name = name.or_else(ask)?.trim().to_owned();
    Some(name).filter(|name| !name.is_empty())
}

/// The output of a program; `None` if it is missing, fails or exceeds the deadline.
pub(crate) fn answer(command: &mut Command, deadline: Instant) -> Option<String> {
    let streams = command.stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = streams.stdout(Stdio::piped()).spawn().ok()?;
    let mut stdout = child.stdout.take()?;
    let (sender, receiver) = channel();
    // Reads on a thread, which a hanging program may block forever.
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = stdout.read_to_end(&mut bytes);
        let _ = sender.send(read.map(|_| bytes));
    });
    let printed = receiver.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    if printed.is_err() {
        child.kill().ok()?;
    }
    let succeeded = child.wait().ok()?.success();
    let bytes = printed.ok()?.ok()?;
    succeeded.then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// Formats a time in UTC as in RFC 3339, to the second.
///
/// Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
pub fn utc(time: SystemTime) -> String {
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let days = days + 719_468; // since 1 March of the year 0
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100); // of a year that begins in March
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[cfg(unix)]
    #[test]
    fn a_program_that_hangs_or_fails_has_no_answer() {
        let ask = |script: &str, wait| {
            let mut command = Command::new("sh");
            answer(command.args(["-c", script]), Instant::now() + wait)
        };
        let started = Instant::now();
        assert_eq!(ask("exec sleep 60", Duration::from_millis(50)), None);
        assert!(started.elapsed() < Duration::from_secs(30));
        assert_eq!(ask("echo no; exit 3", PATIENCE), None);
        assert_eq!(ask("echo yes", PATIENCE).as_deref(), Some("yes\n"));
        let missing = answer(
            &mut Command::new("no-such-program"),
            Instant::now() + PATIENCE,
        );
        assert_eq!(missing, None);
    }
}
