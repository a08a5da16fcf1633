//! Work on all cores.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// Calls `work` with each item, on a thread per core.
///
/// # Panics
/// `work` panics.
pub fn for_each<T: Sync>(items: &[T], work: impl Fn(&T) + Sync) {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(item);
                }
            });
        }
    });
}
