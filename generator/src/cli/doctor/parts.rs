//! The parts required for building and training, and their state on this machine.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{
    install::{Manager, Package},
    machine::{LIMIT, Machine, Ran},
};
use crate::cli::llvm::{self, Fetched, Llvm};

/// The state of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum State {
    Found,
    Missing,
    TooOld,
    /// Found, but did not respond in time.
    Hangs,
    /// Found, but does not work.
    Fails,
    /// A build fetches it.
    NotFetched,
}

impl State {
    /// Whether a build succeeds, given a network.
    pub(super) fn is_usable(self) -> bool {
        matches!(self, State::Found | State::NotFetched)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            State::Found => "found",
            State::Missing => "missing",
            State::TooOld => "too old",
            State::Hangs => "hangs",
            State::Fails => "fails",
            State::NotFetched => "not fetched",
        }
    }
}

/// A part, with its display name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Part {
    pub(super) name: &'static str,
    pub(super) state: State,
    /// The version, location or problem.
    pub(super) detail: String,
    /// The installation command, if the part cannot be used.
    pub(super) install: Option<String>,
}

/// A device other than the CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Gpu {
    pub(super) name: String,
    /// Memory in bytes, if the driver reports it.
    pub(super) memory: Option<u64>,
    /// Of GPUs of NVIDIA, such as 9.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) compute_capability: Option<String>,
    /// The template's hardware value for this device.
    pub(super) hardware: &'static str,
}

pub(super) const RUST: &str = "Rust";
pub(super) const CARGO: &str = "Cargo";
pub(super) const C_COMPILER: &str = "C compiler";
pub(super) const CPP_COMPILER: &str = "C++ compiler";
pub(super) const GIT: &str = "git";
pub(super) const MPIRUN: &str = "MPI launcher";
pub(super) const MPICC: &str = "MPI compiler";
pub(super) const LIBCLANG: &str = "libclang";
pub(super) const NVIDIA_DRIVER: &str = "NVIDIA driver";
pub(super) const CUDA_TOOLKIT: &str = "CUDA toolkit";
pub(super) const NCCL: &str = "NCCL";
pub(super) const ROCM: &str = "ROCm";
pub(super) const VULKAN: &str = "Vulkan";
pub(super) const LLVM: &str = "LLVM for kernels";

/// All parts of a machine, and its GPUs.
pub(super) struct Parts {
    pub(super) parts: Vec<Part>,
    pub(super) gpus: Vec<Gpu>,
    /// Incompatible versions, with the command that mends each.
    pub(super) warnings: Vec<String>,
    /// Downloads of a build with `cuda` or `rocm`.
    pub(super) fetches: Vec<Fetched>,
}

impl Parts {
    /// Finds all parts; `rust` is the minimum version of Rust.
    pub(super) fn find(machine: &dyn Machine, rust: (u32, u32)) -> Self {
        let finder = Finder {
            machine,
            manager: Manager::of(machine),
        };
        let nvidia = finder.nvidia();
        let (llvm, fetches) = finder.llvm();
        let mut gpus = nvidia.gpus;
        let parts = vec![
            finder.rust(rust),
            finder.version(CARGO, Package::Rust, &[&["cargo", "--version"]]),
            finder.compiler(
                C_COMPILER,
                Package::CCompiler,
                "CC",
                &["cc", "gcc", "clang"],
            ),
            finder.compiler(CPP_COMPILER, Package::CppCompiler, "CXX", &["c++"]),
            finder.version(GIT, Package::Git, &[&["git", "--version"]]),
            finder.mpi_launcher(),
            finder.mpi_compiler(),
            finder.libclang(),
            nvidia.driver,
            nvidia.toolkit,
            nvidia.nccl,
            finder.rocm(&mut gpus),
            llvm,
            finder.vulkan(&mut gpus),
        ];
        finder.metal(&mut gpus);
        Self {
            parts,
            gpus,
            warnings: nvidia.warnings,
            fetches,
        }
    }

    /// The part called `name`.
    ///
    /// # Panics
    /// No part has this name.
    pub(super) fn get(&self, name: &str) -> &Part {
        let part = self.parts.iter().find(|part| part.name == name);
        part.expect("every part is searched for")
    }
}

pub(super) struct Finder<'a> {
    pub(super) machine: &'a dyn Machine,
    pub(super) manager: Manager,
}

