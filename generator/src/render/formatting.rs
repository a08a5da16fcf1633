//! Formatting of the Rust files of a project with rustfmt, as cargo-generate does: files of a cargo
//! package, with its edition, whether rendered or copied, and with the `rustfmt.toml` that applies
//! in their folder.
//!
//! The files are written to a temporary folder, and one process for each edition formats them there.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use super::{Rendered, RenderedFile, warning::Warning};
use crate::{
    display::slashed,
    error::{Error, Result},
};

/// The program that formats; `$PATH` finds it, as for cargo-generate.
const RUSTFMT: &str = "rustfmt";
/// The names of rustfmt's configuration; the first wins.
const CONFIGS: [&str; 2] = [".rustfmt.toml", "rustfmt.toml"];
/// Cargo's edition of a package that states none.
const DEFAULT_EDITION: &str = "2015";
const MANIFEST: &str = "Cargo.toml";
/// The folder of the project in the temporary folder, which stands for its parent.
const PROJECT: &str = "project";

const UNFORMATTED: &str = "the Rust files are not formatted: install rustfmt (`rustup component add \
    rustfmt`), or set `fmt = false` in `[template]` of `cargo-generate.toml`";
const REFUSED: &str = "rustfmt leaves such a file as it is; correct it, or set `fmt = false` in \
    `[template]` of `cargo-generate.toml`";

/// Formats the Rust files of a project for the folder `destination`. If rustfmt is missing or fails,
/// files stay as they are, with a warning.
///
/// # Errors
/// The temporary folder cannot be written or read.
pub(super) fn format(rendered: &mut Rendered<'_>, destination: &Path) -> Result<()> {
    let editions = by_edition(&rendered.files, destination);
    if editions.is_empty() {
        return Ok(());
    }
    let place = TempDir::new()
        .map_err(|cause| Error::io("create a folder in", &std::env::temp_dir(), cause))?;
    let project = place.path().join(PROJECT);
    copy_config_above(destination, place.path())?;
    write(&rendered.files, &editions, &project)?;
    for (edition, files) in &editions {
        let paths = files
            .iter()
            .map(|at| project.join(&rendered.files[*at].path));
        let warnings = run(edition, paths.collect(), &project);
        rendered.warnings.extend(warnings);
    }
    for at in editions.into_values().flatten() {
        let file = &mut rendered.files[at];
        let path = project.join(&file.path);
        let formatted = fs::read(&path).map_err(|cause| Error::io("read", &path, cause))?;
        if *file.contents != *formatted {
            file.contents = Cow::Owned(formatted);
        }
    }
    Ok(())
}

/// The positions of the files to format by their edition.
fn by_edition(files: &[RenderedFile<'_>], destination: &Path) -> BTreeMap<String, Vec<usize>> {
    let mut editions: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let manifests = Manifests { files, destination };
    for (at, file) in files.iter().enumerate() {
        // rustfmt stops at a file that is not UTF-8, and leaves those after it.
        if file.path.extension() == Some(OsStr::new("rs"))
            && str::from_utf8(&file.contents).is_ok()
            && let Some(edition) = manifests.edition(&file.path)
        {
            editions.entry(edition).or_default().push(at);
        }
    }
    editions
}

/// The manifests of a project, and of the folders above it.
struct Manifests<'f, 't> {
    files: &'f [RenderedFile<'t>],
    destination: &'f Path,
}

