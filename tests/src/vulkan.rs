//! A GPU in software: Mesa's driver of Vulkan for machines that have none.

use std::{fs, process::Command};

use crate::there_or_skipped;

/// By which a program takes it for a GPU.
pub const WANTED: (&str, &str) = ("CUBECL_WGPU_DEFAULT_DEVICE", "Cpu");

/// Whether there is one; where not, says that a test is skipped.
///
/// # Panics
/// There is none, and `KILN_REQUIRE_VULKAN` asks for it.
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
