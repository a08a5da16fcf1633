//! Points of metrics that the server lacks, in a file of the output folder: the training appends, and a thread
//! beside it sends.
//!
//! Memory is bounded although a server may be away for hours, and nothing is lost if the process is killed.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, ErrorKind, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::Value;

/// A line of JSON.
#[derive(Debug)]
pub struct Line {
    pub text: String,
    pub json: Value,
}

impl Line {
    /// `None` if it is not JSON.
    fn parse(line: &[u8]) -> Option<Self> {
        let text = str::from_utf8(line).ok()?.trim_end().to_owned();
        let json = serde_json::from_str(&text).ok()?;
        Some(Line { text, json })
    }
}

/// A queue of lines in a file.
pub struct Queue {
    path: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    file: File,
    /// Bytes that were sent.
    sent: u64,
    /// Bytes in the file.
    len: u64,
    /// Whether the last line may be incomplete, as of a full disk.
    is_torn: bool,
    /// The end of the time for sending, once the run has ended.
    deadline: Option<Instant>,
}

impl Queue {
    /// Opens the queue at `path`, which keeps the lines of a killed run.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let len = file.metadata()?.len();
        Ok(Queue {
            path: path.to_owned(),
            state: Mutex::new(State {
                file,
                sent: 0,
                len,
                is_torn: false,
                deadline: None,
            }),
            changed: Condvar::new(),
        })
    }

    /// Appends a line.
    ///
    /// # Errors
    /// The file cannot be written: the line is lost.
    pub fn push(&self, line: &Value) -> io::Result<()> {
        let mut state = self.state();
        let begin = if state.is_torn { "\n" } else { "" };
        let text = format!("{begin}{line}\n");
        state.is_torn = true;
        state.file.write_all(text.as_bytes())?;
        state.is_torn = false;
        state.len = state.file.metadata()?.len();
        self.changed.notify_all();
        Ok(())
    }

    /// The first unsent lines, up to `most`, and their bytes. Lines that are not JSON, as of a full disk or a
    /// kill, are left out. Lines keep their text, as reading and writing a number can change its last digit.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn first(&self, most: usize) -> io::Result<(Vec<Line>, u64)> {
        let (sent, len) = {
            let state = self.state();
            (state.sent, state.len)
        };
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(sent))?;
        let mut reader = BufReader::new(file);
        let (mut lines, mut bytes, mut line) = (Vec::new(), 0, Vec::new());
        while lines.len() < most && sent + bytes < len {
            line.clear();
            let read = reader.read_until(b'\n', &mut line)?;
            if read == 0 {
                break;
            }
            bytes += read as u64;
            lines.extend(Line::parse(&line));
        }
        Ok((lines, bytes))
    }

    /// Removes the first `bytes`, which were sent. The file shrinks once all of it is.
    ///
    /// # Errors
    /// The file cannot be truncated.
    pub fn remove(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.state();
        state.sent += bytes;
        if state.sent >= state.len {
            state.file.set_len(0)?;
            (state.sent, state.len) = (0, 0);
        }
        Ok(())
    }

    /// Whether all lines were sent.
    pub fn is_empty(&self) -> bool {
        let state = self.state();
        state.sent >= state.len
    }

    /// Waits for `pause` (ended early by [`close`](Self::close)), then for a line. Returns `None` if the queue is
    /// closed and empty or past its deadline; otherwise the remaining time, if there is a deadline.
    pub fn wait(&self, pause: Duration) -> Option<Option<Duration>> {
        let state = self.state();
        let is_open = |state: &mut State| state.deadline.is_none();
        let waited = self.changed.wait_timeout_while(state, pause, is_open);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let idle = |state: &mut State| state.deadline.is_none() && state.sent >= state.len;
        let waited = self.changed.wait_while(state, idle);
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        let Some(deadline) = state.deadline else {
            return Some(None);
        };
        let left = deadline.saturating_duration_since(Instant::now());
        (state.sent < state.len && !left.is_zero()).then_some(Some(left))
    }

    /// Ends the queue: what is left is sent within `limit`.
    pub fn close(&self, limit: Duration) {
        self.state().deadline = Some(Instant::now() + limit);
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the lines that a resumed run logs again: those for which `is_kept` is false.
///
/// # Errors
/// The file cannot be read or written.
pub fn cut(path: &Path, mut is_kept: impl FnMut(&Value) -> bool) -> io::Result<()> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        text => text?,
    };
    let mut kept = Vec::new();
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        // A kill may have cut the last line off.
        if serde_json::from_slice(line).is_ok_and(|line| is_kept(&line)) {
            kept.extend_from_slice(line);
        }
    }
    fs::write(path, kept)
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use serde_json::json;

    use super::*;

    fn numbers(lines: &[Line]) -> Vec<u64> {
        let numbers = lines.iter().map(|line| line.json.as_u64().unwrap());
        numbers.collect()
    }

    #[test]
    fn lines_leave_in_order_and_the_file_shrinks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("unsent.jsonl");
        let queue = Queue::open(&path).unwrap();
        (0..5).for_each(|number| queue.push(&json!(number)).unwrap());
        let (lines, bytes) = queue.first(3).unwrap();
        assert_eq!(numbers(&lines), [0, 1, 2]);
        assert_eq!(numbers(&queue.first(1).unwrap().0), [0], "not removed yet");
        queue.remove(bytes).unwrap();
        queue.push(&json!(5)).unwrap();
        let (lines, bytes) = queue.first(9).unwrap();
        assert_eq!(numbers(&lines), [3, 4, 5]);
        queue.remove(bytes).unwrap();
        assert!(queue.is_empty());
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        queue.push(&json!(6)).unwrap();
        assert_eq!(numbers(&queue.first(9).unwrap().0), [6]);
    }

    #[test]
    fn numbers_keep_their_digits() {
        let folder = tempfile::tempdir().unwrap();
        let queue = Queue::open(&folder.path().join("unsent.jsonl")).unwrap();
        let numbers = (1..=500).map(|number| json!(1.0 / f64::from(number)));
        let pushed: Vec<String> = numbers
            .map(|number| {
                queue.push(&number).unwrap();
                number.to_string()
            })
            .collect();
        let (lines, _) = queue.first(1_000).unwrap();
        let lines: Vec<String> = lines.into_iter().map(|line| line.text).collect();
        assert_eq!(lines, pushed);
    }

    #[test]
    fn a_killed_run_leaves_its_lines_but_half_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("unsent.jsonl");
        fs::write(&path, "1\n2\n{\"half").unwrap();
        let queue = Queue::open(&path).unwrap();
        assert_eq!(numbers(&queue.first(9).unwrap().0), [1, 2]);
        drop(queue);
        cut(&path, |line| line.as_u64() != Some(1)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "2\n");
        cut(&folder.path().join("missing"), |_| true).unwrap();
    }

    #[test]
    fn closing_ends_the_pause_and_then_the_queue() {
        let folder = tempfile::tempdir().unwrap();
        let queue = Arc::new(Queue::open(&folder.path().join("unsent.jsonl")).unwrap());
        queue.push(&json!(1)).unwrap();
        assert_eq!(queue.wait(Duration::ZERO), Some(None));
        let closing = Arc::clone(&queue);
        let thread = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            closing.close(Duration::from_secs(60));
        });
        let left = queue.wait(Duration::from_secs(600)).unwrap().unwrap();
        assert!(left <= Duration::from_secs(60));
        thread.join().unwrap();
        queue.close(Duration::ZERO);
        assert_eq!(queue.wait(Duration::ZERO), None, "out of time");
        queue.close(Duration::from_secs(60));
        queue.remove(queue.first(9).unwrap().1).unwrap();
        assert_eq!(queue.wait(Duration::ZERO), None, "empty");
    }
}
