//! The MPI of this machine.

use std::process::{Command, Stdio};

use crate::there_or_skipped;

/// Whether there is one to build and run with; where not, says that a test is skipped.
///
/// # Panics
/// There is none, and `KILN_REQUIRE_MPI` asks for it.
pub fn is_there() -> bool {
    let found = |program: &str| {
        let mut version = Command::new(program);
        version
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        version.status().is_ok_and(|status| status.success())
    };
    let there = found("mpirun") && found("mpicc");
    there_or_skipped(
        there,
        "KILN_REQUIRE_MPI",
        "there is no mpirun or no mpicc",
        "what needs MPI; `apt install openmpi-bin libopenmpi-dev libclang-dev` has it",
    )
}

/// The project's feature for it, or nothing where there is none: for tests that do without, whose build is
/// then that of the others.
///
/// # Panics
/// As [`is_there`].
pub fn feature() -> &'static str {
    if is_there() { "mpi" } else { "" }
}

/// `mpirun` with this many processes; the program and its options are to be added.
pub fn run(processes: usize) -> Command {
    let mut command = Command::new("mpirun");
    command
        .args([
            "--oversubscribe",
            "--bind-to",
            "none",
            "-np",
            &processes.to_string(),
        ])
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command
}
