//! Launchers of multi-process jobs.

use std::{env, fs};

use anyhow::{Result, ensure};
use clap::ValueEnum;

/// The launcher of a multi-process job, detected from environment variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    pub name: &'static str,
    /// Number of started processes.
    pub processes: usize,
}

/// Environment variables in which launchers pass the number of processes.
const VARIABLES: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_SIZE", "mpirun"),
    ("PMI_SIZE", "mpiexec"),
    ("SLURM_STEP_NUM_TASKS", "srun"),
];

impl Launcher {
    /// The launcher of this process, if any.
    pub fn detect() -> Option<Self> {
        Self::find(|variable| env::var(variable).ok())
    }

    fn find(value: impl Fn(&str) -> Option<String>) -> Option<Self> {
        VARIABLES.iter().find_map(|(variable, name)| {
            let processes = value(variable)?.parse().ok()?;
            Some(Launcher { name, processes })
        })
    }

    fn ensure_one_process(launcher: Option<Self>, strategy: &str) -> Result<()> {
        if let Some(Launcher { name, processes }) = launcher {
            ensure!(
                processes == 1,
                "{name} started {processes} processes, and with --strategy {strategy} each would \
                 train on its own: use --strategy multi-worker-mirrored, or start one process"
            );
        }
        Ok(())
    }

    /// Checks that MPI sees as many processes as the launcher started.
    ///
    /// # Errors
    /// The numbers differ: the launcher belongs to another MPI than this program was built with.
    #[cfg(any(feature = "mpi", test))]
    pub fn ensure_sees(launcher: Option<Self>, processes: usize, library: &str) -> Result<()> {
        if let Some(Launcher {
            name,
            processes: started,
        }) = launcher
        {
            let hint = match name {
                "srun" => {
                    "use its interface in srun, such as `srun --mpi=pmix` (`srun --mpi=list` \
                           lists all), or start with its own mpirun"
                }
                _ => "start with the mpirun of that library",
            };
            ensure!(
                started == processes,
                "{name} started {started} processes, but MPI sees {processes}. This program was \
                 built with {library}: {hint}"
            );
        }
        Ok(())
    }
}

/// Checks that this process was started alone: several without communication would each train a model
/// of their own and overwrite each other's files.
///
/// # Errors
/// A launcher started several processes.
pub fn ensure_started_alone(strategy: impl ValueEnum) -> Result<()> {
    let name = strategy.to_possible_value();
    let name = name.as_ref().map_or("", |value| value.get_name());
    Launcher::ensure_one_process(Launcher::detect(), name)
}

/// The command that installs MPI on this platform.
pub fn install_hint() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    install_hint_for(env::consts::OS, &release)
}

fn install_hint_for(os: &str, release: &str) -> String {
    let ids: Vec<&str> = release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or(line.strip_prefix("ID_LIKE=")))
        .flat_map(|ids| ids.trim_matches('"').split(' '))
        .collect();
    let is = |id| ids.contains(&id);
    if os == "macos" {
        "brew install open-mpi llvm".to_owned()
    } else if is("debian") || is("ubuntu") {
        "sudo apt install openmpi-bin libopenmpi-dev libclang-dev".to_owned()
    } else if is("fedora") || is("rhel") {
        "sudo dnf install openmpi-devel clang-devel && module load mpi".to_owned()
    } else if is("suse") || is("opensuse") {
        "sudo zypper install openmpi4-devel clang-devel".to_owned()
    } else if is("arch") {
        "sudo pacman -S openmpi clang".to_owned()
    } else if is("alpine") {
        "sudo apk add openmpi-dev clang-dev".to_owned()
    } else {
        "install Open MPI or MPICH with its headers, and libclang".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(variables: &[(&str, &str)]) -> Option<Launcher> {
        Launcher::find(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn launchers_are_known_by_their_variables() {
        assert_eq!(detect(&[("PATH", "/bin")]), None);
        let found =
            |variable| detect(&[(variable, "4")]).map(|found| (found.name, found.processes));
        assert_eq!(found("OMPI_COMM_WORLD_SIZE"), Some(("mpirun", 4)));
        assert_eq!(found("PMI_SIZE"), Some(("mpiexec", 4)));
        assert_eq!(found("SLURM_STEP_NUM_TASKS"), Some(("srun", 4)));
        // A Slurm batch script is one process, whatever the number of tasks of its job.
        assert_eq!(found("SLURM_NTASKS"), None);
    }

    #[test]
    fn what_does_not_fit_the_launcher_is_refused_with_a_hint() {
        let four = |name| Some(Launcher { name, processes: 4 });
        let alone = Launcher::ensure_one_process(four("mpirun"), "mirrored").unwrap_err();
        assert!(
            alone
                .to_string()
                .contains("--strategy multi-worker-mirrored"),
            "{alone}"
        );
        assert!(Launcher::ensure_one_process(None, "mirrored").is_ok());
        assert!(Launcher::ensure_sees(four("mpirun"), 4, "Open MPI").is_ok());
        let other = Launcher::ensure_sees(four("mpiexec"), 1, "Open MPI").unwrap_err();
        assert!(
            other.to_string().contains("the mpirun of that library"),
            "{other}"
        );
        let slurm = Launcher::ensure_sees(four("srun"), 1, "Open MPI").unwrap_err();
        assert!(slurm.to_string().contains("srun --mpi=pmix"), "{slurm}");
    }

    #[test]
    fn the_install_command_is_that_of_the_platform() {
        let command = |release| install_hint_for("linux", release);
        assert!(command("ID=debian\n").starts_with("sudo apt install"));
        assert!(command("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n").starts_with("sudo apt"));
        assert!(command("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n").starts_with("sudo dnf"));
        assert!(command("").starts_with("install Open MPI"));
        assert!(install_hint_for("macos", "").starts_with("brew"));
    }
}
