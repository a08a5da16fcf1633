//! What `kiln update` and `kiln add` share: a project is rendered as it was made and as it should be, and
//! the difference is merged into it.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
};

use clap::Args;
use serde_json::json;

use super::output::{Format, note, print};
use crate::{
    display::slashed,
    error::{Error, Result},
    project::{
        check_way, git_command,
        merge::{Fate, Labels, MergedFile, Mine, merge},
        overlay::render_example,
        record::Record,
        todo::{SITES_FILE, parse_sites},
        transaction::{self, Transaction},
    },
    render::Rendered,
    template::{Template, answers::Answers, example::Example, history::Release, is_executable},
};

/// How a project is renewed.
#[derive(Debug, Args)]
pub struct RenewArgs {
    /// Print what would become of each file, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Also merge into files that were edited and that git does not have as they are.
    #[arg(long)]
    pub allow_dirty: bool,
    /// How to write what became of each file.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// A project that is renewed.
pub(crate) struct Project<'p> {
    folder: &'p Path,
    /// From before its record is read, so that nobody else renews it meanwhile; none in a dry run.
    transaction: Option<Transaction>,
}

impl<'p> Project<'p> {
    /// Locks the project in `folder`, unless it is a dry run.
    pub fn open(folder: &'p Path, args: &RenewArgs) -> Result<Self> {
        if !check_is_project(folder)? && args.dry_run {
            let message = format!("a stopped Kiln left `{}` half changed", folder.display());
            let help = "run the command without `--dry-run`: it undoes that first";
            return Err(Error::input(message).help(help));
        }
        let transaction = (!args.dry_run)
            .then(|| Transaction::begin(folder))
            .transpose()?;
        if transaction.as_ref().is_some_and(Transaction::has_undone) {
            note("note: what a stopped Kiln had left half done is undone");
        }
        Ok(Self {
            folder,
            transaction,
        })
    }
}

/// Refuses a folder that holds no project, before anything is written there; says whether the project is
/// whole.
fn check_is_project(folder: &Path) -> Result<bool> {
    let whole = !transaction::is_unfinished(folder);
    if whole {
        Record::read(folder)?;
    }
    Ok(whole)
}

/// What a project was made from, or would be made from.
pub(crate) struct Source {
    pub template: Template,
    /// Where it is one of Kiln's own.
    pub release: Option<Release>,
    /// What conflict markers call it.
    pub label: String,
}

impl Source {
    /// What the project of `record` was made from: the template in `folder`, or one that Kiln knows.
    pub fn of_record(record: &Record, folder: Option<&Path>) -> Result<Self> {
        match folder {
            Some(folder) => Self::of_folder(folder),
            None => Self::of_release(record.release()?),
        }
    }

    pub fn of_folder(folder: &Path) -> Result<Self> {
        let template = Template::from_folder(folder)?;
        template.check()?;
        Ok(Self {
            template,
            release: None,
            label: folder.display().to_string(),
        })
    }

    pub fn of_release(release: Release) -> Result<Self> {
        Ok(Self {
            template: release.template()?,
            release: Some(release),
            label: format!("Kiln {}", release.version()),
        })
    }

    /// Renders a project, that of an example where it was made from one.
    pub fn render(
        &self,
        example: Option<&str>,
        answers: &Answers,
        destination: &Path,
    ) -> Result<Rendered<'_>> {
        let example = example.map(|name| self.example(name)).transpose()?;
        render_example(&self.template, example.as_ref(), answers, destination)
    }

    fn example(&self, name: &str) -> Result<Example> {
        match &self.release {
            Some(release) => release.example(&self.template, name),
            None => Err(Error::input(format!(
                "the project was made from the example `{name}` of Kiln, and not from `{}`",
                self.label
            ))
            .help("leave `--from` and `--template` out")),
        }
    }
}

/// Merges the difference of two renderings into a project, and says what became of it.
///
/// # Errors
/// Something stands in the way, or was edited and is not in version control, or the file system fails.
pub(crate) fn renew(
    project: &mut Project<'_>,
    base: &Rendered<'_>,
    new: &Rendered<'_>,
    labels: Labels<'_>,
    args: &RenewArgs,
) -> Result<ExitCode> {
    let merged = merge(base, new, labels, |path| read(project.folder, path))?;
    if !args.allow_dirty {
        refuse_uncommitted(project.folder, &merged)?;
    }
    if let Some(transaction) = project.transaction.take() {
        let changes: Vec<_> = merged
            .iter()
            .filter_map(|file| file.change.clone())
            .collect();
        transaction.apply(&changes, &[])?;
    }
    match args.format {
        Format::Text => print(&report(&merged, &new_sites(base, new), args.dry_run))?,
        Format::Json => print(&format!("{}\n", json(&merged, args.dry_run)))?,
    }
    let left = merged.iter().any(|file| file.fate.needs_a_look());
    Ok(ExitCode::from(u8::from(left)))
}

/// A file of the project, which must be one that Kiln may write.
fn read(project: &Path, path: &Path) -> Result<Option<Mine>> {
    if !check_way(project, path, false)? {
        return Ok(None);
    }
    let place = project.join(path);
    let failed = |cause: io::Error| Error::io("read", &place, cause);
    Ok(Some(Mine {
        contents: fs::read(&place).map_err(failed)?,
        executable: is_executable(&fs::metadata(&place).map_err(failed)?),
    }))
}

