//! The name and the folder of a new project, from `NAME`, `--name` and `--path`.

use std::path::{self, Path, PathBuf};

use super::args::NewArgs;
use crate::{
    cli::folder,
    error::{Error, Result},
    name::Name,
    project::place::resolved,
};

/// Name and folder, from the arguments.
pub(super) struct Place {
    /// The name, if it is given.
    pub name: Option<Name>,
    /// The folder, if it is not that of the name.
    pub folder: Option<PathBuf>,
}

impl Place {
    /// Reads the arguments. As with `cargo new`, `NAME` may be a path, and `--name` then gives the name
    /// if that is not the folder's.
    ///
    /// # Errors
    /// The name is invalid, or two arguments give the folder.
    pub fn of(args: &NewArgs) -> Result<Self> {
        let given = args.name.as_deref();
        let as_path = given.filter(|given| is_path(given) || args.named.is_some());
        if let (Some(given), Some(path)) = (as_path, &args.path) {
            let path = path.display();
            return Err(Error::input(format!(
                "`{given}` and `--path {path}` both give the folder"
            ))
            .help("give the name without folders, or leave out `--path`"));
        }
        let given_path = as_path
            .map(|path| folder::path(path.as_ref()))
            .transpose()?;
        let folder = given_path.clone().or_else(|| args.path.clone());
        let name = match (&args.named, given, &given_path) {
            (Some(name), ..) => Some(Name::parse(name)?),
            (None, Some(_), Some(path)) => Some(name_of(path)?),
            (None, Some(given), None) => Some(Name::parse(given)?),
            (None, None, _) => None,
        };
        Ok(Self { name, folder })
    }
}

/// Whether an argument is a path rather than a name.
fn is_path(given: &str) -> bool {
    matches!(given, "." | ".." | "~") || given.contains(path::is_separator)
}

/// The last component of a path; of `.` and the like, that of the folder that it stands for.
pub(super) fn last_component(path: &Path) -> Result<Option<String>> {
    let real;
    let name = match path.file_name() {
        Some(name) => Some(name),
        None => {
            real = resolved(path)?;
            real.file_name()
        }
    };
    Ok(name.and_then(|name| name.to_str()).map(str::to_owned))
}

/// The name of a project in a folder of this path.
///
/// # Errors
/// The folder's name is not valid for a project.
pub(super) fn name_of(path: &Path) -> Result<Name> {
    let Some(name) = last_component(path)? else {
        let message = format!(
            "the folder `{}` has no name for the project",
            path.display()
        );
        return Err(Error::input(message).help("add `--name NAME`"));
    };
    Name::parse(&name).map_err(|error| {
        let help = error
            .help_text()
            .unwrap_or("choose another name")
            .to_owned();
        error.help(format!(
            "{help}, with `--name NAME` if the folder keeps its name"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_named_by_its_last_component() {
        for (path, name) in [
            ("a/b", "b"),
            ("a/b/", "b"),
            ("./b", "b"),
            ("a/b/.", "b"),
            ("/b", "b"),
        ] {
            assert!(is_path(path));
            assert_eq!(name_of(Path::new(path)).unwrap().given(), name, "{path}");
        }
        assert!(!is_path("a") && !is_path("a.b") && is_path("."));
        assert!(last_component(Path::new("/")).unwrap().is_none());
        let here = std::env::current_dir().unwrap();
        let here = here.file_name().and_then(|name| name.to_str());
        assert_eq!(last_component(Path::new(".")).unwrap().as_deref(), here);
    }
}
