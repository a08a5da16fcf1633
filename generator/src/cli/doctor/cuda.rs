//! NVIDIA's driver, CUDA toolkit and NCCL, and what of them does not fit together.
//!
//! CubeCL compiles kernels with its own LLVM, for the CUDA of the driver, and needs of the toolkit a file
//! of mathematical functions. NVRTC is for its C++ backend only, which is off by default. The bindings to
//! the driver, of the crate cudarc, are built for one version of CUDA: that of `CUDARC_CUDA_VERSION`, else
//! that of `nvcc` in PATH, else the latest that they know.

use std::path::{Path, PathBuf};

use super::{
    install::{Manager, Package},
    machine::Ran,
    parts::{
        CUDA_TOOLKIT, Finder, Gpu, NCCL, NVIDIA_DRIVER, Part, State, first_line, library_name,
        version,
    },
};

type Version = (u32, u32);

/// The versions of CUDA that cudarc has bindings for, oldest first.
pub(super) const BINDINGS: [Version; 19] = [
    (11, 4),
    (11, 5),
    (11, 6),
    (11, 7),
    (11, 8),
    (12, 0),
    (12, 1),
    (12, 2),
    (12, 3),
    (12, 4),
    (12, 5),
    (12, 6),
    (12, 8),
    (12, 9),
    (13, 0),
    (13, 1),
    (13, 2),
    (13, 3),
    (13, 4),
];

/// The version of cudarc with these bindings.
#[cfg(test)]
pub(super) const CUDARC: &str = "0.19.10";

/// The variable with the version of CUDA that bindings are built for, as 12040 for 12.4.
const CUDA_OF_BINDINGS: &str = "CUDARC_CUDA_VERSION";

/// CubeCL's calls with bindings for CUDA 12.8 are in the drivers for 12.0, but for tensor maps of
/// Blackwell, whose drivers are later ones. Those for 13.0 measure time with `cuEventElapsedTime_v2`, of
/// drivers for 12.8.
const ANY_DRIVER: Version = (12, 8);

/// The mathematical functions of CUDA for LLVM.
const LIBDEVICE: &str = "libdevice.10.bc";

/// The file that CubeCL opens. It is in NVIDIA's package `libnccl-dev`, not in `libnccl2`.
const NCCL_FILE: &str = "libnccl.so";

const MIB: u64 = 1 << 20;

/// Parts of a machine for NVIDIA's GPUs.
pub(super) struct Nvidia {
    pub(super) driver: Part,
    pub(super) toolkit: Part,
    pub(super) nccl: Part,
    pub(super) gpus: Vec<Gpu>,
    /// Incompatible versions, with the command that mends each.
    pub(super) warnings: Vec<String>,
}

/// Source of the CUDA version for which the bindings are built.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Bindings {
    /// The value of [`CUDA_OF_BINDINGS`].
    Chosen(String),
    /// The compiler in PATH.
    Compiler(Version),
    Latest,
}

impl Bindings {
    /// The version, or `None` if there are no such bindings, and a build fails.
    fn version(&self) -> Option<Version> {
        let mut known = BINDINGS.into_iter();
        match self {
            Self::Chosen(text) => known.find(|one| encoded(*one) == *text),
            Self::Compiler(version) => known.find(|one| one == version),
            Self::Latest => known.last(),
        }
    }

    fn are_chosen_for(&self, driver: Version) -> bool {
        matches!(self, Self::Chosen(_)) && self.version().is_some_and(|version| version <= driver)
    }
}

/// A version as in [`CUDA_OF_BINDINGS`].
fn encoded((major, minor): Version) -> String {
    format!("{major}0{minor}0")
}

/// The value of [`CUDA_OF_BINDINGS`] for a driver.
pub(super) fn bindings_for(driver: Option<Version>) -> String {
    let driver = driver.unwrap_or(ANY_DRIVER);
    let latest = BINDINGS.into_iter().rev().find(|one| *one <= driver);
    encoded(latest.unwrap_or(ANY_DRIVER))
}

