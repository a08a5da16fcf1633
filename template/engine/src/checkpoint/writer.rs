//! Checkpoints are serialized, hashed and written on a thread of their own, while training goes on.

use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow};

/// Writes one checkpoint at a time. Memory is bounded: the next one waits until the previous one is on disk.
///
/// If a writer is dropped, it still completes the checkpoint that it writes.
#[derive(Default)]
pub struct Writer {
    writing: Option<JoinHandle<Result<()>>>,
}

impl Writer {
    /// Runs `write` on its thread, once the previous write has ended.
    ///
    /// # Errors
    /// The previous write failed, or no thread can be started.
    pub fn begin(&mut self, write: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        self.finish()?;
        let thread = thread::Builder::new().name("checkpoint".to_owned());
        let writing = thread.spawn(write);
        self.writing = Some(writing.context("cannot start the thread that writes checkpoints")?);
        Ok(())
    }

    /// Waits until nothing is being written.
    ///
    /// # Errors
    /// The write failed.
    pub fn finish(&mut self) -> Result<()> {
        match self.writing.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(written)) => written,
            Some(Err(_)) => Err(anyhow!("the thread that writes checkpoints panicked")),
        }
    }

    /// Reports a write that has failed, without waiting for one in progress.
    ///
    /// # Errors
    /// The write failed.
    pub fn check(&mut self) -> Result<()> {
        match &self.writing {
            Some(writing) if writing.is_finished() => self.finish(),
            _ => Ok(()),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Dropped with a checkpoint only after another error, which is the one to report.
        let _ = self.finish();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
            mpsc,
        },
        time::Duration,
    };

    use anyhow::ensure;

    use super::*;

    #[test]
    fn training_goes_on_while_a_checkpoint_is_written_and_the_next_one_waits() {
        let (go, waits) = mpsc::channel::<()>();
        let written = Arc::new(AtomicUsize::new(0));
        let mut writer = Writer::default();
        let count = Arc::clone(&written);
        let first = move || {
            waits.recv()?;
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        writer.begin(first).unwrap();
        // The first write waits for this thread, which therefore did not wait for it.
        writer.check().unwrap();
        assert_eq!(written.load(Ordering::SeqCst), 0);
        go.send(()).unwrap();
        let count = Arc::clone(&written);
        let second = move || {
            ensure!(count.fetch_add(1, Ordering::SeqCst) == 1, "not the second");
            Ok(())
        };
        writer.begin(second).unwrap();
        writer.finish().unwrap();
        assert_eq!(written.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_failure_is_reported_once_by_whatever_comes_next() {
        let fails = || Err(anyhow!("the disk is full"));
        let mut writer = Writer::default();
        writer.begin(fails).unwrap();
        let error = writer.begin(|| Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "the disk is full");
        writer.finish().unwrap();
        writer.begin(fails).unwrap();
        let error = (0..1_000).find_map(|_| {
            thread::sleep(Duration::from_millis(10));
            writer.check().err()
        });
        assert_eq!(error.unwrap().to_string(), "the disk is full");
        writer.begin(|| panic!("a bug")).unwrap();
        assert!(
            writer
                .finish()
                .unwrap_err()
                .to_string()
                .contains("panicked")
        );
    }

    #[test]
    fn a_dropped_writer_completes_its_checkpoint() {
        let written = Arc::new(AtomicUsize::new(0));
        let mut writer = Writer::default();
        let count = Arc::clone(&written);
        let slow = move || {
            thread::sleep(Duration::from_millis(50));
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        writer.begin(slow).unwrap();
        drop(writer);
        assert_eq!(written.load(Ordering::SeqCst), 1);
    }
}
