//! `kiln doctor`: the tools and devices of a machine for building and training.

mod cuda;
mod install;
mod machine;
mod parts;
mod sharing;
#[cfg(test)]
mod tests;

use std::{fmt::Write as _, process::ExitCode};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use super::{
    llvm::{self, Fetched},
    output::{Format, print},
    process,
};
use crate::{
    display::counted,
    error::{Error, Result},
    template::Template,
};
use machine::{Machine, Resources, ThisMachine};
use parts::{Gpu, Part, Parts};

/// The exit status if the default strategy cannot be used.
const UNUSABLE: u8 = 1;

/// Parts that every build requires.
const BASE: [&str; 3] = [parts::RUST, parts::CARGO, parts::C_COMPILER];

const GB: u64 = 1_000_000_000;

/// A debug and a release build take 1.5 GB each, and more with GPU support.
const DISK: u64 = 4 * GB;

/// Memory for the compiler, not including that of a model.
const MEMORY: u64 = 4 * GB;

const EXIT_STATUS: &str = "\
Exit status:
  0  the default strategy, `mirrored` on the CPU, can be used here
  1  the default strategy cannot be used: Rust, Cargo or a C compiler is missing
  2  an argument is invalid";

/// The arguments of `kiln doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_STATUS)]
pub struct DoctorArgs {
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Runs `kiln doctor`.
///
/// # Errors
/// The template is invalid.
pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode> {
    process::listen();
    let diagnosis = Diagnosis::make(&ThisMachine, &Template::embedded()?)?;
    if process::interrupted() {
        return Err(Error::interrupted());
    }
    match args.format {
        Format::Text => print(&diagnosis.text())?,
        Format::Json => print(&(diagnosis.json()? + "\n"))?,
    }
    Ok(if diagnosis.usable {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(UNUSABLE)
    })
}

/// A hardware or strategy of the template, and whether it can be used on this machine.
#[derive(Debug, Clone, Serialize)]
struct Use {
    name: &'static str,
    usable: bool,
    /// Arguments for Cargo.
    #[serde(skip_serializing_if = "Option::is_none")]
    build_with: Option<&'static str>,
    /// The devices.
    here: String,
    lacks: Vec<String>,
    install: Vec<String>,
}

/// The findings, and the usable hardware and strategies.
#[derive(Debug, Serialize)]
struct Diagnosis {
    /// Whether the default strategy can be used on the default hardware.
    usable: bool,
    parts: Vec<Part>,
    gpus: Vec<Gpu>,
    resources: Resources,
    warnings: Vec<String>,
    /// Downloads of a build with `cuda` or `rocm`.
    fetches: Vec<Fetched>,
    hardware: Vec<Use>,
    strategies: Vec<Use>,
}

impl Diagnosis {
    /// Inspects a machine.
    ///
    /// # Errors
    /// The template does not define its minimum Rust version or its defaults.
    fn make(machine: &dyn Machine, template: &Template) -> Result<Self> {
        let found = Parts::find(machine, oldest_rust(template)?);
        let resources = machine.resources();
        let hardware = hardware(machine.system(), &found, &resources);
        let strategies = strategies(&found, &hardware);
        let is_usable = |uses: &[Use], option: &str| {
            let name = default_of(template, option)?;
            let chosen = uses.iter().find(|one| one.name == name);
            let unknown = || Error::template(format!("the default `{name}` is unknown"));
            Ok::<_, Error>(chosen.ok_or_else(unknown)?.usable)
        };
        Ok(Self {
            usable: is_usable(&hardware, "hardware")? && is_usable(&strategies, "strategy")?,
            warnings: [warnings(&resources), found.warnings].concat(),
            fetches: found.fetches,
            parts: found.parts,
            gpus: found.gpus,
            resources,
            hardware,
            strategies,
        })
    }

    /// # Errors
    /// None known, as JSON can represent all fields.
    fn json(&self) -> Result<String> {
        serde_json::to_string_pretty(self)
            .map_err(|error| Error::system(format!("cannot write JSON: {error}")))
    }

