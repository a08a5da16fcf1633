//! The common part of `kiln update` and `kiln add`: renders the merge base and the new project, and
//! merges the difference into the project's files.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use serde_json::json;

use super::output::{Format, note, print};
use crate::{
    display::slashed,
    error::{Error, Result},
    project::{
        check_way,
        engine::{ENGINE_FOLDER, with_untouched_engine},
        git,
        merge::{Fate, Labels, MergedFile, Mine, merge},
        overlay::render_example,
        record::Record,
        todo::{SITES_FILE, parse_sites},
        transaction::{self, Transaction},
    },
    render::Rendered,
    template::{Template, answers::Answers, example::Example, history::Release, is_executable},
};

/// Common arguments of `kiln update` and `kiln add`.
#[derive(Debug, Args)]
pub struct RenewArgs {
    /// Print the outcome for each file without changing any.
    #[arg(long)]
    pub dry_run: bool,
    /// Also merge into edited files whose changes are not committed to git.
    #[arg(long)]
    pub allow_dirty: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// Printed if the engine is merged rather than replaced as a whole.
const ENGINE_MERGED: &str =
    "  engine/ was edited (its hash differs from `.kiln.toml`): merging it file by file\n";

/// The project to change.
pub(crate) struct Project<'p> {
    folder: &'p Path,
    /// Begun before the record is read, to lock out concurrent runs; `None` in a dry run.
    transaction: Option<Transaction>,
}

impl<'p> Project<'p> {
    /// Locks the project in `folder`, unless in a dry run.
    pub fn open(folder: &'p Path, args: &RenewArgs) -> Result<Self> {
        if !check_is_project(folder)? && args.dry_run {
            let message = format!(
                "an interrupted run of Kiln left `{}` partially changed",
                folder.display()
            );
            let help =
                "run the command without `--dry-run`, which first rolls back the partial changes";
            return Err(Error::input(message).help(help));
        }
        let transaction = (!args.dry_run)
            .then(|| Transaction::begin(folder))
            .transpose()?;
        if transaction.as_ref().is_some_and(Transaction::has_undone) {
            note("note: rolled back the partial changes of an interrupted run");
        }
        Ok(Self {
            folder,
            transaction,
        })
    }
}

/// Refuses a folder without a project, before anything is written there. Returns false if a
/// transaction in the folder is unfinished.
fn check_is_project(folder: &Path) -> Result<bool> {
    let whole = !transaction::is_unfinished(folder);
    if whole {
        Record::read(folder)?;
    }
    Ok(whole)
}

/// The template of one side of a merge.
pub(crate) struct Source {
    pub template: Template,
    /// The release, if the template is Kiln's own.
    pub release: Option<Release>,
    /// The name in conflict markers.
    pub label: String,
}

impl Source {
    /// The template that the project of `record` was generated from: the one in `folder`, or that
    /// of a release.
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

    /// Renders a project, including its example, if any.
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
                "the project was generated from Kiln's example `{name}`, not from `{}`",
                self.label
            ))
            .help("remove `--from` and `--template`")),
        }
    }
}

/// Merges the difference of two renderings into a project and prints the outcome. An engine whose
/// hash matches `record` is replaced as a whole.
///
/// # Errors
/// A path is blocked, an edited file is not committed, or the file system fails.
pub(crate) fn renew(
    project: &mut Project<'_>,
    record: &Record,
    base: &Rendered<'_>,
    new: &Rendered<'_>,
    labels: Labels<'_>,
    args: &RenewArgs,
) -> Result<ExitCode> {
    let untouched = match &record.engine {
        Some(hash) => with_untouched_engine(base, new, project.folder, hash)?,
        None => None,
    };
    let start = untouched.as_ref().unwrap_or(base);
    let merged = merge(start, new, labels, |path| read(project.folder, path))?;
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
        Format::Text => {
            if record.engine.is_some() && untouched.is_none() && concerns_engine(&merged) {
                print(ENGINE_MERGED)?;
            }
            print(&report(&merged, &new_sites(base, new), args.dry_run))?;
        }
        Format::Json => print(&format!("{}\n", json(&merged, args.dry_run)))?,
    }
    let left = merged.iter().any(|file| file.fate.needs_a_look());
    Ok(ExitCode::from(u8::from(left)))
}

fn concerns_engine(merged: &[MergedFile]) -> bool {
    let mut files = merged.iter();
    files.any(|file| file.path.starts_with(ENGINE_FOLDER))
}

/// Reads a file of the project, which must be one that Kiln may write.
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

/// Refuses to change an edited file whose changes are not committed. Unedited files can be rendered again.
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
        Some(files) => (files, "your changes are not committed to git:"),
        None => (
            edited.iter().map(|path| path.to_path_buf()).collect(),
            "your changes are not in a git repository:",
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
    let message = format!(
        "{why} {}{more}, and merging would modify them",
        first.join(", ")
    );
    Err(Error::input(message).help(
        "commit them first, so that you can revert the merge, or add `--allow-dirty`; nothing was changed",
    ))
}

/// The files that are untracked or modified in git; `None` outside a repository.
fn uncommitted(project: &Path, files: &[&Path]) -> Option<Vec<PathBuf>> {
    // `git status` compares only files that `ls-files` lists as `H`; others can be hidden from it.
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

/// The new TODO sites with their files.
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

/// The outcome for a file, as a word and a sentence.
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
            sentence("binary: your version is kept; the template's differs"),
        ),
        Fate::Orphan => (
            "kept",
            sentence("removed from the template, but you changed the file"),
        ),
        Fate::Absent => (
            "left out",
            sentence("changed in the template, but you removed the file"),
        ),
    }
}

fn report(merged: &[MergedFile], sites: &[(String, String)], dry_run: bool) -> String {
    if merged.is_empty() {
        return "Nothing to change: the project is up to date.\n".to_owned();
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
        text.push_str("\nNew TODO sites:\n");
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
        (true, _) => "Dry run: nothing was changed.\n",
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
