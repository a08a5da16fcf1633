//! The common part of `kiln update` and `kiln add`: renders the merge base and the new project, and
//! merges the difference into the project's files.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use super::{
    folder,
    merged::{Outcome, json, report},
    output::{Format, note, print},
    source::Repositories,
    warnings::warn,
};
use crate::{
    display::slashed,
    error::{Error, Result},
    project::{
        Git, ask_git,
        engine::{ENGINE_FOLDER, with_untouched_engine},
        git,
        merge::{Labels, MergedFile},
        origin::{Origin, recorded},
        overlay::render_example,
        patches,
        pending::{self, Pending},
        record::{RECORD_FILE, Record},
        renewal::{merge_project, refuse_markers},
        todo::{SITES_FILE, parse_sites},
        transaction::{self, Change, Transaction},
    },
    render::Rendered,
    template::{Reading, Template, answers::Answers, example::Example, history::Release},
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
    /// Render your own template without its hooks: the scripts that cargo-generate would run
    #[arg(long)]
    pub skip_hooks: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// Printed if the engine is merged rather than replaced as a whole.
const ENGINE_MERGED: &str =
    "  engine/ was edited (its hash differs from `.kiln.toml`): merging it file by file\n";

/// Printed if there are files to format.
const NO_RUSTFMT: &str = "note: `rustfmt` cannot be run, so changes of the template are not \
    formatted as your files, and formatting may conflict; install it by `rustup component add rustfmt`";

/// The project to change.
pub(crate) struct Project<'p> {
    folder: &'p Path,
    /// Begun before the record is read, to lock out concurrent runs; `None` in a dry run.
    transaction: Option<Transaction>,
}

impl<'p> Project<'p> {
    /// Locks the project in `folder`, unless in a dry run.
    ///
    /// # Errors
    /// The folder has no project or one with an update that is not ended, or another process
    /// changes it.
    pub fn open(folder: &'p Path, args: &RenewArgs) -> Result<Self> {
        let project = Self::lock(folder, args.dry_run)?;
        if let Some(pending) = Pending::read(folder)? {
            if !args.dry_run {
                mark(&pending, folder);
            }
            return Err(pending.error(folder, &pending.markers(folder)));
        }
        Ok(project)
    }

    /// Locks the project in `folder`, even if an update is not ended.
    ///
    /// # Errors
    /// The folder has no project, or another process changes it.
    pub fn lock(folder: &'p Path, dry_run: bool) -> Result<Self> {
        if !check_is_project(folder)? && dry_run {
            let message = format!(
                "an interrupted run of Kiln left `{}` partially changed",
                folder.display()
            );
            let help =
                "run the command without `--dry-run`, which first rolls back the partial changes";
            return Err(Error::input(message).help(help));
        }
        let transaction = (!dry_run).then(|| Transaction::begin(folder)).transpose()?;
        if transaction.as_ref().is_some_and(Transaction::has_undone) {
            note("note: rolled back the partial changes of an interrupted run");
        }
        if transaction.is_some() {
            pending::sweep(folder)?;
            patches::sweep(folder);
        }
        Ok(Self {
            folder,
            transaction,
        })
    }

    /// The lock; `None` in a dry run.
    pub fn into_transaction(self) -> Option<Transaction> {
        self.transaction
    }
}

