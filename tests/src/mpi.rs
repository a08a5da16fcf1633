//! The MPI installation of this machine.

use std::process::{Command, Stdio};

use crate::there_or_skipped;

/// Whether MPI is installed, for building and running; if not, prints that a test is skipped.
///
/// # Panics
/// MPI is missing, and `KILN_REQUIRE_MPI` is set.
pub fn is_there() -> bool {
    there_or_skipped(
        is_installed(),
        "KILN_REQUIRE_MPI",
        "there is no mpirun or no mpicc",
        "what needs MPI; `apt install openmpi-bin libopenmpi-dev libclang-dev` has it",
    )
}

/// Whether MPI is installed. Nothing is skipped without it.
pub fn is_installed() -> bool {
    let found = |program: &str| {
        let mut version = Command::new(program);
        version
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        version.status().is_ok_and(|status| status.success())
    };
    found("mpirun") && found("mpicc")
}

/// `mpirun` with this number of processes, without a program.
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
