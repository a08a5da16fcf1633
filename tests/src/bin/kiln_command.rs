//! The binary `kiln`, under a name of its own: Cargo gives tests only the binaries of their own crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    kiln::cli::run(std::env::args_os())
}
