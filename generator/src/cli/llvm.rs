//! The LLVM with which CubeCL compiles kernels for CUDA and ROCm. The build script of `tracel-llvm-bundler`
//! fetches it, or takes it from the disk; files and folders are those of its `build.rs` and `src/config.rs`.

use std::{
    env,
    path::{Path, PathBuf},
};

use serde::Serialize;

/// The version of `tracel-llvm-bundler`, as required by CubeCL 0.11.3.
pub(crate) const VERSION: &str = "23.1.0-4";

/// With this variable, whatever its value, the build script takes the checksums from the disk, and then the
/// archive if it matches them.
pub(crate) const OFFLINE: &str = "TRACEL_LLVM_BUNDLER_SKIP_CHECKSUM_DOWNLOAD";

/// Folder of the files for a build in an image, which runs as root.
pub(crate) const IN_IMAGE: &str = "/root/.cache/tracel";

const RELEASES: &str = "https://github.com/tracel-ai/tracel-llvm/releases/download";

/// The file that the build script writes last into the folder of the unpacked archive.
const SENTINEL: &str = ".tracel-llvm-installed";

/// Cargo's name for the build script that fetches.
const FETCHER: &str = "build command for `tracel-llvm-bundler v";

/// A file that a build fetches, and where the build looks for it first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Fetched {
    pub(crate) url: String,
    pub(crate) to: PathBuf,
}

/// The files of LLVM for the builds of one user.
#[derive(Debug)]
pub(crate) struct Llvm {
    /// The archive and its checksums, or `None` if there are none for this platform.
    pub(crate) files: Option<[Fetched; 2]>,
    /// The folder of the unpacked archive.
    pub(crate) folder: PathBuf,
}

impl Llvm {
    /// For an operating system, an architecture and environment variables.
    pub(crate) fn of(
        system: &str,
        architecture: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Self {
        let home = variable(if system == "windows" {
            "USERPROFILE"
        } else {
            "HOME"
        });
        let home = PathBuf::from(home.unwrap_or_else(|| "~".to_owned()));
        let data = match system {
            "windows" => variable("LOCALAPPDATA").map(PathBuf::from),
            "macos" => Some(home.join("Library/Application Support")),
            _ => variable("XDG_DATA_HOME")
                .map(PathBuf::from)
                .filter(|folder| folder.is_absolute()),
        };
        let data = data.unwrap_or_else(|| home.join(".local/share"));
        let cache = home.join(".cache").join("tracel");
        let file = |name: String| Fetched {
            url: format!("{RELEASES}/v{VERSION}/{name}"),
            to: cache.join(format!("tracel-llvm-{VERSION}-{name}")),
        };
        Self {
            files: stem(system, architecture).map(|stem| {
                [
                    file(format!("{stem}.tar.xz")),
                    file(format!("{stem}.checksums.json")),
                ]
            }),
            folder: data.join("tracel").join(format!("tracel-llvm-{VERSION}")),
        }
    }

    /// For the user who runs Kiln.
    pub(crate) fn here() -> Self {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        Self::of(env::consts::OS, env::consts::ARCH, variable)
    }

    /// The file that tells that LLVM is unpacked, so that a build fetches nothing.
    pub(crate) fn sentinel(&self) -> PathBuf {
        self.folder.join(SENTINEL)
    }

    /// Possible reason of a failed build for `hardware`: LLVM is not unpacked.
    pub(crate) fn explain(&self, hardware: &str) -> Option<String> {
        let is_needed = matches!(hardware, "cuda" | "rocm");
        (is_needed && !self.sentinel().exists()).then(|| self.hint())
    }

    /// Downloads of a build, and advice behind a firewall.
    pub(crate) fn hint(&self) -> String {
        let Some([archive, checksums]) = &self.files else {
            return format!(
                "there is no LLVM {VERSION} for this platform, which `cuda` and `rocm` need"
            );
        };
        let folder = archive.to.parent().unwrap_or(Path::new("~"));
        format!(
            "a build with `cuda` or `rocm` fetches LLVM, {} and {}; where it cannot, put both into {} as \
             `kiln doctor` tells, and build with {OFFLINE}=1; in an image, COPY both to {IN_IMAGE}, as \
             launch/Dockerfile of a project for Kubernetes does",
            archive.url,
            checksums.url.rsplit('/').next().unwrap_or_default(),
            folder.display()
        )
    }
}

/// Name of the archive for a platform.
fn stem(system: &str, architecture: &str) -> Option<&'static str> {
    Some(match (system, architecture) {
        ("linux", "x86_64") => "linux-x64",
        ("linux", "aarch64") => "linux-AArch64",
        ("macos", "x86_64") => "macos-x64",
        ("macos", "aarch64") => "macos-AArch64",
        ("windows", "x86_64") => "windows-x64",
        ("windows", "aarch64") => "windows-AArch64",
        _ => return None,
    })
}

