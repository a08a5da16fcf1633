//! Tests on simulated machines.

use std::{cell::RefCell, collections::BTreeMap, fs, path::Path};

use super::{
    Diagnosis, GB, Use, cuda,
    install::{Manager, Package},
    machine::{Machine, Ran, Resources},
    parts::{self, Gpu, Part, State},
};
use crate::{cli::llvm, template::Template};

/// A machine with fixed answers; everything else is missing.
struct Fake {
    system: &'static str,
    architecture: &'static str,
    programs: BTreeMap<&'static str, Ran>,
    /// Folders with their files.
    folders: BTreeMap<&'static str, Vec<&'static str>>,
    variables: BTreeMap<&'static str, &'static str>,
    files: BTreeMap<&'static str, &'static str>,
    release: &'static str,
    resources: Resources,
    asked: RefCell<Vec<String>>,
}

impl Machine for Fake {
    fn system(&self) -> &str {
        self.system
    }

    fn architecture(&self) -> &str {
        self.architecture
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Ran {
        let line = [&[program], arguments].concat().join(" ");
        self.asked.borrow_mut().push(line.clone());
        let of_line = self.programs.get(line.as_str());
        let ran = of_line.or_else(|| self.programs.get(program));
        ran.cloned().unwrap_or(Ran::Missing)
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).map(ToString::to_string)
    }

    fn read(&self, path: &Path) -> Option<String> {
        if path == Path::new("/etc/os-release") {
            return Some(self.release.to_owned());
        }
        let text = self.files.get(path.to_str()?);
        text.map(ToString::to_string)
    }

    fn list(&self, folder: &Path) -> Vec<String> {
        let names = folder.to_str().and_then(|folder| self.folders.get(folder));
        names
            .into_iter()
            .flatten()
            .map(ToString::to_string)
            .collect()
    }

    fn resources(&self) -> Resources {
        self.resources.clone()
    }
}

fn said(text: &str) -> Ran {
    Ran::Said(text.to_owned())
}

/// A Debian machine with the requirements of the default strategy only.
fn plain() -> Fake {
    Fake {
        system: "linux",
        architecture: "x86_64",
        programs: BTreeMap::from([
            ("rustc", said("rustc 1.95.0 (59807616e 2026-04-14)")),
            ("cargo", said("cargo 1.95.0 (f2d3ce0bd 2026-03-21)")),
            ("cc", said("cc (Debian 12.2.0-14) 12.2.0\nCopyright")),
            ("c++", said("c++ (Debian 12.2.0-14) 12.2.0\nCopyright")),
            ("git", said("git version 2.39.5")),
        ]),
        folders: BTreeMap::new(),
        variables: BTreeMap::from([("HOME", "/home/me")]),
        files: BTreeMap::new(),
        release: "PRETTY_NAME=\"Debian\"\nID=debian\n",
        resources: Resources {
            memory: Some(16 * GB),
            free_memory: Some(12 * GB),
            physical_cores: Some(8),
            threads: Some(16),
            free_disk: Some(100 * GB),
        },
        asked: RefCell::default(),
    }
}

/// The same machine with MPI and NVIDIA GPUs.
fn full() -> Fake {
    let mut fake = plain();
    let smi = "NVIDIA H200, 143771, 550.54.15\nNVIDIA H200, 143771, 550.54.15";
    fake.programs.extend([
        ("mpirun", said("mpirun (Open MPI) 4.1.4\n\nReport bugs to")),
        (
            "mpicc --showme:version",
            said("mpicc: Open MPI 4.1.4 (Language: C)"),
        ),
        ("nvidia-smi", said(smi)),
    ]);
    fake.folders.extend([
        ("/usr/lib", vec!["llvm-14", "x86_64-linux-gnu"]),
        (
            "/usr/lib/llvm-14/lib",
            vec!["libclang-cpp.so.14", "libclang-14.so.1"],
        ),
        (
            "/usr/local/cuda/lib64",
            vec![
                "libcudart.so.12",
                "libnccl.so",
                "libnccl.so.2",
                "libnvrtc.so.12",
            ],
        ),
        ("/usr/local/cuda/nvvm/libdevice", vec!["libdevice.10.bc"]),
    ]);
    fake
}

fn diagnose(fake: &Fake) -> Diagnosis {
    Diagnosis::make(fake, &Template::embedded().unwrap()).unwrap()
}

fn part<'d>(diagnosis: &'d Diagnosis, name: &str) -> &'d Part {
    let mut parts = diagnosis.parts.iter();
    parts.find(|part| part.name == name).unwrap()
}

fn of<'d>(uses: &'d [Use], name: &str) -> &'d Use {
    uses.iter().find(|one| one.name == name).unwrap()
}

#[test]
fn the_default_needs_no_more_than_rust_and_a_compiler() {
    let diagnosis = diagnose(&plain());
    assert!(diagnosis.usable);
    assert_eq!(diagnosis.warnings, [""; 0]);
    assert_eq!(of(&diagnosis.hardware, "flex").here, "CPU, 8 cores");
    let mut small = plain();
    small.resources.physical_cores = Some(1);
    let small = diagnose(&small);
    assert_eq!(of(&small.hardware, "flex").here, "CPU, 1 core");
    assert_eq!(of(&diagnosis.strategies, "mirrored").here, "flex");
    for name in ["cuda", "rocm", "vulkan", "metal", "wgpu"] {
        assert!(!of(&diagnosis.hardware, name).usable, "{name}");
    }
    let mpi = of(&diagnosis.strategies, "multi-worker-mirrored");
    assert!(!mpi.usable);
    assert_eq!(mpi.lacks, [parts::MPIRUN, parts::MPICC, parts::LIBCLANG]);
    assert_eq!(
        mpi.install,
        ["sudo apt install openmpi-bin libopenmpi-dev libclang-dev"]
    );
    assert_eq!(part(&diagnosis, parts::MPIRUN).detail, "no mpirun in PATH");
    assert_eq!(
        part(&diagnosis, parts::LIBCLANG).detail,
        "no libclang.so found"
    );
}