/// The versions of CUDA of a machine, as far as found.
struct Cuda {
    /// The latest that the driver supports.
    driver: Option<Version>,
    toolkit: Option<Version>,
    bindings: Bindings,
}

impl Cuda {
    /// Whether even the oldest bindings are for later drivers.
    fn has_old_driver(&self) -> bool {
        self.driver.is_some_and(|driver| driver < BINDINGS[0])
    }

    /// Why a build for this machine fails, or may fail to run, if another choice of bindings mends it.
    fn warning(&self) -> Option<String> {
        if self.has_old_driver() {
            return None;
        }
        let mend = format!("export {CUDA_OF_BINDINGS}={}", bindings_for(self.driver));
        let Some(bindings) = self.bindings.version() else {
            let what = match &self.bindings {
                Bindings::Chosen(text) => format!("{CUDA_OF_BINDINGS}={text} is"),
                Bindings::Compiler((major, minor)) => {
                    format!("nvcc in PATH is of CUDA {major}.{minor},")
                }
                Bindings::Latest => return None,
            };
            return Some(format!(
                "{what} no version that Burn's bindings to CUDA know, and a build with `cuda` fails: {mend}"
            ));
        };
        let driver = self.driver.filter(|driver| driver.0 < bindings.0)?;
        let why = match &self.bindings {
            Bindings::Chosen(_) => CUDA_OF_BINDINGS,
            Bindings::Compiler(_) => "that of nvcc in PATH",
            Bindings::Latest => "the latest that Burn knows, as nvcc is not in PATH",
        };
        let ((major, minor), (of_driver, minor_of_driver)) = (bindings, driver);
        Some(format!(
            "a build with `cuda` is for CUDA {major}.{minor} ({why}), the driver for CUDA up to \
             {of_driver}.{minor_of_driver}, and the program fails where it calls what the driver lacks: {mend} \
             before the build"
        ))
    }
}

