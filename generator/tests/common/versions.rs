//! A template in two versions, and a project of the first.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use kiln::{
    name::Name,
    project::{engine::engine_hash, record::Record},
    render::{Rendered, RenderedFile, render},
    template::{Template, answers::Answers},
};

/// The text of `a.txt`, below the value of its option.
pub const OLD: &str = "one\ntwo\nthree\nfour\nfive\nsix\nseven\n";

pub fn kiln(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kiln"))
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap()
}

pub fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes))
        .concat()
}

#[track_caller]
pub fn runs(folder: &Path, args: &[&str], status: i32) -> String {
    let output = kiln(folder, args);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(status), "kiln {args:?}: {text}");
    text
}

pub fn git(folder: &Path, args: &[&str]) {
    let identity = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "commit.gpgsign=false",
    ];
    let status = Command::new("git")
        .args(identity)
        .args(args)
        .current_dir(folder)
        .status();
    assert!(status.unwrap().success(), "git {args:?}");
}

pub fn commit(folder: &Path) {
    git(folder, &["add", "-A"]);
    git(folder, &["commit", "-q", "-m", "all"]);
}

/// All files of a folder except git's.
pub fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !path.ends_with(".git") {
                    folders.push(path);
                }
            } else {
                let name = path.strip_prefix(folder).unwrap().to_path_buf();
                files.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    files
}

/// The hash of the engine in a folder without executable files.
pub fn engine_on_disk(folder: &Path) -> String {
    let files = tree(folder).into_iter().map(|(path, bytes)| RenderedFile {
        path,
        contents: Cow::Owned(bytes),
        executable: false,
    });
    engine_hash(&Rendered {
        files: files.collect(),
        folders: Vec::new(),
        warnings: Vec::new(),
    })
}

/// The actual hash, and the one in the project's record.
pub fn engine_hashes(project: &Path) -> (Option<String>, Option<String>) {
    let recorded = Record::read(project).unwrap().engine;
    (Some(engine_on_disk(project)), recorded)
}

/// A template in two versions, and a committed project of the first version.
pub struct Place {
    pub folder: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        let place = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        for version in ["old", "new"] {
            place.write(
                &format!("{version}/cargo-generate.toml"),
                "[template]\nfmt = false\ninclude = [\".kiln.toml\", \"a.txt\"]\n\
                 [placeholders.word]\ntype = \"string\"\nprompt = \"?\"\ndefault = \"hello\"\n",
            );
            let record = format!(
                "kiln = \"{version}\"\ntemplate = \"t\"\nname = \"{{{{project-name}}}}\"\n\
                 [options]\nword = \"{{{{word}}}}\"\n"
            );
            place.write(&format!("{version}/.kiln.toml.liquid"), &record);
            place.write(&format!("{version}/a.txt"), &format!("{{{{word}}}}\n{OLD}"));
            place.write(&format!("{version}/b.txt"), "b\n");
        }
        place.made();
        place
    }

    /// Two versions with an engine and its hash: the new version changes `lib.rs`, adds `new.rs`
    /// and removes `old/gone.rs`.
    pub fn with_engine() -> Self {
        let place = Self::new();
        for version in ["old", "new"] {
            place.write(&format!("{version}/engine/lib.rs"), OLD);
            place.write(&format!("{version}/engine/same.rs"), "same\n");
        }
        place.write("old/engine/old/gone.rs", "gone\n");
        place.write("new/engine/new.rs", "new\n");
        place.template("engine/lib.rs", "one\n", "ONE\n");
        for version in ["old", "new"] {
            let engine = engine_on_disk(&place.path(version));
            let path = format!("{version}/.kiln.toml.liquid");
            let record = place.read(&path);
            let stated = record.replace("name =", &format!("engine = \"{engine}\"\nname ="));
            place.write(&path, &stated);
        }
        fs::remove_dir_all(place.path("project")).unwrap();
        place.made();
        place
    }

    /// Runs `kiln new` with the old version.
    pub fn made(&self) {
        let template = Template::from_folder(&self.path("old")).unwrap();
        let answers = Answers::defaults(&template, Name::parse("project").unwrap()).unwrap();
        let rendered = render(&template, &answers).unwrap();
        for file in &rendered.files {
            let path = format!("project/{}", file.path.display());
            self.write(&path, str::from_utf8(&file.contents).unwrap());
        }
        git(&self.path("project"), &["init", "-q"]);
        commit(&self.path("project"));
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    /// Changes a file in the new version of the template.
    pub fn template(&self, file: &str, from: &str, to: &str) {
        let path = format!("new/{file}");
        let text = self.read(&path);
        assert!(text.contains(from));
        self.write(&path, &text.replace(from, to));
    }

    #[track_caller]
    pub fn update(&self, more: &[&str], status: i32) -> String {
        let args = ["update", "project", "--from", "old", "--template", "new"];
        runs(self.folder.path(), &[&args, more].concat(), status)
    }
}

/// A project in which the user and the template changed line 2 of `a.txt`.
pub fn in_conflict() -> Place {
    let place = Place::new();
    place.template("a.txt", "one\n", "ONE\n");
    let mine = OLD.replace("one", "1");
    place.write("project/a.txt", &format!("hello\n{mine}"));
    commit(&place.path("project"));
    place
}