impl Finder<'_> {
    pub(super) fn part(
        &self,
        name: &'static str,
        package: Package,
        state: State,
        detail: impl Into<String>,
    ) -> Part {
        let lacks = state != State::Found;
        Part {
            name,
            state,
            detail: detail.into(),
            install: lacks.then(|| self.manager.install(package).to_owned()),
        }
    }

    /// A part whose version is printed by one of several commands, of which the first that exists counts.
    fn version(&self, name: &'static str, package: Package, commands: &[&[&str]]) -> Part {
        for command in commands {
            match self.machine.run(command[0], &command[1..]) {
                Ran::Missing => {}
                Ran::Said(text) => {
                    return self.part(name, package, State::Found, first_line(&text));
                }
                other => return self.broken(name, package, command[0], &other),
            }
        }
        let names: Vec<_> = commands.iter().map(|command| command[0]).collect();
        let detail = format!("no {} in PATH", names.join(", "));
        self.part(name, package, State::Missing, detail)
    }

    /// A part whose `program` printed no usable output.
    pub(super) fn broken(
        &self,
        name: &'static str,
        package: Package,
        program: &str,
        ran: &Ran,
    ) -> Part {
        let (state, detail) = match ran {
            Ran::Missing => (State::Missing, format!("no {program} in PATH")),
            Ran::Hung => {
                let seconds = LIMIT.as_secs();
                let detail = format!("{program} did not respond within {seconds} seconds");
                (State::Hangs, detail)
            }
            Ran::Failed(text) | Ran::Said(text) => {
                (State::Fails, format!("{program}: {}", first_line(text)))
            }
        };
        self.part(name, package, state, detail)
    }

    fn rust(&self, oldest: (u32, u32)) -> Part {
        let part = self.version(RUST, Package::Rust, &[&["rustc", "--version"]]);
        let (major, minor) = oldest;
        match rust_version(&part.detail) {
            Some(version) if part.state == State::Found && version < oldest => {
                let detail = format!("{}, but {major}.{minor} is required", part.detail);
                let mut part = self.part(RUST, Package::Rust, State::TooOld, detail);
                if self.machine.run("rustup", &["--version"]) != Ran::Missing {
                    part.install = Some("rustup update stable".to_owned());
                }
                part
            }
            _ => part,
        }
    }

    /// A compiler: that of a variable, else the first of `names`. On Windows, of both languages.
    fn compiler(
        &self,
        name: &'static str,
        package: Package,
        variable: &str,
        names: &[&str],
    ) -> Part {
        if self.machine.system() == "windows"
            && let Some(version) = self.visual_studio()
        {
            return self.part(name, package, State::Found, version);
        }
        let own = self.machine.variable(variable);
        let compilers = own.iter().map(String::as_str).chain(names.iter().copied());
        let commands: Vec<_> = compilers.map(|compiler| [compiler, "--version"]).collect();
        let commands: Vec<&[&str]> = commands.iter().map(<[&str; 2]>::as_slice).collect();
        self.version(name, package, &commands)
    }

    /// Visual Studio's compiler. It is not in PATH, and Rust finds it in the same way.
    fn visual_studio(&self) -> Option<String> {
        let programs = self.machine.variable("ProgramFiles(x86)")?;
        let tool = format!(r"{programs}\Microsoft Visual Studio\Installer\vswhere.exe");
        let component = "Microsoft.VisualStudio.Component.VC.Tools.x86.x64";
        let arguments = ["-latest", "-products", "*", "-requires", component];
        let property = ["-property", "installationPath"];
        match self
            .machine
            .run(&tool, &[&arguments[..], &property].concat())
        {
            Ran::Said(text) if !text.is_empty() => Some(first_line(&text)),
            _ => None,
        }
    }

    fn mpi_launcher(&self) -> Part {
        let part = self.version(MPIRUN, Package::Mpi, &[&["mpirun", "--version"]]);
        if part.state != State::Found {
            return part;
        }
        match self.machine.run("mpirun", &["--version"]) {
            Ran::Said(text) if implementation(&text).is_none() => {
                let what = first_line(&text);
                let detail = format!("neither Open MPI nor MPICH, but {what}");
                self.part(MPIRUN, Package::Mpi, State::Fails, detail)
            }
            Ran::Said(text) if text.starts_with("HYDRA") => Part {
                detail: hydra_version(&text),
                ..part
            },
            _ => part,
        }
    }

    /// The compiler must belong to the launcher's implementation; otherwise, each process would run alone.
    fn mpi_compiler(&self) -> Part {
        // The first option is Open MPI's, the second MPICH's.
        let said = ["--showme:version", "-v"].map(|option| self.machine.run("mpicc", &[option]));
        let text = said.iter().find_map(|ran| match ran {
            Ran::Said(text) => Some((first_line(text), implementation(text)?)),
            _ => None,
        });
        let Some((line, ours)) = text else {
            let [first, _] = said;
            return self.broken(MPICC, Package::Mpi, "mpicc", &first);
        };
        match self.machine.run("mpirun", &["--version"]) {
            Ran::Said(launcher) if implementation(&launcher).is_some_and(|its| its != ours) => {
                let its = implementation(&launcher).unwrap_or_default();
                let detail = format!("of {ours}, but mpirun is of {its}: install one of the two");
                self.part(MPICC, Package::Mpi, State::Fails, detail)
            }
            _ => self.part(MPICC, Package::Mpi, State::Found, line),
        }
    }

    fn libclang(&self) -> Part {
        let mut folders: Vec<PathBuf> = Vec::new();
        folders.extend(self.machine.variable("LIBCLANG_PATH").map(PathBuf::from));
        for above in ["/usr/lib", "/usr/lib/llvm"] {
            let names = self.machine.list(Path::new(above));
            let of_llvm = names
                .into_iter()
                .filter(|name| name.starts_with("llvm-") || name.parse::<u32>().is_ok());
            for name in of_llvm {
                let folder = Path::new(above).join(name);
                folders.extend([folder.join("lib"), folder.join("lib64")]);
            }
        }
        folders.extend(
            [
                "/opt/homebrew/opt/llvm/lib",
                "/usr/local/opt/llvm/lib",
                "/Library/Developer/CommandLineTools/usr/lib",
                r"C:\Program Files\LLVM\bin",
            ]
            .map(PathBuf::from),
        );
        self.library_part(LIBCLANG, Package::Mpi, "clang", &folders)
    }

    fn library_part(
        &self,
        name: &'static str,
        package: Package,
        stem: &str,
        folders: &[PathBuf],
    ) -> Part {
        match self.library(stem, folders) {
            Some(path) => self.part(name, package, State::Found, path.display().to_string()),
            None => {
                let detail = format!("no {} found", library_name(self.machine.system(), stem));
                self.part(name, package, State::Missing, detail)
            }
        }
    }

    /// The path of a shared library: in these folders, in those of the environment, in the loader's
    /// list, or in system folders.
    pub(super) fn library(&self, stem: &str, folders: &[PathBuf]) -> Option<PathBuf> {
        let system = self.machine.system();
        let (variable, separator) = match system {
            "windows" => ("PATH", ';'),
            "macos" => ("DYLD_LIBRARY_PATH", ':'),
            _ => ("LD_LIBRARY_PATH", ':'),
        };
        let variable = self.machine.variable(variable).unwrap_or_default();
        let of_variable = variable.split(separator).map(PathBuf::from);
        let of_system = system_folders(system).iter().map(PathBuf::from);
        let all = folders.iter().cloned().chain(of_variable).chain(of_system);
        for folder in all.filter(|folder| !folder.as_os_str().is_empty()) {
            let names = self.machine.list(&folder).into_iter();
            // Of several links to one file, the one that names its version.
            let names = names.filter(|name| is_library(system, stem, name));
            if let Some(name) = names.max_by_key(String::len) {
                return Some(folder.join(name));
            }
        }
        if system != "linux" {
            return None;
        }
        let Ran::Said(list) = self.machine.run("ldconfig", &["-p"]) else {
            return None;
        };
        list.lines().find_map(|line| {
            let (name, path) = line.trim().split_once(" => ")?;
            let name = name.split(' ').next()?;
            is_library(system, stem, name).then(|| PathBuf::from(path))
        })
    }

    /// The LLVM that compiles kernels for CUDA and ROCm, and what of it a build fetches.
    fn llvm(&self) -> (Part, Vec<Fetched>) {
        let (system, architecture) = (self.machine.system(), self.machine.architecture());
        let llvm = Llvm::of(system, architecture, |name| self.machine.variable(name));
        let part = |state, detail| Part {
            name: LLVM,
            state,
            detail,
            install: None,
        };
        if self.has(&llvm.sentinel()) {
            let detail = format!("{}, {}", llvm::VERSION, llvm.folder.display());
            return (part(State::Found, detail), Vec::new());
        }
        let Some(files) = llvm.files else {
            let detail = format!("CubeCL has none for {system} on {architecture}");
            return (part(State::Missing, detail), Vec::new());
        };
        let archive = files[0].to.display().to_string();
        let missing = files.into_iter().filter(|file| !self.has(&file.to));
        let missing: Vec<Fetched> = missing.collect();
        let is_offline = self.machine.variable(llvm::OFFLINE).is_some();
        let (state, detail) = match (missing.is_empty(), is_offline) {
            (true, true) => (State::Found, format!("{}, {archive}", llvm::VERSION)),
            (true, false) => (
                State::Found,
                format!(
                    "{}, {archive}; without a network, build with {}=1",
                    llvm::VERSION,
                    llvm::OFFLINE
                ),
            ),
            (false, _) => (
                State::NotFetched,
                format!("a build with cuda or rocm fetches {}", llvm::VERSION),
            ),
        };
        (part(state, detail), missing)
    }

    fn has(&self, file: &Path) -> bool {
        let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else {
            return false;
        };
        self.machine.list(folder).iter().any(|it| **it == *name)
    }

    fn rocm(&self, gpus: &mut Vec<Gpu>) -> Part {
        let own = ["ROCM_PATH", "HIP_PATH"].map(|name| self.machine.variable(name));
        let roots = own.into_iter().flatten().chain(["/opt/rocm".to_owned()]);
        let folders: Vec<PathBuf> = roots
            .flat_map(|root| ["lib", "bin"].map(|below| Path::new(&root).join(below)))
            .collect();
        let part = self.library_part(ROCM, Package::Rocm, "amdhip64", &folders);
        if part.state != State::Found {
            return part;
        }
        let arguments = ["--showproductname", "--showmeminfo", "vram", "--json"];
        match self.machine.run("rocm-smi", &arguments) {
            Ran::Said(text) => {
                gpus.extend(amd_gpus(&text));
                part
            }
            Ran::Missing => part,
            ran => self.broken(ROCM, Package::Rocm, "rocm-smi", &ran),
        }
    }

    fn vulkan(&self, gpus: &mut Vec<Gpu>) -> Part {
        let stem = match self.machine.system() {
            "windows" => "vulkan-1",
            _ => "vulkan",
        };
        let homebrew = ["/opt/homebrew/lib", "/usr/local/lib"].map(PathBuf::from);
        let part = self.library_part(VULKAN, Package::Vulkan, stem, &homebrew);
        if part.state != State::Found {
            return part;
        }
        match self.machine.run("vulkaninfo", &["--summary"]) {
            Ran::Said(text) => {
                gpus.extend(vulkan_gpus(&text));
                part
            }
            Ran::Missing => {
                let detail = format!("{}, but no vulkaninfo to list GPUs", part.detail);
                self.part(VULKAN, Package::Vulkan, State::Missing, detail)
            }
            ran => self.broken(VULKAN, Package::Vulkan, "vulkaninfo", &ran),
        }
    }

    /// Metal is part of macOS, so nothing needs to be installed.
    fn metal(&self, gpus: &mut Vec<Gpu>) {
        if self.machine.system() != "macos" {
            return;
        }
        let arguments = ["SPDisplaysDataType", "-json"];
        if let Ran::Said(text) = self.machine.run("system_profiler", &arguments) {
            gpus.extend(apple_gpus(&text));
        }
    }
}

