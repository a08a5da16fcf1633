//! A software GPU: Mesa's Vulkan driver for machines without a GPU.

use std::{fs, process::Command};

use crate::there_or_skipped;

/// The environment variable with which a program uses the driver as a GPU.
pub const WANTED: (&str, &str) = ("CUBECL_WGPU_DEFAULT_DEVICE", "Cpu");

/// Whether the driver is installed; if not, prints that a test is skipped.
///
/// # Panics
/// The driver is missing, and `KILN_REQUIRE_VULKAN` is set.
pub fn is_there() -> bool {
    let loader = Command::new("ldconfig").arg("-p").output();
    let has_loader = loader.is_ok_and(|libraries| {
        let text = String::from_utf8_lossy(&libraries.stdout).into_owned();
        text.contains("libvulkan.so.1")
    });
    let drivers = fs::read_dir("/usr/share/vulkan/icd.d");
    let has_driver = drivers.is_ok_and(|drivers| {
        let mut names = drivers.flatten().map(|driver| driver.file_name());
        names.any(|name| name.to_string_lossy().starts_with("lvp_icd"))
    });
    let there = has_loader && has_driver;
    there_or_skipped(
        there,
        "KILN_REQUIRE_VULKAN",
        "there is no libvulkan.so.1 or no driver in software",
        "what needs a GPU in software; `apt install libvulkan1 mesa-vulkan-drivers` has it",
    )
}