impl Manifests<'_, '_> {
    /// The edition of a file, or `None` outside a cargo package.
    fn edition(&self, file: &Path) -> Option<String> {
        let inside = file.ancestors().skip(1).map(|folder| self.rendered(folder));
        let above = self.destination.ancestors().skip(1);
        let above = above.map(|folder| fs::read_to_string(folder.join(MANIFEST)).ok());
        let mut inherited = false;
        for text in inside.chain(above).flatten() {
            let Ok(manifest) = toml::from_str::<toml::Table>(&text) else {
                continue;
            };
            let of_workspace = manifest
                .get("workspace")
                .and_then(|workspace| workspace.get("package")?.get("edition")?.as_str())
                .map(str::to_owned);
            let package = manifest.get("package").filter(|_| !inherited);
            match package.map(|package| package.get("edition")) {
                Some(Some(toml::Value::String(edition))) => return Some(edition.clone()),
                // `edition.workspace = true`, which cargo-generate looks up above, not in the same manifest.
                Some(Some(_)) => inherited = true,
                Some(None) => return Some(DEFAULT_EDITION.to_owned()),
                None if of_workspace.is_some() => return of_workspace,
                None => {}
            }
        }
        None
    }

    fn rendered(&self, folder: &Path) -> Option<String> {
        let path = folder.join(MANIFEST);
        let at = self.files.binary_search_by(|file| file.path.cmp(&path));
        let text = str::from_utf8(&self.files[at.ok()?].contents);
        Some(text.ok()?.to_owned())
    }
}

/// Copies the configuration that rustfmt would find above the project.
fn copy_config_above(destination: &Path, place: &Path) -> Result<()> {
    let mut above = destination.ancestors().skip(1);
    let found = above.find_map(|folder| {
        let mut configs = CONFIGS.iter().map(|name| folder.join(name));
        configs.find(|path| path.is_file())
    });
    let Some(found) = found else {
        return Ok(());
    };
    let copy = place.join(CONFIGS[1]);
    let copied = fs::read(&found).and_then(|text| fs::write(&copy, text));
    copied.map_err(|cause| Error::io("copy", &found, cause))
}

/// Writes the files to format, and the configurations of rustfmt.
fn write(
    files: &[RenderedFile<'_>],
    editions: &BTreeMap<String, Vec<usize>>,
    project: &Path,
) -> Result<()> {
    let configs = files.iter().filter(|file| {
        let name = file.path.file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| CONFIGS.contains(&name))
    });
    let formatted = editions.values().flatten().map(|at| &files[*at]);
    for file in configs.chain(formatted) {
        let path = project.join(&file.path);
        let folder = path.parent().unwrap_or(project);
        let written = fs::create_dir_all(folder).and_then(|()| fs::write(&path, &file.contents));
        written.map_err(|cause| Error::io("write", &path, cause))?;
    }
    Ok(())
}

/// Formats files in place; `skip_children` keeps rustfmt from following `mod` declarations.
fn run(edition: &str, files: Vec<PathBuf>, project: &Path) -> Vec<Warning> {
    let output = Command::new(RUSTFMT)
        .args(["--edition", edition, "--config", "skip_children=true"])
        .args(files)
        .output();
    match output {
        Ok(output) if output.status.success() => Vec::new(),
        Ok(output) => warnings(&String::from_utf8_lossy(&output.stderr), project),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            vec![Warning::new(RUSTFMT, "not found".to_owned(), UNFORMATTED)]
        }
        Err(cause) => vec![Warning::new(RUSTFMT, cause.to_string(), UNFORMATTED)],
    }
}

