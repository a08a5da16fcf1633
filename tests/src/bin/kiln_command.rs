//! The binary `kiln` under another name, as Cargo provides tests only with binaries of their own crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    kiln::cli::run(std::env::args_os())
}
