//! Why kernels are compiled again: the folder that keeps them takes none, or a bundle is of other machines.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::Path,
};

/// Bytes written to see whether the folder has room, about those of the kernels of a small model.
const PROBE: usize = 1 << 20;

/// Advice if kernels cannot be kept.
const ADVICE: &str =
    "make room there or allow to write there, or choose another folder with --kernel-cache";

/// Fails if kernels cannot be added to `file`, which may be missing. CubeCL opens a file for reading only if it
/// may not be written, and drops new kernels.
///
/// # Errors
/// The folder or the file may not be written, or the disk is full.
pub fn probe(file: &Path) -> io::Result<()> {
    let folder = file.parent().unwrap_or(file);
    fs::create_dir_all(folder)?;
    if file.exists() {
        OpenOptions::new().append(true).open(file)?;
    }
    let mut probe = tempfile::tempfile_in(folder)?;
    probe.write_all(&vec![0; PROBE])?;
    probe.sync_data()
}

/// Warning: new kernels are not added to `file`.
pub fn not_kept(file: &Path, error: &io::Error) -> String {
    format!(
        "warning: new kernels cannot be kept in {} ({error}), and are compiled at each start: {ADVICE}",
        file.display()
    )
}

/// Warning: `failed` of `all` entries of a bundle are not added to `file`.
pub fn not_copied(failed: usize, all: usize, bundle: &Path, file: &Path) -> String {
    format!(
        "warning: {failed} of {all} kernels in {} (--kernels) cannot be copied to {}, and those that are not \
         there are compiled at each start: {ADVICE}",
        bundle.display(),
        file.display()
    )
}

/// The origin of a bundle.
pub struct Made<'m> {
    /// The names of the GPUs.
    pub on: &'m [&'m str],
    /// The version of CubeCL.
    pub with: &'m str,
}

impl Made<'_> {
    /// Why `bundle` is not used on the GPU `device` with the version `version` of CubeCL; `None` if it is.
    pub fn misfit(&self, bundle: &Path, device: &str, version: &str) -> Option<String> {
        let other_device = (!self.on.contains(&device)).then(|| match self.on {
            [] => format!("it names no GPU, and this one is {device}"),
            on => format!("it is for {}, and this GPU is {device}", on.join(", ")),
        });
        let other_version = (self.with != version).then(|| {
            format!(
                "it is of CubeCL {}, and this program has {version}",
                self.with
            )
        });
        let why: Vec<String> = other_device.into_iter().chain(other_version).collect();
        (!why.is_empty()).then(|| {
            format!(
                "warning: {} (--kernels) is not used, and kernels are compiled here: {}; `compile` with this \
                 program on such a machine makes one that fits",
                bundle.display(),
                why.join("; ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_no_kernels_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/one/default.db");
        assert!(probe(&file).is_ok(), "missing");
        fs::write(&file, "kept").unwrap();
        assert!(probe(&file).is_ok());
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept", "unchanged");
        // Permissions do not bind the users that run tests in containers.
        let unwritable = folder.path().join("unwritable.db");
        fs::create_dir(&unwritable).unwrap();
        let error = probe(&unwritable).unwrap_err();
        let text = not_kept(&unwritable, &error);
        assert!(
            text.starts_with(&format!(
                "warning: new kernels cannot be kept in {} (",
                unwritable.display()
            )),
            "{text}"
        );
        assert!(
            text.ends_with("another folder with --kernel-cache"),
            "{text}"
        );
        assert!(
            probe(&file.join("default.db")).is_err(),
            "a file instead of the folder"
        );
    }

    /// As on a disk that may only be read.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_folder_that_takes_no_files_is_noticed() {
        assert!(probe(Path::new("/proc/default.db")).is_err());
    }

    #[test]
    fn kernels_that_are_not_copied_are_counted() {
        assert_eq!(
            not_copied(3, 31, Path::new("a.bundle"), Path::new("kept/default.db")),
            "warning: 3 of 31 kernels in a.bundle (--kernels) cannot be copied to kept/default.db, and those \
             that are not there are compiled at each start: make room there or allow to write there, or choose \
             another folder with --kernel-cache"
        );
    }

    #[test]
    fn a_bundle_of_another_gpu_or_version_is_told() {
        let misfit = |on: &[&str], with| {
            let made = Made { on, with };
            made.misfit(Path::new("a.bundle"), "H100 (ptx_sm_90)", "0.11.3")
        };
        let fits = ["A100 (ptx_sm_80)", "H100 (ptx_sm_90)"];
        assert_eq!(misfit(&fits, "0.11.3"), None);
        assert_eq!(
            misfit(&fits[..1], "0.11.3").unwrap(),
            "warning: a.bundle (--kernels) is not used, and kernels are compiled here: it is for A100 \
             (ptx_sm_80), and this GPU is H100 (ptx_sm_90); `compile` with this program on such a machine makes \
             one that fits"
        );
        assert_eq!(
            misfit(&fits, "0.11.2").unwrap(),
            "warning: a.bundle (--kernels) is not used, and kernels are compiled here: it is of CubeCL 0.11.2, \
             and this program has 0.11.3; `compile` with this program on such a machine makes one that fits"
        );
        let both = misfit(&["H100 (ptx_sm_80)"], "0.11.2").unwrap();
        assert!(
            both.contains("this GPU is H100 (ptx_sm_90); it is of CubeCL 0.11.2"),
            "{both}"
        );
        assert!(misfit(&[], "0.11.3").unwrap().contains("it names no GPU"));
    }
}