/// Warnings from rustfmt's output: the first error of each file, or else the first line.
fn warnings(stderr: &str, project: &Path) -> Vec<Warning> {
    let prefix = format!("{}{}", project.display(), std::path::MAIN_SEPARATOR);
    let mut warnings: Vec<Warning> = Vec::new();
    let mut error = None;
    for line in stderr.lines() {
        if line.starts_with("error") {
            error = Some(line.split_once(": ").map_or(line, |(_, why)| why));
        }
        let place = line.trim_start().strip_prefix("--> ");
        let Some((why, place)) = error.zip(place.and_then(|it| it.strip_prefix(&*prefix))) else {
            continue;
        };
        error = None;
        let mut parts = place.rsplitn(3, ':');
        let (column, row, file) = (parts.next(), parts.next(), parts.next());
        let number = |part: Option<&str>| part.and_then(|part| part.parse().ok()).unwrap_or(1);
        let file = slashed(Path::new(file.unwrap_or(place)));
        if warnings.iter().all(|one| one.file() != file) {
            let warning = Warning::new(&file, format!("rustfmt: {why}"), REFUSED);
            warnings.push(warning.at_line(number(row), number(column)));
        }
    }
    if warnings.is_empty() {
        let mut lines = stderr.lines().map(str::trim);
        let said = lines.find(|line| !line.is_empty() && !line.starts_with("Warning:"));
        let said = said.unwrap_or("failed without a reason").to_owned();
        warnings.push(Warning::new(RUSTFMT, said, UNFORMATTED));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(all: &[(&str, &str)]) -> Vec<RenderedFile<'static>> {
        let file = |(path, text): &(&str, &str)| RenderedFile {
            path: PathBuf::from(path),
            contents: Cow::Owned(text.as_bytes().to_vec()),
            executable: false,
        };
        let mut files: Vec<_> = all.iter().map(file).collect();
        files.sort_by(|one, other| one.path.cmp(&other.path));
        files
    }

    fn package(edition: &str) -> String {
        format!("[package]\nname = \"p\"\n{edition}\n")
    }

    #[test]
    fn the_edition_of_a_file() {
        let above = tempfile::tempdir().unwrap();
        let destination = above.path().join("p");
        let edition = |all: &[(&str, &str)], file: &str| {
            let files = files(all);
            let manifests = Manifests {
                files: &files,
                destination: &destination,
            };
            manifests.edition(Path::new(file))
        };
        let (plain, inherits) = (
            package("edition = \"2021\""),
            package("edition.workspace = true"),
        );
        let root = "[workspace]\npackage.edition = \"2024\"\n";
        let none = package("");
        let found = |edition: &str| Some(edition.to_owned());
        assert_eq!(edition(&[], "a.rs"), None);
        assert_eq!(edition(&[("Cargo.toml", "= no")], "a.rs"), None);
        assert_eq!(
            edition(&[("Cargo.toml", &plain)], "src/a.rs"),
            found("2021")
        );
        assert_eq!(edition(&[("Cargo.toml", &none)], "src/a.rs"), found("2015"));
        assert_eq!(edition(&[("Cargo.toml", "[workspace]")], "src/a.rs"), None);
        let nested = [
            ("Cargo.toml", root),
            ("m/Cargo.toml", &inherits),
            ("n/Cargo.toml", &plain),
        ];
        assert_eq!(edition(&nested, "m/src/a.rs"), found("2024"));
        assert_eq!(edition(&nested, "n/src/a.rs"), found("2021"));
        assert_eq!(edition(&nested, "build.rs"), found("2024"));
        // Only the destination's parents are read from the disk.
        fs::create_dir_all(&destination).unwrap();
        fs::write(destination.join("Cargo.toml"), plain).unwrap();
        assert_eq!(edition(&[], "a.rs"), None);
        fs::write(above.path().join("Cargo.toml"), root).unwrap();
        assert_eq!(edition(&[("Cargo.toml", &inherits)], "a.rs"), found("2024"));
    }

    #[test]
    fn the_first_error_of_each_file() {
        let project = Path::new("/t/project");
        let said = "Warning: can't set `x`\nerror[E1]: unclosed\n --> /t/project/src/a.rs:2:7\n  |\n\
                    error: expected `:`\n   --> /t/project/src/a.rs:3:1\n\
                    error: expected item\n --> /t/project/b.rs:1:1\n";
        let said: Vec<_> = warnings(said, project)
            .iter()
            .map(Warning::to_string)
            .collect();
        assert_eq!(
            said,
            [
                "src/a.rs:2:7: rustfmt: unclosed",
                "b.rs:1:1: rustfmt: expected item"
            ]
        );
        let said = warnings("\nWarning: x\nCould not parse TOML\nmore", project);
        assert_eq!(said[0].to_string(), "rustfmt: Could not parse TOML");
        assert_eq!(warnings("", project).len(), 1);
    }
}
