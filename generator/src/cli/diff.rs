//! `kiln diff`: the differences between projects with different options.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anstream::{AutoStream, ColorChoice};
use clap::{ArgGroup, Args};
use diffy::{DiffOptions, PatchFormatter};
use serde::Serialize;

use super::{
    output::{Format, print, print_colored},
    source::{VersionArgs, choose},
};
use crate::{
    display::{self, counted, slashed},
    error::{Error, Result, nearest},
    name::Name,
    project::overlay::render_example,
    render::{Rendered, RenderedFile},
    template::{
        Reading, Template,
        answers::{Answers, Values},
        example::Example,
        values,
    },
};

/// The name of both projects.
const PROJECT: &str = "my-model";

/// Arguments of `kiln diff`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("sides").args(["define", "against"]).required(true).multiple(true))]
pub struct DiffArgs {
    /// Compare only these files, or the files in these folders of the project.
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Set an option on the side of the `+` lines; other options have their defaults.
    #[arg(short, long, value_name = "KEY=VALUE")]
    pub define: Vec<String>,
    /// Set an option on the side of the `-` lines; other options have their defaults.
    #[arg(short, long, value_name = "KEY=VALUE")]
    pub against: Vec<String>,
    /// Use the answers and files of a worked example on both sides.
    #[arg(long, value_name = "EXAMPLE")]
    pub example: Option<String>,
    /// Compare projects of this template instead of Kiln's own: a folder, a URL, or a favourite.
    #[arg(long, value_name = "TEMPLATE", conflicts_with = "example", value_parser = super::folder::PathParser)]
    pub template: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    // Last, as its heading would apply to all options after it.
    #[command(flatten)]
    pub version: VersionArgs,
}

/// Runs `kiln diff`.
///
/// # Errors
/// An option, the example or a file does not exist, or standard output fails.
pub(crate) fn run(args: &DiffArgs) -> Result<ExitCode> {
    let template = choose(
        args.template.as_deref(),
        &args.version,
        Reading::lenient(false),
    )?
    .template;
    let example = args.example.as_deref();
    let example = example
        .map(|name| Example::embedded(&template, name))
        .transpose()?;
    let answers = |defines: &[String]| answers(&template, example.as_ref(), defines);
    let (against, define) = (answers(&args.against)?, answers(&args.define)?);
    let render = |answers| render_example(&template, example.as_ref(), answers, Path::new(PROJECT));
    let (before, after) = (render(&against)?, render(&define)?);
    check_files(&args.files, &before, &after)?;
    let asked = |path: &Path| {
        args.files.is_empty() || args.files.iter().any(|file| path.starts_with(plain(file)))
    };
    let changes = changes(&before, &after).filter(|change| asked(change.path()));
    let report = Report {
        options: option_changes(&against, &define),
        files: changes.map(FileChange::of).collect(),
    };
    let colors = AutoStream::choice(&io::stdout()) != ColorChoice::Never;
    match args.format {
        Format::Text if colors => print_colored(&text(&report, &args.files, colors))?,
        Format::Text => print(&text(&report, &args.files, colors))?,
        Format::Json => print(&json(&report)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn answers(template: &Template, example: Option<&Example>, defines: &[String]) -> Result<Answers> {
    let given = values::read(template, None, defines)?;
    if let Some(example) = example.filter(|example| example.is_template()) {
        return Err(Error::input(format!(
            "the example `{}` is a template, not a project, and has no options",
            example.name()
        ))
        .help("remove `--example`, or choose another; `kiln examples` lists them"));
    }
    let mut values: Values = example.map(Example::values).cloned().unwrap_or_default();
    values.extend(given);
    Answers::complete(template, Name::parse(PROJECT)?, values)
}

/// Refuses a file or folder that is missing on both sides.
fn check_files(files: &[PathBuf], before: &Rendered<'_>, after: &Rendered<'_>) -> Result<()> {
    let sides = before.files.iter().chain(&after.files);
    let all: BTreeSet<&Path> = sides.map(|file| &*file.path).collect();
    for file in files {
        if !all.iter().any(|path| path.starts_with(plain(file))) {
            let given = file.display().to_string();
            let names = all.iter().filter_map(|path| path.to_str());
            let error = Error::input(format!("the project has no file or folder `{given}`"));
            return Err(match nearest(&given, names) {
                Some(near) => error.help(format!("did you mean `{near}`?")),
                None => error.help("`kiln new my-model --dry-run` lists its files"),
            });
        }
    }
    Ok(())
}

/// The path without a leading `./`.
fn plain(path: &Path) -> &Path {
    path.strip_prefix(".").unwrap_or(path)
}

/// A file that differs between two renderings.
#[derive(Clone, Copy)]
pub(super) enum Change<'r> {
    Added(&'r RenderedFile<'r>),
    Removed(&'r RenderedFile<'r>),
    Changed(&'r RenderedFile<'r>, &'r RenderedFile<'r>),
}

impl<'r> Change<'r> {
    pub fn path(&self) -> &'r Path {
        match self {
            Change::Added(file) | Change::Removed(file) | Change::Changed(file, _) => &file.path,
        }
    }
}

/// The files that differ, ordered by path.
pub(super) fn changes<'r>(
    before: &'r Rendered<'_>,
    after: &'r Rendered<'_>,
) -> impl Iterator<Item = Change<'r>> {
    let old: BTreeMap<&Path, &RenderedFile<'_>> =
        before.files.iter().map(|f| (&*f.path, f)).collect();
    let new: BTreeMap<&Path, &RenderedFile<'_>> =
        after.files.iter().map(|f| (&*f.path, f)).collect();
    let all: BTreeSet<&Path> = old.keys().chain(new.keys()).copied().collect();
    all.into_iter()
        .filter_map(move |path| match (old.get(path), new.get(path)) {
            (None, Some(new)) => Some(Change::Added(new)),
            (Some(old), None) => Some(Change::Removed(old)),
            (Some(old), Some(new)) if old != new => Some(Change::Changed(old, new)),
            _ => None,
        })
}