    fn text(&self) -> String {
        let parts = self.parts.iter().map(|part| {
            let detail = part.detail.clone();
            vec![part.name.to_owned(), part.state.name().to_owned(), detail]
        });
        let mut text = table(&["part", "state", "version, place or problem"], parts);
        let _ = writeln!(text, "\n{}", machine_line(&self.resources));
        for gpu in &self.gpus {
            let memory = gpu.memory.map(|bytes| format!(", {}", gigabytes(bytes)));
            let memory = memory.unwrap_or_default();
            let capability = gpu.compute_capability.as_ref();
            let capability = capability.map(|it| format!(", compute capability {it}"));
            let capability = capability.unwrap_or_default();
            let _ = writeln!(
                text,
                "GPU: {}{memory}{capability} ({})",
                gpu.name, gpu.hardware
            );
        }
        for warning in &self.warnings {
            let _ = writeln!(text, "warning: {warning}");
        }
        text.push('\n');
        text += &table(
            &["hardware", "usable", "build with", "devices", "missing"],
            rows(&self.hardware),
        );
        text.push('\n');
        text += &table(
            &["strategy", "usable", "build with", "on", "missing"],
            rows(&self.strategies),
        );
        text += &self.installs();
        text += &self.fetched_files();
        text
    }

    /// Downloads of a build, and the folder for files put there by hand.
    fn fetched_files(&self) -> String {
        let mut text = String::new();
        if !self.fetches.is_empty() {
            let _ = writeln!(
                text,
                "\nA build with `cuda` or `rocm` fetches LLVM. Without a network, put it there by hand, and \
                 build with\n{}=1; in an image, COPY both files to\n{}, as \
                 launch/Dockerfile of a project for Kubernetes does:",
                llvm::OFFLINE,
                llvm::IN_IMAGE
            );
        }
        for file in &self.fetches {
            let _ = writeln!(text, "  {}\n    to {}", file.url, file.to.display());
        }
        text
    }

    /// The installation commands for all unusable parts, without duplicates.
    fn installs(&self) -> String {
        let mut seen: Vec<(&str, Vec<&str>)> = Vec::new();
        for part in &self.parts {
            let Some(install) = part.install.as_deref() else {
                continue;
            };
            match seen.iter_mut().find(|(command, _)| *command == install) {
                Some((_, names)) => names.push(part.name),
                None => seen.push((install, vec![part.name])),
            }
        }
        let mut text = String::new();
        if !seen.is_empty() {
            text.push_str("\nTo install missing parts:\n");
        }
        for (command, names) in seen {
            let _ = writeln!(text, "  {}\n    {command}", names.join(", "));
        }
        text
    }
}

fn table<'a>(header: &[&str], rows: impl Iterator<Item = Vec<String>> + 'a) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(100)
        .set_header(header.to_vec())
        .add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    format!("{}\n", table.trim_fmt())
}

fn rows(uses: &[Use]) -> impl Iterator<Item = Vec<String>> {
    uses.iter().map(|one| {
        let usable = if one.usable { "yes" } else { "no" };
        vec![
            one.name.to_owned(),
            usable.to_owned(),
            one.build_with.unwrap_or_default().to_owned(),
            one.here.clone(),
            one.lacks.join(", "),
        ]
    })
}

/// The minimum Rust version in the template's manifest.
fn oldest_rust(template: &Template) -> Result<(u32, u32)> {
    let manifest = template
        .files()
        .iter()
        .find(|file| file.path.starts_with("Cargo.toml"));
    let text = manifest.map(|file| String::from_utf8_lossy(&file.contents));
    text.as_deref()
        .and_then(|text| {
            let mut lines = text.lines();
            lines.find_map(|line| line.strip_prefix("rust-version = \""))
        })
        .and_then(|version| parts::version(version.trim_end_matches('"')))
        .ok_or_else(|| Error::template("the template's Cargo.toml has no `rust-version`"))
}

fn default_of(template: &Template, option: &str) -> Result<String> {
    let default = template.option(option).and_then(|it| it.default.as_ref());
    default
        .map(ToString::to_string)
        .ok_or_else(|| Error::template(format!("the template's option `{option}` has no default")))
}

