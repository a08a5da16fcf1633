//! The folder in which kernels are kept, and bundles of them.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Once, OnceLock},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::{
    cubecl::{
        bundle::{self, BundleError, EnvironmentInfo, ExportOptions, SqliteBundle},
        config::{CubeClRuntimeConfig, RuntimeConfig, cache::CacheConfig},
        environment::{self, Namespace},
    },
    tensor::{Device, DeviceIdentity},
};

use super::warnings::{self, Made};
use crate::{command_line::package, console::terminal, options::Options, system};

/// The first segment of the namespaces of CubeCL's records of past runs, and of results of tuning.
const RECORDS: &str = "records";
const TUNING: &str = "autotune";

/// The bundle of `--kernels`.
static BUNDLE: OnceLock<(PathBuf, SqliteBundle)> = OnceLock::new();

/// Keeps kernels in `--kernel-cache`, and opens the bundle of `--kernels`. To be called before the first GPU
/// is used, after which the folder is fixed.
///
/// # Errors
/// The bundle cannot be read.
pub fn keep(options: &Options) -> Result<()> {
    configure(options.kernel_cache.as_deref());
    let Some(file) = &options.kernels else {
        return Ok(());
    };
    open(file)
}

fn open(file: &Path) -> Result<()> {
    let bundle = SqliteBundle::open(file)
        .map_err(|error| anyhow!("{error}"))
        .with_context(|| format!("cannot read the kernels in {} (--kernels)", file.display()))?;
    // A second call has the same options.
    let _ = BUNDLE.set((file.to_owned(), bundle));
    Ok(())
}

/// As [`keep`] without options, if it was not called: in contract tests and servers.
pub fn keep_by_default() {
    configure(None);
}

fn configure(folder: Option<&Path>) {
    static CONFIGURED: Once = Once::new();
    CONFIGURED.call_once(|| {
        let config = CubeClRuntimeConfig::from_current_dir().override_from_env();
        // False if a program around the engine configured CubeCL already.
        CubeClRuntimeConfig::try_set(keeping_kernels(config, folder));
    });
}

/// The settings of a `cubecl.toml` or `burn.toml` in this folder or above and of CubeCL's environment
/// variables apply, except that compiled kernels are always kept, and in `folder`, if given.
fn keeping_kernels(mut config: CubeClRuntimeConfig, folder: Option<&Path>) -> CubeClRuntimeConfig {
    config.compilation.cache = true;
    let place = &mut config.environment;
    if let Some(folder) = folder {
        place.path = CacheConfig::Directory(folder.to_owned());
    } else if matches!(place.path, CacheConfig::Target) {
        // In the cache folder of the user: tuning depends on the machine and not on the project.
        place.path = CacheConfig::Global;
        if place.name == environment::DEFAULT {
            // Hosts of a cluster often share home folders over a network, where the locks of a database
            // do not work: each host has its own.
            place.name = system::host().unwrap_or_else(|| environment::DEFAULT.to_owned());
        }
    }
    config
}

/// The file in which kernels are kept; missing if its folder does not take it.
pub fn file() -> PathBuf {
    environment::path()
}

/// Done once this process has told whether kernels can be kept.
static TOLD: Once = Once::new();

/// Warns, once in this process, if the file or its folder does not take kernels.
pub fn check_folder() {
    TOLD.call_once(|| {
        let file = file();
        if let Err(error) = warnings::probe(&file) {
            terminal::warn(warnings::not_kept(&file, &error));
        }
    });
}

/// The number of kernels on disk, and of operations tuned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub kernels: u64,
    pub tuned: u64,
}

impl fmt::Display for Kept {
    fn fmt(&self, text: &mut fmt::Formatter) -> fmt::Result {
        match (self.kernels, self.tuned) {
            (kernels, 0) => write!(text, "{kernels} kernels compiled"),
            (0, tuned) => write!(text, "{tuned} operations tuned"),
            (kernels, tuned) => {
                write!(text, "{kernels} kernels compiled, {tuned} operations tuned")
            }
        }
    }
}

