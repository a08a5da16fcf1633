//! The threads of computations on the CPU: those of one replica, or of all replicas of a process together.

use std::{cell::RefCell, sync::Arc};

use anyhow::{Context, Result};
use core_affinity::CoreId;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Number of values below which a handover to other threads costs more than the computation.
const MANY: usize = 1 << 18;
/// Values per work item of a thread.
pub const PIECE: usize = 1 << 14;

thread_local! {
    /// The threads of all replicas, on the thread of a replica that shares its update.
    static SHARED: RefCell<Option<Arc<ThreadPool>>> = const { RefCell::new(None) };
}

/// Starts a thread for each of `cores` cores, for updates of all replicas.
///
/// # Errors
/// The threads cannot be started.
pub fn start_threads(cores: usize) -> Result<Arc<ThreadPool>> {
    let own_cores = cores_to_keep(cores);
    let threads = ThreadPoolBuilder::new()
        .num_threads(cores)
        .thread_name(|thread| format!("update-{thread}"))
        .start_handler(move |thread| {
            if let Some(core) = own_cores.get(thread) {
                // Pinning is best effort.
                core_affinity::set_for_current(*core);
            }
        })
        .build();
    let threads = threads.context("cannot start the threads of updates")?;
    Ok(Arc::new(threads))
}

/// One core per thread, if `threads` is the number of cores of this process. The other replicas poll for
/// the update meanwhile, so no core is idle, and the system could put two threads on one core for
/// milliseconds. With spare cores it finds an idle one.
fn cores_to_keep(threads: usize) -> Vec<CoreId> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    match cores.len() == threads {
        true => cores,
        false => Vec::new(),
    }
}

/// Makes [`on_all_threads`] compute on `threads` when this thread, a replica's, calls it.
pub fn share_threads(threads: Arc<ThreadPool>) {
    SHARED.set(Some(threads));
}

/// Calls `work`, which computes on `values` values, with parallel iterators on the threads of all replicas
/// of a shared update, or else on those of this replica.
pub fn on_all_threads<T: Send>(values: usize, work: impl FnOnce() -> T + Send) -> T {
    match SHARED.with_borrow(Option::clone) {
        Some(shared) if values >= MANY => shared.install(work),
        _ => work(),
    }
}
