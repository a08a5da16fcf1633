//! A template in a folder, that `--template` names: a team's own.

use std::path::{Component, Path, PathBuf};

use crate::{
    error::{Error, Result},
    template::{CONFIG_FILE, Template},
};

/// What cargo-generate takes for the repositories of a host.
const HOSTS: [(&str, &str); 4] = [
    ("gh:", "https://github.com/"),
    ("gl:", "https://gitlab.com/"),
    ("bb:", "https://bitbucket.org/"),
    ("sr:", "https://git.sr.ht/~"),
];

/// The template in `folder`, checked; Kiln's own where none is given.
///
/// # Errors
/// It is no folder, or the template is wrong or holds what Kiln does not support.
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
        let message = format!("`{shown}` is a repository, and `--template` takes a folder");
        return Error::input(message).help(format!(
            "clone it first (`git clone {url}`), then give the folder of the template in it"
        ));
    }
    let error = if folder.exists() {
        Error::input(format!("the template `{shown}` is not a folder"))
    } else {
        Error::input(format!("there is no folder `{shown}`"))
    };
    error.help(format!("give the folder that holds `{CONFIG_FILE}`"))
}

/// The address of a repository, where `given` is one.
fn repository(given: &str) -> Option<String> {
    if given.contains("://") || given.starts_with("git@") {
        return Some(given.to_owned());
    }
    let mut hosts = HOSTS.iter();
    hosts.find_map(|(short, host)| Some(format!("{host}{}", given.strip_prefix(short)?)))
}

/// Checks that neither the template nor the project lies in the other: one would become part of the
/// other.
///
/// # Errors
/// One does, or the folders cannot be found.
pub(crate) fn check_apart(template: &Path, destination: &Path) -> Result<()> {
    let (inner, outer) = (resolved(template)?, resolved(destination)?);
    let message = if outer.starts_with(&inner) {
        format!(
            "the project `{}` would lie in its template `{}`",
            destination.display(),
            template.display()
        )
    } else if inner.starts_with(&outer) {
        format!(
            "the template `{}` lies in the folder of the project, `{}`",
            template.display(),
            destination.display()
        )
    } else {
        return Ok(());
    };
    Err(Error::input(message).help("give another folder with `--path`"))
}

/// The absolute path without symbolic links, as far as it exists.
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
