//! Edits of the user, all of which must be found again in the end.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
    sync::Mutex,
};

use kiln::project::todo::without_marker;

use super::versions::{Versions, try_changed};

pub type Tree = BTreeMap<PathBuf, Vec<u8>>;

/// An edit of a file of the template.
#[derive(Debug, Clone)]
pub struct Edit {
    /// The file in the first version.
    pub file: String,
    pub what: What,
}

#[derive(Debug, Clone)]
pub enum What {
    /// Another line, or several.
    Line { from: String, to: String },
    /// A site without its marker and with other code.
    Site {
        id: &'static str,
        from: &'static str,
        to: &'static str,
    },
    /// Text at the end.
    End(String),
}

impl Edit {
    /// The text after the edit; `None` if its place is not there.
    pub fn apply(&self, text: &str) -> Option<String> {
        match &self.what {
            What::Line { from, to } => try_changed(text, from, to),
            What::Site { id, from, to } => {
                let text = without_marker(&self.file, text, id)?;
                (text.matches(from).count() == 1).then(|| text.replace(from, to))
            }
            What::End(end) if text.contains("\r\n") => {
                Some(format!("{text}{}", end.replace('\n', "\r\n")))
            }
            What::End(end) => Some(format!("{text}{end}")),
        }
    }
}

/// All that the user did.
#[derive(Debug, Default)]
pub struct User {
    pub edits: Vec<Edit>,
    /// Files that the user moved: paths in the first version, and the present ones.
    pub moved: BTreeMap<String, String>,
    pub deleted: BTreeSet<String>,
    /// Files of the user's own, and those that the template removed and the user had edited.
    pub own: Tree,
    pub answers: BTreeMap<String, String>,
    /// True if the code was formatted in another way, or line ends were changed.
    pub reformatted: bool,
}

impl User {
    /// The present place of a file of the first version.
    pub fn place<'p>(&'p self, file: &'p str, version: usize) -> &'p str {
        match self.moved.get(file) {
            Some(place) => place,
            None => Versions::place_of(file, version),
        }
    }

    /// The expected tree, from the tree that `new` makes.
    pub fn expected(&self, mut tree: Tree, version: usize) -> Tree {
        for (file, place) in &self.moved {
            let bytes = tree.remove(&PathBuf::from(file)).unwrap();
            tree.insert(place.into(), bytes);
        }
        for file in &self.deleted {
            tree.remove(&PathBuf::from(file)).unwrap();
        }
        for edit in &self.edits {
            let place = self.place(&edit.file, version);
            let bytes = tree.get_mut(&PathBuf::from(place)).unwrap();
            let text = str::from_utf8(bytes).unwrap();
            let edited = edit.apply(text);
            *bytes = edited
                .unwrap_or_else(|| panic!("{edit:?} in {text}"))
                .into_bytes();
        }
        tree.extend(self.own.clone());
        tree
    }

    pub fn is_edited(&self, file: &str) -> bool {
        self.edits.iter().any(|edit| edit.file == file)
    }
}

/// What rustfmt made of a text: most files of a project are as at the check before.
static FORMATTED: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// The text as rustfmt lays it out in lines of 80 characters, with LF; as it is if rustfmt fails.
pub fn formatted(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    if let Some(known) = FORMATTED.lock().unwrap().get(&text) {
        return known.clone();
    }
    let formatted = by_rustfmt(text.clone());
    FORMATTED.lock().unwrap().insert(text, formatted.clone());
    formatted
}

fn by_rustfmt(text: String) -> String {
    let child = Command::new("rustfmt")
        .args([
            "--edition",
            "2024",
            "--config",
            "max_width=80,newline_style=Unix",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else {
        return text;
    };
    let mut input = child.stdin.take().unwrap();
    input.write_all(text.as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    match output.status.success() {
        true => String::from_utf8(output.stdout).unwrap(),
        false => text,
    }
}
