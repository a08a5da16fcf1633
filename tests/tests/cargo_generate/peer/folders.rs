//! Folders of templates, rendered by both tools.

use std::{fs, path::Path};

use kiln::{
    error::{Kind, Result},
    name::Name,
    render::render,
    template::{Template, answers::Answers},
};
use kiln_tests::{NAME, combinations};
use tempfile::TempDir;

use super::{Peer, assert_same};

/// Writes a file below `root`.
pub fn put(root: &Path, path: &str, contents: &[u8]) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, contents).unwrap();
}

/// Writes texts below `root`.
pub fn put_all(root: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        put(root, path, text.as_bytes());
    }
}

/// A temporary folder with these texts.
#[allow(dead_code, reason = "not every test that has this module uses it")]
pub fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    put_all(folder.path(), files);
    folder
}

/// Checks that both tools render the same files from every combination of answers.
pub fn assert_parity(source: &Path) {
    let template = Template::from_folder(source).unwrap();
    let peer = Peer::new();
    for combination in combinations(&template, NAME) {
        assert_same(&peer, source, &combination.answers);
    }
}

/// Kiln's error for a template, as `file:line:column: message`, without its folder; of several
/// reasons, each on a line.
pub fn refusal(source: &TempDir) -> String {
    let render_default = || -> Result<()> {
        let template = Template::from_folder(source.path())?;
        template.check()?;
        let answers = Answers::defaults(&template, Name::parse(NAME)?)?;
        render(&template, &answers).map(drop)
    };
    let error = render_default().expect_err("Kiln refuses this template");
    assert_eq!(error.kind(), Kind::Template, "{error:?}");
    let root = format!("{}/", source.path().display());
    let reasons = match error.reasons() {
        [] => std::slice::from_ref(&error),
        reasons => reasons,
    };
    let lines = reasons.iter().map(|error| {
        let place = error
            .place()
            .map(|(file, line, column)| format!("{file}:{line}:{column}: "));
        format!("{}{error}", place.unwrap_or_default()).replace(&root, "")
    });
    lines.collect::<Vec<_>>().join("\n")
}