#[test]
fn what_lacks_for_the_default_makes_it_unusable() {
    for (program, name) in [
        ("rustc", parts::RUST),
        ("cargo", parts::CARGO),
        ("cc", parts::C_COMPILER),
    ] {
        let mut fake = plain();
        fake.programs.remove(program);
        let diagnosis = diagnose(&fake);
        assert!(!diagnosis.usable, "{program}");
        assert_eq!(part(&diagnosis, name).state, State::Missing);
        assert!(diagnosis.strategies.iter().all(|one| !one.usable));
        assert_eq!(of(&diagnosis.hardware, "flex").lacks, [name]);
    }
    let mut fake = plain();
    fake.programs.remove("git");
    assert!(diagnose(&fake).usable);
}

#[test]
fn an_old_rust_is_too_old() {
    let mut fake = plain();
    fake.programs.insert("rustc", said("rustc 1.94.1 (a)"));
    let diagnosis = diagnose(&fake);
    assert!(!diagnosis.usable);
    let rust = part(&diagnosis, parts::RUST);
    assert_eq!(rust.state, State::TooOld);
    assert_eq!(rust.detail, "rustc 1.94.1 (a), but 1.95 is required");
    assert!(rust.install.as_deref().unwrap().contains("sh.rustup.rs"));
    fake.programs.insert("rustup", said("rustup 1.28"));
    let diagnosis = diagnose(&fake);
    let rust = part(&diagnosis, parts::RUST);
    assert_eq!(rust.install.as_deref(), Some("rustup update stable"));
    fake.programs
        .insert("rustc", said("rustc 1.100.0-nightly (a)"));
    assert!(diagnose(&fake).usable);
}

#[test]
fn everything_is_found() {
    let diagnosis = diagnose(&full());
    assert!(diagnosis.usable);
    let mpi = of(&diagnosis.strategies, "multi-worker-mirrored");
    assert!(mpi.usable, "{mpi:?}");
    assert_eq!(mpi.here, "flex, cuda");
    assert_eq!(of(&diagnosis.hardware, "cuda").here, "2 GPUs");
    assert_eq!(
        diagnosis.gpus[0],
        Gpu {
            name: "NVIDIA H200".to_owned(),
            memory: Some(143_771 << 20),
            compute_capability: None,
            hardware: "cuda",
        }
    );
    assert_eq!(part(&diagnosis, parts::NVIDIA_DRIVER).detail, "550.54.15");
    assert_eq!(
        part(&diagnosis, parts::LIBCLANG).detail,
        "/usr/lib/llvm-14/lib/libclang-14.so.1"
    );
    assert_eq!(
        part(&diagnosis, parts::CUDA_TOOLKIT).detail,
        "12.0, /usr/local/cuda, NVRTC /usr/local/cuda/lib64/libnvrtc.so.12",
        "the version of the name"
    );
    assert_eq!(
        part(&diagnosis, parts::NCCL).detail,
        "/usr/local/cuda/lib64/libnccl.so.2"
    );
}

/// The first query of `nvidia-smi`.
const QUERY: &str = "nvidia-smi --query-gpu=name,memory.total,driver_version,compute_cap \
                     --format=csv,noheader,nounits";

/// A machine whose driver supports one version of CUDA, with a toolkit of another.
fn with_cuda(driver: &str, toolkit: &str) -> Fake {
    let mut fake = full();
    fake.programs
        .insert(QUERY, said("NVIDIA H100 80GB HBM3, 81559, 550.54.15, 9.0"));
    let table = format!("| NVIDIA-SMI 550.54.15    CUDA Version: {driver}     |");
    fake.programs.insert("nvidia-smi", Ran::Said(table));
    let compiler =
        format!("nvcc: NVIDIA (R) Cuda compiler driver\nrelease {toolkit}, V{toolkit}.131");
    fake.programs.insert("nvcc", Ran::Said(compiler));
    fake
}

#[test]
fn a_driver_and_a_toolkit_fit_together() {
    let diagnosis = diagnose(&with_cuda("12.4", "12.4"));
    let driver = part(&diagnosis, parts::NVIDIA_DRIVER);
    assert_eq!(driver.detail, "550.54.15, for CUDA up to 12.4");
    let toolkit = part(&diagnosis, parts::CUDA_TOOLKIT);
    assert_eq!(
        toolkit.detail,
        "12.4, /usr/local/cuda, NVRTC /usr/local/cuda/lib64/libnvrtc.so.12"
    );
    assert!(of(&diagnosis.hardware, "cuda").usable);
    assert_eq!(diagnosis.warnings, [""; 0]);
    let text = diagnosis.text();
    assert!(
        text.contains("GPU: NVIDIA H100 80GB HBM3, 85.5 GB, compute capability 9.0 (cuda)"),
        "{text}"
    );
    let json = diagnosis.json().unwrap();
    assert!(json.contains("\"compute_capability\": \"9.0\""), "{json}");
    let newer = diagnose(&with_cuda("13.0", "12.4"));
    assert!(of(&newer.hardware, "cuda").usable);
    assert_eq!(newer.warnings, [""; 0]);
    // The table of later drivers.
    let mut fake = with_cuda("12.4", "12.4");
    fake.programs
        .insert("nvidia-smi", said("| CUDA UMD Version: 13.2 |"));
    let driver = diagnose(&fake);
    let driver = part(&driver, parts::NVIDIA_DRIVER);
    assert_eq!(driver.detail, "550.54.15, for CUDA up to 13.2");
    fake.programs
        .insert("nvidia-smi", said("| CUDA Version: N/A |"));
    let driver = diagnose(&fake);
    assert_eq!(part(&driver, parts::NVIDIA_DRIVER).detail, "550.54.15");
}

