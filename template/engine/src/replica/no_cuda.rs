//! The reason why there is no CUDA GPU.

use cudarc::driver::{CudaContext, sys::is_culib_present};

/// The answer of NVIDIA's driver, for a message.
///
/// Source: `CUresult` of the CUDA driver API.
pub fn reason() -> String {
    // SAFETY: the only code of the library that runs is what the driver runs in each program for CUDA.
    if !unsafe { is_culib_present() } {
        return format!(
            "NVIDIA's driver is not installed, as its library {} is missing",
            if cfg!(windows) {
                "nvcuda.dll"
            } else {
                "libcuda.so.1"
            }
        );
    }
    match CudaContext::device_count() {
        Ok(count) => format!("NVIDIA's driver counts {count} GPUs"),
        // Its description is a call of the driver, too.
        Err(error) => format!("NVIDIA's driver reports {:?}", error.0),
    }
}
