//! Python virtual environments in the build folder.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{rendered::text, shared_target, there_or_skipped};

/// The path of Python 3; if it is missing, prints that a test is skipped.
///
/// # Panics
/// It is missing, and `KILN_REQUIRE_PYTHON` is set.
pub fn interpreter() -> Option<PathBuf> {
    let asked = Command::new("python3")
        .args(["-c", "import sys; print(sys.executable)"])
        .output();
    let path = asked.ok().filter(|output| output.status.success());
    let path = path.map(|output| String::from_utf8_lossy(&output.stdout).trim().into());
    let is_there = there_or_skipped(
        path.is_some(),
        "KILN_REQUIRE_PYTHON",
        "there is no python3",
        "what needs Python",
    );
    path.filter(|_| is_there)
}

/// The Python of a virtual environment with `packages`. The environment is created if it cannot
/// import `module`.
///
/// # Errors
/// Python 3 with `venv` is missing, or a package cannot be installed: the command and its output.
pub fn with_packages(name: &str, module: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let folder = shared_target().with_file_name(name);
    let python = folder.join("bin/python");
    if run(&python, &["-c", &format!("import {module}")]).is_err() {
        let folder = folder.to_str().ok_or("the build folder is not UTF-8")?;
        run(Path::new("python3"), &["-m", "venv", "--clear", folder])?;
        // Compiling all modules takes longer than the rest, and few are imported.
        let install = ["-m", "pip", "install", "--quiet", "--no-compile"];
        run(&python, &[&install[..], packages].concat())?;
    }
    Ok(python)
}

fn run(program: &Path, arguments: &[&str]) -> Result<(), String> {
    let called = format!("{} {}", program.display(), arguments.join(" "));
    match Command::new(program).args(arguments).output() {
        Err(error) => Err(format!("`{called}` does not start: {error}")),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("`{called}` failed:\n{}", text(&output))),
    }
}