impl Kept {
    /// Those for `device`.
    pub fn of(device: &DeviceIdentity) -> Self {
        let mut kept = Kept::default();
        for summary in environment::namespaces() {
            if has_kernels_of(&summary.namespace, device) {
                kept.kernels += summary.entries;
            } else if summary.namespace.split('/').next() == Some(TUNING) {
                kept.tuned += summary.entries;
            }
        }
        kept
    }
}

/// Whether `namespace` has kernels for `device` and this version of CubeCL, as `cuda/0.11.3/ptx_sm90-llvm-8.8`
/// has, whose suffix is that of the compiler. One such as `cuda-second-line` has the same kernels by other
/// keys.
fn has_kernels_of(namespace: &str, device: &DeviceIdentity) -> bool {
    let name = Namespace::scoped("", &device.fingerprint);
    let (name, mut parts) = (name.as_str(), namespace.splitn(2, '/'));
    let (Some(backend), Some(rest)) = (parts.next(), parts.next()) else {
        return false;
    };
    let suffix = rest.strip_prefix(name.trim_start_matches('/'));
    !backend.ends_with("-second-line")
        && suffix.is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('-'))
}

/// Adds the kernels of the bundle of `--kernels` to those on disk, and returns its file. Warns if the disk does
/// not take them all. Warns, and adds none, if the bundle is for other devices than `device` or another version
/// of CubeCL: tuning is not kept apart by device.
pub fn import_for(device: &DeviceIdentity) -> Option<&'static Path> {
    let (path, bundle) = BUNDLE.get()?;
    let manifest = bundle.manifest();
    let made_on = manifest.environments.iter().flat_map(|one| &one.devices);
    let made_on: Vec<&str> = made_on.map(String::as_str).collect();
    let made = Made {
        on: &made_on,
        with: &manifest.cubecl_version,
    };
    if let Some(warning) = made.misfit(path, &name(device), &version()) {
        terminal::warn(warning);
        return None;
    }
    let report = bundle::import(bundle);
    if report.failed > 0 {
        let all = report.imported + report.skipped + report.failed;
        TOLD.call_once(|| {
            terminal::warn(warnings::not_copied(report.failed, all, path, &file()));
        });
        return None;
    }
    Some(path)
}

/// The name of a device in a bundle, with what its kernels are compiled for.
fn name(device: &DeviceIdentity) -> String {
    format!("{} ({})", device.name, device.fingerprint)
}

/// The version of CubeCL, which is part of each namespace, as in `cuda/0.11.3/ptx_sm_90`.
fn version() -> String {
    let namespace = Namespace::new("");
    let mut parts = namespace.as_str().split('/');
    parts.nth(1).unwrap_or_default().to_owned()
}

/// Checks that [`export`] may replace `file`, before minutes of tuning.
///
/// # Errors
/// The file exists and is no bundle.
pub fn ensure_replaceable(file: &Path) -> Result<()> {
    if !file.exists() {
        return Ok(());
    }
    match SqliteBundle::open(file) {
        // One of another version of CubeCL is a bundle, too.
        Ok(_) | Err(BundleError::UnsupportedDatabase(_)) => Ok(()),
        Err(error) => bail!(
            "cannot write the kernels to {}: it exists and is not a cubecl bundle ({error}); choose another \
             name, or remove the file first",
            file.display()
        ),
    }
}

/// Checks that programs of this build keep anything that [`export`] could write, before a training runs for it.
///
/// # Errors
/// The driver of `device` compiles its kernels at each start, and this build tunes none. CubeCL keeps the kernels of
/// CUDA, ROCm and Vulkan, and not those that drivers of wgpu and Metal compile.
pub fn ensure_kept(device: &Device) -> Result<()> {
    ensure!(
        cfg!(feature = "autotune") || keeps_compiled(device),
        "`compile` has nothing to write: the driver of {} compiles kernels at each start, and this program tunes \
         none; build it with the feature `autotune`, whose results a bundle takes to other machines",
        device.identity().unwrap_or_default().name
    );
    Ok(())
}

