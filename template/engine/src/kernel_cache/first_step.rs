//! Messages while kernels are compiled and loaded, until the first step ends.

use std::{
    fmt::Write,
    mem,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use burn::{
    cubecl::logging::{LaunchObservation, LaunchObserver},
    tensor::{Device, DeviceIdentity},
};

use super::cache::{self, Kept};
use crate::console::terminal;

/// Time from the first launch of a kernel to the first message, and the longest between two.
const FIRST_MESSAGE: Duration = Duration::from_secs(1);
const LONGEST_SILENCE: Duration = Duration::from_secs(30);

/// Time after which a user may wonder.
const LONG: Duration = Duration::from_secs(10);

/// A first step that comes sooner needs no message, unless kernels were compiled.
const SOON: Duration = Duration::from_secs(2);

/// Explanation of a slow first step.
const TUNING: &str = "several kernels for each operation are compiled and timed, once on this machine; without \
                      the feature `autotune` (Cargo.toml), training starts sooner, and steps are slower";

/// The price of a first step within seconds.
const UNTUNED: &str = "kernels are not tuned for this GPU; for long trainings, build with `--features autotune`: the \
                       first start takes minutes, once on this machine, and steps of large models are faster";

/// Dropped at the end of the first step, which wakes the thread that writes messages.
static AWAITED: Mutex<Option<Sender<()>>> = Mutex::new(None);

/// Whether a kernel was launched.
#[derive(Default)]
struct Launched(AtomicBool);

impl LaunchObserver for Launched {
    fn launched(&self, _kernel: &'static str) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Notes that the first step on `devices` is still to come, and with `speaks` writes messages until
/// [`note_first_step`]. Nothing for the CPU.
///
/// # Errors
/// A thread cannot be started.
pub fn await_first_step(devices: &[Device], speaks: bool) -> Result<()> {
    let Some(device) = devices.first().and_then(Device::identity) else {
        return Ok(());
    };
    let (sender, ended) = channel();
    *AWAITED.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
    let bundle = cache::import_for(&device);
    if speaks {
        cache::check_folder();
        let messages = Messages::new(device, bundle);
        let thread = thread::Builder::new().name("kernels".to_owned());
        thread.spawn(move || messages.write_until(&ended))?;
    }
    Ok(())
}

/// Whether the first step on a GPU is still to come, so that there is nothing to save.
pub fn is_awaiting_first_step() -> bool {
    let awaited = AWAITED.lock().unwrap_or_else(PoisonError::into_inner);
    awaited.is_some()
}

/// Notes that the results of the first step are there.
pub fn note_first_step() {
    let mut awaited = AWAITED.lock().unwrap_or_else(PoisonError::into_inner);
    *awaited = None;
}

struct Messages {
    device: DeviceIdentity,
    bundle: Option<&'static Path>,
    started: Instant,
    /// Kernels on disk at the start.
    before: Kept,
}

impl Messages {
    fn new(device: DeviceIdentity, bundle: Option<&'static Path>) -> Self {
        Messages {
            before: Kept::of(&device),
            device,
            bundle,
            started: Instant::now(),
        }
    }

    /// Writes messages until the sender of `ended` is dropped, and then what was compiled.
    fn write_until(self, ended: &Receiver<()>) {
        let launched = Arc::new(Launched::default());
        let observation = LaunchObservation::new(Arc::clone(&launched) as Arc<dyn LaunchObserver>);
        let (mut silence, mut is_explained) = (FIRST_MESSAGE, !cfg!(feature = "autotune"));
        while ended.recv_timeout(silence) == Err(RecvTimeoutError::Timeout) {
            if launched.0.load(Ordering::Relaxed) {
                terminal::warn(self.progress());
                if self.started.elapsed() > LONG && !mem::replace(&mut is_explained, true) {
                    terminal::warn(TUNING);
                }
                silence = (silence * 2).min(LONGEST_SILENCE);
            }
        }
        drop(observation);
        if let Some(message) = self.conclusion() {
            terminal::warn(message);
            if !cfg!(feature = "autotune") && self.before == Kept::default() {
                terminal::warn(UNTUNED);
            }
        }
    }

    /// Kernels compiled and operations tuned since the start.
    fn added(&self) -> Kept {
        let now = Kept::of(&self.device);
        Kept {
            kernels: now.kernels.saturating_sub(self.before.kernels),
            tuned: now.tuned.saturating_sub(self.before.tuned),
        }
    }

    fn progress(&self) -> String {
        progress(
            &self.device.name,
            self.before,
            self.added(),
            self.started.elapsed(),
        )
    }

    fn conclusion(&self) -> Option<String> {
        let (added, took) = (self.added(), self.started.elapsed());
        if added == Kept::default() && took < SOON {
            return None;
        }
        let mut text = format!("first step after {:.1} s", took.as_secs_f64());
        if added != Kept::default() {
            let _ = write!(text, ": {added}");
            let file = cache::file();
            if file.is_file() {
                let _ = write!(text, ", kept in {}", file.display());
            }
        }
        if let Some(bundle) = self.bundle.filter(|_| added.kernels > 0) {
            let _ = write!(
                text,
                "; they were not in {} (--kernels), which another build of this program made, or for \
                 other shapes",
                bundle.display()
            );
        }
        Some(text)
    }
}

/// Progress, `took` after the start, on a machine that had the kernels `before`.
fn progress(device: &str, before: Kept, added: Kept, took: Duration) -> String {
    let seconds = took.as_secs();
    let is_first = before == Kept::default();
    if added == Kept::default() && !is_first {
        return format!("loading kernels for {device}: {seconds} s");
    }
    let first = if is_first {
        " (first run on this machine)"
    } else {
        ""
    };
    match added == Kept::default() {
        true => format!("compiling kernels for {device}{first}: {seconds} s"),
        false => format!("compiling kernels for {device}{first}: {added}, {seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_tell_compiling_from_loading() {
        let kept = |kernels, tuned| Kept { kernels, tuned };
        let text = |before, added| progress("H100", before, added, Duration::from_secs(24));
        assert_eq!(
            text(kept(0, 0), kept(31, 2)),
            "compiling kernels for H100 (first run on this machine): 31 kernels compiled, 2 operations tuned, 24 s"
        );
        assert_eq!(
            text(kept(9, 0), kept(1, 0)),
            "compiling kernels for H100: 1 kernels compiled, 24 s"
        );
        assert_eq!(
            text(kept(9, 0), kept(0, 0)),
            "loading kernels for H100: 24 s"
        );
        assert_eq!(
            text(kept(0, 0), kept(0, 0)),
            "compiling kernels for H100 (first run on this machine): 24 s"
        );
    }
}