pub(super) fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// Parses `rustc 1.95.0 (...)`.
fn rust_version(text: &str) -> Option<(u32, u32)> {
    version(text.strip_prefix("rustc ")?)
}

/// The first two numbers of a version.
pub(super) fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The MPI implementation of a launcher or compiler, detected as in the template.
fn implementation(text: &str) -> Option<&'static str> {
    if text.contains("Open MPI") {
        Some("Open MPI")
    } else if text.contains("HYDRA") || text.contains("MPICH") {
        Some("MPICH")
    } else {
        None
    }
}

/// Parses `HYDRA build details:`, followed by a line `Version: 4.0.2`.
fn hydra_version(text: &str) -> String {
    let mut lines = text.lines().map(str::trim);
    let version = lines.find_map(|line| line.strip_prefix("Version:"));
    format!("MPICH {}", version.unwrap_or_default().trim())
}

fn system_folders(system: &str) -> &'static [&'static str] {
    match system {
        "windows" => &[r"C:\Windows\System32"],
        "macos" => &["/usr/local/lib", "/opt/homebrew/lib"],
        _ => &[
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
            "/usr/lib64",
            "/usr/lib",
            "/usr/local/lib",
        ],
    }
}

pub(super) fn library_name(system: &str, stem: &str) -> String {
    match system {
        "windows" => format!("{stem}.dll"),
        "macos" => format!("lib{stem}.dylib"),
        _ => format!("lib{stem}.so"),
    }
}