#[derive(Serialize)]
struct Report {
    options: Vec<OptionChange>,
    files: Vec<FileChange>,
}

#[derive(Serialize)]
struct OptionChange {
    name: String,
    against: String,
    define: String,
}

#[derive(Serialize)]
struct FileChange {
    path: String,
    change: &'static str,
    /// The file on each side, if it exists there.
    against: Option<Side>,
    define: Option<Side>,
    /// The unified diff, unless a side is binary.
    diff: Option<String>,
    #[serde(skip)]
    colored: Option<String>,
}

#[derive(Serialize)]
struct Side {
    bytes: usize,
    executable: bool,
}

impl FileChange {
    fn of(change: Change<'_>) -> Self {
        let (change_name, before, after) = match change {
            Change::Added(after) => ("added", None, Some(after)),
            Change::Removed(before) => ("removed", Some(before), None),
            Change::Changed(before, after) => ("changed", Some(before), Some(after)),
        };
        let path = slashed(change.path());
        let side = |file: &RenderedFile<'_>| Side {
            bytes: file.contents.len(),
            executable: file.executable,
        };
        let (diff, colored) = unified(&path, before, after).unzip();
        Self {
            path,
            change: change_name,
            against: before.map(side),
            define: after.map(side),
            diff,
            colored,
        }
    }

    /// A one-line summary of the change.
    fn headline(&self) -> String {
        let bytes = |side: &Side| counted(side.bytes, "byte");
        let mut text = format!("{} {}", self.change, self.path);
        match (&self.against, &self.define) {
            (Some(old), Some(new)) => {
                let _ = write!(text, " ({} -> {})", old.bytes, bytes(new));
                match (old.executable, new.executable) {
                    (false, true) => text.push_str(", now executable"),
                    (true, false) => text.push_str(", no longer executable"),
                    _ => {}
                }
            }
            (Some(side), None) | (None, Some(side)) => {
                let _ = write!(text, " ({})", bytes(side));
            }
            (None, None) => {}
        }
        if self.diff.is_none() {
            text.push_str(", binary");
        }
        text
    }
}

/// The unified diff of two texts, plain and coloured; `None` if one of them is binary.
fn unified(
    path: &str,
    before: Option<&RenderedFile<'_>>,
    after: Option<&RenderedFile<'_>>,
) -> Option<(String, String)> {
    let (old, new) = (as_text(before)?, as_text(after)?);
    if old == new {
        return Some((String::new(), String::new()));
    }
    let name = |side: &str, file: Option<_>| match file {
        Some(_) => format!("{side}/{path}"),
        None => "/dev/null".to_owned(),
    };
    let mut options = DiffOptions::new();
    options.set_original_filename(name("a", before));
    options.set_modified_filename(name("b", after));
    let patch = options.create_patch(old, new);
    let formatter = || PatchFormatter::new().suppress_blank_empty(false);
    Some((
        formatter().fmt_patch(&patch).to_string(),
        formatter().with_color().fmt_patch(&patch).to_string(),
    ))
}

