//! The project, its user's commands and what must come of them.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::{
    SITES,
    kills::{Kills, kiln},
    random::Random,
    user::{Edit, Tree, User, What, formatted},
    versions::{Line, REMOVED, Versions, new_text},
};

/// The file that the user may delete; the template changes it in all versions.
const DELETED: &str = "tests/contract/train.rs";
/// The file that the user may move.
const MOVED: (&str, &str) = ("src/train.rs", "src/steps/training loop.rs");

pub struct Project<'v> {
    versions: &'v Versions,
    version: usize,
    random: Random,
    pub kills: Kills,
    place: tempfile::TempDir,
    folder: PathBuf,
    user: User,
    /// The user's changes of lines that the next version changes too: the line of the conflict.
    overlaps: Vec<Line>,
    edits: usize,
    on_branch: bool,
}

impl<'v> Project<'v> {
    pub fn new(versions: &'v Versions, random: Random, kills: Kills) -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut project = Self {
            versions,
            version: 1,
            random,
            kills,
            folder: place.path().join("life"),
            place,
            user: User::default(),
            overlaps: Vec::new(),
            edits: 0,
            on_branch: false,
        };
        // A later version has another default, but the answer was given.
        let answers = &mut project.user.answers;
        answers.insert("tensorboard".to_owned(), "yes".to_owned());
        project.make("life", &["--vcs", "git"]);
        project.git(&["checkout", "-q", "-B", "main"]);
        project.commit();
        project
    }

    pub fn version(&self) -> usize {
        self.version
    }

    /// `kiln new` with the present template and answers.
    fn make(&self, path: &str, more: &[&str]) {
        let template = self.versions.folder(self.version);
        let mut args = vec![
            "new",
            "life",
            "--yes",
            "--template",
            &template,
            "--path",
            path,
        ];
        let answers = self.user.answers.iter();
        let answers: Vec<_> = answers
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        for answer in &answers {
            args.extend(["--define", answer]);
        }
        args.extend(more);
        let output = kiln(self.place.path(), &args).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
    }

    fn asked(&self, args: &[&str]) -> Output {
        Command::new("git")
            .args(["-c", "user.name=a", "-c", "user.email=a@b"])
            .args(["-c", "commit.gpgsign=false", "-c", "core.autocrlf=false"])
            .args(args)
            .current_dir(&self.folder)
            .output()
            .unwrap()
    }

    #[track_caller]
    fn git(&self, args: &[&str]) -> String {
        let output = self.asked(args);
        assert!(output.status.success(), "git {args:?}: {}", text(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn commit(&self) {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "--allow-empty", "-m", "all"]);
    }

    /// Some work of the user, committed.
    pub fn works(&mut self) {
        for _ in 0..2 + self.random.below(5) {
            match self.random.below(10) {
                0 => self.edits_end(),
                1 => self.fills_in(),
                2 => self.moves(),
                3 => self.deletes(),
                4 => self.adds(),
                5 => self.overlaps(),
                6 | 7 => self.edits_line(),
                8 => self.formats(),
                _ => self.changes_line_ends(),
            }
        }
        self.commit();
        self.is_as_expected();
    }

    fn edits_line(&mut self) {
        let lines: Vec<_> = self.versions.lines.iter().collect();
        // The engine has most files, but half of the users leave it as it is.
        let line = loop {
            let line = (*self.random.pick(&lines)).clone();
            if line.version.is_none() && (self.edits.is_multiple_of(2) || !is_engine(&line)) {
                break line;
            }
        };
        self.edits += 1;
        let to = match line.is_comment() {
            true => format!("{} (edit {})", line.text, self.edits),
            false => format!("// Edit {}.\n{}", self.edits, line.text),
        };
        let from = line.text;
        self.edit(line.file, What::Line { from, to });
    }

    fn fills_in(&mut self) {
        let (id, file, from, to) = *self.random.pick(&SITES);
        self.edit(file.to_owned(), What::Site { id, from, to });
    }

    fn edits_end(&mut self) {
        let file = *self.random.pick(&["README.md", ".gitignore"]);
        self.edits += 1;
        self.edit(file.to_owned(), What::End(format!("own-{}\n", self.edits)));
    }

    /// Edits a file, if its place is there and the edit can be found again.
    fn edit(&mut self, file: String, what: What) {
        let settled = |version: usize| {
            let folder = PathBuf::from(self.versions.folder(version));
            let path = folder.join(Versions::place_of(&file, version));
            path.exists() || path.with_extension("md.liquid").exists()
        };
        // Git would leave its removal on the other branch as a conflict.
        let is_orphan = file == REMOVED && self.version < 3 && !self.on_branch;
        if !(is_orphan || settled(self.version) && settled(4)) || self.user.deleted.contains(&file)
        {
            return;
        }
        let path = self.folder.join(self.user.place(&file, self.version));
        let edit = Edit { file, what };
        if let Some(edited) = edit.apply(&fs::read_to_string(&path).unwrap()) {
            fs::write(path, edited).unwrap();
            self.user.edits.push(edit);
        }
    }

    /// Changes a line that the next version changes too.
    fn overlaps(&mut self) {
        let next = self.version + 1;
        let lines = self.versions.lines.iter().filter(|line| {
            line.version == Some(next)
                && line.is_comment()
                && !is_engine(line)
                && line.file != REMOVED
                && !self.user.deleted.contains(&line.file)
                && !self.overlaps.iter().any(|other| other.file == line.file)
        });
        let lines: Vec<_> = lines.collect();
        if lines.is_empty() {
            return;
        }
        let line = (*self.random.pick(&lines)).clone();
        let path = self.folder.join(self.user.place(&line.file, self.version));
        let edit = Edit {
            file: line.file.clone(),
            what: What::Line {
                from: line.text.clone(),
                to: mine(&line),
            },
        };
        if let Some(edited) = edit.apply(&fs::read_to_string(&path).unwrap()) {
            fs::write(path, edited).unwrap();
            self.overlaps.push(line);
        }
    }

    fn moves(&mut self) {
        let (from, to) = MOVED;
        if self.user.moved.contains_key(from) {
            return;
        }
        // A move alone, as Git advises.
        self.commit();
        fs::create_dir_all(self.folder.join(to).parent().unwrap()).unwrap();
        self.git(&["mv", from, to]);
        self.user.moved.insert(from.to_owned(), to.to_owned());
        let module = What::Line {
            from: "pub mod train;".to_owned(),
            to: "#[path = \"steps/training loop.rs\"]\npub mod train;".to_owned(),
        };
        self.edit("src/lib.rs".to_owned(), module);
    }

    fn deletes(&mut self) {
        if self.random.once_in(2)
            && !self.user.is_edited(DELETED)
            && !self.overlaps.iter().any(|line| line.file == DELETED)
            && self.user.deleted.insert(DELETED.to_owned())
        {
            fs::remove_file(self.folder.join(DELETED)).unwrap();
        }
    }

    /// `kiln add`.
    fn adds(&mut self) {
        let mut all = vec![
            ("cluster", "slurm"),
            ("cluster", "kubernetes"),
            ("hardware", "cuda"),
            ("hardware", "wgpu"),
            ("ci", "github"),
            ("tensorboard", "no"),
            ("strategy", "one-device"),
            ("description", "Größe der 'Wellen'"),
        ];
        if self.version >= 3 {
            all.push(("logo", "yes"));
        }
        let (key, value) = *self.random.pick(&all);
        self.commit();
        let template = self.versions.folder(self.version);
        let option = format!("{key}={value}");
        let (output, _) = self.run(&["add", &option, "--from", &template]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        self.user.answers.insert(key.to_owned(), value.to_owned());
        self.commit();
    }

    fn formats(&mut self) {
        self.user.reformatted = true;
        let config = Path::new("rustfmt.toml");
        self.user
            .own
            .insert(config.into(), b"max_width = 80\n".to_vec());
        fs::write(self.folder.join(config), "max_width = 80\n").unwrap();
        for (path, bytes) in tree(&self.folder) {
            if path.extension().is_some_and(|ending| ending == "rs") && !path.starts_with("engine")
            {
                let text = String::from_utf8(bytes).unwrap();
                fs::write(self.folder.join(path), formatted(&text)).unwrap();
            }
        }
    }

    fn changes_line_ends(&mut self) {
        self.user.reformatted = true;
        let file = *self
            .random
            .pick(&["src/model.rs", "README.md", "src/dataset.rs"]);
        let path = self.folder.join(file);
        let text = fs::read_to_string(&path).unwrap().replace("\r\n", "\n");
        fs::write(path, text.replace('\n', "\r\n")).unwrap();
    }

    /// Runs a command, killed at random; no killed one shows its files to Git.
    fn run(&mut self, args: &[&str]) -> (Output, bool) {
        let folder = self.folder.clone();
        self.kills.run(&folder, args, || {
            let args = ["status", "--porcelain", "-uall"];
            let output = Command::new("git").args(args).current_dir(&folder).output();
            let status = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
            // Changes without a place are for the user to commit.
            let hidden = status
                .replace(".kiln-patches", "")
                .replace(".kiln.toml", "");
            assert!(!hidden.contains(".kiln"), "{status}");
        })
    }

    /// The next version: here, or on another branch.
    pub fn updates(&mut self) {
        if self.overlaps.is_empty() && self.user.deleted.is_empty() && self.random.once_in(2) {
            self.updates_elsewhere();
        } else {
            self.updates_here();
        }
        self.commit();
    }

    /// Updates `main` while a branch is edited, and rebases one onto the other.
    fn updates_elsewhere(&mut self) {
        self.git(&["checkout", "-q", "-B", "work"]);
        let before = self.user.edits.len();
        self.on_branch = true;
        for _ in 0..3 {
            self.edits_line();
            self.fills_in();
        }
        self.on_branch = false;
        self.commit();
        self.git(&["checkout", "-q", "main"]);
        let edits = self.user.edits.split_off(before);
        self.updates_here();
        self.commit();
        self.user.edits.extend(edits);
        let (branch, onto) = match self.random.once_in(2) {
            true => ("work", "main"),
            false => ("main", "work"),
        };
        self.git(&["checkout", "-q", branch]);
        self.git(&["rebase", "-q", onto]);
        self.git(&["checkout", "-q", "-B", "main"]);
    }

    fn updates_here(&mut self) {
        let (from, to) = (
            self.versions.folder(self.version),
            self.versions.folder(self.version + 1),
        );
        let args = ["update", "--from", &from, "--template", &to];
        let before = self.state();
        let (output, was_killed) = self.run(&args);
        self.version += 1;
        let status = i32::from(!self.overlaps.is_empty() || !self.user.deleted.is_empty());
        assert_eq!(output.status.code(), Some(status), "{}", text(&output));
        if !self.overlaps.is_empty() {
            self.is_in_conflict(&output, was_killed);
            if self.random.once_in(2) {
                let (output, was_killed) = self.run(&["update", "--abort"]);
                self.ended(&output, was_killed);
                assert!(self.state() == before, "not as before");
                let (output, was_killed) = self.run(&args);
                assert_eq!(output.status.code(), Some(1), "{}", text(&output));
                self.is_in_conflict(&output, was_killed);
            }
            self.resolves();
            let (output, was_killed) = self.run(&["update", "--continue"]);
            self.ended(&output, was_killed);
        }
        self.finds_patches(&to);
        if self.version == 3 && self.user.is_edited(REMOVED) {
            let bytes = fs::read(self.folder.join(REMOVED)).unwrap();
            self.user.own.insert(REMOVED.into(), bytes);
            self.user.edits.retain(|edit| edit.file != REMOVED);
        }
    }

    /// `--continue` or `--abort` succeeded, perhaps before it was killed.
    fn ended(&self, output: &Output, was_killed: bool) {
        let said = text(output);
        let is_over = was_killed && said.contains("has no update with conflicts");
        let status = if is_over { 2 } else { 0 };
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(!self.folder.join(".kiln-update").exists());
        assert_eq!(self.git(&["ls-files", "--unmerged"]), "");
    }

    /// Every conflict is told, with its line, now and later; no other file has one.
    fn is_in_conflict(&self, output: &Output, was_killed: bool) {
        let again = kiln(&self.folder, &["update", "--continue"]).output();
        let again = again.unwrap();
        assert_eq!(again.status.code(), Some(1));
        let (said, later) = (text(output), text(&again));
        let unmerged = self.git(&[
            "-c",
            "core.quotePath=false",
            "diff",
            "--name-only",
            "--diff-filter=U",
        ]);
        assert_eq!(unmerged.lines().count(), self.overlaps.len(), "{unmerged}");
        for line in &self.overlaps {
            let place = self.user.place(&line.file, self.version);
            let text = fs::read_to_string(self.folder.join(place)).unwrap();
            let mut lines = (1..).zip(text.lines());
            let (at, _) = lines.find(|(_, line)| line.starts_with("<<<<<<<")).unwrap();
            let told = format!("`{place}:{at}`");
            assert!(joined(&later).contains(&joined(&told)), "{told} in {later}");
            assert!(
                was_killed || said.contains(&format!("conflict  {place}")),
                "{said}"
            );
            assert!(unmerged.lines().any(|line| line == place), "{unmerged}");
        }
    }

    /// Chooses a side at every conflict.
    fn resolves(&mut self) {
        for line in std::mem::take(&mut self.overlaps) {
            let place = self.user.place(&line.file, self.version);
            let path = self.folder.join(place);
            let marked = fs::read_to_string(&path).unwrap();
            assert_eq!(marked.matches("<<<<<<<").count(), 1, "{marked}");
            let part = |from: &str, to: &str| {
                let start = marked.find(from).unwrap();
                let start = start + marked[start..].find('\n').unwrap() + 1;
                marked[start..start + marked[start..].find(to).unwrap()].to_owned()
            };
            let keeps_mine = self.random.once_in(2);
            let chosen = match keeps_mine {
                true => part("<<<<<<<", "|||||||"),
                false => part("=======", ">>>>>>>"),
            };
            let start = marked.find("<<<<<<<").unwrap();
            let end = marked.find(">>>>>>>").unwrap();
            let end = end + marked[end..].find('\n').unwrap() + 1;
            let resolved = format!("{}{chosen}{}", &marked[..start], &marked[end..]);
            fs::write(&path, resolved).unwrap();
            if keeps_mine {
                let from = new_text(&line, self.version);
                let to = mine(&line);
                let what = What::Line { from, to };
                self.user.edits.push(Edit {
                    file: line.file,
                    what,
                });
            }
        }
    }

    /// Changes of files that the user deleted are told until their patches are deleted too.
    fn finds_patches(&self, to: &str) {
        let found = tree(&self.folder.join(".kiln-patches"));
        let expected: Vec<PathBuf> = self
            .user
            .deleted
            .iter()
            .map(|file| PathBuf::from(format!("{file}.patch")))
            .collect();
        assert!(found.keys().eq(&expected), "{:?}", found.keys());
        if !found.is_empty() {
            let args = ["update", "--from", to, "--template", to];
            let output = kiln(&self.folder, &args).output().unwrap();
            assert_eq!(output.status.code(), Some(1));
            for path in expected {
                let path = format!(".kiln-patches/{}", path.display());
                assert!(text(&output).contains(&path), "{}", text(&output));
                fs::remove_file(self.folder.join(path)).unwrap();
            }
        }
    }

    /// All bytes and rights, and Git's index and status.
    fn state(&self) -> (Tree, BTreeMap<PathBuf, u32>, String) {
        let files = tree(&self.folder);
        let mode = |path: &PathBuf| {
            let metadata = fs::metadata(self.folder.join(path)).unwrap();
            (path.clone(), metadata.permissions().mode())
        };
        let modes = files.keys().map(mode).collect();
        let index = self.git(&["ls-files", "--stage"]);
        let status = self.git(&["status", "--porcelain"]);
        (files, modes, index + status.as_str())
    }

    /// Compares the project with what `new` makes, plus the user's edits.
    #[track_caller]
    pub fn is_as_expected(&self) {
        self.make("expected", &["--vcs", "none"]);
        let folder = self.place.path().join("expected");
        let new = tree(&folder);
        fs::remove_dir_all(folder).unwrap();
        let mut user = User {
            edits: self.user.edits.clone(),
            moved: self.user.moved.clone(),
            deleted: self.user.deleted.clone(),
            own: self.user.own.clone(),
            ..User::default()
        };
        for line in &self.overlaps {
            let what = What::Line {
                from: line.text.clone(),
                to: mine(line),
            };
            user.edits.push(Edit {
                file: line.file.clone(),
                what,
            });
        }
        let expected = user.expected(new, self.version);
        let is = tree(&self.folder);
        for path in expected.keys().chain(is.keys()) {
            let (new, own) = (expected.get(path), is.get(path));
            if new != own {
                let text = |bytes: Option<&Vec<u8>>| {
                    let text = String::from_utf8_lossy(bytes.map_or(b"(none)", Vec::as_slice));
                    let is_code = path.extension().is_some_and(|ending| ending == "rs");
                    match self.user.reformatted {
                        true if is_code => formatted(&text),
                        true => text.replace("\r\n", "\n"),
                        false => text.into_owned(),
                    }
                };
                let (new, own) = (text(new), text(own));
                assert!(new == own, "{}: {}", path.display(), difference(&new, &own));
            }
        }
        assert_eq!(self.git(&["ls-files", "--unmerged"]), "");
        let record = fs::read_to_string(self.folder.join(".kiln.toml")).unwrap();
        assert!(record.contains(&format!("kiln = \"0.0.{}\"", self.version)));
    }

    pub fn is_up_to_date(&self) {
        let folder = self.versions.folder(self.version);
        let args = ["update", "--from", &folder, "--template", &folder];
        let output = kiln(&self.folder, &args).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        assert!(text(&output).contains("Nothing to change"));
        assert_eq!(self.git(&["status", "--porcelain", "--ignored"]), "");
    }
}

fn mine(line: &Line) -> String {
    format!("{} (mine)", line.text)
}

fn is_engine(line: &Line) -> bool {
    line.file.starts_with("engine")
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes))
        .concat()
}

/// A message without its breaks between lines, which may be inside a path.
fn joined(message: &str) -> String {
    message.replace(|char: char| char == '│' || char.is_whitespace(), "")
}

/// The lines that only one of two texts has.
fn difference(new: &str, own: &str) -> String {
    let only = |one: &str, other: &str, sign: char| -> Vec<String> {
        let lines = one
            .lines()
            .filter(|line| !other.lines().any(|other| other == *line));
        lines.map(|line| format!("\n{sign} {line}")).collect()
    };
    let lines = [only(new, own, '-'), only(own, new, '+')].concat();
    lines.concat()
}

/// All files of a folder except Git's; none if it does not exist.
fn tree(folder: &Path) -> Tree {
    let mut files = Tree::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.ends_with(".git") {
                continue;
            }
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
