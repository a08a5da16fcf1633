//! The template of a command: Kiln's own, one in a folder, in a Git repository, or a favourite.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;

use super::{
    favourites::{self, Favourite},
    folder,
    output::note,
    renew::Source,
    terminal::is_interactive,
};
use crate::{
    error::{Error, Result},
    project::{
        origin::{
            GitSource, Origin, Revision,
            address::{Address, classify},
            repository::Repository,
            subfolder,
        },
        record::{RECORD_FILE, Record},
    },
    template::{Reading, Template, answers::Values, history::Release, values},
};

/// The version and folder of a template in a Git repository.
#[derive(Debug, Clone, Args, Default)]
#[command(next_help_heading = "Template in Git")]
pub struct VersionArgs {
    /// Branch of the template's repository [default: its default branch]
    #[arg(long, value_name = "BRANCH", conflicts_with_all = ["tag", "rev"])]
    pub branch: Option<String>,
    /// Tag of the template's repository
    #[arg(long, value_name = "TAG", conflicts_with = "rev")]
    pub tag: Option<String>,
    /// Commit of the template's repository
    #[arg(long, value_name = "COMMIT")]
    pub rev: Option<String>,
    /// Folder of the template in its repository or folder
    #[arg(long, value_name = "FOLDER")]
    pub subfolder: Option<String>,
}

impl VersionArgs {
    fn revision(&self) -> Result<Option<Revision>> {
        let [branch, tag, rev] = [&self.branch, &self.tag, &self.rev].map(Option::as_deref);
        let revision = Revision::of(branch, tag, rev)?;
        Ok((revision != Revision::Tip).then_some(revision))
    }

    fn subfolder(&self) -> Result<Option<String>> {
        self.subfolder.as_deref().map(subfolder).transpose()
    }

    /// The first option that is given.
    fn given(&self) -> Option<&'static str> {
        let all = [
            ("--branch", &self.branch),
            ("--tag", &self.tag),
            ("--rev", &self.rev),
            ("--subfolder", &self.subfolder),
        ];
        all.iter()
            .find(|(_, value)| value.is_some())
            .map(|(name, _)| *name)
    }

    /// The options with their values.
    pub(crate) fn list(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = [
            ("--branch", &self.branch),
            ("--tag", &self.tag),
            ("--rev", &self.rev),
            ("--subfolder", &self.subfolder),
        ];
        all.into_iter()
            .filter_map(|(name, value)| Some((name, value.as_deref()?)))
    }
}

/// The template of a command, and where it comes from.
pub(crate) struct Chosen {
    pub template: Template,
    /// The folder of the template, if it is in one.
    pub folder: Option<PathBuf>,
    /// The commit of the template, if it is in a repository.
    pub origin: Option<Origin>,
    favourite: Option<Favourite>,
}

/// Source of a template, before it is read.
enum Target {
    Folder(PathBuf),
    Git(GitSource),
}

/// Reads and checks the template that `given` stands for; Kiln's own, if nothing is given.
///
/// # Errors
/// The folder or repository cannot be read or does not have the version, or the template is invalid.
pub(crate) fn choose(
    given: Option<&Path>,
    version: &VersionArgs,
    reading: Reading<'static>,
) -> Result<Chosen> {
    let Some(given) = given else {
        if let Some(option) = version.given() {
            let error = Error::input(format!("`{option}` needs `--template`"));
            return Err(error.help("add `--template URL`, or remove the option"));
        }
        return Ok(Chosen {
            template: Template::embedded()?,
            folder: None,
            origin: None,
            favourite: None,
        });
    };
    let (target, favourite) = target(given, version)?;
    if let (Target::Folder(folder), Some(favourite)) = (&target, &favourite) {
        favourite.check_folder(folder)?;
    }
    let mut chosen = match target {
        Target::Folder(folder) => Chosen {
            template: folder::template(&folder, reading)?,
            folder: Some(folder),
            origin: None,
            favourite: None,
        },
        Target::Git(source) => {
            let found = Repositories::of(reading).latest(source);
            let (template, origin) = found.map_err(|error| or_folder(error, given))?;
            Chosen {
                template,
                folder: None,
                origin: Some(origin),
                favourite: None,
            }
        }
    };
    chosen.favourite = favourite;
    Ok(chosen)
}

