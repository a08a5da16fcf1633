//! Templates in Git repositories.
//!
//! [`address`] tells what a text stands for, [`repository`] reads commits through the user's `git`,
//! and [`recorded`] is what a project records.

pub(crate) mod address;
pub(crate) mod recorded;
pub(crate) mod repository;

use crate::error::{Error, Result};

/// The version of a repository that is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Revision {
    /// The last commit of the default branch.
    #[default]
    Tip,
    /// The last commit of a branch.
    Branch(String),
    /// A tag.
    Tag(String),
    /// A commit, as `git rev-parse` takes it.
    Rev(String),
}

impl Revision {
    /// The option on the command line and the key in a record, and the value.
    pub fn named(&self) -> Option<(&'static str, &str)> {
        match self {
            Revision::Tip => None,
            Revision::Branch(name) => Some(("branch", name)),
            Revision::Tag(name) => Some(("tag", name)),
            Revision::Rev(name) => Some(("rev", name)),
        }
    }

    /// The revision that at most one of three options names.
    ///
    /// # Errors
    /// Git would take the value for an option or a pattern.
    pub fn of(branch: Option<&str>, tag: Option<&str>, rev: Option<&str>) -> Result<Self> {
        let (what, name, revision) = match (branch, tag, rev) {
            (Some(name), _, _) => ("branch", name, Revision::Branch(name.to_owned())),
            (_, Some(name), _) => ("tag", name, Revision::Tag(name.to_owned())),
            (_, _, Some(name)) => ("rev", name, Revision::Rev(name.to_owned())),
            (None, None, None) => return Ok(Revision::Tip),
        };
        let is_rev = matches!(revision, Revision::Rev(_));
        let wrong = |c: char| c.is_whitespace() || c.is_control() || "?*[\\:".contains(c);
        let wrong_name = |c: char| wrong(c) || "~^".contains(c);
        let refused = name.is_empty()
            || name.starts_with('-')
            || if is_rev {
                name.contains(wrong)
            } else {
                name.contains(wrong_name) || name.contains("..")
            };
        if refused {
            let error = Error::input(format!("`{name}` is not the name of a {what}"));
            return Err(error
                .in_argument(&format!("--{what}"), name, 0..name.len(), "not a name")
                .help("give a name as `git branch`, `git tag` or `git log` print it"));
        }
        Ok(revision)
    }

    /// Whether the revision always stands for the same commit, so that an update does not move it.
    pub fn stays(&self) -> bool {
        matches!(self, Revision::Tag(_) | Revision::Rev(_))
    }
}

/// A template in a Git repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GitSource {
    /// The URL or the absolute path of the repository.
    pub url: String,
    /// The folder of the template, if it is not the root.
    pub subfolder: Option<String>,
    /// The version asked for.
    pub revision: Revision,
}

impl GitSource {
    /// The folder of the template for messages: the URL, without a password, and the subfolder.
    pub fn label(&self) -> String {
        let url = address::without_password(&self.url);
        match &self.subfolder {
            Some(folder) => format!("{}/{folder}", url.trim_end_matches('/')),
            None => url,
        }
    }
}

/// A commit of a template in a Git repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub source: GitSource,
    /// The full hash of the commit.
    pub commit: String,
}

impl Origin {
    /// The label of the template, the name of its version, and the start of its hash.
    pub fn label(&self) -> String {
        let short = self.commit.get(..10).unwrap_or(&self.commit);
        let label = self.source.label();
        match self.source.revision.named() {
            Some((_, name)) if !self.commit.starts_with(name) => {
                format!("{label} at {name} ({short})")
            }
            _ => format!("{label} at {short}"),
        }
    }
}

/// The path of a folder in a template: relative, with `/`, without `.` and `..`.
///
/// # Errors
/// The path leads out of the template or is empty.
pub(crate) fn subfolder(given: &str) -> Result<String> {
    let given_slashed = if cfg!(windows) {
        given.replace('\\', "/")
    } else {
        given.to_owned()
    };
    let parts = given_slashed.split('/');
    let parts: Vec<_> = parts
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    let drive = cfg!(windows) && given.contains(':');
    let outside = given.starts_with(['/', '-']) || drive || parts.contains(&"..");
    if outside || parts.is_empty() || given.contains(['\0', '\n']) {
        let error = Error::input(format!(
            "`{given}` is not a folder in the template's repository"
        ));
        return Err(error
            .in_argument("--subfolder", given, 0..given.len(), "not below the root")
            .help("give a relative path without `..`, such as `templates/vision`"));
    }
    Ok(parts.join("/"))
}
