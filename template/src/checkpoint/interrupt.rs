use std::sync::{
    Arc, LazyLock, Once,
    atomic::{AtomicBool, Ordering},
};

use crate::distribute::exit_at_once;

static REQUESTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
static LISTENING: Once = Once::new();

/// The exit status of a program that Ctrl-C ends, by the convention of shells.
const INTERRUPTED: i32 = 130;

/// From now on the first SIGINT, SIGTERM or Ctrl-C only asks training to stop, and a second one
/// ends the program at once. SIGUSR1, which launchers hand on to all workers, only asks.
pub fn listen() {
    LISTENING.call_once(|| {
        let handler = || {
            if REQUESTED.swap(true, Ordering::Relaxed) {
                exit_at_once(INTERRUPTED);
            }
            eprintln!("stopping after this step; once more to stop at once");
        };
        if let Err(error) = ctrlc::set_handler(handler) {
            eprintln!("warning: a signal will end training without a checkpoint: {error}");
        }
        #[cfg(unix)]
        if let Err(error) =
            signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&REQUESTED))
        {
            eprintln!("warning: SIGUSR1 will end training without a checkpoint: {error}");
        }
    });
}

/// Whether training was asked to stop.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}
