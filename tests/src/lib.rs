//! What the tests of Kiln share: rendering combinations of options, and trees to compare.

pub mod job;
pub mod mpi;
pub mod rendered;

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path, PathBuf},
};

use kiln::{
    name::Name,
    option::Answers,
    project::{self, Vcs, WriteOptions},
    render::{self, Rendered},
    template::Template,
};
use sha2::{Digest, Sha256};

/// The name of the projects that are rendered.
pub const NAME: &str = "my-model";

/// The root of the repository.
pub fn repository() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests
        .parent()
        .expect("`tests` lies in the repository")
        .into()
}

/// The template's folder.
pub fn template_folder() -> PathBuf {
    repository().join("template")
}

/// Copies the template as a checkout has it: without the empty folders that git does not keep.
///
/// # Errors
/// The file system fails.
pub fn checkout(folder: &Path) -> io::Result<()> {
    for (path, entry) in read_tree(&template_folder())? {
        if let Entry::File { .. } = entry {
            let target = folder.join(&path);
            fs::create_dir_all(target.parent().expect("a file lies in a folder"))?;
            fs::copy(template_folder().join(&path), target)?;
        }
    }
    Ok(())
}

/// A build folder that all rendered crates share, so that their dependencies are built once.
pub fn shared_target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| repository().join("target"), PathBuf::from)
        .join("rendered")
}

/// One way to answer all options.
#[derive(Debug, Clone)]
pub struct Combination {
    /// What differs from the defaults, such as `ci=github,hardware=cuda`; `default` if nothing.
    pub label: String,
    /// The answers.
    pub answers: Answers,
}

/// Every valid combination of the options of a template for a project called `name`, the default
/// first. Texts keep their defaults: they cannot be enumerated.
pub fn combinations(template: &Template, name: &str) -> Vec<Combination> {
    let name = Name::parse(name).expect("a valid name");
    let default = Answers::defaults(template, name).expect("a default of every option");
    let mut all = vec![default.clone()];
    for option in template.options() {
        all = all
            .iter()
            .flat_map(|answers| {
                option.values().into_iter().map(|value| {
                    let answers = answers.clone();
                    answers
                        .with(template, &option.name, &value.to_string())
                        .expect("an enumerated value is valid")
                })
            })
            .collect();
    }
    let mut all: Vec<_> = all
        .into_iter()
        .map(|answers| Combination {
            label: label(&default, &answers),
            answers,
        })
        .collect();
    all.sort_by_key(|combination| combination.answers != default);
    all
}

fn label(default: &Answers, answers: &Answers) -> String {
    let differing: Vec<_> = answers
        .values()
        .filter(|(key, value)| default.get(key) != Some(value))
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    if differing.is_empty() {
        "default".to_owned()
    } else {
        differing.join(",")
    }
}

/// Renders answers and writes the project to `folder`.
///
/// # Errors
/// Whatever Kiln refuses.
pub fn generate(template: &Template, answers: &Answers, folder: &Path) -> kiln::error::Result<()> {
    write(&render::render_at(template, answers, folder)?, folder)
}

/// Writes a rendered project to `folder`.
///
/// # Errors
/// Whatever Kiln refuses.
pub fn write(rendered: &Rendered<'_>, folder: &Path) -> kiln::error::Result<()> {
    let options = WriteOptions {
        force: false,
        vcs: Vcs::None,
        require_vcs: false,
    };
    project::write(rendered, folder, options).map(drop)
}

/// What stands at a path of a tree.
#[derive(Clone, PartialEq, Eq)]
pub enum Entry {
    /// A folder.
    Folder,
    /// A file.
    File {
        /// Its bytes.
        contents: Vec<u8>,
        /// Whether it can be run.
        executable: bool,
    },
}

impl Entry {
    /// The text of a file, or of what is not UTF-8 the length and hash.
    pub fn text(&self) -> String {
        match self {
            Entry::Folder => String::new(),
            Entry::File { contents, .. } => match str::from_utf8(contents) {
                Ok(text) if !text.contains('\0') => text.to_owned(),
                _ => format!("{} bytes, sha256 {}\n", contents.len(), hash(contents)),
            },
        }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Folder => f.write_str("folder"),
            Entry::File {
                contents,
                executable,
            } => {
                let run = if *executable { ", executable" } else { "" };
                write!(f, "file{run}: {:?}", String::from_utf8_lossy(contents))
            }
        }
    }
}

fn hash(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// All that stands below a folder, by path with `/` between the parts.
pub type Tree = BTreeMap<String, Entry>;

/// Reads everything below a folder.
///
/// # Errors
/// The file system fails.
pub fn read_tree(folder: &Path) -> io::Result<Tree> {
    let mut tree = Tree::new();
    read_into(folder, "", &mut tree)?;
    Ok(tree)
}

fn read_into(folder: &Path, prefix: &str, tree: &mut Tree) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            read_into(&entry.path(), &format!("{path}/"), tree)?;
            tree.insert(path, Entry::Folder);
        } else {
            let file = Entry::File {
                contents: fs::read(entry.path())?,
                executable: is_executable(&entry.metadata()?),
            };
            tree.insert(path, file);
        }
    }
    Ok(())
}

#[cfg(unix)]
fn is_executable(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o111 != 0
}

#[cfg(not(unix))]
fn is_executable(_: &fs::Metadata) -> bool {
    false
}

/// What differs between two trees, as a unified diff; empty where they are the same.
pub fn diff(before: &Tree, after: &Tree) -> String {
    let mut paths: Vec<_> = before.keys().chain(after.keys()).collect();
    paths.sort();
    paths.dedup();
    let mut text = String::new();
    for path in paths {
        let (old, new) = (before.get(path), after.get(path));
        if old != new {
            text.push_str(&diff_entry(path, old, new));
        }
    }
    text
}

fn diff_entry(path: &str, old: Option<&Entry>, new: Option<&Entry>) -> String {
    let title = |entry: Option<&Entry>| match entry {
        None => "(nothing)".to_owned(),
        Some(Entry::Folder) => format!("{path}/"),
        Some(Entry::File {
            executable: true, ..
        }) => format!("{path} (executable)"),
        Some(Entry::File { .. }) => path.to_owned(),
    };
    let text = |entry: Option<&Entry>| entry.map(Entry::text).unwrap_or_default();
    let (old_text, new_text) = (text(old), text(new));
    let diff = similar::TextDiff::from_lines(&old_text, &new_text);
    let mut diff = diff.unified_diff();
    let hunks = diff.context_radius(2).to_string();
    format!("--- {}\n+++ {}\n{hunks}", title(old), title(new))
}