#[test]
fn a_toolkit_without_its_compiler_in_path_has_a_version() {
    let version = |fake: &Fake| {
        let diagnosis = diagnose(fake);
        let detail = &part(&diagnosis, parts::CUDA_TOOLKIT).detail;
        detail.split(',').next().unwrap().to_owned()
    };
    let mut fake = with_cuda("12.4", "12.2");
    assert_eq!(version(&fake), "12.2", "in PATH");
    let compiler = said("release 12.3, V12.3.107");
    fake.programs.insert("/usr/local/cuda/bin/nvcc", compiler);
    assert_eq!(version(&fake), "12.3", "in its own folder");
    let file = "/usr/local/cuda/version.json";
    let json = r#"{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}"#;
    fake.files.insert(file, json);
    assert_eq!(version(&fake), "12.4", "in its file");
    fake.files.insert(file, "{}");
    assert_eq!(version(&fake), "12.3");
    fake.programs.remove("/usr/local/cuda/bin/nvcc");
    fake.programs.remove("nvcc");
    let names = vec!["libnvrtc.so", "libnvrtc.so.12", "libnvrtc.so.12.1.105"];
    fake.folders.insert("/usr/local/cuda/lib64", names);
    assert_eq!(version(&fake), "12.1", "in the name of NVRTC");
    fake.folders
        .insert("/usr/local/cuda/lib64", vec!["libnvrtc.so"]);
    assert_eq!(version(&fake), "/usr/local/cuda", "unknown");
}

#[test]
fn a_driver_that_is_too_old_for_the_toolkit_is_told() {
    let mut fake = with_cuda("12.4", "13.0");
    let diagnosis = diagnose(&fake);
    let driver = part(&diagnosis, parts::NVIDIA_DRIVER);
    assert_eq!(driver.state, State::TooOld);
    assert_eq!(
        driver.detail,
        "550.54.15, for CUDA up to 12.4, but the CUDA toolkit is 13.0"
    );
    assert!(driver.install.is_some());
    assert_eq!(
        of(&diagnosis.hardware, "cuda").lacks,
        [parts::NVIDIA_DRIVER]
    );
    assert_eq!(
        diagnosis.warnings,
        [
            "a build with `cuda` is for CUDA 13.0 (that of nvcc in PATH), the driver for CUDA up to 12.4, and \
             the program fails where it calls what the driver lacks: export CUDARC_CUDA_VERSION=12040 before \
             the build"
        ]
    );
    assert!(
        diagnosis
            .text()
            .contains("warning: a build with `cuda` is for CUDA 13.0")
    );
    assert!(diagnosis.json().unwrap().contains("\"too-old\""));
    // With that, only a file of the toolkit is used, which any driver can use.
    fake.variables.insert("CUDARC_CUDA_VERSION", "12040");
    let diagnosis = diagnose(&fake);
    assert!(of(&diagnosis.hardware, "cuda").usable);
    assert_eq!(diagnosis.warnings, [""; 0]);
    // A newer minor version is for the drivers of its major version.
    let minor = diagnose(&with_cuda("12.2", "12.4"));
    assert!(of(&minor.hardware, "cuda").usable);
    assert_eq!(minor.warnings, [""; 0]);
}

#[test]
fn a_driver_that_is_too_old_for_burn_is_told() {
    let diagnosis = diagnose(&with_cuda("11.2", "11.2"));
    let driver = part(&diagnosis, parts::NVIDIA_DRIVER);
    assert_eq!(driver.state, State::TooOld);
    assert!(
        driver.detail.ends_with("but Burn needs 11.4 or later"),
        "{driver:?}"
    );
    assert!(!of(&diagnosis.hardware, "cuda").usable);
    assert_eq!(diagnosis.warnings, [""; 0], "no bindings mend it");
    assert_eq!(
        part(&diagnose(&with_cuda("11.4", "11.4")), parts::NVIDIA_DRIVER).state,
        State::Found
    );
}

#[test]
fn bindings_that_do_not_fit_the_driver_are_told() {
    let warning = |fake: &Fake| diagnose(fake).warnings.join("\n");
    let mut fake = with_cuda("12.7", "12.4");
    fake.programs.remove("nvcc");
    let latest = warning(&fake);
    assert!(
        latest.starts_with(
            "a build with `cuda` is for CUDA 13.4 (the latest that Burn knows, as nvcc"
        ),
        "{latest}"
    );
    assert!(
        latest.contains("export CUDARC_CUDA_VERSION=12060 before"),
        "there are none for 12.7: {latest}"
    );
    fake.variables.insert("CUDARC_CUDA_VERSION", "13000");
    assert!(warning(&fake).contains("is for CUDA 13.0 (CUDARC_CUDA_VERSION)"));
    fake.variables.insert("CUDARC_CUDA_VERSION", "12.6");
    assert_eq!(
        warning(&fake),
        "CUDARC_CUDA_VERSION=12.6 is no version that Burn's bindings to CUDA know, and a build with `cuda` \
         fails: export CUDARC_CUDA_VERSION=12060"
    );
    fake.variables.insert("CUDARC_CUDA_VERSION", "12060");
    assert_eq!(warning(&fake), "");
    let old = warning(&with_cuda("12.4", "11.2"));
    assert!(
        old.starts_with("nvcc in PATH is of CUDA 11.2, no version that Burn's"),
        "{old}"
    );
    // On machines that build programs for others.
    let mut builder = plain();
    assert_eq!(warning(&builder), "");
    builder
        .programs
        .insert("nvcc", said("release 11.2, V11.2.1"));
    assert!(warning(&builder).ends_with("export CUDARC_CUDA_VERSION=12080"));
    builder
        .programs
        .insert("nvcc", said("release 13.0, V13.0.1"));
    assert_eq!(warning(&builder), "", "the driver is unknown");
}

#[test]
fn drivers_of_before_2022_tell_no_compute_capability() {
    let mut fake = full();
    let refused = "Field \"compute_cap\" is not a valid field to query.";
    fake.programs.insert(QUERY, Ran::Failed(refused.to_owned()));
    let diagnosis = diagnose(&fake);
    assert_eq!(diagnosis.gpus.len(), 2);
    assert_eq!(diagnosis.gpus[0].compute_capability, None);
    assert!(of(&diagnosis.hardware, "cuda").usable);
}

/// GPUs that share the memory of the CPU tell none.
#[test]
fn the_memory_of_a_gpu_may_be_unknown() {
    let mut fake = full();
    for memory in ["[N/A]", "18446744073709551615", ""] {
        let line = format!("NVIDIA GB10, {memory}, 580.95.05, 12.1");
        fake.programs.insert(QUERY, Ran::Said(line));
        let diagnosis = diagnose(&fake);
        assert_eq!(diagnosis.gpus[0].memory, None, "{memory}");
        let text = diagnosis.text();
        assert!(
            text.contains("GPU: NVIDIA GB10, compute capability 12.1 (cuda)"),
            "{text}"
        );
    }
}

