//! The binary `kiln`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kiln::cli::run(std::env::args_os())
}
