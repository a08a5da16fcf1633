//! The root of a Cargo workspace above a project, and whether Cargo counts a folder as a member.

use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
};

use glob::{MatchOptions, Pattern};
use toml::{Table, Value};

/// Characters that make an entry of `members` a pattern.
const META: [char; 3] = ['*', '?', '['];
/// The tables of a manifest with dependencies.
const DEPENDENCIES: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

/// A manifest with a table `[workspace]`.
pub(super) struct Root {
    /// The manifest, as found on the way up from the project.
    pub manifest: PathBuf,
    /// Its text.
    pub text: String,
    folder: PathBuf,
    table: Table,
}

/// Reason for which a package in a folder is a member of a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cover {
    /// An entry of `members` is the path of the folder.
    Listed(String),
    /// A pattern in `members` matches.
    Matched(String),
    /// A member depends on the folder by its path.
    Dependency,
    /// Only a pattern in `default-members` matches, which Cargo refuses.
    Default(String),
}

/// A member of a workspace.
pub(super) struct Member {
    /// The folder.
    pub folder: PathBuf,
    /// The name of the package, if its manifest can be read.
    pub name: Option<String>,
}

impl Root {
    /// The root that a manifest is; `None` without a table `[workspace]`.
    ///
    /// # Errors
    /// The text is not TOML.
    pub fn parse(manifest: &Path, text: &str) -> Result<Option<Self>, toml::de::Error> {
        let table: Table = text.trim_start_matches('\u{feff}').parse()?;
        let folder = manifest.parent().unwrap_or(Path::new(""));
        let root = Self {
            manifest: manifest.to_path_buf(),
            text: text.to_owned(),
            folder: folder.to_path_buf(),
            table,
        };
        Ok(root.workspace().is_some().then_some(root))
    }

    /// The same root with another text.
    ///
    /// # Errors
    /// The text is not TOML.
    pub fn with(&self, text: &str) -> Result<Option<Self>, toml::de::Error> {
        Self::parse(&self.manifest, text)
    }

    /// The path of a folder below the root, as in `members`; `None` outside.
    pub fn relative(&self, folder: &Path) -> Option<String> {
        Some(slashed(folder.strip_prefix(&self.folder).ok()?))
    }

    /// True if `exclude` names the folder or one above it. As in Cargo, entries are paths rather than
    /// patterns, and an entry of `members` that names the folder or one above it comes first.
    pub fn is_excluded(&self, folder: &Path) -> bool {
        let names =
            |key: &str| (self.list(key)).any(|entry| folder.starts_with(self.folder.join(entry)));
        names("exclude") && !names("members")
    }

    /// Reason for which a package in `folder` is a member; `None` if it is none.
    pub fn cover(&self, folder: &Path) -> Option<Cover> {
        let named = self.named(folder);
        if self.is_excluded(folder) {
            // Of the folders that `default-members` matches, Cargo only passes over those in `members`.
            return named.is_none().then(|| self.default(folder)).flatten();
        }
        named
            .or_else(|| {
                let members = self.members();
                let mut members = members.iter();
                members
                    .any(|member| member.folder == folder)
                    .then_some(Cover::Dependency)
            })
            .or_else(|| self.default(folder))
    }

    /// The pattern in `default-members` that matches a folder.
    fn default(&self, folder: &Path) -> Option<Cover> {
        let entry = self.matching("default-members", folder)?;
        is_pattern(entry).then(|| Cover::Default(entry.to_owned()))
    }

    /// The entry of `members` that names or matches a folder.
    fn named(&self, folder: &Path) -> Option<Cover> {
        let entry = self.matching("members", folder)?;
        Some(match is_pattern(entry) {
            true => Cover::Matched(entry.to_owned()),
            false => Cover::Listed(entry.to_owned()),
        })
    }

    /// Whether the only thing that keeps `exclude` from working is the entry `.` in `members`. The
    /// package of the root is a member without it.
    pub fn lists_itself(&self) -> bool {
        self.table.contains_key("package")
            && self
                .list("members")
                .any(|entry| self.place(entry) == self.folder)
    }

    /// The entries of `members` for which Cargo disregards an `exclude` of `folder`.
    pub fn above(&self, folder: &Path) -> Option<&str> {
        self.list("members")
            .find(|entry| folder.starts_with(self.folder.join(entry)))
    }