/// True if a file is a shared library of any version: `libclang.so` or `libclang-14.so.1`, but not
/// `libclang-cpp.so`.
pub(super) fn is_library(system: &str, stem: &str, file: &str) -> bool {
    let ending = match system {
        "windows" => ".dll",
        "macos" => ".dylib",
        _ => ".so",
    };
    let name = file.strip_prefix("lib");
    let name = if system == "windows" {
        name.or(Some(file))
    } else {
        name
    };
    let Some(rest) = name.and_then(|name| name.strip_prefix(stem)) else {
        return false;
    };
    let is_version = |text: &str| !text.contains(|c: char| c.is_alphabetic());
    match rest.split_once(ending) {
        Some((before, after)) => is_version(before) && is_version(after),
        None => false,
    }
}

fn amd_gpus(text: &str) -> Vec<Gpu> {
    let cards: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(text).unwrap_or_default();
    let cards = cards.iter().filter(|(key, _)| key.starts_with("card"));
    let gpu = |card: &serde_json::Value| {
        let field = |names: &[&str]| names.iter().find_map(|name| card[name].as_str());
        let name = field(&["Card Series", "Card series", "Card Model", "Card model"]);
        Gpu {
            name: name.unwrap_or("AMD GPU").to_owned(),
            memory: field(&["VRAM Total Memory (B)"]).and_then(|bytes| bytes.parse().ok()),
            compute_capability: None,
            hardware: "rocm",
        }
    };
    cards.map(|(_, card)| gpu(card)).collect()
}

