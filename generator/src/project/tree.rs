//! The files of a project as a tree, with sizes and outcomes.

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use super::writing::Written;
use crate::{
    display::{files, size},
    render::Rendered,
};

/// The total size of all files.
pub(crate) fn total(rendered: &Rendered<'_>) -> usize {
    rendered.files.iter().map(|file| file.contents.len()).sum()
}

/// A line with count and size for each top-level folder, and one for the other files.
pub(crate) fn folders(rendered: &Rendered<'_>) -> String {
    let mut folders: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut beside = (Vec::new(), 0);
    for file in &rendered.files {
        let mut parts = file.path.iter().map(|part| part.to_string_lossy());
        let (Some(top), below) = (parts.next(), parts.next()) else {
            continue;
        };
        if below.is_some() {
            let folder = folders.entry(format!("{top}/")).or_default();
            folder.0 += 1;
            folder.1 += file.contents.len();
        } else {
            beside.0.push(top.into_owned());
            beside.1 += file.contents.len();
        }
    }
    let lines = folders
        .into_iter()
        .map(|(folder, (count, bytes))| (folder, files(count), size(bytes)));
    let mut lines: Vec<_> = lines.collect();
    if !beside.0.is_empty() {
        lines.push((few(&beside.0), files(beside.0.len()), size(beside.1)));
    }
    let width = |text: fn(&(String, String, String)) -> &str| {
        let widths = lines.iter().map(|line| text(line).chars().count());
        widths.max().unwrap_or(0)
    };
    let (names, counts, sizes) = (width(|l| &l.0), width(|l| &l.1), width(|l| &l.2));
    let mut text = String::new();
    for (name, count, size) in &lines {
        let _ = writeln!(text, "  {name:names$}  {count:>counts$}  {size:>sizes$}");
    }
    text
}

/// The first few of several names.
fn few(names: &[String]) -> String {
    const SHOWN: usize = 2;
    match names.len() {
        0..=SHOWN => names.join(", "),
        _ => format!("{}, ...", names[..SHOWN].join(", ")),
    }
}

/// Every file with its size, indented below its folders, and with its outcome if `written` is given.
pub(crate) fn list(rendered: &Rendered<'_>, written: Option<&Written>) -> String {
    let mut lines: Vec<(String, String)> = Vec::new();
    let mut above: Vec<String> = Vec::new();
    for file in &rendered.files {
        let mut parts: Vec<String> = file
            .path
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect();
        let name = parts.pop().unwrap_or_default();
        let same = above.iter().zip(&parts).take_while(|(a, b)| a == b).count();
        for (depth, folder) in parts.iter().enumerate().skip(same) {
            lines.push((format!("{}{folder}/", indent(depth)), String::new()));
        }
        let fate = written.map_or("", |written| fate(written, &file.path));
        let line = format!("{}{name}", indent(parts.len()));
        lines.push((line, format!("{:>9}  {fate}", size(file.contents.len()))));
        above = parts;
    }
    let width = lines.iter().map(|(name, _)| name.chars().count()).max();
    let mut text = String::new();
    for (name, rest) in &lines {
        let line = format!("  {name:width$}  {rest}", width = width.unwrap_or(0));
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn indent(depth: usize) -> String {
    "  ".repeat(depth)
}

fn fate(written: &Written, path: &Path) -> &'static str {
    let is_in = |paths: &[std::path::PathBuf]| paths.iter().any(|one| one == path);
    if is_in(&written.replaced) {
        "replaced"
    } else if is_in(&written.unchanged) {
        "unchanged"
    } else if is_in(&written.kept) {
        "kept"
    } else if is_in(&written.extended) {
        "extended"
    } else {
        "created"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::RenderedFile;
    use std::{borrow::Cow, path::PathBuf};

    fn project(files: &[(&str, usize)]) -> Rendered<'static> {
        let file = |(path, size): &(&str, usize)| RenderedFile {
            path: PathBuf::from(path),
            contents: Cow::Owned(vec![b'x'; *size]),
            executable: false,
        };
        Rendered {
            files: files.iter().map(file).collect(),
            folders: Vec::new(),
            warnings: Vec::new(),
        }
    }

    const FILES: &[(&str, usize)] = &[
        ("Cargo.toml", 12),
        ("LICENSE", 1),
        ("README.md", 3_456),
        ("src/a/deep.rs", 7_000_000),
        ("src/a/er.rs", 999),
        ("src/b/one.rs", 1_000),
        ("src/main.rs", 0),
    ];

    #[test]
    fn folders_with_counts_and_sizes() {
        assert_eq!(
            folders(&project(FILES)),
            "  src/                      4 files  7.0 MB\n  \
               Cargo.toml, LICENSE, ...  3 files  3.5 KB\n"
        );
        assert_eq!(folders(&project(&[])), "");
        assert_eq!(
            folders(&project(&FILES[..1])),
            "  Cargo.toml  1 file  12 B\n"
        );
    }

    #[test]
    fn every_file_below_its_folders() {
        let written = Written {
            replaced: vec![PathBuf::from("src/a/er.rs")],
            unchanged: vec![PathBuf::from("LICENSE")],
            ..Written::default()
        };
        let all = list(&project(FILES), Some(&written));
        assert_eq!(
            all,
            "  Cargo.toml        12 B  created\n  \
               LICENSE            1 B  unchanged\n  \
               README.md       3.5 KB  created\n  \
               src/\n    \
                 a/\n      \
                   deep.rs     7.0 MB  created\n      \
                   er.rs        999 B  replaced\n    \
                 b/\n      \
                   one.rs      1.0 KB  created\n    \
                 main.rs          0 B  created\n"
        );
        let plain = list(&project(&FILES[..1]), None);
        assert_eq!(plain, "  Cargo.toml       12 B\n");
    }
}
