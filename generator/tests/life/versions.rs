//! Four versions of Kiln's own template, with fewer files of the engine and without the data.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use kiln::{
    name::Name,
    project::engine::engine_hash,
    render::render,
    template::{Template, answers::Answers},
};

/// The file that the template removes in version 3.
pub const REMOVED: &str = "tests/contract/checkpoint.rs";
/// The file that the template moves in version 4, and its new place.
pub const MOVED: (&str, &str) = ("src/callbacks.rs", "src/hooks.rs");
/// The versions.
pub const LAST: usize = 4;

/// One in so many files of the engine is kept: the time goes with their number.
const ENGINE_SHARE: usize = 12;
/// The least distance of lines that are changed.
const APART: usize = 6;
/// Number of parties; the remainder of a line's number decides which one changes it.
const PARTIES: usize = 7;

/// A line that occurs once in its file and lies apart from all others that are changed.
#[derive(Debug, Clone)]
pub struct Line {
    pub file: String,
    /// The line without indentation.
    pub text: String,
    /// The version that changes it; `None` if it is the user's.
    pub version: Option<usize>,
}

impl Line {
    pub fn is_comment(&self) -> bool {
        self.text.starts_with("//")
    }
}

pub struct Versions {
    place: tempfile::TempDir,
    pub lines: Vec<Line>,
}