fn hardware(system: &str, found: &Parts, resources: &Resources) -> Vec<Use> {
    let cores = resources.physical_cores.or(resources.threads);
    let cpu = cores.map_or_else(
        || "CPU".to_owned(),
        |cores| format!("CPU, {}", counted(cores, "core")),
    );
    let gpus = |hardware: &'static str| {
        let of_it = |gpu: &&Gpu| gpu.hardware == hardware;
        found.gpus.iter().filter(of_it).count()
    };
    let on_gpus = |name, feature, needs: &[&str], count: usize| {
        let mut one = usable(name, Some(feature), found, needs);
        match count {
            0 => {
                one.usable = false;
                one.lacks.push("a supported GPU".to_owned());
            }
            _ => one.here = counted(count, "GPU"),
        }
        one
    };
    let mut flex = usable("flex", None, found, &[]);
    flex.here = cpu;
    let metal = if system == "macos" {
        on_gpus("metal", "--features metal", &[], gpus("metal"))
    } else {
        Use {
            usable: false,
            lacks: vec!["macOS".to_owned()],
            ..usable("metal", Some("--features metal"), found, &[])
        }
    };
    let wgpu = match system {
        "macos" => on_gpus("wgpu", "--features wgpu", &[], gpus("metal")),
        // DirectX is part of Windows; only the program can tell which GPUs support it.
        "windows" => Use {
            here: "GPUs with DirectX 12".to_owned(),
            ..usable("wgpu", Some("--features wgpu"), found, &[])
        },
        _ => on_gpus("wgpu", "--features wgpu", &[parts::VULKAN], gpus("vulkan")),
    };
    let mut cuda = vec![
        parts::CPP_COMPILER,
        parts::NVIDIA_DRIVER,
        parts::CUDA_TOOLKIT,
        parts::LLVM,
    ];
    if gpus("cuda") > 1 && system == "linux" {
        cuda.push(parts::NCCL);
    }
    vec![
        flex,
        on_gpus("cuda", "--features cuda", &cuda, gpus("cuda")),
        on_gpus(
            "rocm",
            "--features rocm",
            &[parts::CPP_COMPILER, parts::ROCM, parts::LLVM],
            gpus("rocm"),
        ),
        on_gpus(
            "vulkan",
            "--features vulkan",
            &[parts::VULKAN],
            gpus("vulkan"),
        ),
        metal,
        wgpu,
    ]
}

fn strategies(found: &Parts, hardware: &[Use]) -> Vec<Use> {
    let names: Vec<&str> = hardware
        .iter()
        .filter(|one| one.usable)
        .map(|one| one.name)
        .collect();
    let here = names.join(", ");
    let on = |name, feature, needs: &[&str]| {
        let mut one = usable(name, feature, found, needs);
        if one.usable {
            one.here.clone_from(&here);
        }
        one
    };
    let mpi = [parts::MPIRUN, parts::MPICC, parts::LIBCLANG];
    vec![
        on("one-device", None, &[]),
        on("mirrored", None, &[]),
        on("multi-worker-mirrored", Some("--features mpi"), &mpi),
        on("remote", Some("--features remote"), &[]),
        on("model-parallel", None, &[]),
        on("parameter-server", None, &[]),
    ]
}

/// A hardware or strategy that requires these parts besides the common ones.
fn usable(
    name: &'static str,
    build_with: Option<&'static str>,
    found: &Parts,
    needs: &[&str],
) -> Use {
    let needed = BASE.iter().chain(needs).map(|name| found.get(name));
    let lacking: Vec<&Part> = needed.filter(|part| !part.state.is_usable()).collect();
    let mut install: Vec<String> = Vec::new();
    for command in lacking.iter().filter_map(|part| part.install.clone()) {
        if !install.contains(&command) {
            install.push(command);
        }
    }
    Use {
        name,
        usable: lacking.is_empty(),
        build_with,
        here: String::new(),
        lacks: lacking.iter().map(|part| part.name.to_owned()).collect(),
        install,
    }
}

fn warnings(resources: &Resources) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(free) = resources.free_disk.filter(|free| *free < DISK) {
        let (free, needed) = (gigabytes(free), gigabytes(DISK));
        warnings.push(format!(
            "{free} are free on this disk, but the builds of a project take {needed}"
        ));
    }
    if let Some(memory) = resources.memory.filter(|memory| *memory < MEMORY) {
        let memory = gigabytes(memory);
        warnings.push(format!(
            "{memory} of memory may be too little to build Burn: try `cargo build --jobs 1`"
        ));
    }
    warnings
}

fn machine_line(resources: &Resources) -> String {
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), gigabytes);
    let count =
        |count: Option<usize>| count.map_or_else(|| "unknown".to_owned(), |n| n.to_string());
    format!(
        "Memory: {}, {} free. Cores: {}, threads: {}. Free on this disk: {}.",
        bytes(resources.memory),
        bytes(resources.free_memory),
        count(resources.physical_cores),
        count(resources.threads),
        bytes(resources.free_disk)
    )
}

fn gigabytes(bytes: u64) -> String {
    let tenths = bytes / (GB / 10);
    format!("{}.{} GB", tenths / 10, tenths % 10)
}
