//! Measurements of a process: time per phase of a step, and memory.

pub mod memory;
pub mod profile;