/// Writes conflicts into Git's index, unless that was done.
pub(crate) fn mark(pending: &Pending, folder: &Path) {
    if let Err(complaint) = pending.mark(folder) {
        note(&format!(
            "note: Git does not show the conflicts, as it cannot write its index: {complaint}"
        ));
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
    /// The commit of the template, if it is in a Git repository.
    pub origin: Option<Origin>,
    /// The name in conflict markers.
    pub label: String,
}

impl Source {
    /// The template that the project of `record` was generated from: the one in `folder`, of a
    /// commit, or that of a release.
    pub fn of_record(record: &Record, folder: Option<&Path>, skip_hooks: bool) -> Result<Self> {
        match (folder, &record.origin) {
            // The files are those of the folder, but the project keeps its repository.
            (Some(folder), origin) => Ok(Self {
                origin: origin.clone(),
                ..Self::of_folder(folder, skip_hooks)?
            }),
            (None, Some(origin)) => {
                let template = Repositories::of(Reading::lenient(skip_hooks)).at(origin)?;
                Ok(Self::of_git(template, origin.clone()))
            }
            (None, None) => Self::of_release(record.release()?),
        }
    }

    pub fn of_git(template: Template, origin: Origin) -> Self {
        Self {
            template,
            release: None,
            label: origin.label(),
            origin: Some(origin),
        }
    }

    pub fn of_folder(folder: &Path, skip_hooks: bool) -> Result<Self> {
        Ok(Self {
            template: folder::template(folder, Reading::lenient(skip_hooks))?,
            release: None,
            origin: None,
            label: folder.display().to_string(),
        })
    }

    pub fn of_release(release: Release) -> Result<Self> {
        Ok(Self {
            template: release.template()?,
            release: Some(release),
            origin: None,
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
        let mut rendered = render_example(&self.template, example.as_ref(), answers, destination)?;
        if let Some(origin) = &self.origin {
            recorded::stamp(&mut rendered, answers, origin)?;
        }
        Ok(rendered)
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
/// hash matches `record` is replaced as a whole. Messages name the change `command`.
///
/// # Errors
/// A path is blocked, an edited file is not committed, conflicts are left from before, or the file
/// system fails.
pub(crate) fn renew(
    project: &mut Project<'_>,
    record: &Record,
    (base, new): (&Rendered<'_>, &Rendered<'_>),
    labels: Labels<'_>,
    command: String,
    args: &RenewArgs,
) -> Result<ExitCode> {
    warn(&new.warnings);
    refuse_markers(project.folder, base, new)?;
    refuse_sparse(project.folder, base, new)?;
    let untouched = match &record.engine {
        Some(hash) => with_untouched_engine(base, new, project.folder, hash)?,
        None => None,
    };
    let start = untouched.as_ref().unwrap_or(base);
    let (merged, unstyled) = merge_project(project.folder, start, new, labels)?;
    if unstyled {
        note(NO_RUSTFMT);
    }
    if !args.allow_dirty {
        refuse_uncommitted(project.folder, &merged)?;
    }
    if let Some(transaction) = project.transaction.take()
        && !merged.is_empty()
    {
        refuse_unmerged(project.folder)?;
        let pending = Pending::of(command, project.folder, &merged, start, new);
        write(transaction, &merged, pending.as_ref())?;
        if let Some(pending) = pending {
            mark(&pending, project.folder);
        }
    }
    match args.format {
        Format::Text => {
            if record.engine.is_some() && untouched.is_none() && is_engine_edited(&merged) {
                print(ENGINE_MERGED)?;
            }
            print(&report(&Outcome {
                merged: &merged,
                sites: &new_sites(base, new),
                project: project.folder,
                dry_run: args.dry_run,
            }))?;
        }
        Format::Json => print(&format!("{}\n", json(&merged, args.dry_run)))?,
    }
    let left = merged.iter().any(|file| file.fate.needs_a_look());
    let left = left || !patches::left(project.folder).is_empty();
    Ok(ExitCode::from(u8::from(left)))
}

/// Writes all changes. The record is written last: while it is the old one, an update merges what
/// is missing.
fn write(transaction: Transaction, merged: &[MergedFile], pending: Option<&Pending>) -> Result<()> {
    let changes = merged.iter().flat_map(MergedFile::changes);
    let mut changes: Vec<Change> = changes.cloned().collect();
    changes.sort_by_key(|change| change.path == Path::new(RECORD_FILE));
    if let Some(pending) = pending {
        let mut saved = pending.saved(&changes)?;
        saved.append(&mut changes);
        changes = saved;
    }
    transaction.apply(&changes, &[])
}

/// Refuses a project in the middle of a merge of Git's.
fn refuse_unmerged(project: &Path) -> Result<()> {
    let unmerged = git::unmerged(project);
    let Some(first) = unmerged.first() else {
        return Ok(());
    };
    let message = format!("Git lists unmerged files, such as `{}`", slashed(first));
    Err(Error::unresolved(message)
        .help("resolve them and `git add` them, or abort the merge; nothing was changed"))
}

/// Whether the changes concern an engine that was not only laid out in another way.
fn is_engine_edited(merged: &[MergedFile]) -> bool {
    let engine = |file: &&MergedFile| file.path.starts_with(ENGINE_FOLDER);
    let is_edited = |file: &MergedFile| file.edited && !file.layout_only;
    let mut files = merged.iter().filter(engine);
    let is_laid_out = files.clone().any(|file| file.layout_only);
    files.clone().next().is_some() && (files.any(is_edited) || !is_laid_out)
}

/// Refuses to change an edited file whose changes are not committed. Unedited files can be rendered again.
fn refuse_uncommitted(project: &Path, merged: &[MergedFile]) -> Result<()> {
    let edited = merged
        .iter()
        .filter(|file| file.edited && file.change.is_some());
    let edited: Vec<&Path> = edited.map(MergedFile::was_at).collect();
    if edited.is_empty() {
        return Ok(());
    }
    let all = || edited.iter().map(|path| path.to_path_buf()).collect();
    let (files, why) = match uncommitted(project, &edited) {
        Ok(files) if files.is_empty() => return Ok(()),
        Ok(files) => (files, "your changes are not committed to git:".to_owned()),
        Err(Git::Refused(said)) => (
            all(),
            format!("git cannot tell whether your changes are committed ({said}):"),
        ),
        Err(_) => (
            all(),
            "your changes are not in a git repository:".to_owned(),
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

/// The files that are untracked or modified in git; or what git answers instead.
fn uncommitted(project: &Path, files: &[&Path]) -> std::result::Result<Vec<PathBuf>, Git> {
    let mut found = Vec::new();
    for (repository, files) in git::by_repository(project, files) {
        let changed = uncommitted_in(&project.join(repository), &files)?;
        found.extend(changed.into_iter().map(|file| repository.join(file)));
    }
    Ok(found)
}

/// As [`uncommitted`], for files of one repository.
fn uncommitted_in(folder: &Path, files: &[&Path]) -> std::result::Result<Vec<PathBuf>, Git> {
    // `git status` compares only files that `ls-files` lists as `H`; others can be hidden from it.
    let listed = ask_git(folder, &["ls-files", "-v", "-z", "--"], files).output()?;
    let listed: BTreeSet<&str> = listed
        .split('\0')
        .filter_map(|entry| entry.strip_prefix("H "))
        .collect();
    let unlisted = files
        .iter()
        .filter(|path| !listed.contains(slashed(path).as_str()));
    let unlisted: Vec<PathBuf> = unlisted.map(|path| path.to_path_buf()).collect();
    if !unlisted.is_empty() {
        return Ok(unlisted);
    }
    let options = ["status", "--porcelain", "-z", "--no-renames", "--"];
    let status = ask_git(folder, &options, files).output()?;
    let changed = status.split('\0').filter_map(|entry| entry.get(3..));
    Ok(changed.map(PathBuf::from).collect())
}

/// Refuses a sparse checkout without a file that the template changes: it is not removed, but its
/// change could not be merged.
fn refuse_sparse(project: &Path, base: &Rendered<'_>, new: &Rendered<'_>) -> Result<()> {
    let is_missing = |path: &Path| project.join(path).symlink_metadata().is_err();
    let changed = base
        .files
        .iter()
        .filter(|file| new.get(&file.path) != Some(&*file.contents) && is_missing(&file.path));
    let missing: Vec<&Path> = changed.map(|file| file.path.as_path()).collect();
    let sparse = git::not_checked_out(project, &missing);
    let Some(first) = sparse.first() else {
        return Ok(());
    };
    let message = format!(
        "the sparse checkout leaves out {} that the template changes, such as `{}`",
        crate::display::files(sparse.len()),
        slashed(first)
    );
    Err(Error::input(message).help(
        "check them out with `git sparse-checkout disable` or `git sparse-checkout add`; nothing \
         was changed",
    ))
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
