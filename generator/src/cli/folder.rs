//! A template in a folder, given by `--template`.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
};

use clap::builder::{PathBufValueParser, TypedValueParser};

use crate::{
    error::{Error, Result},
    project::place::resolved,
    template::{CONFIG_FILE, Template},
};

/// cargo-generate's abbreviations of repository hosts.
const HOSTS: [(&str, &str); 4] = [
    ("gh:", "https://github.com/"),
    ("gl:", "https://gitlab.com/"),
    ("bb:", "https://bitbucket.org/"),
    ("sr:", "https://git.sr.ht/~"),
];

/// Parses a path. Shells replace `~` only at the start of an argument, so not in `--path=~/x`.
pub(crate) fn path(given: &OsStr) -> Result<PathBuf> {
    let path = Path::new(given);
    let Ok(below) = path.strip_prefix("~") else {
        return Ok(path.to_path_buf());
    };
    let home = env::home_dir().filter(|home| !home.as_os_str().is_empty());
    let home = home.ok_or_else(|| {
        Error::input("`~` has no meaning here: the home folder is unknown")
            .help("write the whole path, or `./~` for a folder of this name")
    })?;
    Ok(home.join(below))
}

/// The parser of paths, for arguments.
#[derive(Clone)]
pub(crate) struct PathParser;

impl TypedValueParser for PathParser {
    type Value = PathBuf;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> std::result::Result<PathBuf, clap::Error> {
        // Clap tells that a value is missing.
        let given = PathBufValueParser::new().parse_ref(command, arg, value)?;
        path(given.as_os_str()).map_err(|error| {
            let message = format!("{error}\n");
            clap::Error::raw(clap::error::ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }
}

/// The checked template in `folder`, or Kiln's own if none is given.
///
/// # Errors
/// The path is not a folder, or the template is invalid or uses a feature that Kiln does not support.
pub(crate) fn template(folder: Option<&Path>) -> Result<Template> {
    let Some(folder) = folder else {
        return Template::embedded();
    };
    if !folder.is_dir() {
        return Err(no_folder(folder));
    }
    let template = Template::from_folder(folder)?;
    template.check()?;
    Ok(template)
}

fn no_folder(folder: &Path) -> Error {
    let shown = folder.display().to_string();
    if let Some(url) = repository(&shown) {
        let message = format!("`{shown}` is a repository, but `--template` requires a folder");
        return Error::input(message).help(format!(
            "clone it first (`git clone {url}`), then give the folder of the template in it"
        ));
    }
    let error = if folder.exists() {
        Error::input(format!("the template `{shown}` is not a folder"))
    } else {
        Error::input(format!("there is no folder `{shown}`"))
    };
    error.help(format!("give the folder that has the `{CONFIG_FILE}`"))
}

/// The URL of a repository, if `given` is one.
fn repository(given: &str) -> Option<String> {
    if given.contains("://") || given.starts_with("git@") {
        return Some(given.to_owned());
    }
    let mut hosts = HOSTS.iter();
    hosts.find_map(|(short, host)| Some(format!("{host}{}", given.strip_prefix(short)?)))
}

/// Checks that neither the template nor the project lies inside the other.
///
/// # Errors
/// One of them does, or a folder cannot be resolved.
pub(crate) fn check_apart(template: &Path, destination: &Path) -> Result<()> {
    let (inner, outer) = (resolved(template)?, resolved(destination)?);
    let message = if outer.starts_with(&inner) {
        format!(
            "the project `{}` would lie inside its template `{}`",
            destination.display(),
            template.display()
        )
    } else if inner.starts_with(&outer) {
        format!(
            "the template `{}` lies inside the project's folder `{}`",
            template.display(),
            destination.display()
        )
    } else {
        return Ok(());
    };
    Err(Error::input(message).help("give another folder with `--path`"))
}
