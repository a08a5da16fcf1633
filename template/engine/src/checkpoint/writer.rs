//! Checkpoints are serialized, hashed and written on a thread of their own, while training goes on.

use std::{
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};

use super::folder;
use crate::console::terminal;

/// The part of a replica's state that may differ between replicas.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplicaStatistics {
    /// The number of [`crate::globals::revision`]. While it and the statistics stay the same, so do the files of a
    /// checkpoint.
    pub revision: u64,
    /// The running statistics of the model.
    pub of_model: Vec<f32>,
    /// Those of the averaged weights; empty without `--ema`.
    pub of_average: Vec<f32>,
}

/// A checkpoint whose model and optimizers were written, or are being written.
pub struct Saved {
    pub path: PathBuf,
    pub step: usize,
    pub replicas: Vec<ReplicaStatistics>,
}

/// Writes one checkpoint at a time.
///
/// Memory is bounded: there is one copy of the training's state at a time. The next state is taken when the
/// previous one is on disk and its copy dropped.
///
/// If a writer is dropped, it still completes the checkpoint that it writes.
#[derive(Default)]
pub struct Writer {
    writing: Option<JoinHandle<Result<()>>>,
    /// The last checkpoint that was begun.
    saved: Option<Saved>,
}

impl Writer {
    /// Takes the state with `take`, once the previous write has ended, and gives it to `write` on the writer's
    /// thread.
    ///
    /// # Errors
    /// The previous write failed, the error of `take`, or no thread can be started.
    pub fn begin<S: Send + 'static>(
        &mut self,
        take: impl FnOnce() -> Result<S>,
        write: impl FnOnce(S) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.finish()?;
        let state = take()?;
        self.spawn(move || write(state))
    }

    /// Runs `write`, which holds no copy of the state, after a write in progress, without waiting for it. If
    /// that one fails, `write` does not run.
    ///
    /// # Errors
    /// The previous write has failed, or no thread can be started.
    pub fn follow(&mut self, write: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        self.check()?;
        let previous = self.writing.take();
        self.spawn(move || {
            previous.map_or(Ok(()), result)?;
            write()
        })
    }

    fn spawn(&mut self, write: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
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
        self.writing.take().map_or(Ok(()), result)
    }

    /// Whether a write is in progress.
    fn is_writing(&self) -> bool {
        self.writing.is_some()
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

    /// The last checkpoint, if it was saved at update number `step` from replicas in this state; at most once.
    pub fn take_saved(&mut self, step: usize, replicas: &[ReplicaStatistics]) -> Option<Saved> {
        let saved = self.saved.take()?;
        (saved.step == step && saved.replicas == replicas).then_some(saved)
    }

    /// Whether a new checkpoint at `path` can have the files of the one that was `saved` last. If that one is on disk
    /// no more, a warning names it. While it is being written, nobody can tell.
    ///
    /// # Errors
    /// It could not be written.
    pub fn still_has(&mut self, saved: &Saved, path: &Path) -> Result<bool> {
        self.check()?;
        if self.is_writing() {
            return Ok(true);
        }
        let whole = folder::ensure_whole(&saved.path);
        if let Err(gone) = whole {
            terminal::warn(format_args!(
                "warning: {} was deleted or damaged ({:#}): {} is written whole",
                saved.path.display(),
                gone.into_error(),
                path.display()
            ));
            return Ok(false);
        }
        Ok(true)
    }

    /// Notes the checkpoint that was begun last.
    pub fn note_saved(&mut self, saved: Saved) {
        self.saved = Some(saved);
    }
}

/// Waits for the result of a write.
fn result(writing: JoinHandle<Result<()>>) -> Result<()> {
    match writing.join() {
        Ok(written) => written,
        Err(_) => Err(anyhow!("the thread that writes checkpoints panicked")),
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

    /// A copy of the state, which counts itself.
    struct Copy(Arc<AtomicUsize>);

    impl Copy {
        fn of(live: &Arc<AtomicUsize>) -> Self {
            live.fetch_add(1, Ordering::SeqCst);
            Copy(Arc::clone(live))
        }
    }

    impl Drop for Copy {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn training_goes_on_while_a_checkpoint_is_written_and_the_next_one_waits() {
        let (go, waits) = mpsc::channel::<()>();
        let written = Arc::new(AtomicUsize::new(0));
        let mut writer = Writer::default();
        let count = Arc::clone(&written);
        let first = move |()| {
            waits.recv()?;
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        writer.begin(|| Ok(()), first).unwrap();
        // The first write waits for this thread, which therefore did not wait for it.
        writer.check().unwrap();
        let count = Arc::clone(&written);
        let follows = move || {
            ensure!(count.fetch_add(1, Ordering::SeqCst) == 1, "not the second");
            Ok(())
        };
        writer.follow(follows).unwrap();
        assert_eq!(written.load(Ordering::SeqCst), 0);
        go.send(()).unwrap();
        let count = Arc::clone(&written);
        let third = move |before| {
            ensure!(
                before == 2 && count.fetch_add(1, Ordering::SeqCst) == 2,
                "not the third"
            );
            Ok(())
        };
        let before = || Ok(written.load(Ordering::SeqCst));
        writer.begin(before, third).unwrap();
        writer.finish().unwrap();
        assert_eq!(written.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn memory_holds_one_copy_of_the_state() {
        let live = Arc::new(AtomicUsize::new(0));
        let mut writer = Writer::default();
        for _ in 0..3 {
            let copy = || {
                // Taken after the previous one is dropped.
                let copy = Copy::of(&live);
                ensure!(live.load(Ordering::SeqCst) == 1, "two copies at a time");
                Ok(copy)
            };
            let slow = |copy: Copy| {
                thread::sleep(Duration::from_millis(20));
                drop(copy);
                thread::sleep(Duration::from_millis(5));
                Ok(())
            };
            writer.begin(copy, slow).unwrap();
            // One that follows waits for the previous write with nothing.
            writer.follow(|| Ok(())).unwrap();
            writer.follow(|| Ok(())).unwrap();
            assert_eq!(live.load(Ordering::SeqCst), 1);
        }
        writer.finish().unwrap();
        assert_eq!(live.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn nothing_follows_a_write_that_failed() {
        let mut writer = Writer::default();
        let fails = |()| {
            thread::sleep(Duration::from_millis(10));
            Err(anyhow!("the disk is full"))
        };
        writer.begin(|| Ok(()), fails).unwrap();
        writer.follow(|| panic!("it follows")).unwrap();
        let error = writer.finish().unwrap_err();
        assert_eq!(error.to_string(), "the disk is full");
    }

    #[test]
    fn a_failure_is_reported_once_by_whatever_comes_next() {
        let fails = |()| Err(anyhow!("the disk is full"));
        let nothing = || Ok(());
        let mut writer = Writer::default();
        writer.begin(nothing, fails).unwrap();
        let error = writer.begin(nothing, Ok).unwrap_err();
        assert_eq!(error.to_string(), "the disk is full");
        writer.finish().unwrap();
        writer.begin(nothing, fails).unwrap();
        let error = (0..1_000).find_map(|_| {
            thread::sleep(Duration::from_millis(10));
            writer.check().err()
        });
        assert_eq!(error.unwrap().to_string(), "the disk is full");
        writer.begin(nothing, |()| panic!("a bug")).unwrap();
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
        let slow = move |()| {
            thread::sleep(Duration::from_millis(50));
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        writer.begin(|| Ok(()), slow).unwrap();
        drop(writer);
        assert_eq!(written.load(Ordering::SeqCst), 1);
    }
}
