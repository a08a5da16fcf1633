//! Paths on the command line, and templates in folders.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
};

use clap::builder::{PathBufValueParser, TypedValueParser};

use super::output::note;
use crate::{
    error::{Error, Result, nearest},
    project::place::resolved,
    template::{CONFIG_FILE, Reading, Template},
};

/// Parses a path. Shells replace `~` only at the start of an argument, so not in `--path=~/x`.
pub(crate) fn path(given: &OsStr) -> Result<PathBuf> {
    let path = Path::new(given);
    let Ok(below) = path.strip_prefix("~") else {
        let first = path.components().next().map(|part| part.as_os_str());
        let first = first.unwrap_or_default().to_string_lossy();
        if first.starts_with('~') {
            return Err(no_home(&first));
        }
        return Ok(path.to_path_buf());
    };
    let home = env::home_dir().filter(|home| !home.as_os_str().is_empty());
    let home = home.ok_or_else(|| {
        Error::input("`~` has no meaning here: the home folder is unknown")
            .help("write the whole path, or `./~` for a folder of this name")
    })?;
    Ok(home.join(below))
}

/// Shells know the home folders of other users, Kiln does not.
fn no_home(first: &str) -> Error {
    let message = format!("`{first}` at the start of a path is the home folder of another user");
    Error::input(message).help(format!(
        "write the whole path, or `./{first}` for a folder of this name"
    ))
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
            let help = error.help_text().unwrap_or_default();
            let message = format!("{error}\n\n{help}\n");
            clap::Error::raw(clap::error::ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }
}

/// The checked template in `folder`. Prints what has no effect in it.
///
/// # Errors
/// The path is not a folder, or the template is invalid or uses a feature that Kiln does not support.
pub(crate) fn template(folder: &Path, reading: Reading<'_>) -> Result<Template> {
    if !folder.is_dir() {
        return Err(no_folder(folder));
    }
    let template = Template::read(folder, reading)?;
    template.check()?;
    for warning in template.warnings() {
        note(&format!("warning: {warning}"));
    }
    Ok(template)
}

fn no_folder(folder: &Path) -> Error {
    let shown = folder.display().to_string();
    let help = format!("give the folder that has the `{CONFIG_FILE}`");
    if folder.exists() {
        return Error::input(format!("the template `{shown}` is not a folder")).help(help);
    }
    let names = super::favourites::names();
    let near = nearest(&shown, names.iter().map(String::as_str));
    let error = Error::input(format!("there is no folder or favourite `{shown}`"));
    match near {
        Some(near) => error.help(format!(
            "did you mean the favourite `{near}`? otherwise, {help}"
        )),
        None => error.help(format!("{help}, a URL, or `owner/name` on GitHub")),
    }
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