/// The text of a file; empty if it is missing.
fn as_text<'f>(file: Option<&'f RenderedFile<'_>>) -> Option<&'f str> {
    let bytes = file.map_or(&b""[..], |file| &file.contents);
    str::from_utf8(bytes)
        .ok()
        .filter(|text| !text.contains('\0'))
}

fn option_changes(against: &Answers, define: &Answers) -> Vec<OptionChange> {
    let both = against.values().zip(define.values());
    both.filter(|((_, old), (_, new))| old != new)
        .map(|((name, old), (_, new))| OptionChange {
            name: name.to_owned(),
            against: old.to_string(),
            define: new.to_string(),
        })
        .collect()
}

fn json(report: &Report) -> Result<String> {
    let mut text = serde_json::to_string_pretty(report)
        .map_err(|error| Error::system(format!("cannot write JSON: {error}")))?;
    text.push('\n');
    Ok(text)
}

/// The differences as text; `patch` and git skip the headline of each file.
fn text(report: &Report, files: &[PathBuf], colors: bool) -> String {
    let mut text = String::new();
    for option in &report.options {
        let OptionChange {
            name,
            against,
            define,
        } = option;
        let _ = writeln!(text, "{name}: {against:?} -> {define:?}");
    }
    if report.files.is_empty() {
        let names = files.iter().map(|file| file.display().to_string());
        let names: Vec<_> = names.collect();
        let place = if names.is_empty() {
            String::new()
        } else {
            format!(" in {}", names.join(", "))
        };
        let _ = writeln!(text, "Nothing differs{place}.");
        return text;
    }
    let _ = writeln!(text, "{}.", counts(&report.files));
    for file in &report.files {
        let _ = writeln!(text, "\n{}", file.headline());
        let diff = if colors { &file.colored } else { &file.diff };
        text.push_str(diff.as_deref().unwrap_or_default());
    }
    text
}

/// The number of files changed, added and removed.
fn counts(files: &[FileChange]) -> String {
    let count = |change: &str| files.iter().filter(|file| file.change == change).count();
    let counts = ["changed", "added", "removed"]
        .map(|change| (change, count(change)))
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(change, count)| format!("{} {change}", display::files(count)));
    counts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn project(files: &[(&str, &'static [u8], bool)]) -> Rendered<'static> {
        let file = |(path, contents, executable): &(&str, &'static [u8], bool)| RenderedFile {
            path: PathBuf::from(path),
            contents: Cow::Borrowed(*contents),
            executable: *executable,
        };
        Rendered {
            files: files.iter().map(file).collect(),
            folders: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn told(before: &Rendered<'_>, after: &Rendered<'_>) -> String {
        let report = Report {
            options: Vec::new(),
            files: changes(before, after).map(FileChange::of).collect(),
        };
        text(&report, &[], false)
    }

    #[test]
    fn binary_files_are_sizes() {
        let before = project(&[
            ("a", b"\xff", false),
            ("b", b"x\n", false),
            ("c", b"\0", false),
        ]);
        let after = project(&[("a", b"\xff\xff", false), ("b", b"\0x\n", false)]);
        assert_eq!(
            told(&before, &after),
            "2 files changed, 1 file removed.\n\n\
             changed a (1 -> 2 bytes), binary\n\n\
             changed b (2 -> 3 bytes), binary\n\n\
             removed c (1 byte), binary\n"
        );
    }

    #[test]
    fn a_permission_is_a_difference() {
        let (plain, tool) = (
            project(&[("a", b"x", false)]),
            project(&[("a", b"x", true)]),
        );
        let change = "1 file changed.\n\nchanged a (1 -> 1 byte)";
        assert_eq!(told(&plain, &tool), format!("{change}, now executable\n"));
        assert_eq!(
            told(&tool, &plain),
            format!("{change}, no longer executable\n")
        );
        assert_eq!(told(&tool, &tool), "Nothing differs.\n");
    }

    #[test]
    fn a_missing_end_of_line_is_a_difference() {
        let (without, with) = (
            project(&[("a", b"x", false)]),
            project(&[("a", b"x\n", false)]),
        );
        assert!(
            told(&without, &with)
                .ends_with("--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+x\n")
        );
    }
}