    /// All members: those listed and matched, the package of the root, and their path dependencies
    /// below the root. Folders of path dependencies need not exist.
    pub fn members(&self) -> Vec<Member> {
        let mut open: Vec<PathBuf> = self.list("members").flat_map(|e| self.expand(e)).collect();
        open.push(self.folder.clone());
        let mut seen = BTreeSet::new();
        let mut members = Vec::new();
        while let Some(folder) = open.pop() {
            let outside = !folder.starts_with(&self.folder) || self.is_excluded(&folder);
            if outside && folder != self.folder || !seen.insert(folder.clone()) {
                continue;
            }
            let manifest = match folder == self.folder {
                true => self.table.clone(),
                false => {
                    let text = fs::read_to_string(folder.join("Cargo.toml"));
                    text.unwrap_or_default().parse().unwrap_or_default()
                }
            };
            for path in self.path_dependencies(&manifest, &folder) {
                open.push(path);
            }
            let name = manifest
                .get("package")
                .and_then(|package| package.get("name"));
            let name = name.and_then(Value::as_str).map(str::to_owned);
            members.push(Member { folder, name });
        }
        members
    }

    /// The folders of the path dependencies of a manifest.
    fn path_dependencies(&self, manifest: &Table, folder: &Path) -> Vec<PathBuf> {
        let shared = self.workspace().and_then(|table| table.get("dependencies"));
        let targets = manifest.get("target").and_then(Value::as_table);
        let targets = targets.into_iter().flat_map(Table::values);
        let tables = std::iter::once(manifest).chain(targets.filter_map(Value::as_table));
        let dependencies = tables.flat_map(|table| {
            DEPENDENCIES
                .iter()
                .filter_map(|key| table.get(*key)?.as_table())
        });
        dependencies
            .flatten()
            .filter_map(|(key, value)| match value.get("path") {
                Some(path) => Some(normal(folder, path.as_str()?)),
                None if value.get("workspace").is_some() => {
                    let path = shared?.get(key)?.get("path")?;
                    Some(normal(&self.folder, path.as_str()?))
                }
                None => None,
            })
            .collect()
    }

    fn workspace(&self) -> Option<&Table> {
        self.table.get("workspace")?.as_table()
    }

    /// Why Cargo refuses a list of folders in the manifest, if it does.
    pub fn wrong_list(&self) -> Option<String> {
        let mut keys = ["members", "default-members", "exclude"].into_iter();
        keys.find_map(|key| {
            let list = self.workspace()?.get(key)?.as_array();
            if !list.is_some_and(|list| list.iter().all(Value::is_str)) {
                return Some(format!("`{key}` is not a list of texts"));
            }
            // Entries of `exclude` are paths.
            let is_wrong = |entry: &&str| is_pattern(entry) && self.pattern(entry).is_none();
            let wrong = self.list(key).find(is_wrong).filter(|_| key != "exclude");
            wrong.map(|entry| format!("`{entry}` in `{key}` is not a pattern"))
        })
    }

    fn list(&self, key: &str) -> impl Iterator<Item = &str> {
        let list = self.workspace().and_then(|table| table.get(key));
        let list = list.and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str)
    }

    /// The entry of a list that names or matches a folder.
    fn matching(&self, key: &str, folder: &Path) -> Option<&str> {
        // An entry that names the folder says more than a pattern.
        let mut entries: Vec<_> = self.list(key).collect();
        entries.sort_by_key(|entry| is_pattern(entry));
        let is = |entry: &&str| match self.pattern(entry) {
            Some(pattern) if is_pattern(entry) => pattern.matches_with(&slashed(folder), BY_FOLDER),
            _ => self.place(entry) == folder,
        };
        entries.into_iter().find(is)
    }

    /// The folders that an entry of `members` stands for.
    fn expand(&self, entry: &str) -> Vec<PathBuf> {
        let pattern = self.pattern(entry).filter(|_| is_pattern(entry));
        let Some(pattern) = pattern else {
            return vec![self.place(entry)];
        };
        let found = glob::glob(pattern.as_str()).into_iter().flatten();
        found
            .flatten()
            .filter(|path| path.join("Cargo.toml").is_file())
            .collect()
    }

    /// The pattern of an entry, from the root of the file system.
    fn pattern(&self, entry: &str) -> Option<Pattern> {
        let mut folder = self.folder.as_path();
        let mut parts = Vec::new();
        for part in entry.split(std::path::is_separator) {
            match part {
                "" | "." => {}
                ".." if parts.pop().is_none() => folder = folder.parent().unwrap_or(folder),
                ".." => {}
                part => parts.push(part),
            }
        }
        let folder = Pattern::escape(&slashed(folder));
        Pattern::new(&format!(
            "{}/{}",
            folder.trim_end_matches('/'),
            parts.join("/")
        ))
        .ok()
    }

    /// The folder of an entry without wildcards.
    fn place(&self, entry: &str) -> PathBuf {
        normal(&self.folder, entry)
    }
}