#[test]
fn a_gpu_that_is_divided_is_told() {
    let mut fake = with_cuda("12.4", "12.4");
    let modes = "nvidia-smi --query-gpu=mig.mode.current --format=csv,noheader";
    fake.programs
        .insert(modes, said("Disabled\nEnabled\nEnabled\n[N/A]"));
    let warnings = diagnose(&fake).warnings;
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].starts_with("MIG divides the GPU 1,2: a process gets one instance"),
        "{warnings:?}"
    );
    assert!(warnings[0].ends_with("sudo nvidia-smi -i 1,2 -mig 0"));
    fake.programs
        .insert(modes, said("Disabled\nDisabled\nDisabled\n[N/A]"));
    assert_eq!(diagnose(&fake).warnings, [""; 0]);
}

const PROCESSES: &str =
    "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader";
const MODES: &str = "nvidia-smi --query-gpu=index,compute_mode --format=csv,noheader";

#[test]
fn other_processes_on_a_gpu_are_told() {
    let mut fake = with_cuda("12.4", "12.4");
    assert_eq!(diagnose(&fake).warnings, [""; 0], "without an answer");
    fake.programs
        .insert(MODES, said("0, Default\n1, Exclusive_Process"));
    fake.programs.insert(PROCESSES, said(""));
    assert_eq!(diagnose(&fake).warnings, [""; 0], "the GPU is free");
    let lines = "4242, python3, 30210 MiB\n4243, /opt/my, own/train, [N/A]";
    fake.programs.insert(PROCESSES, said(lines));
    let diagnosis = diagnose(&fake);
    assert_eq!(
        diagnosis.warnings,
        [
            "other processes compute on the GPUs of this machine: 4242 python3 (30210 MiB), 4243 /opt/my, \
             own/train ([N/A]); a program on the same GPU has the memory that they leave and, without NVIDIA's \
             MPS, takes turns with them. Choose other GPUs with --devices or CUDA_VISIBLE_DEVICES",
            "the GPU 1 takes one process (compute mode Exclusive_Process); to change that: sudo nvidia-smi -i 1 -c \
             DEFAULT"
        ]
    );
    assert!(of(&diagnosis.hardware, "cuda").usable);
    assert!(diagnosis.text().contains("warning: other processes"));
    // MPS shares GPUs, and is no program that computes.
    let server = "77, nvidia-cuda-mps-server, 29 MiB";
    fake.programs.insert(MODES, said("0, Default"));
    fake.programs.insert(PROCESSES, said(server));
    assert_eq!(diagnose(&fake).warnings, [""; 0]);
    let both = Ran::Said(format!("{server}\n4242, python3, 30210 MiB"));
    fake.programs.insert(PROCESSES, both);
    let shared = diagnose(&fake).warnings;
    assert_eq!(shared.len(), 1, "{shared:?}");
    assert!(shared[0].contains("python3") && !shared[0].contains("turns"));
}

#[test]
fn a_gpu_that_takes_no_process_is_told() {
    let mut fake = with_cuda("12.4", "12.4");
    fake.programs
        .insert(MODES, said("0, Default\n1, Prohibited\n2, [N/A]"));
    assert_eq!(
        diagnose(&fake).warnings,
        [
            "the GPU 1 takes no process (compute mode Prohibited); to change that: sudo nvidia-smi -i 1 -c DEFAULT"
        ]
    );
}

#[test]
fn nccl_must_have_the_name_that_cubecl_opens() {
    let mut fake = full();
    fake.folders
        .insert("/usr/local/cuda/lib64", vec!["libnvrtc.so.12"]);
    let runtime = vec!["libnccl.so.2", "libnccl.so.2.21.5"];
    fake.folders.insert("/usr/lib/x86_64-linux-gnu", runtime);
    let diagnosis = diagnose(&fake);
    let nccl = part(&diagnosis, parts::NCCL);
    assert_eq!(nccl.state, State::Missing);
    assert_eq!(
        nccl.detail,
        "/usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5, but no libnccl.so, which CubeCL opens"
    );
    assert!(nccl.install.as_ref().unwrap().contains("libnccl-dev"));
    assert_eq!(of(&diagnosis.hardware, "cuda").lacks, [parts::NCCL]);
    // Elsewhere, where the loader finds it.
    let list = "1 libs found\n\tlibnccl.so (libc6,x86-64) => /odd/libnccl.so\n";
    fake.programs.insert("ldconfig", said(list));
    assert!(of(&diagnose(&fake).hardware, "cuda").usable);
}

#[test]
fn nccl_must_be_for_the_cuda_of_the_driver() {
    const PACKAGE: &str = "dpkg-query --show --showformat=${Version} libnccl2";
    let mut fake = with_cuda("12.4", "12.4");
    fake.folders
        .insert("/usr/local/cuda/lib64", vec!["libnvrtc.so.12"]);
    let names = vec!["libnccl.so", "libnccl.so.2", "libnccl.so.2.28.3"];
    fake.folders.insert("/usr/lib/x86_64-linux-gnu", names);
    let nccl = |fake: &Fake| {
        let diagnosis = diagnose(fake);
        part(&diagnosis, parts::NCCL).clone()
    };
    assert_eq!(
        nccl(&fake).detail,
        "/usr/lib/x86_64-linux-gnu/libnccl.so.2.28.3"
    );
    fake.programs.insert(PACKAGE, said("2.28.3-1+cuda12.9"));
    assert_eq!(nccl(&fake).state, State::Found);
    fake.programs.insert(PACKAGE, said("2.28.3-1+cuda13.0"));
    let other = nccl(&fake);
    assert_eq!(other.state, State::Fails);
    assert_eq!(
        other.detail,
        "/usr/lib/x86_64-linux-gnu/libnccl.so.2.28.3, for CUDA 13.0, but the driver is for CUDA up to 12.4"
    );
    assert_eq!(
        other.install.as_deref(),
        Some("sudo apt install --allow-downgrades 'libnccl2=*+cuda12.*' 'libnccl-dev=*+cuda12.*'")
    );
    // One GPU needs no NCCL.
    assert!(of(&diagnose(&fake).hardware, "cuda").usable);
    fake.release = "ID=rocky\nID_LIKE=\"rhel fedora\"\n";
    assert_eq!(nccl(&fake).state, State::Found, "dpkg-query is not asked");
    let package = "rpm --query --queryformat=%{RELEASE} libnccl";
    fake.programs.insert(package, said("1+cuda13.0"));
    assert_eq!(nccl(&fake).state, State::Fails);
    // A library of another origin than the package.
    fake.variables.insert("LD_LIBRARY_PATH", "/opt/nccl/lib");
    let names = vec!["libnccl.so", "libnccl.so.2", "libnccl.so.2.21.5"];
    fake.folders.insert("/opt/nccl/lib", names);
    assert_eq!(nccl(&fake).detail, "/opt/nccl/lib/libnccl.so.2.21.5");
}

