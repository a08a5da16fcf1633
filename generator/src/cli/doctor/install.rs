//! Installation commands for each platform.

use std::path::Path;

use super::machine::Machine;

/// An installable package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Package {
    Rust,
    CCompiler,
    CppCompiler,
    Git,
    /// The launcher, the headers, and libclang for the bindings.
    Mpi,
    NvidiaDriver,
    CudaToolkit,
    Nccl,
    Vulkan,
    Rocm,
}

/// A package manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manager {
    Apt,
    Dnf,
    Zypper,
    Pacman,
    Apk,
    Brew,
    Winget,
    Unknown,
}

impl Manager {
    pub(super) fn of(machine: &dyn Machine) -> Self {
        match machine.system() {
            "macos" => Manager::Brew,
            "windows" => Manager::Winget,
            _ => {
                let release = machine.read(Path::new("/etc/os-release"));
                Self::of_release(&release.unwrap_or_default())
            }
        }
    }

    fn of_release(release: &str) -> Self {
        let ids: Vec<&str> = release
            .lines()
            .filter_map(|line| line.strip_prefix("ID=").or(line.strip_prefix("ID_LIKE=")))
            .flat_map(|ids| ids.trim_matches('"').split(' '))
            .collect();
        let of = |names: &[&str], manager| {
            let any = names.iter().any(|name| ids.contains(name));
            any.then_some(manager)
        };
        of(&["debian", "ubuntu"], Manager::Apt)
            .or_else(|| of(&["fedora", "rhel"], Manager::Dnf))
            .or_else(|| of(&["suse", "opensuse"], Manager::Zypper))
            .or_else(|| of(&["arch"], Manager::Pacman))
            .or_else(|| of(&["alpine"], Manager::Apk))
            .unwrap_or(Manager::Unknown)
    }

    /// The command that installs `package`.
    pub(super) fn install(self, package: Package) -> &'static str {
        match package {
            Package::Rust => self.rust(),
            Package::CCompiler => self.c_compiler(),
            Package::CppCompiler => self.cpp_compiler(),
            Package::Git => self.git(),
            Package::Mpi => self.mpi(),
            Package::NvidiaDriver => self.nvidia_driver(),
            Package::CudaToolkit => self.cuda_toolkit(),
            Package::Nccl => self.nccl(),
            Package::Vulkan => self.vulkan(),
            Package::Rocm => self.rocm(),
        }
    }

    fn rust(self) -> &'static str {
        match self {
            Manager::Winget => "winget install Rustlang.Rustup",
            _ => "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh",
        }
    }

    fn c_compiler(self) -> &'static str {
        match self {
            Manager::Apt => "sudo apt install build-essential",
            Manager::Dnf => "sudo dnf install gcc",
            Manager::Zypper => "sudo zypper install gcc",
            Manager::Pacman => "sudo pacman -S base-devel",
            Manager::Apk => "sudo apk add build-base",
            Manager::Brew => "xcode-select --install",
            Manager::Winget => {
                "winget install Microsoft.VisualStudio.2022.BuildTools --override \"--wait --passive \
                 --add Microsoft.VisualStudio.Workload.VCTools --includeRecommended\""
            }
            Manager::Unknown => "install GCC or Clang, with the headers of the C library",
        }
    }

    fn cpp_compiler(self) -> &'static str {
        match self {
            Manager::Dnf => "sudo dnf install gcc-c++",
            Manager::Zypper => "sudo zypper install gcc-c++",
            Manager::Unknown => "install G++ or Clang, with the C++ library",
            _ => self.c_compiler(),
        }
    }

    fn git(self) -> &'static str {
        match self {
            Manager::Apt => "sudo apt install git",
            Manager::Dnf => "sudo dnf install git",
            Manager::Zypper => "sudo zypper install git",
            Manager::Pacman => "sudo pacman -S git",
            Manager::Apk => "sudo apk add git",
            Manager::Brew => "xcode-select --install",
            Manager::Winget => "winget install Git.Git",
            Manager::Unknown => "install git",
        }
    }

    /// The same commands as in the template's `engine/src/workers/environment.rs`.
    fn mpi(self) -> &'static str {
        match self {
            Manager::Apt => "sudo apt install openmpi-bin libopenmpi-dev libclang-dev",
            Manager::Dnf => "sudo dnf install openmpi-devel clang-devel && module load mpi",
            Manager::Zypper => "sudo zypper install openmpi4-devel clang-devel",
            Manager::Pacman => "sudo pacman -S openmpi clang",
            Manager::Apk => "sudo apk add openmpi-dev clang-dev",
            Manager::Brew => "brew install open-mpi llvm",
            Manager::Winget | Manager::Unknown => {
                "install Open MPI or MPICH with its headers, and libclang"
            }
        }
    }

    fn nvidia_driver(self) -> &'static str {
        match self {
            Manager::Apt => {
                "sudo apt install nvidia-driver, or on Ubuntu: sudo ubuntu-drivers install"
            }
            Manager::Pacman => "sudo pacman -S nvidia",
            _ => "https://www.nvidia.com/drivers",
        }
    }

    fn cuda_toolkit(self) -> &'static str {
        match self {
            Manager::Apt => "sudo apt install nvidia-cuda-toolkit",
            Manager::Pacman => "sudo pacman -S cuda",
            Manager::Winget => "winget install Nvidia.CUDA",
            _ => "https://developer.nvidia.com/cuda-downloads",
        }
    }

    fn nccl(self) -> &'static str {
        match self {
            Manager::Apt => "sudo apt install libnccl2 libnccl-dev, from NVIDIA's repository",
            Manager::Dnf => "sudo dnf install libnccl libnccl-devel, from NVIDIA's repository",
            Manager::Pacman => "sudo pacman -S nccl",
            _ => "https://developer.nvidia.com/nccl",
        }
    }

    fn vulkan(self) -> &'static str {
        match self {
            Manager::Apt => "sudo apt install libvulkan1 mesa-vulkan-drivers vulkan-tools",
            Manager::Dnf => "sudo dnf install vulkan-loader mesa-vulkan-drivers vulkan-tools",
            Manager::Zypper => "sudo zypper install libvulkan1 vulkan-tools",
            Manager::Pacman => "sudo pacman -S vulkan-icd-loader vulkan-tools",
            Manager::Apk => "sudo apk add vulkan-loader vulkan-tools",
            Manager::Brew => "brew install molten-vk vulkan-loader vulkan-tools",
            Manager::Winget => "install the GPU driver, which includes Vulkan",
            Manager::Unknown => "install the Vulkan loader, the GPU driver and vulkaninfo",
        }
    }

    fn rocm(self) -> &'static str {
        match self {
            Manager::Dnf => "sudo dnf install rocm-hip-devel",
            Manager::Pacman => "sudo pacman -S rocm-hip-sdk",
            _ => "https://rocm.docs.amd.com",
        }
    }
}