impl Versions {
    pub fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../template");
        let mut files = read(&source);
        let mut number = 0;
        files.retain(|path, _| {
            number += usize::from(path.starts_with("engine/src"));
            let is_kept = !path.starts_with("engine/src") || number % ENGINE_SHARE == 0;
            is_kept && path.extension().is_none_or(|ending| ending != "gz")
        });
        let versions = Self {
            place,
            lines: lines(&files),
        };
        for version in 1..=LAST {
            if version > 1 {
                versions.renew(&mut files, version);
            }
            versions.write(version, &files);
        }
        versions
    }

    pub fn folder(&self, version: usize) -> String {
        let folder = self.place.path().join(format!("v{version}"));
        folder.display().to_string()
    }

    /// The place in a version of what was `path` in the first.
    pub fn place_of(path: &str, version: usize) -> &str {
        if version >= 4 && path == MOVED.0 {
            return MOVED.1;
        }
        path
    }

    /// Makes a version from the one before.
    fn renew(&self, files: &mut BTreeMap<PathBuf, Vec<u8>>, version: usize) {
        for line in &self.lines {
            if line.version == Some(version)
                && let Some(bytes) = files.get_mut(Path::new(&line.file))
            {
                let text = str::from_utf8(bytes).unwrap();
                *bytes = changed(text, &line.text, &new_text(line, version)).into_bytes();
            }
        }
        let mut replace = |file: &str, from: &str, to: &str| {
            let bytes = files.get_mut(Path::new(file)).unwrap();
            let text = str::from_utf8(bytes).unwrap();
            assert!(text.contains(from), "{file} has no {from:?}");
            *bytes = text.replacen(from, to, 1).into_bytes();
        };
        replace("README.md.liquid", "\n", &format!("\nVersion {version}.\n"));
        match version {
            2 => {
                files.insert("src/extra.rs".into(), b"//! Extra.\n".to_vec());
                files.insert("engine/src/extra.rs".into(), b"//! Extra.\n".to_vec());
            }
            3 => {
                replace(
                    "cargo-generate.toml",
                    "[placeholders.ci]",
                    "[placeholders.logo]\ntype = \"string\"\nprompt = \"Logo?\"\n\
                     choices = [\"no\", \"yes\"]\ndefault = \"no\"\n\n\
                     [conditional.'logo == \"no\"']\nignore = [\"logo.svg\"]\n\n[placeholders.ci]",
                );
                replace(".kiln.toml.liquid", "ci = ", "logo = \"{{logo}}\"\nci = ");
                files.insert("logo.svg".into(), b"<svg/>\n".to_vec());
                files.remove(Path::new(REMOVED)).unwrap();
                let engine = files.keys().find(|path| path.starts_with("engine/src"));
                let gone = engine.unwrap().clone();
                files.remove(&gone);
            }
            _ => {
                replace(
                    "cargo-generate.toml",
                    "choices = [\"yes\", \"no\"]\ndefault = \"yes\"",
                    "choices = [\"yes\", \"no\"]\ndefault = \"no\"",
                );
                let moved = files.remove(Path::new(MOVED.0)).unwrap();
                files.insert(MOVED.1.into(), moved);
                let mut engine = files.keys().filter(|path| path.starts_with("engine/src"));
                let old = engine.next_back().unwrap().clone();
                let moved = files.remove(&old).unwrap();
                files.insert(old.with_file_name("moved.rs"), moved);
            }
        }
    }

    fn write(&self, version: usize, files: &BTreeMap<PathBuf, Vec<u8>>) {
        let folder = PathBuf::from(self.folder(version));
        for (path, bytes) in files {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        // The record of this version: of the same template, with the engine as it is.
        let template = Template::from_folder(&folder).unwrap();
        let answers = Answers::defaults(&template, Name::parse("life").unwrap()).unwrap();
        let engine = engine_hash(&render(&template, &answers).unwrap());
        let path = folder.join(".kiln.toml.liquid");
        let record = fs::read_to_string(&path).unwrap();
        let record: String = record
            .lines()
            .map(|line| match line.split_once(" = ").map(|(key, _)| key) {
                Some("kiln") => format!("kiln = \"0.0.{version}\"\n"),
                Some("template") => "template = \"life\"\n".to_owned(),
                Some("engine") => format!("engine = \"{engine}\"\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        fs::write(path, record).unwrap();
    }
}

/// Replacement of a line in a version: comments get longer, code gets a comment.
pub fn new_text(line: &Line, version: usize) -> String {
    if line.is_comment() {
        format!("{} (template {version})", line.text)
    } else {
        format!("// Template {version}.\n{}", line.text)
    }
}

/// A text with another line, or several, instead of the only one that is `from` when trimmed.
pub fn changed(text: &str, from: &str, to: &str) -> String {
    try_changed(text, from, to).unwrap_or_else(|| panic!("not once: {from:?} in {text}"))
}

/// As [`changed`]; `None` if the line does not occur exactly once.
pub fn try_changed(text: &str, from: &str, to: &str) -> Option<String> {
    if text.lines().filter(|line| line.trim() == from).count() != 1 {
        return None;
    }
    let mut all = String::new();
    for line in text.split_inclusive('\n') {
        if line.trim() == from {
            let indent = &line[..line.len() - line.trim_start().len()];
            let end = if line.ends_with("\r\n") { "\r\n" } else { "\n" };
            for new in to.lines() {
                all += &format!("{indent}{new}{end}");
            }
        } else {
            all += line;
        }
    }
    Some(all)
}

/// The lines of Rust files, without Liquid, that are changed by someone.
fn lines(files: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<Line> {
    let mut found = Vec::new();
    for (path, bytes) in files {
        let (Ok(text), Some("rs")) = (
            str::from_utf8(bytes),
            path.extension().and_then(|ending| ending.to_str()),
        ) else {
            continue;
        };
        let all: Vec<&str> = text.lines().map(str::trim).collect();
        let mut next = 0;
        for (at, line) in all.iter().enumerate() {
            let is_near_site = || {
                let around = &all[at.saturating_sub(12)..(at + 6).min(all.len())];
                let sites = super::SITES.map(|(_, _, from, _)| from);
                let is_site = |line: &&str| line.contains("TODO(");
                around.iter().any(is_site)
                    || around
                        .iter()
                        .any(|line| sites.iter().any(|site| line.contains(site)))
            };
            let is_once = || all.iter().filter(|other| *other == line).count() == 1;
            let is_clear = line.len() > 12 && !line.contains('"') && !line.starts_with("mod ");
            if at >= next && is_clear && is_once() && !is_near_site() {
                let party = found.len() % PARTIES;
                found.push(Line {
                    file: path.to_str().unwrap().to_owned(),
                    text: (*line).to_owned(),
                    version: (2..=LAST).contains(&party).then_some(party),
                });
                next = at + APART;
            }
        }
    }
    found
}

fn read(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_path_buf();
                files.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    files
}
