//! Whether replicas compare their parameters.

use std::cell::Cell;

thread_local! {
    /// True if replicas that this thread starts compare their parameters after each update.
    static CHECKED: Cell<bool> = const { Cell::new(false) };
}

/// Makes the replicas of strategies that this thread creates from now on update their own parameters and
/// compare them after each update; option `--check-replicas`.
pub fn check_replicas() {
    CHECKED.set(true);
}

/// Whether replicas that this thread starts compare their parameters; see [`check_replicas`].
pub(crate) fn checks_replicas() -> bool {
    CHECKED.get()
}
