//! Shared helpers of Kiln's tests.

pub mod abilities;
pub mod check;
pub mod filled_in;
pub mod gpu_measurement;
pub mod hardware;
pub mod idx;
pub mod interruptions;
pub mod job;
pub mod kernels;
pub mod mlflow;
pub mod mpi;
pub mod parallel;
pub mod python;
pub mod pytorch;
pub mod random;
pub mod rendered;
pub mod rounds;
pub mod running;
pub mod runs;
pub mod slurm;
pub mod throughput;
pub mod trainer;
pub mod vulkan;
pub mod without_llvm;

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Command,
};

pub use kiln::snapshot::{Combination, Entry, NAME, Tree, diff, read_tree};
use kiln::{
    name::Name,
    project::{self, WriteOptions},
    render::{self, Rendered},
    snapshot,
    template::{Template, Vcs, answers::Answers},
};
pub use runs::log;
use tempfile::TempDir;

/// The root of the repository.
pub fn repository() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests
        .parent()
        .expect("`tests` lies in the repository")
        .into()
}

/// Whether a requirement of a test is met; if not, prints what is skipped and how to install it.
///
/// # Panics
/// The requirement is not met, and the environment variable `required` is set.
fn there_or_skipped(there: bool, required: &str, missing: &str, skipped: &str) -> bool {
    assert!(
        there || env::var_os(required).is_none(),
        "{required} is set, and {missing}"
    );
    if !there {
        eprintln!("skipped: {skipped}");
    }
    there
}

/// A temporary folder, in memory if the system has such a file system: many small files are written several times as
/// fast.
///
/// # Panics
/// The folder cannot be created.
pub fn folder_in_memory() -> TempDir {
    let in_memory = tempfile::tempdir_in("/dev/shm");
    in_memory
        .or_else(|_| tempfile::tempdir())
        .expect("a temporary folder")
}

/// The template's folder.
pub fn template_folder() -> PathBuf {
    repository().join("template")
}

/// Copies the template as in a fresh checkout, without empty folders, which git does not keep.
///
/// # Errors
/// The file system fails.
pub fn checkout(folder: &Path) -> io::Result<()> {
    for (path, entry) in read_tree(&template_folder())? {
        if let Entry::File { .. } = entry {
            let target = folder.join(&path);
            fs::create_dir_all(target.parent().expect("a file lies in a folder"))?;
            fs::copy(template_folder().join(&path), target)?;
        }
    }
    Ok(())
}

/// The build folder of this workspace.
fn target() -> PathBuf {
    let chosen = std::env::var_os("CARGO_TARGET_DIR");
    chosen.map_or_else(|| repository().join("target"), PathBuf::from)
}

/// The build folder of all rendered crates, so that their dependencies are built once.
pub fn shared_target() -> PathBuf {
    target().join("rendered")
}

/// The packages that the workspace's manifest optimises in dev.
const OPTIMISED: [&str; 6] = [
    "diffy",
    "liquid-core",
    "memchr",
    "pest",
    "regex-automata",
    "sha2",
];

/// Cargo for a package outside this workspace that depends on Kiln and uses its lock file. Kiln's
/// dependencies are reused as compiled for this workspace.
pub fn cargo_outside(arguments: &[&str], folder: &Path) -> Command {
    let mut cargo = Command::new("cargo");
    for package in OPTIMISED {
        let setting = format!("profile.dev.package.{package}.opt-level=2");
        cargo.args(["--config", &setting]);
    }
    cargo
        .args(arguments)
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("CARGO_TARGET_DIR", target())
        .current_dir(folder);
    cargo
}

/// Every valid combination of a template's options for a project called `name`, defaults first.
pub fn combinations(template: &Template, name: &str) -> Vec<Combination> {
    let name = Name::parse(name).expect("a valid name");
    snapshot::combinations(template, &name)
}

/// Renders answers and writes the project to `folder`.
///
/// # Errors
/// Errors of Kiln.
pub fn generate(template: &Template, answers: &Answers, folder: &Path) -> kiln::error::Result<()> {
    write(&render::render_at(template, answers, folder)?, folder)
}

/// Writes a rendered project to `folder`.
///
/// # Errors
/// Errors of Kiln.
pub fn write(rendered: &Rendered<'_>, folder: &Path) -> kiln::error::Result<()> {
    let options = WriteOptions {
        force: false,
        vcs: Vcs::None,
        require_vcs: false,
    };
    project::write(rendered, folder, options).map(drop)
}