/// Refuses to change a file that its user edited and that git does not have as it is. All others can be
/// rendered again.
fn refuse_uncommitted(project: &Path, merged: &[MergedFile]) -> Result<()> {
    let edited = merged
        .iter()
        .filter(|file| file.edited && file.change.is_some());
    let edited: Vec<&Path> = edited.map(|file| file.path.as_path()).collect();
    if edited.is_empty() {
        return Ok(());
    }
    let (files, why) = match uncommitted(project, &edited) {
        Some(files) if files.is_empty() => return Ok(()),
        Some(files) => (files, "git does not have your changes of"),
        None => (
            edited.iter().map(|path| path.to_path_buf()).collect(),
            "no git repository has your changes of",
        ),
    };
    let first: Vec<_> = files
        .iter()
        .take(3)
        .map(|path| format!("`{}`", slashed(path)))
        .collect();
    let more = match files.len().saturating_sub(first.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message = format!("{why} {}{more}, and merging changes them", first.join(", "));
    Err(Error::input(message).help(
        "commit them first, so that you can go back; or add `--allow-dirty`. Nothing was changed",
    ))
}

/// Those of the files that git has not, or not as they are; `None` outside of a repository.
fn uncommitted(project: &Path, files: &[&Path]) -> Option<Vec<PathBuf>> {
    // It compares none but those that it lists with an `H`: others can be hidden from it.
    let listed = git(project, &["ls-files", "-v", "-z", "--"], files)?;
    let listed: BTreeSet<&str> = listed
        .split('\0')
        .filter_map(|entry| entry.strip_prefix("H "))
        .collect();
    let unlisted = files
        .iter()
        .filter(|path| !listed.contains(slashed(path).as_str()));
    let unlisted: Vec<PathBuf> = unlisted.map(|path| path.to_path_buf()).collect();
    if !unlisted.is_empty() {
        return Some(unlisted);
    }
    let options = ["status", "--porcelain", "-z", "--no-renames", "--"];
    let status = git(project, &options, files)?;
    let changed = status.split('\0').filter_map(|entry| entry.get(3..));
    Some(changed.map(PathBuf::from).collect())
}

/// What git says of files in a folder; `None` where it fails.
fn git(folder: &Path, args: &[&str], files: &[&Path]) -> Option<String> {
    let output = git_command()
        .arg("--literal-pathspecs")
        .args(args)
        .args(files)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output();
    let output = output.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The sites that are new, with their files.
fn new_sites(base: &Rendered<'_>, new: &Rendered<'_>) -> Vec<(String, String)> {
    let sites = |rendered: &Rendered<'_>| {
        let text = rendered.get(SITES_FILE).unwrap_or_default();
        parse_sites(SITES_FILE, &String::from_utf8_lossy(text)).unwrap_or_default()
    };
    let known: BTreeSet<String> = sites(base).into_iter().map(|site| site.id).collect();
    let new = sites(new).into_iter();
    new.filter(|site| !known.contains(&site.id))
        .map(|site| (site.id, site.file))
        .collect()
}

/// What became, or would become, of a file, in a word and in a sentence.
fn words(fate: Fate) -> (&'static str, String) {
    let sentence = |text: &str| text.to_owned();
    match fate {
        Fate::Added => ("added", String::new()),
        Fate::Replaced => ("replaced", String::new()),
        Fate::Merged => ("merged", sentence("your changes and the template's")),
        Fate::Conflict(1) => ("conflict", sentence("1 place, marked <<<<<<< and >>>>>>>")),
        Fate::Conflict(count) => (
            "conflict",
            format!("{count} places, marked <<<<<<< and >>>>>>>"),
        ),
        Fate::Removed => ("removed", String::new()),
        Fate::Binary => (
            "conflict",
            sentence("no text, so yours stays; the template's differs"),
        ),
        Fate::Orphan => (
            "kept",
            sentence("the template has it no longer, and you changed it"),
        ),
        Fate::Absent => (
            "left out",
            sentence("the template changed it, and you removed it"),
        ),
    }
}

fn report(merged: &[MergedFile], sites: &[(String, String)], dry_run: bool) -> String {
    if merged.is_empty() {
        return "Nothing to change: the project has it all.\n".to_owned();
    }
    let width = merged
        .iter()
        .map(|file| slashed(&file.path).chars().count());
    let width = width.max().unwrap_or(0);
    let mut text = String::new();
    for file in merged {
        let (word, sentence) = words(file.fate);
        let path = slashed(&file.path);
        let line = format!("  {word:8}  {path:width$}  {sentence}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if !sites.is_empty() {
        text.push_str("\nNew sites for your task:\n");
    }
    for (id, file) in sites {
        let _ = writeln!(text, "  {id}  {file}");
    }
    let conflicts = merged
        .iter()
        .filter(|file| file.fate.needs_a_look())
        .count();
    text.push('\n');
    text.push_str(match (dry_run, conflicts) {
        (true, _) => "Nothing was changed: this is what would become of each file.\n",
        (false, 0) => {
            "Next:\n  cargo test    # the contract tests\n  git diff      # what changed\n"
        }
        (false, _) => {
            "Next: choose a side at every <<<<<<< and delete the markers, then run `cargo test`.\n"
        }
    });
    text
}

fn json(merged: &[MergedFile], dry_run: bool) -> serde_json::Value {
    let files: Vec<_> = merged
        .iter()
        .map(|file| {
            json!({
                "path": slashed(&file.path),
                "fate": match file.fate {
                    Fate::Conflict(_) => "conflict",
                    Fate::Binary => "binary",
                    fate => words(fate).0,
                },
                "conflicts": match file.fate {
                    Fate::Conflict(count) => count,
                    _ => 0,
                },
            })
        })
        .collect();
    json!({ "dry_run": dry_run, "files": files })
}
