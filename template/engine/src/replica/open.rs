//! Opening devices, where a driver that does not fit fails.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Result, anyhow};
use burn::tensor::Device;

use super::{devices::with_advice, panic_message};
use crate::device::is_cpu;

/// Opens `devices`, before anything else asks them. Nothing for the CPU and for devices of servers.
///
/// # Errors
/// A GPU is there and cannot be used, as with a driver that does not fit.
pub fn open_devices(devices: &[Device]) -> Result<()> {
    if is_cpu(devices) {
        return Ok(());
    }
    first_panic(|| devices.iter().for_each(open)).map_err(|cause| {
        with_advice(anyhow!(
            "a GPU cannot be used, and `kiln doctor` says whether its driver is installed and fits: {cause}"
        ))
    })
}

#[cfg(feature = "gpu")]
fn open(device: &Device) {
    device.identity();
}

#[cfg(not(feature = "gpu"))]
fn open(_: &Device) {}

/// Runs `action`.
///
/// # Errors
/// It panics. The message is that of the first panic, on whichever thread: CubeCL opens devices on its own ones,
/// and then panics again with less to say on the calling one. Nothing is printed.
fn first_panic(action: impl FnOnce()) -> Result<(), String> {
    let first = Arc::new(Mutex::new(None));
    let noted = Arc::clone(&first);
    let usual = take_hook();
    set_hook(Box::new(move |panic| {
        let mut first = noted.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| panic_message(panic.payload()).to_owned());
    }));
    let result = catch_unwind(AssertUnwindSafe(action));
    set_hook(usual);
    let first = first.lock().unwrap_or_else(PoisonError::into_inner).take();
    result.map_err(|panic| first.unwrap_or_else(|| panic_message(&*panic).to_owned()))
}
