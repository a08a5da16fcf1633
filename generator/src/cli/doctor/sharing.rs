//! Limits of a program's share of an NVIDIA GPU: instances, other processes, and compute modes.

use super::{
    machine::Ran,
    parts::{Finder, Gpu},
};

/// The program by which several processes compute on a GPU at once.
const MPS_SERVER: &str = "nvidia-cuda-mps-server";

impl Finder<'_> {
    /// GPUs that are divided into instances.
    pub(super) fn mig(&self, gpus: &[Gpu]) -> Option<String> {
        if gpus.is_empty() {
            return None;
        }
        let arguments = ["--query-gpu=mig.mode.current", "--format=csv,noheader"];
        let Ran::Said(text) = self.machine.run("nvidia-smi", &arguments) else {
            return None;
        };
        let modes = text.lines().map(str::trim).enumerate();
        let divided: Vec<String> = modes
            .filter(|(_, mode)| *mode == "Enabled")
            .map(|(index, _)| index.to_string())
            .collect();
        let divided = divided.join(",");
        (!divided.is_empty()).then(|| {
            format!(
                "MIG divides the GPU {divided}: a process gets one instance with a share of the memory, which \
                 CUDA_VISIBLE_DEVICES names as `nvidia-smi -L` lists it; to train on the whole GPU: sudo \
                 nvidia-smi -i {divided} -mig 0"
            )
        })
    }

    /// Processes that compute on the GPUs, and compute modes that refuse another one.
    pub(super) fn others(&self, gpus: &[Gpu]) -> Vec<String> {
        if gpus.is_empty() {
            return Vec::new();
        }
        let ask = |query: &str| match self
            .machine
            .run("nvidia-smi", &[query, "--format=csv,noheader"])
        {
            Ran::Said(text) => text,
            _ => String::new(),
        };
        let processes = ask("--query-compute-apps=pid,process_name,used_memory");
        let processes: Vec<Process<'_>> = processes.lines().filter_map(Process::parse).collect();
        let modes = ask("--query-gpu=index,compute_mode");
        let modes = modes
            .lines()
            .filter_map(|line| line.trim().split_once(", "));
        let closed: Vec<(&str, &str)> = modes.filter(|(_, mode)| is_closed(mode)).collect();
        let mut warnings: Vec<String> = sharing(&processes).into_iter().collect();
        warnings.extend(
            closed
                .into_iter()
                .filter(|(_, mode)| *mode == "Prohibited" || !processes.is_empty())
                .map(|(index, mode)| closed_gpu(index, mode)),
        );
        warnings
    }
}

/// A line of `nvidia-smi --query-compute-apps=pid,process_name,used_memory`.
struct Process<'t> {
    id: u32,
    name: &'t str,
    /// With its unit; `[N/A]` where the driver does not tell.
    memory: &'t str,
}

impl<'t> Process<'t> {
    fn parse(line: &'t str) -> Option<Self> {
        let (id, rest) = line.trim().split_once(", ")?;
        let (name, memory) = rest.rsplit_once(", ")?;
        Some(Self {
            id: id.parse().ok()?,
            name,
            memory,
        })
    }

    fn is_server_of_mps(&self) -> bool {
        self.name.ends_with(MPS_SERVER)
    }
}

/// Warning that a program shares its GPU with `processes`.
fn sharing(processes: &[Process<'_>]) -> Option<String> {
    let has_mps = processes.iter().any(Process::is_server_of_mps);
    let others: Vec<String> = processes
        .iter()
        .filter(|process| !process.is_server_of_mps())
        .map(|process| format!("{} {} ({})", process.id, process.name, process.memory))
        .collect();
    let turns = match has_mps {
        true => "",
        false => " and, without NVIDIA's MPS, takes turns with them",
    };
    (!others.is_empty()).then(|| {
        format!(
            "other processes compute on the GPUs of this machine: {}; a program on the same GPU has the memory \
             that they leave{turns}. Choose other GPUs with --devices or CUDA_VISIBLE_DEVICES",
            others.join(", ")
        )
    })
}

/// Whether a GPU in this compute mode, which is `Default` else, refuses processes.
fn is_closed(mode: &str) -> bool {
    matches!(
        mode,
        "Exclusive_Process" | "Exclusive_Thread" | "Prohibited"
    )
}

fn closed_gpu(index: &str, mode: &str) -> String {
    let takes = match mode {
        "Prohibited" => "no process",
        _ => "one process",
    };
    format!(
        "the GPU {index} takes {takes} (compute mode {mode}); to change that: sudo nvidia-smi -i {index} -c DEFAULT"
    )
}