impl Finder<'_> {
    pub(super) fn nvidia(&self) -> Nvidia {
        let (found, gpus) = self.nvidia_gpus();
        let root = self.toolkit_root();
        let cuda = Cuda {
            driver: found.as_ref().ok().and_then(|_| self.supported_cuda()),
            toolkit: self.toolkit_version(root.as_deref()),
            bindings: self.bindings(),
        };
        let mut warnings: Vec<String> = cuda.warning().into_iter().collect();
        warnings.extend(self.mig(&gpus));
        warnings.extend(self.others(&gpus));
        Nvidia {
            driver: match found {
                Ok(version) => self.driver(&version, &cuda),
                Err(part) => part,
            },
            toolkit: self.toolkit(root, &cuda),
            nccl: self.nccl(&cuda),
            gpus,
            warnings,
        }
    }

    /// The version of the driver, or why there is none, and its GPUs.
    fn nvidia_gpus(&self) -> (Result<String, Part>, Vec<Gpu>) {
        let ask = |fields| {
            let query = format!("--query-gpu={fields}");
            self.machine
                .run("nvidia-smi", &[&query, "--format=csv,noheader,nounits"])
        };
        let ran = match ask("name,memory.total,driver_version,compute_cap") {
            // Drivers before 2022 tell no compute capability.
            Ran::Failed(text) if text.contains("not a valid field") => {
                ask("name,memory.total,driver_version")
            }
            ran => ran,
        };
        let package = Package::NvidiaDriver;
        let Ran::Said(text) = &ran else {
            let part = self.broken(NVIDIA_DRIVER, package, "nvidia-smi", &ran);
            return (Err(part), Vec::new());
        };
        let (mut driver, mut gpus) = (None, Vec::new());
        for line in text.lines() {
            let fields: Vec<&str> = line.split(", ").collect();
            let [name, memory, version, rest @ ..] = &fields[..] else {
                continue;
            };
            driver = Some((*version).to_owned());
            gpus.push(Gpu {
                name: (*name).to_owned(),
                memory: memory
                    .parse()
                    .ok()
                    .and_then(|mib: u64| mib.checked_mul(MIB)),
                compute_capability: rest
                    .first()
                    .filter(|text| self::version(text).is_some())
                    .map(|text| (*text).to_owned()),
                hardware: "cuda",
            });
        }
        let driver = driver.ok_or_else(|| {
            let detail = format!("nvidia-smi lists no GPU: {}", first_line(text));
            self.part(NVIDIA_DRIVER, package, State::Fails, detail)
        });
        (driver, gpus)
    }

    /// The latest CUDA of the driver, as in `CUDA Version: 12.4` of its table.
    fn supported_cuda(&self) -> Option<Version> {
        let Ran::Said(text) = self.machine.run("nvidia-smi", &[]) else {
            return None;
        };
        text.split("CUDA ").skip(1).find_map(|rest| {
            let rest = rest.strip_prefix("UMD ").unwrap_or(rest);
            version(rest.strip_prefix("Version")?.trim_start_matches([':', ' ']))
        })
    }

    /// The driver, which must be for the CUDA of the toolkit and of the bindings.
    fn driver(&self, driver: &str, cuda: &Cuda) -> Part {
        let part = |state, detail| self.part(NVIDIA_DRIVER, Package::NvidiaDriver, state, detail);
        let Some(supported) = cuda.driver else {
            return part(State::Found, driver.to_owned());
        };
        let detail = format!("{driver}, for CUDA up to {}.{}", supported.0, supported.1);
        if cuda.has_old_driver() {
            let (major, minor) = BINDINGS[0];
            let detail = format!("{detail}, but Burn needs {major}.{minor} or later");
            return part(State::TooOld, detail);
        }
        match cuda.toolkit {
            Some((major, minor))
                if major > supported.0 && !cuda.bindings.are_chosen_for(supported) =>
            {
                let detail = format!("{detail}, but the CUDA toolkit is {major}.{minor}");
                part(State::TooOld, detail)
            }
            _ => part(State::Found, detail),
        }
    }

    fn bindings(&self) -> Bindings {
        match self.machine.variable(CUDA_OF_BINDINGS) {
            Some(text) => Bindings::Chosen(text),
            None => self
                .compiler_version("nvcc")
                .map_or(Bindings::Latest, Bindings::Compiler),
        }
    }

    /// Parses `release 12.4, V12.4.131` of CUDA's compiler.
    fn compiler_version(&self, compiler: &str) -> Option<Version> {
        match self.machine.run(compiler, &["--version"]) {
            Ran::Said(text) => version(text.split_once("release ")?.1),
            _ => None,
        }
    }

    /// Folder in which CubeCL finds the toolkit.
    fn toolkit_root(&self) -> Option<PathBuf> {
        let roots = match self.machine.variable("CUDA_PATH") {
            Some(root) => vec![root],
            None => ["/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda", "/usr"]
                .map(str::to_owned)
                .to_vec(),
        };
        let mut roots = roots.into_iter().map(PathBuf::from);
        roots.find(|root| {
            let folder = root.join("nvvm").join("libdevice");
            self.machine.list(&folder).iter().any(|it| it == LIBDEVICE)
        })
    }

    /// The version of the toolkit in `root`, else of the compiler in PATH.
    fn toolkit_version(&self, root: Option<&Path>) -> Option<Version> {
        let own = root.and_then(|root| {
            self.version_file(root).or_else(|| {
                let compiler = root.join("bin").join("nvcc");
                self.compiler_version(compiler.to_str()?)
            })
        });
        own.or_else(|| self.compiler_version("nvcc"))
            .or_else(|| self.nvrtc_version(root?))
    }

    fn version_file(&self, root: &Path) -> Option<Version> {
        let text = self.machine.read(&root.join("version.json"))?;
        let json: serde_json::Value = serde_json::from_str(&text).ok()?;
        version(json["cuda"]["version"].as_str()?)
    }

    /// The version in the name of NVRTC, such as `libnvrtc.so.12.4.127`; of `libnvrtc.so.12`, the first of
    /// its major version.
    fn nvrtc_version(&self, root: &Path) -> Option<Version> {
        let path = self.nvrtc(root)?;
        let name = path.file_name()?.to_str()?;
        let (_, text) = name.split_once(".so.")?;
        version(text).or_else(|| Some((text.parse().ok()?, 0)))
    }

    fn nvrtc(&self, root: &Path) -> Option<PathBuf> {
        let folders =
            ["lib64", "lib", "bin", "targets/x86_64-linux/lib"].map(|below| root.join(below));
        self.library("nvrtc", &folders)
    }

    fn toolkit(&self, root: Option<PathBuf>, cuda: &Cuda) -> Part {
        let part = |state, detail| self.part(CUDA_TOOLKIT, Package::CudaToolkit, state, detail);
        let Some(root) = root else {
            let place = match self.machine.variable("CUDA_PATH") {
                Some(root) => format!("in {root} (CUDA_PATH)"),
                None => "found".to_owned(),
            };
            let detail = format!("no nvvm/libdevice/{LIBDEVICE} {place}");
            return part(State::Missing, detail);
        };
        let version = cuda.toolkit;
        let version = version.map(|(major, minor)| format!("{major}.{minor}, "));
        let nvrtc = match self.nvrtc(&root) {
            Some(nvrtc) => format!("NVRTC {}", nvrtc.display()),
            None => "without NVRTC, which is not needed".to_owned(),
        };
        let version = version.unwrap_or_default();
        part(
            State::Found,
            format!("{version}{}, {nvrtc}", root.display()),
        )
    }

    /// NCCL sums gradients between several GPUs.
    fn nccl(&self, cuda: &Cuda) -> Part {
        let part = |state, detail| self.part(NCCL, Package::Nccl, state, detail);
        let folders = ["/usr/local/cuda/lib64", "/opt/cuda/lib64"].map(PathBuf::from);
        let Some(path) = self.library("nccl", &folders) else {
            let name = library_name(self.machine.system(), "nccl");
            return part(State::Missing, format!("no {name} found"));
        };
        let detail = path.display().to_string();
        if self.machine.system() != "linux" {
            return part(State::Found, detail);
        }
        let folder = path.parent().unwrap_or(Path::new("/"));
        if !self.machine.list(folder).iter().any(|it| it == NCCL_FILE) && !self.loads(NCCL_FILE) {
            let detail = format!("{detail}, but no {NCCL_FILE}, which CubeCL opens");
            return part(State::Missing, detail);
        }
        let Some(of_package) = self.cuda_of_nccl(&path) else {
            return part(State::Found, detail);
        };
        let detail = format!("{detail}, for CUDA {}.{}", of_package.0, of_package.1);
        match cuda.driver {
            Some((major, minor)) if of_package.0 > major => {
                let detail = format!("{detail}, but the driver is for CUDA up to {major}.{minor}");
                let mut part = part(State::Fails, detail);
                if self.manager == Manager::Apt {
                    part.install = Some(format!(
                        "sudo apt install --allow-downgrades 'libnccl2=*+cuda{major}.*' \
                         'libnccl-dev=*+cuda{major}.*'"
                    ));
                }
                part
            }
            _ => part(State::Found, detail),
        }
    }

    /// Whether the loader's list has a library of this name.
    fn loads(&self, name: &str) -> bool {
        let Ran::Said(list) = self.machine.run("ldconfig", &["-p"]) else {
            return false;
        };
        let mut names = list
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        names.any(|it| it == name)
    }

    /// The CUDA that the packaged NCCL is built for, as in `2.21.5-1+cuda12.4`.
    fn cuda_of_nccl(&self, path: &Path) -> Option<Version> {
        if !path.starts_with("/usr/lib") && !path.starts_with("/usr/lib64") {
            return None;
        }
        let ran = match self.manager {
            Manager::Apt => self.machine.run(
                "dpkg-query",
                &["--show", "--showformat=${Version}", "libnccl2"],
            ),
            Manager::Dnf | Manager::Zypper => self
                .machine
                .run("rpm", &["--query", "--queryformat=%{RELEASE}", "libnccl"]),
            _ => return None,
        };
        match ran {
            Ran::Said(text) => version(text.split_once("+cuda")?.1),
            _ => None,
        }
    }
}
