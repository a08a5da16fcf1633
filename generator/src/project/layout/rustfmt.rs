//! The user's rustfmt and its configuration.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use toml_edit::DocumentMut;

use super::modules::{alone, rejoined};

/// The least number of files for which another process is worth its start.
const SHARE: usize = 8;
/// The edition of a file outside any package.
const EDITION: &str = "2024";

/// Edition and configuration with which the user formats a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Style {
    /// The configuration file, if any.
    pub config: Option<PathBuf>,
    edition: String,
}

impl Style {
    /// The style of a file of the project, from the nearest configuration and manifest.
    pub fn of(project: &Path, file: &Path) -> Self {
        let place = project.join(file);
        let place = std::path::absolute(&place).unwrap_or(place);
        let mut folders = place.ancestors().skip(1);
        let config = folders.find_map(|folder| {
            let names = [".rustfmt.toml", "rustfmt.toml"].map(|name| folder.join(name));
            names.into_iter().find(|path| path.is_file())
        });
        Self {
            config,
            edition: edition(&place).unwrap_or_else(|| EDITION.to_owned()),
        }
    }
}

/// The edition that `cargo fmt` passes on.
fn edition(file: &Path) -> Option<String> {
    let mut inherited = false;
    for folder in file.ancestors().skip(1) {
        let Ok(text) = fs::read_to_string(folder.join("Cargo.toml")) else {
            continue;
        };
        let manifest: DocumentMut = text.parse().ok()?;
        let package = if inherited {
            manifest.get("workspace").and_then(|it| it.get("package"))
        } else {
            manifest.get("package")
        };
        match package.map(|package| package.get("edition")) {
            Some(Some(edition)) if edition.is_str() => return edition.as_str().map(str::to_owned),
            Some(Some(_)) => inherited = true,
            // Cargo's default.
            Some(None) if !inherited => return Some("2015".to_owned()),
            _ => {}
        }
    }
    None
}

/// Formats texts, each in its style; `None` for a text that rustfmt refuses. The second value tells
/// whether rustfmt could be run.
pub(super) fn format(project: &Path, texts: &[(&Style, &str)]) -> (Vec<Option<String>>, bool) {
    let mut formatted = vec![None; texts.len()];
    let mut by_style: BTreeMap<&Style, Vec<usize>> = BTreeMap::new();
    for (at, (style, _)) in texts.iter().enumerate() {
        by_style.entry(style).or_default().push(at);
    }
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let shares: Vec<(&Style, &[usize])> = by_style
        .iter()
        .flat_map(|(style, all)| {
            let share = all.len().div_ceil(processors).max(SHARE);
            all.chunks(share).map(|share| (*style, share))
        })
        .collect();
    let run = |(style, share): &(&Style, &[usize])| {
        let texts: Vec<&str> = share.iter().map(|at| texts[*at].1).collect();
        Share { project, style }.format(&texts)
    };
    let results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = shares
            .iter()
            .map(|share| scope.spawn(|| run(share)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().ok().flatten())
            .collect()
    });
    let runs = results.iter().all(Option::is_some);
    for ((_, share), result) in shares.iter().zip(results) {
        for (at, text) in share.iter().zip(result.into_iter().flatten()) {
            formatted[*at] = text;
        }
    }
    (formatted, runs)
}

/// Files for one process.
struct Share<'s> {
    project: &'s Path,
    style: &'s Style,
}

impl Share<'_> {
    /// Formats texts; `None` if rustfmt cannot be run.
    fn format(&self, texts: &[&str]) -> Option<Vec<Option<String>>> {
        let folder = tempfile::tempdir().ok()?;
        let mut files = Vec::new();
        for (at, text) in texts.iter().enumerate() {
            let path = folder.path().join(format!("{at}.rs"));
            let text = alone(text);
            if let Some(text) = &text {
                fs::write(&path, text).ok()?;
            }
            files.push(text.map(|_| path));
        }
        let paths: Vec<&PathBuf> = files.iter().flatten().collect();
        // A text that is refused would look formatted.
        let all = self.run(&paths)?;
        let mut formatted = Vec::new();
        for path in &files {
            formatted.push(match path {
                Some(path) if all || self.run(&[path])? => fs::read_to_string(path)
                    .ok()
                    .and_then(|text| rejoined(&text.replace("\r\n", "\n"))),
                _ => None,
            });
        }
        Some(formatted)
    }

    /// Formats files in place; whether none was refused. `None` if rustfmt cannot be run.
    fn run(&self, files: &[&PathBuf]) -> Option<bool> {
        if files.is_empty() {
            return Some(true);
        }
        let program = env::var_os("RUSTFMT").unwrap_or_else(|| OsString::from("rustfmt"));
        let mut rustfmt = Command::new(program);
        rustfmt.args(["--edition", &self.style.edition]);
        if let Some(config) = &self.style.config {
            rustfmt.arg("--config-path").arg(config);
        }
        // The project's folder has the choice of the toolchain.
        rustfmt.args(files).current_dir(self.project);
        rustfmt
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Some(rustfmt.status().ok()?.success())
    }
}