/// Whether CubeCL keeps compiled kernels of `device`. All GPUs of wgpu have fingerprints of SPIR-V, and have such
/// kernels only with the feature `vulkan`.
fn keeps_compiled(device: &Device) -> bool {
    let fingerprint = device.identity().unwrap_or_default().fingerprint;
    cfg!(feature = "vulkan") || !fingerprint.starts_with("spirv")
}

/// Writes the kernels on disk and the results of tuning to a bundle, for machines with GPUs like `devices`.
/// Returns what it holds for the first of them.
///
/// # Errors
/// None were kept, or the file cannot be written, or exists and is no bundle.
pub fn export(file: &Path, devices: &[Device]) -> Result<Kept> {
    let identities: Vec<_> = devices.iter().filter_map(Device::identity).collect();
    let device = identities
        .first()
        .context("`compile` is for GPUs, and the devices of this training are none")?;
    let kept = Kept::of(device);
    ensure!(
        kept != Kept::default() && self::file().is_file(),
        "no kernel could be kept in {}: choose another folder with --kernel-cache",
        self::file().display()
    );
    let mut names: Vec<_> = identities.iter().map(name).collect();
    names.dedup();
    let options = ExportOptions {
        name: format!("{} {}", package().name, package().version),
        environments: vec![EnvironmentInfo {
            devices: names,
            ..EnvironmentInfo::default()
        }],
        excluded_namespaces: vec![RECORDS.to_owned()],
        ..ExportOptions::default()
    };
    bundle::export(&[self::file()], file, &options)
        .map_err(|error| anyhow!("{error}"))
        .with_context(|| format!("cannot write the kernels to {}", file.display()))?;
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process::Command};

    use burn::tensor::Tensor;

    use super::*;
    use crate::replica::{is_cpu, visible_devices};

    #[test]
    fn kernels_are_known_by_version_and_device() {
        let device = DeviceIdentity {
            fingerprint: "ptx_sm_90".to_owned(),
            ..DeviceIdentity::default()
        };
        let of = |backend, fingerprint| {
            let namespace = Namespace::scoped(backend, fingerprint);
            has_kernels_of(namespace.as_str(), &device)
        };
        assert!(of("cuda", "ptx_sm_90"));
        assert!(of("cuda", "ptx_sm_90-cpp") && of("cuda", "ptx_sm_90-llvm-8.8"));
        assert!(!of("cuda", "ptx_sm_900"));
        assert!(!of("cuda-second-line", "ptx_sm_90-cpp"));
        assert!(!of("cuda", "ptx_sm_80"));
        assert!(!has_kernels_of("cuda/0.0.1/ptx_sm_90", &device));
    }

    /// The folder and the name of the file of kernels, with the settings of a user.
    fn place(path: CacheConfig, name: &str, folder: Option<&str>) -> (PathBuf, String) {
        let mut config = CubeClRuntimeConfig::default();
        config.environment.path = path;
        config.environment.name = name.to_owned();
        let config = keeping_kernels(config, folder.map(Path::new));
        assert!(config.compilation.cache);
        (config.environment.path.root(), config.environment.name)
    }

    #[test]
    fn settings_of_a_user_say_where_kernels_are_kept() {
        const UNNAMED: &str = environment::DEFAULT;
        let at = |folder: &str, name: &str| (PathBuf::from(folder), name.to_owned());
        let in_cache = CacheConfig::Global.root();
        let of_host = (in_cache.clone(), system::host().unwrap());
        assert_eq!(place(CacheConfig::Target, UNNAMED, None), of_host);
        let named = (in_cache, "mine".to_owned());
        assert_eq!(place(CacheConfig::Target, "mine", None), named);
        let own = CacheConfig::Directory(PathBuf::from("own"));
        assert_eq!(place(own.clone(), UNNAMED, None), at("own", UNNAMED));
        assert_eq!(place(own, UNNAMED, Some("given")), at("given", UNNAMED));
    }

    /// Environment variables for the child process of a test: its kernel cache, and the bundles to read and write.
    const FOLDER: &str = "KERNELS_FOLDER";
    const READ: &str = "KERNELS_READ";
    const WRITTEN: &str = "KERNELS_WRITTEN";

    /// Runs kernels in a new process, as their folder is fixed in this one, and returns what the process
    /// added to those in `folder`.
    fn added_by_a_process(folder: &Path, read: Option<&Path>, written: Option<&Path>) -> String {
        let mut process = Command::new(env::current_exe().unwrap());
        process.args([
            "--exact",
            "kernel_cache::cache::tests::process",
            "--nocapture",
        ]);
        process.env(FOLDER, folder);
        read.map(|bundle| process.env(READ, bundle));
        written.map(|bundle| process.env(WRITTEN, bundle));
        let output = process.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        // With one test at a time, the runner has written the name of the test into the same line.
        let line = text.lines().find_map(|line| line.split_once("added "));
        let (_, added) = line.unwrap_or_else(|| panic!("{text}"));
        added.to_owned()
    }

    /// The child process; nothing as a test.
    #[test]
    fn process() {
        let Some(folder) = env::var_os(FOLDER) else {
            return;
        };
        configure(Some(Path::new(&folder)));
        let device = visible_devices().remove(0);
        let identity = device.identity().unwrap();
        if let Some(bundle) = env::var_os(READ) {
            open(Path::new(&bundle)).unwrap();
            assert_eq!(import_for(&DeviceIdentity::default()), None);
            assert_eq!(import_for(&identity), Some(Path::new(&bundle)));
        }
        let before = Kept::of(&identity);
        let values = Tensor::<2>::ones([64, 64], &device).exp() * 2.0;
        let sums: Vec<f32> = values.sum_dim(1).into_data().iter().collect();
        assert!((sums[0] - 128.0 * 1_f32.exp()).abs() < 1e-3, "{}", sums[0]);
        let kept = Kept::of(&identity);
        println!(
            "added {}, {}",
            kept.kernels - before.kernels,
            kept.tuned - before.tuned
        );
        if let Some(bundle) = env::var_os(WRITTEN) {
            assert_eq!(export(Path::new(&bundle), &[device]).unwrap(), kept);
        }
    }

    /// On a GPU, or one in software where it is asked for.
    #[test]
    fn a_second_start_and_another_machine_compile_nothing() {
        let devices = visible_devices();
        if is_cpu(&devices) {
            println!("skipped: no GPU");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let [one, other, bundle] =
            ["one", "other", "kernels.bundle"].map(|name| folder.path().join(name));
        let kept = ensure_kept(&devices[0]);
        let cold = added_by_a_process(&one, None, kept.is_ok().then_some(&*bundle));
        let compiled = keeps_compiled(&devices[0]);
        assert_eq!(!cold.starts_with("0,"), compiled, "cold: {cold}");
        let tunes = cfg!(feature = "autotune");
        assert_eq!(!cold.ends_with(" 0"), tunes, "cold: {cold}");
        assert_eq!(added_by_a_process(&one, None, None), "0, 0", "cold: {cold}");
        if let Err(error) = kept {
            assert_eq!(cold, "0, 0", "{error}");
            let error = error.to_string();
            assert!(error.contains("`autotune`"), "{error}");
            return;
        }
        assert_eq!(
            added_by_a_process(&other, Some(&bundle), None),
            "0, 0",
            "cold: {cold}"
        );
    }

    #[test]
    fn what_is_no_bundle_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kernels.bundle");
        let error = |file: &Path| format!("{:#}", open(file).unwrap_err());
        assert!(
            error(&file).contains("cannot read the kernels in"),
            "{}",
            error(&file)
        );
        fs::write(&file, "text").unwrap();
        let refused = error(&file);
        assert!(refused.contains("(--kernels)"), "{refused}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "text", "unchanged");
    }
}