/// `*` stands for the name of one folder, as where Cargo expands it.
const BY_FOLDER: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

fn is_pattern(entry: &str) -> bool {
    entry.contains(META)
}

/// `path` below `folder`, without `.` and `..`.
fn normal(folder: &Path, path: &str) -> PathBuf {
    let mut place = folder.to_path_buf();
    for part in Path::new(path).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                place.pop();
            }
            // An absolute path replaces the folder.
            part => place.push(part),
        }
    }
    place
}

/// The path as it is, with `/` as separator.
fn slashed(path: &Path) -> String {
    let text = path.to_string_lossy();
    if cfg!(windows) {
        text.replace('\\', "/")
    } else {
        text.into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(text: &str) -> Root {
        Root::parse(Path::new("/w/Cargo.toml"), text)
            .unwrap()
            .unwrap()
    }

    fn cover(text: &str, folder: &str) -> Option<Cover> {
        root(text).cover(Path::new(folder))
    }

    #[test]
    fn members_are_paths_and_patterns() {
        let text = "[workspace]\nmembers = ['crates/*', './tools/./one', 'a/../b', '../out/*']";
        let matched = |entry: &str| Some(Cover::Matched(entry.to_owned()));
        let listed = |entry: &str| Some(Cover::Listed(entry.to_owned()));
        assert_eq!(cover(text, "/w/crates/m"), matched("crates/*"));
        assert_eq!(cover(text, "/w/crates/m/engine"), None);
        assert_eq!(cover(text, "/w/crates"), None);
        assert_eq!(cover(text, "/w/tools/one"), listed("./tools/./one"));
        assert_eq!(cover(text, "/w/b"), listed("a/../b"));
        assert_eq!(cover(text, "/out/m"), matched("../out/*"));
        let deep = "[workspace]\nmembers = ['crates/**']";
        assert_eq!(cover(deep, "/w/crates/a/m"), matched("crates/**"));
        let both = "[workspace]\nmembers = ['crates/*', 'crates/m']";
        assert_eq!(cover(both, "/w/crates/m"), listed("crates/m"));
        assert_eq!(cover("[workspace]", "/w/m"), None);
    }

    #[test]
    fn an_exclude_is_a_path() {
        let all = "[workspace]\nmembers = ['crates/*']\nexclude = ";
        for (exclude, is) in [
            ("['crates/m']", true),
            ("['crates']", true),
            ("['./crates/m/']", true),
            ("['crates/m*']", false),
            ("['x/../crates/m']", false),
        ] {
            let found = cover(&format!("{all}{exclude}"), "/w/crates/m");
            assert_eq!(found.is_none(), is, "{exclude}");
        }
        let listed = "[workspace]\nmembers = ['crates/m']\nexclude = ['crates/m']";
        assert!(cover(listed, "/w/crates/m").is_some());
        let itself = "[package]\nname='r'\n[workspace]\nmembers = ['.','c/*']\nexclude = ['c/m']";
        assert!(cover(itself, "/w/c/m").is_some());
        assert!(root(itself).lists_itself());
    }

    #[test]
    fn a_default_member_has_to_be_a_member() {
        let text = "[workspace]\nmembers = ['a']\ndefault-members = ['*']";
        assert_eq!(cover(text, "/w/m"), Some(Cover::Default("*".to_owned())));
    }

    #[test]
    fn path_dependencies_are_members() {
        let text = "[package]\nname='r'\n[target.'cfg(unix)'.dev-dependencies]\nm.path = 'x/../m'\n\
                    n.workspace = true\n[workspace.dependencies]\nn.path = 'n'\no.path = 'o'";
        assert_eq!(cover(text, "/w/m"), Some(Cover::Dependency));
        assert_eq!(cover(text, "/w/n"), Some(Cover::Dependency));
        assert_eq!(cover(text, "/w/o"), None);
    }

    #[test]
    fn folders_with_metacharacters_are_not_patterns() {
        let place = Path::new("/w[1]*/Cargo.toml");
        let root = Root::parse(place, "[workspace]\nmembers = ['c/*']")
            .unwrap()
            .unwrap();
        assert!(root.cover(Path::new("/w[1]*/c/m")).is_some());
        assert!(root.cover(Path::new("/w1x/c/m")).is_none());
    }
}