/// Why the build script that fetches LLVM failed, if `text` is of a build that failed with it.
pub(crate) fn failure(text: &str) -> Option<String> {
    let mut lines = text.lines().skip_while(|line| !line.contains(FETCHER));
    let error = lines.next()?.trim();
    let mut printed = lines.skip_while(|line| line.trim() != "--- stderr").skip(1);
    // After a panic, its message; else the message of the build script.
    let first = printed
        .by_ref()
        .map(str::trim)
        .find(|line| !line.is_empty());
    let cause = match first {
        Some(line) if line.contains(" panicked at ") => printed.next().map(str::trim),
        other => other,
    };
    Some(match cause {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn llvm(system: &str, architecture: &str, variables: &[(&str, &str)]) -> Llvm {
        Llvm::of(system, architecture, |name| {
            let mut found = variables.iter().filter(|(key, _)| *key == name);
            found.next().map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn files_are_where_the_build_script_looks() {
        let home = [("HOME", "/home/me")];
        let linux = llvm("linux", "x86_64", &home);
        let [archive, checksums] = linux.files.as_ref().unwrap();
        assert_eq!(
            archive.url,
            "https://github.com/tracel-ai/tracel-llvm/releases/download/v23.1.0-4/linux-x64.tar.xz"
        );
        assert_eq!(
            archive.to,
            Path::new("/home/me/.cache/tracel/tracel-llvm-23.1.0-4-linux-x64.tar.xz")
        );
        assert!(checksums.url.ends_with("/linux-x64.checksums.json"));
        assert_eq!(
            checksums.to,
            Path::new("/home/me/.cache/tracel/tracel-llvm-23.1.0-4-linux-x64.checksums.json")
        );
        let folder = "/home/me/.local/share/tracel/tracel-llvm-23.1.0-4";
        assert_eq!(linux.folder, Path::new(folder));
        assert_eq!(
            linux.sentinel(),
            Path::new(folder).join(".tracel-llvm-installed")
        );
        let arm = llvm("linux", "aarch64", &home).files.unwrap();
        assert!(arm[0].url.ends_with("/linux-AArch64.tar.xz"));
        let other = llvm("linux", "riscv64", &home);
        assert!(other.files.is_none());
        assert!(other.hint().starts_with("there is no LLVM 23.1.0-4"));
    }

    #[test]
    fn the_folder_of_data_is_that_of_the_platform() {
        let home = ("HOME", "/home/me");
        let folder = |system, variables: &[_]| llvm(system, "x86_64", variables).folder;
        let data = folder("linux", &[home, ("XDG_DATA_HOME", "/data")]);
        assert_eq!(data, Path::new("/data/tracel/tracel-llvm-23.1.0-4"));
        // As the specification of these variables says, a relative path counts for nothing.
        let relative = folder("linux", &[home, ("XDG_DATA_HOME", "data")]);
        assert!(relative.starts_with("/home/me/.local/share"));
        let mac = folder("macos", &[home, ("XDG_DATA_HOME", "/data")]);
        assert!(mac.starts_with("/home/me/Library/Application Support/tracel"));
        let profile = ("USERPROFILE", "/users/me");
        let windows = folder("windows", &[profile, ("LOCALAPPDATA", "/local")]);
        assert!(windows.starts_with("/local/tracel"));
    }

    /// As Cargo prints it, with the messages of the build script.
    fn cargo(printed: &str) -> String {
        format!(
            "   Compiling tracel-llvm-bundler v23.1.0-4\n\
             error: failed to run custom build command for `tracel-llvm-bundler v23.1.0-4`\n\n\
             Caused by:\n  process didn't exit successfully: `/t/build-script-build` (exit status: 101)\n  \
             --- stdout\n  cargo:rerun-if-env-changed=DOCS_RS\n\n  --- stderr\n{printed}\
             warning: build failed, waiting for other jobs to finish...\n"
        )
    }

    #[test]
    fn a_failed_fetch_is_told_with_its_cause() {
        let panic = "\n  thread 'main' (3837) panicked at /c/tracel-llvm-bundler-23.1.0-4/build.rs:66:37:\n  \
                     called `Result::unwrap()` on an `Err` value: Io(Custom { kind: Uncategorized, error: \
                     \"failed to lookup address information: Name or service not known\" })\n  \
                     note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n";
        let text = cargo(panic);
        let why = failure(&text).unwrap();
        assert!(
            why.starts_with("error: failed to run custom build command for `tracel-llvm-bundler"),
            "{why}"
        );
        assert!(
            why.ends_with("Name or service not known\" })"),
            "the message of the panic, and no more: {why}"
        );
        let missing = cargo("  reading /home/me/.cache/tracel/x.checksums.json\n");
        assert!(failure(&missing).unwrap().ends_with("x.checksums.json"));
        // Output that is cut off.
        let cut = text.split("\nCaused by").next().unwrap();
        assert!(failure(cut).unwrap().ends_with("v23.1.0-4`"));
        let other = text.replace("tracel-llvm-bundler v", "other-sys v");
        assert_eq!(failure(&other), None);
        assert_eq!(failure(""), None);
    }

    #[test]
    fn a_failed_build_is_explained_until_llvm_is_unpacked() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().to_str().unwrap();
        let llvm = llvm("linux", "x86_64", &[("HOME", home)]);
        assert_eq!(llvm.explain("cuda"), Some(llvm.hint()));
        assert_eq!(llvm.explain("rocm"), Some(llvm.hint()));
        assert_eq!(llvm.explain("vulkan"), None);
        fs::create_dir_all(&llvm.folder).unwrap();
        assert!(llvm.explain("cuda").is_some(), "unpacking was interrupted");
        fs::write(llvm.sentinel(), "").unwrap();
        assert_eq!(llvm.explain("cuda"), None);
    }

    #[test]
    fn a_hint_names_what_is_fetched_and_where_to_put_it() {
        let hint = llvm("linux", "x86_64", &[("HOME", "/home/me")]).hint();
        for part in [
            "/v23.1.0-4/linux-x64.tar.xz",
            "linux-x64.checksums.json",
            "into /home/me/.cache/tracel ",
            "`kiln doctor`",
            "TRACEL_LLVM_BUNDLER_SKIP_CHECKSUM_DOWNLOAD=1",
            "COPY both to /root/.cache/tracel, as launch/Dockerfile",
        ] {
            assert!(hint.contains(part), "{part}: {hint}");
        }
    }
}