const CACHE: &str = "/home/me/.cache/tracel";
const ARCHIVE: &str = "tracel-llvm-23.1.0-4-linux-x64.tar.xz";
const CHECKSUMS: &str = "tracel-llvm-23.1.0-4-linux-x64.checksums.json";

#[test]
fn what_a_build_for_gpus_fetches_is_told_until_it_is_there() {
    let mut fake = with_cuda("12.4", "12.4");
    let diagnosis = diagnose(&fake);
    let llvm = part(&diagnosis, parts::LLVM);
    assert_eq!(llvm.state, State::NotFetched);
    assert!(
        of(&diagnosis.hardware, "cuda").usable,
        "the build fetches it"
    );
    let text = diagnosis.text();
    let (_, told) = text
        .split_once("\nA build with `cuda` or `rocm` fetches LLVM.")
        .unwrap();
    snapbox::assert_data_eq!(
        told,
        snapbox::str![[r#"
 Without a network, put it there by hand, and build with
TRACEL_LLVM_BUNDLER_SKIP_CHECKSUM_DOWNLOAD=1; in an image, COPY both files to
/root/.cache/tracel, as launch/Dockerfile of a project for Kubernetes does:
  https://github.com/tracel-ai/tracel-llvm/releases/download/v23.1.0-4/linux-x64.tar.xz
    to /home/me/.cache/tracel/tracel-llvm-23.1.0-4-linux-x64.tar.xz
  https://github.com/tracel-ai/tracel-llvm/releases/download/v23.1.0-4/linux-x64.checksums.json
    to /home/me/.cache/tracel/tracel-llvm-23.1.0-4-linux-x64.checksums.json

"#]]
    );
    let json = diagnosis.json().unwrap();
    assert!(json.contains("\"state\": \"not-fetched\""), "{json}");
    assert!(
        json.contains(&format!("\"to\": \"{CACHE}/{ARCHIVE}\"")),
        "{json}"
    );

    // An archive counts with its checksums only.
    fake.folders.insert(CACHE, vec![ARCHIVE]);
    let diagnosis = diagnose(&fake);
    assert_eq!(part(&diagnosis, parts::LLVM).state, State::NotFetched);
    assert_eq!(diagnosis.fetches.len(), 1);
    assert!(diagnosis.fetches[0].to.ends_with(CHECKSUMS));
    fake.folders.insert(CACHE, vec![ARCHIVE, CHECKSUMS]);
    let diagnosis = diagnose(&fake);
    let llvm = part(&diagnosis, parts::LLVM);
    assert_eq!(llvm.state, State::Found);
    assert!(
        llvm.detail.ends_with(
            "without a network, build with TRACEL_LLVM_BUNDLER_SKIP_CHECKSUM_DOWNLOAD=1"
        ),
        "{llvm:?}"
    );
    assert!(diagnosis.fetches.is_empty());
    assert!(!diagnosis.text().contains("fetches LLVM"));
    fake.variables
        .insert("TRACEL_LLVM_BUNDLER_SKIP_CHECKSUM_DOWNLOAD", "1");
    let diagnosis = diagnose(&fake);
    let llvm = part(&diagnosis, parts::LLVM);
    assert_eq!(llvm.detail, format!("23.1.0-4, {CACHE}/{ARCHIVE}"));
}

#[test]
fn llvm_that_is_unpacked_is_found() {
    let mut fake = plain();
    let folder = "/data/tracel/tracel-llvm-23.1.0-4";
    fake.variables.insert("XDG_DATA_HOME", "/data");
    fake.folders.insert(folder, vec!["bin", "lib"]);
    assert_eq!(
        part(&diagnose(&fake), parts::LLVM).state,
        State::NotFetched,
        "it is not whole"
    );
    fake.folders
        .insert(folder, vec!["bin", "lib", ".tracel-llvm-installed"]);
    let diagnosis = diagnose(&fake);
    let llvm = part(&diagnosis, parts::LLVM);
    assert_eq!(llvm.state, State::Found);
    assert_eq!(llvm.detail, format!("23.1.0-4, {folder}"));
    assert!(diagnosis.fetches.is_empty());
}

#[test]
fn a_platform_without_llvm_cannot_build_for_its_gpus() {
    let mut fake = with_cuda("12.4", "12.4");
    fake.architecture = "riscv64";
    let diagnosis = diagnose(&fake);
    let llvm = part(&diagnosis, parts::LLVM);
    assert_eq!(llvm.state, State::Missing);
    assert_eq!(llvm.detail, "CubeCL has none for linux on riscv64");
    assert_eq!(of(&diagnosis.hardware, "cuda").lacks, [parts::LLVM]);
    assert!(diagnosis.fetches.is_empty() && diagnosis.usable);
}

/// A part of `cubecl-llvm` is in C++.
#[test]
fn kernels_need_a_cpp_compiler() {
    let mut fake = with_cuda("12.4", "12.4");
    fake.programs.remove("c++");
    let diagnosis = diagnose(&fake);
    assert_eq!(of(&diagnosis.hardware, "cuda").lacks, [parts::CPP_COMPILER]);
    let compiler = part(&diagnosis, parts::CPP_COMPILER);
    assert_eq!(compiler.detail, "no c++ in PATH");
    assert!(diagnosis.usable, "the CPU can still be used");
    fake.variables.insert("CXX", "clang++-19");
    fake.programs
        .insert("clang++-19", said("clang version 19.1.7"));
    assert!(of(&diagnose(&fake).hardware, "cuda").usable);
}

/// Outside the repository, as in the package, there is no lock file.
#[test]
fn versions_are_those_that_a_build_takes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let Ok(lock) = fs::read_to_string(root.join("tests/fixtures/Cargo.lock")) else {
        return println!("skipped: there is no lock file");
    };
    for (name, version) in [
        ("tracel-llvm-bundler", llvm::VERSION),
        ("cudarc", cuda::CUDARC),
    ] {
        let package = format!("name = \"{name}\"\nversion = \"{version}\"\n");
        assert!(lock.contains(&package), "{name} {version}");
    }
    let guide = fs::read_to_string(root.join("docs/gpu.md")).unwrap();
    assert!(guide.contains(&format!("download/v{}/", llvm::VERSION)));
    let template = Template::embedded().unwrap();
    let image = file_of(&template, "launch/Dockerfile");
    assert!(image.contains(&format!("download/v{}/", llvm::VERSION)));
    assert!(image.contains(&format!("tracel-llvm-{}-linux-x64.tar.xz", llvm::VERSION)));
    assert!(image.contains(llvm::OFFLINE));
    assert!(image.contains(&format!("COPY --from=llvm / {}/", llvm::IN_IMAGE)));
    let bindings = format!("CUDARC_CUDA_VERSION={}\n", cuda::bindings_for(None));
    assert!(image.contains(&bindings), "{bindings}");
}

#[test]
fn a_driver_that_hangs_or_fails_is_no_driver() {
    let mut fake = full();
    fake.programs.insert("nvidia-smi", Ran::Hung);
    let diagnosis = diagnose(&fake);
    let driver = part(&diagnosis, parts::NVIDIA_DRIVER);
    assert_eq!(driver.state, State::Hangs);
    assert_eq!(driver.detail, "nvidia-smi did not respond within 5 seconds");
    let cuda = of(&diagnosis.hardware, "cuda");
    assert_eq!(cuda.lacks, [parts::NVIDIA_DRIVER, "a supported GPU"]);
    assert!(diagnosis.usable, "the CPU can still be used");
    let why = "Failed to initialize NVML: Driver/library version mismatch";
    fake.programs
        .insert("nvidia-smi", Ran::Failed(why.to_owned()));
    let diagnosis = diagnose(&fake);
    let driver = part(&diagnosis, parts::NVIDIA_DRIVER);
    assert_eq!(driver.state, State::Fails);
    assert!(driver.detail.ends_with(why), "{driver:?}");
    fake.programs
        .insert("nvidia-smi", said("No devices were found"));
    let diagnosis = diagnose(&fake);
    assert_eq!(part(&diagnosis, parts::NVIDIA_DRIVER).state, State::Fails);
}

#[test]
fn cuda_needs_the_functions_of_the_toolkit() {
    let mut fake = full();
    fake.folders.remove("/usr/local/cuda/nvvm/libdevice");
    let diagnosis = diagnose(&fake);
    let toolkit = part(&diagnosis, parts::CUDA_TOOLKIT);
    assert_eq!(toolkit.state, State::Missing);
    assert_eq!(toolkit.detail, "no nvvm/libdevice/libdevice.10.bc found");
    assert_eq!(
        toolkit.install.as_deref(),
        Some("sudo apt install nvidia-cuda-toolkit")
    );
    fake.variables.insert("CUDA_PATH", "/cuda");
    let toolkit = diagnose(&fake);
    let toolkit = part(&toolkit, parts::CUDA_TOOLKIT);
    assert!(
        toolkit.detail.ends_with("in /cuda (CUDA_PATH)"),
        "{toolkit:?}"
    );
    fake.folders
        .insert("/cuda/nvvm/libdevice", vec!["libdevice.10.bc"]);
    assert!(of(&diagnose(&fake).hardware, "cuda").usable);
}

#[test]
fn several_gpus_need_nccl() {
    let mut fake = full();
    fake.folders
        .insert("/usr/local/cuda/lib64", vec!["libnvrtc.so.12"]);
    let cuda = diagnose(&fake);
    let cuda = of(&cuda.hardware, "cuda");
    assert_eq!(cuda.lacks, [parts::NCCL]);
    assert!(cuda.install[0].contains("libnccl2"), "{cuda:?}");
    fake.programs
        .insert("nvidia-smi", said("NVIDIA H200, 143771, 550.54.15"));
    assert!(of(&diagnose(&fake).hardware, "cuda").usable);
}

#[test]
fn the_two_halves_of_mpi_must_fit_together() {
    let mut fake = full();
    fake.programs.remove("mpicc --showme:version");
    fake.programs.extend([
        (
            "mpicc --showme:version",
            Ran::Failed("gcc: error".to_owned()),
        ),
        ("mpicc -v", said("mpicc for MPICH version 4.0")),
    ]);
    let diagnosis = diagnose(&fake);
    let compiler = part(&diagnosis, parts::MPICC);
    assert_eq!(compiler.state, State::Fails);
    assert_eq!(
        compiler.detail,
        "of MPICH, but mpirun is of Open MPI: install one of the two"
    );
    let hydra = "HYDRA build details:\n    Version:                                 4.0.2\n";
    fake.programs.insert("mpirun", said(hydra));
    let diagnosis = diagnose(&fake);
    assert_eq!(part(&diagnosis, parts::MPIRUN).detail, "MPICH 4.0.2");
    assert!(of(&diagnosis.strategies, "multi-worker-mirrored").usable);
    fake.programs
        .insert("mpirun", said("Intel(R) MPI Library for Linux"));
    let diagnosis = diagnose(&fake);
    assert_eq!(part(&diagnosis, parts::MPIRUN).state, State::Fails);
}

#[test]
fn libraries_are_found_through_the_loader_too() {
    let mut fake = plain();
    let list = "2 libs found\n\tlibvulkan.so.1 (libc6,x86-64) => /odd/libvulkan.so.1\n";
    fake.programs.insert("ldconfig", said(list));
    let diagnosis = diagnose(&fake);
    let vulkan = part(&diagnosis, parts::VULKAN);
    assert_eq!(
        vulkan.detail,
        "/odd/libvulkan.so.1, but no vulkaninfo to list GPUs"
    );
    let summary = "GPU0:\n\tdeviceType         = PHYSICAL_DEVICE_TYPE_DISCRETE_GPU\n\
                   \tdeviceName         = AMD Radeon\nGPU1:\n\tdeviceType = \
                   PHYSICAL_DEVICE_TYPE_CPU\n\tdeviceName = llvmpipe\n";
    fake.programs.insert("vulkaninfo", said(summary));
    let diagnosis = diagnose(&fake);
    let names: Vec<_> = diagnosis.gpus.iter().map(|gpu| &gpu.name).collect();
    assert_eq!(names, ["AMD Radeon"]);
    assert!(of(&diagnosis.hardware, "vulkan").usable);
    assert!(of(&diagnosis.hardware, "wgpu").usable);
}

#[test]
fn gpus_of_amd_tell_their_memory() {
    let mut fake = plain();
    fake.folders
        .insert("/opt/rocm/lib", vec!["libamdhip64.so.6"]);
    assert_eq!(
        of(&diagnose(&fake).hardware, "rocm").lacks,
        ["a supported GPU"]
    );
    let json = r#"{"card0": {"Card Series": "MI300X", "VRAM Total Memory (B)": "206141652992"}, "system": {}}"#;
    fake.programs.insert("rocm-smi", said(json));
    let diagnosis = diagnose(&fake);
    assert!(of(&diagnosis.hardware, "rocm").usable);
    assert_eq!(diagnosis.gpus[0].name, "MI300X");
    assert_eq!(diagnosis.gpus[0].memory, Some(206_141_652_992));
}

#[test]
fn a_mac_has_metal_and_windows_has_its_own_compiler() {
    let mut mac = plain();
    mac.system = "macos";
    let display = r#"{"SPDisplaysDataType": [{"sppci_model": "Apple M3"}]}"#;
    mac.programs.insert("system_profiler", said(display));
    let diagnosis = diagnose(&mac);
    assert!(of(&diagnosis.hardware, "metal").usable);
    assert!(of(&diagnosis.hardware, "wgpu").usable);
    let install = &of(&diagnosis.strategies, "multi-worker-mirrored").install;
    assert_eq!(install, &["brew install open-mpi llvm"]);
    assert!(
        !mac.asked
            .borrow()
            .iter()
            .any(|line| line.starts_with("ldconfig"))
    );

    let mut windows = plain();
    windows.system = "windows";
    windows.programs.remove("cc");
    let diagnosis = diagnose(&windows);
    assert!(!diagnosis.usable);
    let compiler = part(&diagnosis, parts::C_COMPILER);
    assert!(compiler.install.as_deref().unwrap().contains("BuildTools"));
    windows.variables.insert("ProgramFiles(x86)", r"C:\P");
    let tool = r"C:\P\Microsoft Visual Studio\Installer\vswhere.exe";
    windows.programs.insert(tool, said(r"C:\VS\2022"));
    let diagnosis = diagnose(&windows);
    assert!(diagnosis.usable);
    assert!(of(&diagnosis.hardware, "wgpu").usable);
}

#[test]
fn little_memory_and_disk_are_warned_of() {
    let mut fake = plain();
    fake.resources.free_disk = Some(3 * GB);
    fake.resources.memory = Some(2 * GB);
    let diagnosis = diagnose(&fake);
    assert!(diagnosis.usable);
    assert_eq!(
        diagnosis.warnings,
        [
            "3.0 GB are free on this disk, but the builds of a project take 4.0 GB",
            "2.0 GB of memory may be too little to build Burn: try `cargo build --jobs 1`"
        ]
    );
    fake.resources = Resources::default();
    let diagnosis = diagnose(&fake);
    assert!(diagnosis.usable && diagnosis.warnings.is_empty());
    assert!(diagnosis.text().contains("Memory: unknown"));
}

proptest::proptest! {
    /// Output of programs and contents of folders are arbitrary.
    #[test]
    fn no_answer_is_too_odd(
        text in "(\\PC|[\n\t=,.{}\":]|card|_GPU|deviceType|libclang|HYDRA|Version:|CUDA Version: |release |\\+cuda\
                 |Enabled|1, Prohibited\n|7, a, b\n|[0-9]{1,30}|lib|\\.so){0,40}",
        release in "(ID|ID_LIKE|[=\"\n ]|\\PC){0,20}",
    ) {
        let mut fake = full();
        for ran in fake.programs.values_mut() {
            *ran = said(&text);
        }
        let programs = [
            "ldconfig", "vulkaninfo", "rocm-smi", "mpicc", "system_profiler", "nvcc", "dpkg-query", "rpm",
        ];
        fake.programs.extend(programs.map(|program| (program, said(&text))));
        let text: &'static str = text.leak();
        fake.folders.insert("/opt/rocm/lib", vec!["libamdhip64.so.6", text]);
        fake.folders.insert("/usr/lib", vec!["libvulkan.so.1", "llvm-14", text]);
        fake.release = release.leak();
        fake.folders.insert("/usr/local/cuda/lib64", vec!["libnccl.so", "libnvrtc.so.12", text]);
        fake.folders.insert("/usr/lib/x86_64-linux-gnu", vec!["libnccl.so.2", text]);
        fake.files.insert("/usr/local/cuda/version.json", text);
        for system in ["linux", "macos", "windows"] {
            fake.system = system;
            diagnose(&fake).text();
        }
    }
}

#[test]
fn the_text_is_a_table_with_each_command_once() {
    let text = diagnose(&plain()).text();
    snapbox::assert_data_eq!(
        text,
        snapbox::str![[r#"
part              state        version, place or problem
Rust              found        rustc 1.95.0 (59807616e 2026-04-14)
Cargo             found        cargo 1.95.0 (f2d3ce0bd 2026-03-21)
C compiler        found        cc (Debian 12.2.0-14) 12.2.0
C++ compiler      found        c++ (Debian 12.2.0-14) 12.2.0
git               found        git version 2.39.5
MPI launcher      missing      no mpirun in PATH
MPI compiler      missing      no mpicc in PATH
libclang          missing      no libclang.so found
NVIDIA driver     missing      no nvidia-smi in PATH
CUDA toolkit      missing      no nvvm/libdevice/libdevice.10.bc found
NCCL              missing      no libnccl.so found
ROCm              missing      no libamdhip64.so found
LLVM for kernels  not fetched  a build with cuda or rocm fetches 23.1.0-4
Vulkan            missing      no libvulkan.so found

Memory: 16.0 GB, 12.0 GB free. Cores: 8, threads: 16. Free on this disk: 100.0 GB.

hardware  usable  build with         devices       missing
flex      yes                        CPU, 8 cores
cuda      no      --features cuda                  NVIDIA driver, CUDA toolkit, a supported GPU
rocm      no      --features rocm                  ROCm, a supported GPU
vulkan    no      --features vulkan                Vulkan, a supported GPU
metal     no      --features metal                 macOS
wgpu      no      --features wgpu                  Vulkan, a supported GPU

strategy               usable  build with         on    missing
one-device             yes                        flex
mirrored               yes                        flex
multi-worker-mirrored  no      --features mpi           MPI launcher, MPI compiler, libclang
remote                 yes     --features remote  flex
model-parallel         yes                        flex
parameter-server       yes                        flex

To install missing parts:
  MPI launcher, MPI compiler, libclang
    sudo apt install openmpi-bin libopenmpi-dev libclang-dev
  NVIDIA driver
    sudo apt install nvidia-driver, or on Ubuntu: sudo ubuntu-drivers install
  CUDA toolkit
    sudo apt install nvidia-cuda-toolkit
  NCCL
    sudo apt install libnccl2 libnccl-dev, from NVIDIA's repository
  ROCm
    https://rocm.docs.amd.com
  Vulkan
    sudo apt install libvulkan1 mesa-vulkan-drivers vulkan-tools

A build with `cuda` or `rocm` fetches LLVM. Without a network, put it there by hand, and build with
TRACEL_LLVM_BUNDLER_SKIP_CHECKSUM_DOWNLOAD=1; in an image, COPY both files to
/root/.cache/tracel, as launch/Dockerfile of a project for Kubernetes does:
  https://github.com/tracel-ai/tracel-llvm/releases/download/v23.1.0-4/linux-x64.tar.xz
    to /home/me/.cache/tracel/tracel-llvm-23.1.0-4-linux-x64.tar.xz
  https://github.com/tracel-ai/tracel-llvm/releases/download/v23.1.0-4/linux-x64.checksums.json
    to /home/me/.cache/tracel/tracel-llvm-23.1.0-4-linux-x64.checksums.json

"#]]
    );
}

#[test]
fn the_strategies_and_hardware_of_the_template_are_all_here() {
    let template = Template::embedded().unwrap();
    let diagnosis = diagnose(&plain());
    let names = |uses: &[Use]| uses.iter().map(|one| one.name).collect::<Vec<_>>();
    for (option, uses) in [
        ("hardware", &diagnosis.hardware),
        ("strategy", &diagnosis.strategies),
    ] {
        for value in template.option(option).unwrap().values() {
            assert!(names(uses).contains(&value.to_string().as_str()), "{value}");
        }
    }
    let source = file_of(&template, "engine/src/options.rs");
    let kinds = source.split("pub enum StrategyKind {").nth(1).unwrap();
    let kinds = kinds.split("\n}").next().unwrap().lines();
    let kinds = kinds.filter_map(|line| line.trim().strip_suffix(','));
    let kinds: Vec<String> = kinds.map(heck::ToKebabCase::to_kebab_case).collect();
    assert_eq!(names(&diagnosis.strategies).len(), kinds.len());
    for name in names(&diagnosis.strategies) {
        assert!(kinds.iter().any(|kind| kind == name), "{name} of {kinds:?}");
    }
    let manifest = file_of(&template, "Cargo.toml");
    for feature in diagnosis.hardware.iter().chain(&diagnosis.strategies) {
        let feature = feature.build_with.unwrap_or("--features flex");
        let name = feature.strip_prefix("--features ").unwrap();
        assert!(manifest.contains(&format!("\n{name} = [")), "{name}");
    }
}

fn file_of(template: &Template, name: &str) -> String {
    let mut files = template.files().iter();
    let file = files.find(|file| file.path == name).unwrap();
    String::from_utf8_lossy(&file.contents).into_owned()
}

/// The generated program prints the same installation commands if MPI is missing.
#[test]
fn mpi_is_installed_as_the_programs_say() {
    let template = Template::embedded().unwrap();
    let source = file_of(&template, "engine/src/workers/environment.rs");
    let function = source.split("fn install_hint_for").nth(1).unwrap();
    let function = function.split("\n}").next().unwrap();
    let function = function.replace("'\"'", "quote");
    let quoted = function.split('"').skip(1).step_by(2);
    let mut theirs: Vec<&str> = quoted
        .filter(|text| text.contains("install ") || text.contains(" add ") || text.contains(" -S "))
        .collect();
    let managers = [
        Manager::Apt,
        Manager::Dnf,
        Manager::Zypper,
        Manager::Pacman,
        Manager::Apk,
        Manager::Brew,
        Manager::Winget,
        Manager::Unknown,
    ];
    let mut ours = managers
        .map(|manager| manager.install(Package::Mpi))
        .to_vec();
    ours.sort_unstable();
    ours.dedup();
    theirs.sort_unstable();
    assert_eq!(ours, theirs);
}

#[test]
fn a_platform_is_known_by_its_release() {
    let manager = |release| {
        let mut fake = plain();
        fake.release = release;
        Manager::of(&fake)
    };
    assert_eq!(
        manager("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"),
        Manager::Apt
    );
    assert_eq!(
        manager("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"),
        Manager::Dnf
    );
    assert_eq!(
        manager("ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n"),
        Manager::Zypper
    );
    assert_eq!(manager("ID=manjaro\nID_LIKE=arch\n"), Manager::Pacman);
    assert_eq!(manager("ID=alpine\n"), Manager::Apk);
    assert_eq!(manager("NAME=x\n"), Manager::Unknown);
}
