//! The option `--detect-anomalies`, and the records of the layers of a checked step.
//!
//! Burn has no hooks on layers and no names in its graph. The functions of [`layers`](crate::layers) and the losses
//! of [`loss`](crate::loss) check inputs and outputs, forward and backward, while a [`Trace`] is kept.

mod trace;

use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use trace::{
    Call, Check, Found, Place, Record, Trace, Watch, begin_part, check_images, trace,
};

/// True if each step is checked.
static DETECTED: AtomicBool = AtomicBool::new(false);

/// Makes this process check all of its steps; option `--detect-anomalies`.
pub(crate) fn detect_anomalies() {
    DETECTED.store(true, Ordering::Relaxed);
}

/// Whether steps are checked.
pub(crate) fn detects_anomalies() -> bool {
    DETECTED.load(Ordering::Relaxed)
}
