//! Finding the template in a folder: it may lie further down, and be one of several.
//!
//! As in cargo-generate, a folder without `cargo-generate.toml` in or below it is a template as it
//! is, a single one below it is the template, and `sub_templates` lists folders to choose from.

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

use toml::Spanned;

use super::{CONFIG_FILE, LIQUID, is_build_folder};
use crate::{
    display::slashed,
    document::Document,
    error::{Error, Kind, Result},
};

/// Maximum number of folders searched.
const MOST_FOLDERS: usize = 50_000;

/// Contents of a folder.
pub(super) enum Found {
    /// A template.
    One(Place),
    /// Several templates: their folders, below the given one.
    Several(Vec<String>),
}

/// The place of a template.
pub(super) struct Place {
    /// The folder of its files.
    pub folder: PathBuf,
    /// A configuration outside the folder, which a sub-template without its own inherits.
    pub inherited: Option<PathBuf>,
}

/// Finds the template in `folder`, which messages call `label`.
///
/// # Errors
/// A folder cannot be read, or `sub_templates` names a folder that does not exist or lies outside.
pub(super) fn find(folder: &Path, label: &str) -> Result<Found> {
    let mut at = PathBuf::new();
    let mut inherited = None;
    loop {
        let now = below(folder, &at);
        let configs = configs_below(&now)?;
        let next = match configs.as_slice() {
            [] => {
                let inherited = inherited.or_else(|| listing_parent(&now));
                return Ok(Found::One(Place {
                    folder: now,
                    inherited,
                }));
            }
            [one] => one.clone(),
            several => return Ok(Found::Several(joined(&at, several))),
        };
        // Pushing an empty path would add a slash.
        if next.as_os_str() != "" {
            at.push(&next);
        }
        let config = below(folder, &at);
        let label = below(Path::new(label), &at).display().to_string();
        match listed(&config, &label)?.as_deref() {
            None => {
                return Ok(Found::One(Place {
                    folder: config,
                    inherited: None,
                }));
            }
            // The only sub-template needs no choice.
            Some([one]) => {
                inherited = config_in(&config);
                at.push(one);
            }
            Some(several) => return Ok(Found::Several(joined(&at, several))),
        }
    }
}

/// `folder.join(at)`, without a slash at the end.
fn below(folder: &Path, at: &Path) -> PathBuf {
    match at.as_os_str().is_empty() {
        true => folder.to_path_buf(),
        false => folder.join(at),
    }
}

fn joined(at: &Path, below: &[PathBuf]) -> Vec<String> {
    let all = below.iter().map(|one| slashed(&at.join(one)));
    all.collect()
}

/// The configuration in a folder.
fn config_in(folder: &Path) -> Option<PathBuf> {
    let names = [format!("{CONFIG_FILE}{LIQUID}"), CONFIG_FILE.to_owned()];
    let mut paths = names.into_iter().map(|name| folder.join(name));
    paths.find(|path| fs::symlink_metadata(path).is_ok_and(|it| it.is_file()))
}

/// The folders with a configuration in or below `folder`, but none below another, in order and
/// relative to `folder`.
fn configs_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![folder.to_path_buf()];
    let mut searched = 0;
    while let Some(at) = left.pop() {
        searched += 1;
        if searched > MOST_FOLDERS {
            let message = format!(
                "`{}` has no `{CONFIG_FILE}` and more than {MOST_FOLDERS} folders",
                folder.display()
            );
            return Err(Error::template(message).help("give the folder of the template"));
        }
        if config_in(&at).is_some() {
            found.extend(at.strip_prefix(folder).map(Path::to_path_buf));
            continue;
        }
        match folders_in(&at) {
            Ok(folders) => left.extend(folders),
            Err(error) if at == folder => return Err(error),
            // Reading the template says what is wrong with a folder in it.
            Err(_) => {}
        }
    }
    found.sort();
    Ok(found)
}

/// The subfolders of a folder, without `.git` and build folders.
fn folders_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |cause| Error::io("read the folder", folder, cause);
    let mut folders = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && entry.file_name() != ".git" && !is_build_folder(&entry.path()) {
            folders.push(entry.path());
        }
    }
    Ok(folders)
}

/// The `sub_templates` in the configuration of `folder`, relative to it; `None` if it lists none.
/// A configuration that is invalid otherwise is read later.
fn listed(folder: &Path, label: &str) -> Result<Option<Vec<PathBuf>>> {
    let Some(path) = config_in(folder) else {
        return Ok(None);
    };
    let Ok(text) = fs::read_to_string(&path) else {
        return Ok(None);
    };
    let name = format!("{label}/{CONFIG_FILE}");
    let document = Document::new(&name, &text, Kind::Template);
    let Some((place, entries)) = entries(&document) else {
        return Ok(None);
    };
    if entries.is_empty() {
        let error = document.error_at(place, "`sub_templates` is empty", "nothing here");
        return Err(error.help("list the folders of the templates, or remove it"));
    }
    let folders = entries
        .iter()
        .map(|entry| sub_template(folder, entry, &document));
    folders.collect::<Result<_>>().map(Some)
}

/// The entries of `sub_templates`, and its place.
fn entries(document: &Document<'_>) -> Option<(std::ops::Range<usize>, Vec<Spanned<String>>)> {
    let table = document.parse().ok()?;
    let template = table.get("template")?.get_ref().as_table()?;
    let value = template.get("sub_templates")?;
    Some((value.span(), document.strings("sub_templates", value).ok()?))
}

/// The folder that an entry of `sub_templates` names.
fn sub_template(
    folder: &Path,
    entry: &Spanned<String>,
    document: &Document<'_>,
) -> Result<PathBuf> {
    let given = entry.get_ref();
    let wrong = |message: String, label: &str, help: &str| {
        Err(document.error_at(entry.span(), message, label).help(help))
    };
    let parts = Path::new(given).components();
    let inside = parts
        .clone()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let path: PathBuf = parts
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect();
    if !inside || path.as_os_str().is_empty() {
        return wrong(
            format!("the sub-template `{given}` is not a folder below the template's"),
            "outside the folder",
            "give a path inside the folder of this file",
        );
    }
    // A link is not part of a template.
    let mut at = folder.to_path_buf();
    for part in path.components() {
        at.push(part);
        if !fs::symlink_metadata(&at).is_ok_and(|it| it.is_dir()) {
            return wrong(
                format!("there is no folder of the sub-template `{given}`"),
                "no folder",
                "correct the path or remove it",
            );
        }
    }
    Ok(path)
}

/// The configuration of the nearest folder above that has one, if it lists `folder` as a
/// sub-template.
fn listing_parent(folder: &Path) -> Option<PathBuf> {
    let folder = folder.canonicalize().ok()?;
    let parent = folder.ancestors().skip(1);
    let parent = parent.into_iter().find(|it| config_in(it).is_some())?;
    let listed = listed(parent, "").ok()??;
    let is_listed = listed.iter().any(|one| parent.join(one) == folder);
    is_listed.then(|| config_in(parent)).flatten()
}

/// An error for a folder with several templates.
pub(super) fn several(label: &str, choices: &[String]) -> Error {
    let label = label.trim_end_matches('/');
    let ways: Vec<_> = choices
        .iter()
        .map(|one| format!("`--template {label}/{one}`"))
        .collect();
    Error::input(format!("`{label}` has {} templates", choices.len()))
        .help(format!("choose one: {}", ways.join(", ")))
}