/// The devices that are not CPUs.
fn vulkan_gpus(text: &str) -> Vec<Gpu> {
    let mut gpus = Vec::new();
    let mut is_gpu = false;
    for line in text.lines() {
        let Some((key, value)) = line.trim().split_once('=') else {
            continue;
        };
        match key.trim() {
            "deviceType" => is_gpu = value.trim().ends_with("_GPU"),
            "deviceName" if is_gpu => gpus.push(Gpu {
                name: value.trim().to_owned(),
                memory: None,
                compute_capability: None,
                hardware: "vulkan",
            }),
            _ => {}
        }
    }
    gpus
}

fn apple_gpus(text: &str) -> Vec<Gpu> {
    let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let displays = value["SPDisplaysDataType"].as_array();
    let names = displays
        .into_iter()
        .flatten()
        .filter_map(|display| display["sppci_model"].as_str());
    names
        .map(|name| Gpu {
            name: name.to_owned(),
            memory: None,
            compute_capability: None,
            hardware: "metal",
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_known_by_their_names() {
        let yes = |system, stem, file| assert!(is_library(system, stem, file), "{file}");
        let no = |system, stem, file| assert!(!is_library(system, stem, file), "{file}");
        yes("linux", "clang", "libclang.so");
        yes("linux", "clang", "libclang-14.so.1");
        yes("linux", "cuda", "libcuda.so.1");
        no("linux", "clang", "libclang-cpp.so.14");
        no("linux", "cuda", "libcudart.so.12");
        no("linux", "vulkan", "libvulkan_intel.so");
        no("linux", "nvrtc", "libnvrtc-builtins.so.12");
        yes("macos", "vulkan", "libvulkan.1.dylib");
        yes("windows", "vulkan-1", "vulkan-1.dll");
        yes("windows", "nvrtc", "nvrtc64_120_0.dll");
        yes("windows", "clang", "libclang.dll");
        no("windows", "nvrtc", "nvrtc-builtins64_120.dll");
    }

    #[test]
    fn versions_are_their_first_two_numbers() {
        assert_eq!(
            rust_version("rustc 1.95.0 (59807616e 2026-04-14)"),
            Some((1, 95))
        );
        assert_eq!(rust_version("rustc 1.100.0-nightly (a)"), Some((1, 100)));
        assert_eq!(rust_version("clang 3"), None);
    }
}
