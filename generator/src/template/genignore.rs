//! `.genignore`: paths to leave out of every project, in the syntax of `.gitignore`.
//!
//! As in cargo-generate, the files of this name in subfolders count too if there is one at the root,
//! and are part of the project themselves.

use std::collections::{BTreeMap, BTreeSet};

use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};

use super::{TemplateFile, config::parents};

/// The name of the file.
pub(super) const IGNORE_FILE: &str = ".genignore";

/// The patterns of all folders, by folder; the root is the empty text.
pub(super) struct Genignore(BTreeMap<String, Gitignore>);

impl Genignore {
    /// Reads the patterns in `files`, and warns of lines that are no patterns.
    pub fn of(files: &BTreeMap<String, TemplateFile>, warnings: &mut Vec<String>) -> Self {
        let mut all = BTreeMap::new();
        if files.contains_key(IGNORE_FILE) {
            for file in files.values() {
                let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
                if name == IGNORE_FILE {
                    all.insert(folder.to_owned(), patterns(folder, file, warnings));
                }
            }
        }
        Self(all)
    }

    /// Leaves out the ignored files and folders.
    pub fn apply(
        &self,
        files: &mut BTreeMap<String, TemplateFile>,
        folders: &mut BTreeSet<String>,
    ) {
        if self.0.is_empty() {
            return;
        }
        let mut all = folders.clone();
        all.extend(
            files
                .keys()
                .flat_map(|path| parents(path))
                .map(str::to_owned),
        );
        let ignored: BTreeSet<_> = all
            .into_iter()
            .filter(|path| self.ignores(path, true))
            .collect();
        let below = |path: &str| parents(path).any(|parent| ignored.contains(parent));
        folders.retain(|path| !ignored.contains(path) && !below(path));
        files.retain(|path, _| !below(path) && !self.ignores(path, false));
    }

    /// Whether the patterns match a path itself; those of the nearest folder decide.
    fn ignores(&self, path: &str, is_folder: bool) -> bool {
        let folders = parents(path).chain([""]);
        for folder in folders {
            let Some(patterns) = self.0.get(folder) else {
                continue;
            };
            match patterns.matched(rooted(path), is_folder) {
                Match::None => {}
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
            }
        }
        false
    }
}

/// The path below a root that no relative path starts with.
fn rooted(path: &str) -> String {
    format!("/template/{path}")
}

fn patterns(folder: &str, file: &TemplateFile, warnings: &mut Vec<String>) -> Gitignore {
    let mut builder = GitignoreBuilder::new(rooted(folder));
    let text = String::from_utf8_lossy(&file.contents);
    for (at, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        if let Err(error) = builder.add_line(None, line) {
            let place = format!("{}:{}", file.source, at + 1);
            warnings.push(format!(
                "`{line}` is not a valid pattern ({place}): {error}"
            ));
        }
    }
    builder.build().unwrap_or_else(|_| Gitignore::empty())
}