/// Adds to an error that a text such as `owner/name` is no folder either.
fn or_folder(error: Error, given: &Path) -> Error {
    let shown = given.display().to_string();
    if shown.contains(':') || !shown.contains('/') || given.exists() {
        return error;
    }
    let help = error.help_text().unwrap_or_default();
    let help = format!("{help}; there is no folder `{shown}` either");
    error.help(help)
}

fn target(given: &Path, version: &VersionArgs) -> Result<(Target, Option<Favourite>)> {
    let (revision, below) = (version.revision()?, version.subfolder()?);
    let favourite = favourites::find(given)?;
    let of_favourite = favourite.as_ref();
    let address = of_favourite.map_or(given, |favourite| &favourite.address);
    let preset = of_favourite.map(|favourite| favourite.revision.clone());
    let revision = revision.or(preset).unwrap_or_default();
    let below = match (below, of_favourite.and_then(|one| one.subfolder.as_deref())) {
        (Some(below), _) => Some(below),
        (None, preset) => preset.map(subfolder).transpose()?,
    };
    let is_git = of_favourite.is_some_and(|favourite| favourite.is_git);
    let target = match classify(address, is_git || revision != Revision::Tip)? {
        Address::Git(url) => Target::Git(GitSource {
            url,
            subfolder: below,
            revision,
        }),
        Address::Folder(folder) => {
            if let Some((option, _)) = revision.named() {
                let shown = folder.display();
                let error = Error::input(format!("there is no repository `{shown}`"));
                return Err(
                    error.help(format!("`--{option}` needs a URL or a repository's folder"))
                );
            }
            Target::Folder(match below {
                Some(below) => folder.join(below),
                None => folder,
            })
        }
    };
    Ok((target, favourite))
}

impl Chosen {
    /// The options that are set: by the favourite, then the values file, then the definitions. The
    /// values file may be the record of another project.
    ///
    /// # Errors
    /// An option does not exist, or a value is invalid.
    pub fn values(&self, file: Option<&Path>, defines: &[String]) -> Result<Values> {
        let mut all = match &self.favourite {
            Some(favourite) => favourite.values(&self.template)?,
            None => Values::new(),
        };
        match file.map(record_in).transpose()?.flatten() {
            Some((record, place)) => {
                let (values, others) = record.values_that_fit(&self.template)?;
                if !others.is_empty() {
                    let others: Vec<_> = others.iter().map(|one| format!("`{one}`")).collect();
                    note(&format!(
                        "note: `{}` has values that this template does not have: {}",
                        place.display(),
                        others.join(", ")
                    ));
                }
                all.extend(values);
            }
            None => all.extend(values::read(&self.template, file, &[])?),
        }
        all.extend(values::read(&self.template, None, defines)?);
        Ok(all)
    }
}

/// The record of a project, if a values file is one, or the folder of one.
fn record_in(file: &Path) -> Result<Option<(Record, PathBuf)>> {
    let file = match file.is_dir() {
        true => file.join(RECORD_FILE),
        false => file.to_path_buf(),
    };
    let Ok(text) = fs::read_to_string(&file) else {
        // Reading it as a values file tells why.
        return Ok(None);
    };
    let name = file.display().to_string();
    match Record::parse(&name, &text) {
        Ok(record) => Ok(Some((record, file))),
        Err(error) if file.ends_with(RECORD_FILE) => Err(error),
        Err(_) => Ok(None),
    }
}

/// The repositories that a command has fetched from.
pub(crate) struct Repositories {
    fetched: Vec<(String, Repository)>,
    reading: Reading<'static>,
}

impl Repositories {
    /// No repository yet; `reading` is for the templates in them.
    pub fn of(reading: Reading<'static>) -> Self {
        Self {
            fetched: Vec::new(),
            reading,
        }
    }

    fn get(&mut self, url: &str) -> Result<&Repository> {
        let at = match self.fetched.iter().position(|(other, _)| other == url) {
            Some(at) => at,
            None => {
                self.fetched
                    .push((url.to_owned(), Repository::new(url, is_interactive())?));
                self.fetched.len() - 1
            }
        };
        Ok(&self.fetched[at].1)
    }

    /// The template of the commit that a source stands for now.
    ///
    /// # Errors
    /// The repository cannot be read or lacks the version, or the template is invalid.
    pub fn latest(&mut self, mut source: GitSource) -> Result<(Template, Origin)> {
        let reading = self.reading;
        let repository = self.get(&source.url)?;
        let commit = repository.resolve(&source.revision)?;
        if source.subfolder.is_none() {
            source.subfolder = repository.locate(&commit)?;
        }
        let origin = Origin { source, commit };
        Ok((template(repository, &origin, reading)?, origin))
    }

