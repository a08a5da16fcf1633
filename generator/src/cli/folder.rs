//! A template in a folder, given by `--template`.

use std::path::{Component, Path, PathBuf};

use crate::{
    error::{Error, Result},
    template::{CONFIG_FILE, Template},
};

/// cargo-generate's abbreviations of repository hosts.
const HOSTS: [(&str, &str); 4] = [
    ("gh:", "https://github.com/"),
    ("gl:", "https://gitlab.com/"),
    ("bb:", "https://bitbucket.org/"),
    ("sr:", "https://git.sr.ht/~"),
];

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

/// The absolute path, with symbolic links resolved as far as the path exists.
fn resolved(path: &Path) -> Result<PathBuf> {
    let absolute =
        std::path::absolute(path).map_err(|cause| Error::io("find the folder", path, cause))?;
    let mut real = PathBuf::new();
    for part in absolute.components() {
        match part {
            Component::ParentDir => {
                real.pop();
            }
            Component::Normal(name) => {
                real.push(name);
                real = real.canonicalize().unwrap_or(real);
            }
            part => real.push(part),
        }
    }
    Ok(real)
}