    /// The template of a recorded commit.
    ///
    /// # Errors
    /// The repository cannot be read or lacks the commit, or the template is invalid.
    pub fn at(&mut self, origin: &Origin) -> Result<Template> {
        let reading = self.reading;
        let repository = self.get(&origin.source.url)?;
        repository.require(&origin.commit)?;
        template(repository, origin, reading)
    }
}

fn template(repository: &Repository, origin: &Origin, reading: Reading<'_>) -> Result<Template> {
    let folder = repository.export(origin)?;
    let label = origin.source.label();
    folder::template(
        folder.path(),
        Reading {
            label: Some(&label),
            ..reading
        },
    )
}

/// Both sides of an update: the template that the project was generated from, and the later one.
///
/// # Errors
/// The record's template is unknown, or one of the templates cannot be read or is invalid.
pub(crate) fn sides(
    record: &Record,
    from: Option<&Path>,
    given: Option<&Path>,
    version: &VersionArgs,
    skip_hooks: bool,
) -> Result<(Source, Source)> {
    let mut repositories = Repositories::of(Reading::lenient(skip_hooks));
    if record.origin.is_none() {
        check_pair(from, given, version)?;
    }
    let given = given.map(|given| target(given, version)).transpose()?;
    let given = given.map(|(target, _)| target);
    let base = match (from, &record.origin) {
        (Some(folder), _) => Source::of_folder(folder, skip_hooks)?,
        (None, Some(origin)) => recorded(&mut repositories, origin, given.as_ref())?,
        (None, None) => Source::of_release(record.release()?)?,
    };
    let new = match (given, &record.origin) {
        (Some(target), _) => match target {
            Target::Folder(folder) => Source::of_folder(&folder, skip_hooks)?,
            Target::Git(source) => {
                let (template, origin) = repositories.latest(source)?;
                Source::of_git(template, origin)
            }
        },
        (None, Some(origin)) => later(&mut repositories, origin, version)?,
        (None, None) => Source::of_release(Release::current())?,
    };
    Ok((base, new))
}

/// The template of the recorded commit: from the recorded repository or, if that has moved, from the
/// one that is given.
fn recorded(
    repositories: &mut Repositories,
    origin: &Origin,
    given: Option<&Target>,
) -> Result<Source> {
    let found = repositories.at(origin).or_else(|error| match given {
        Some(Target::Git(source)) if source.url != origin.source.url => {
            let mut moved = origin.clone();
            moved.source.url.clone_from(&source.url);
            repositories.at(&moved).map_err(|_| error)
        }
        _ => Err(error),
    });
    Ok(Source::of_git(found?, origin.clone()))
}

/// The template that a project from a repository is updated to: the tip of its branch, or the
/// version that is given. A recorded tag or commit stays.
fn later(
    repositories: &mut Repositories,
    origin: &Origin,
    version: &VersionArgs,
) -> Result<Source> {
    let given = version.revision()?;
    let below = version.subfolder()?;
    if given.is_none() && below.is_none() && origin.source.revision.stays() {
        let (option, name) = origin.source.revision.named().unwrap_or_default();
        note(&format!(
            "note: the project stays at the {option} `{name}` of its template; `--{option}` or \
             `--branch` gives another"
        ));
        return Ok(Source::of_git(repositories.at(origin)?, origin.clone()));
    }
    let source = GitSource {
        url: origin.source.url.clone(),
        revision: given.unwrap_or_else(|| origin.source.revision.clone()),
        subfolder: below.or_else(|| origin.source.subfolder.clone()),
    };
    let (template, origin) = repositories.latest(source)?;
    Ok(Source::of_git(template, origin))
}

/// Refuses half of a pair of templates for a project that records no repository.
fn check_pair(from: Option<&Path>, given: Option<&Path>, version: &VersionArgs) -> Result<()> {
    let (one, other) = match (from, given, version.given()) {
        (Some(_), None, _) => ("--from", "--template"),
        (None, Some(_), _) => ("--template", "--from"),
        (None, None, Some(option)) => (option, "--template"),
        _ => return Ok(()),
    };
    let error = Error::input(format!(
        "`{one}` needs `{other}` here, as `{RECORD_FILE}` records no repository"
    ));
    Err(error.help(
        "give the template as it was with `--from FOLDER`, and as it is now with `--template`",
    ))
}
