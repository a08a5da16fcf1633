//! `kiln update` and `kiln add`, as a user runs them.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use kiln::template::Template;

const OLD: &str = "one\ntwo\nthree\nfour\nfive\nsix\nseven\n";

fn kiln(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kiln"))
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes))
        .concat()
}

#[track_caller]
fn runs(folder: &Path, args: &[&str], status: i32) -> String {
    let output = kiln(folder, args);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(status), "kiln {args:?}: {text}");
    text
}

fn git(folder: &Path, args: &[&str]) {
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

fn commit(folder: &Path) {
    git(folder, &["add", "-A"]);
    git(folder, &["commit", "-q", "-m", "all"]);
}

/// All files of a folder, but those of git.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
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

/// A template in two versions, and a committed project of the first.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
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

    /// What `kiln new` makes of the old version.
    fn made(&self) {
        let template = Template::from_folder(&self.path("old")).unwrap();
        let name = kiln::name::Name::parse("project").unwrap();
        let answers = kiln::template::answers::Answers::defaults(&template, name).unwrap();
        let rendered = kiln::render::render(&template, &answers).unwrap();
        for file in &rendered.files {
            let path = format!("project/{}", file.path.display());
            self.write(&path, str::from_utf8(&file.contents).unwrap());
        }
        git(&self.path("project"), &["init", "-q"]);
        commit(&self.path("project"));
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    /// Changes a file of the new version of the template.
    fn template(&self, file: &str, from: &str, to: &str) {
        let path = format!("new/{file}");
        let text = self.read(&path);
        assert!(text.contains(from));
        self.write(&path, &text.replace(from, to));
    }

    #[track_caller]
    fn update(&self, more: &[&str], status: i32) -> String {
        let args = ["update", "project", "--from", "old", "--template", "new"];
        runs(self.folder.path(), &[&args, more].concat(), status)
    }
}

#[test]
fn changes_of_both_are_joined_and_the_second_time_changes_nothing() {
    let place = Place::new();
    place.template("a.txt", "one\n", "ONE\n");
    place.template("b.txt", "b\n", "B\n");
    place.write("new/c.txt", "c\n");
    place.write("project/a.txt", &format!("hello\n{OLD}mine\n"));
    place.write("project/own.txt", "mine\n");
    commit(&place.path("project"));
    let before = tree(&place.path("project"));

    let said = place.update(&["--dry-run"], 0);
    assert!(said.contains("merged    a.txt"), "{said}");
    assert!(said.contains("Nothing was changed"), "{said}");
    assert_eq!(tree(&place.path("project")), before);

    let said = place.update(&[], 0);
    for line in ["merged    a.txt", "replaced  b.txt", "added     c.txt"] {
        assert!(said.contains(line), "{line} in {said}");
    }
    let joined = format!("hello\n{}mine\n", OLD.replace("one", "ONE"));
    assert_eq!(place.read("project/a.txt"), joined);
    assert_eq!(place.read("project/b.txt"), "B\n");
    assert_eq!(place.read("project/own.txt"), "mine\n");
    assert!(place.read("project/.kiln.toml").contains("kiln = \"new\""));

    let after = tree(&place.path("project"));
    let args = ["update", "project", "--from", "new", "--template", "new"];
    let said = runs(place.folder.path(), &args, 0);
    assert!(said.contains("Nothing to change"), "{said}");
    assert_eq!(tree(&place.path("project")), after);
}

#[test]
fn a_conflict_is_marked_in_place() {
    let place = Place::new();
    place.template("a.txt", "one\n", "ONE\n");
    place.write(
        "project/a.txt",
        &format!("hello\n{}", OLD.replace("one", "1")),
    );
    commit(&place.path("project"));
    let said = place.update(&[], 1);
    assert!(
        said.contains("conflict  a.txt       1 place, marked"),
        "{said}"
    );
    let marked = "hello\n<<<<<<< yours\n1\n||||||| old\none\n=======\nONE\n>>>>>>> new\ntwo\n";
    assert!(place.read("project/a.txt").starts_with(marked));
    let names: Vec<_> = tree(&place.path("project")).into_keys().collect();
    assert_eq!(
        names.len(),
        3,
        "nothing is left beside the files: {names:?}"
    );
}

#[test]
fn what_is_not_committed_is_not_touched_unless_told() {
    let place = Place::new();
    place.template("a.txt", "one\n", "ONE\n");
    place.write("project/a.txt", &format!("hello\n{OLD}mine\n"));
    let before = tree(&place.path("project"));
    let said = place.update(&[], 2);
    assert!(
        said.contains("git does not have your changes of `a.txt`"),
        "{said}"
    );
    assert!(said.contains("--allow-dirty"), "{said}");
    assert_eq!(tree(&place.path("project")), before);

    fs::remove_dir_all(place.path("project/.git")).unwrap();
    let said = place.update(&[], 2);
    assert!(
        said.contains("no git repository has your changes of `a.txt`"),
        "{said}"
    );
    assert_eq!(tree(&place.path("project")), before);

    place.update(&["--allow-dirty"], 0);
    assert!(place.read("project/a.txt").contains("ONE"));
}

/// What git was told to overlook is not committed, whatever it says.
#[test]
fn git_is_not_believed_when_it_was_told_to_overlook_a_file() {
    let place = Place::new();
    let project = place.path("project");
    place.template("a.txt", "one\n", "ONE\n");
    for option in ["--skip-worktree", "--assume-unchanged"] {
        git(&project, &["update-index", option, "a.txt"]);
        place.write("project/a.txt", &format!("hello\n{OLD}mine\n"));
        let said = place.update(&[], 2);
        assert!(said.contains("changes of `a.txt`"), "{said}");
        let undo = option.replacen("--", "--no-", 1);
        git(&project, &["update-index", &undo, "a.txt"]);
    }
}

/// What is as it was rendered can be rendered again.
#[test]
fn an_untouched_project_needs_no_version_control() {
    let place = Place::new();
    fs::remove_dir_all(place.path("project/.git")).unwrap();
    place.template("a.txt", "one\n", "ONE\n");
    place.update(&[], 0);
    assert!(place.read("project/a.txt").contains("ONE"));
}

/// Git for Windows ends the lines of what it checks out as Windows does, unless a project says otherwise.
#[test]
fn the_default_project_keeps_its_bytes_in_a_checkout_on_windows() {
    let folder = tempfile::tempdir().unwrap();
    runs(folder.path(), &["new", "project", "--yes"], 0);
    let project = folder.path().join("project");
    git(&project, &["config", "core.autocrlf", "true"]);
    commit(&project);
    let before = tree(&project);
    git(&project, &["rm", "-rq", "."]);
    git(&project, &["reset", "-q", "--hard"]);
    assert_eq!(tree(&project), before);
}

#[test]
fn what_stands_in_the_way_is_told_before_anything_changes() {
    let place = Place::new();
    place.template("a.txt", "one\n", "ONE\n");
    place.write("new/folder/c.txt", "c\n");
    place.write("project/folder", "a file\n");
    let before = tree(&place.path("project"));
    let said = place.update(&[], 2);
    assert!(
        said.contains("`project/folder` is in the way of a folder"),
        "{said}"
    );
    assert_eq!(tree(&place.path("project")), before);
}

#[cfg(unix)]
#[test]
fn nothing_is_written_through_a_symbolic_link() {
    let place = Place::new();
    place.template("b.txt", "b\n", "B\n");
    place.write("outside.txt", "b\n");
    fs::remove_file(place.path("project/b.txt")).unwrap();
    std::os::unix::fs::symlink(place.path("outside.txt"), place.path("project/b.txt")).unwrap();
    let said = place.update(&["--allow-dirty"], 2);
    assert!(said.contains("is a symbolic link"), "{said}");
    assert_eq!(place.read("outside.txt"), "b\n");
}

#[test]
fn an_unknown_template_is_told_with_the_way_out() {
    let place = Place::new();
    let said = runs(place.folder.path(), &["update", "project"], 2);
    assert!(said.contains("does not know the template `t`"), "{said}");
    assert!(said.contains("--from"), "{said}");
    let said = runs(place.folder.path(), &["update", "old"], 2);
    assert!(said.contains("holds no `.kiln.toml`"), "{said}");
}

#[test]
fn an_option_that_is_no_more_is_told() {
    let place = Place::new();
    place.template(
        "cargo-generate.toml",
        "placeholders.word",
        "placeholders.term",
    );
    place.template("a.txt", "{{word}}", "{{term}}");
    place.template(".kiln.toml.liquid", "{{word}}", "{{term}}");
    place.template(".kiln.toml.liquid", "word =", "term =");
    let said = place.update(&["-d", "term=bye"], 0);
    assert!(
        said.contains("the option `word` no longer exists"),
        "{said}"
    );
    assert!(place.read("project/a.txt").starts_with("bye\n"));
}

#[test]
fn the_list_for_programs_is_json() {
    let place = Place::new();
    place.template("a.txt", "one\n", "ONE\n");
    let said = place.update(&["--format", "json"], 0);
    let value: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(value["dry_run"], false);
    assert_eq!(value["files"][1]["path"], "a.txt");
    assert_eq!(value["files"][1]["fate"], "replaced");
}

/// For every option and value: made with it, and made without it and then added, are the same bytes.
#[test]
fn adding_an_option_is_as_if_it_had_been_chosen_at_first() {
    let template = Template::embedded().unwrap();
    let place = tempfile::tempdir().unwrap();
    let new = |name: &str, option: &str| {
        let args = [
            "new", "a", "--path", name, "--yes", "--vcs", "none", "-d", option,
        ];
        runs(place.path(), &args, 0);
    };
    let mut compared = 0;
    for option in template.options() {
        let mut values = option.values();
        if values.len() < 2 {
            values.push(option.parse("another text").unwrap());
        }
        for value in &values {
            let with = format!("{}={value}", option.name);
            new("with", &with);
            for other in values.iter().filter(|other| *other != value) {
                new("then", &format!("{}={other}", option.name));
                runs(place.path(), &["add", &with, "--path", "then"], 0);
                let (with, then) = (place.path().join("with"), place.path().join("then"));
                assert!(tree(&with) == tree(&then), "{other} then {value}");
                fs::remove_dir_all(then).unwrap();
                compared += 1;
            }
            fs::remove_dir_all(place.path().join("with")).unwrap();
        }
    }
    assert!(compared >= 48, "{compared}");
}

#[test]
fn what_to_add_can_be_said_in_a_word() {
    let place = tempfile::tempdir().unwrap();
    runs(
        place.path(),
        &["new", "a", "--yes", "-d", "tensorboard=no"],
        0,
    );
    let add = |option: &str, status| runs(place.path(), &["add", option, "--path", "a"], status);
    assert!(add("slurm", 0).starts_with("Adding cluster=slurm to `a`"));
    assert!(place.path().join("a/launch/slurm.sh").exists());
    assert!(add("ci", 0).starts_with("Adding ci=github to `a`"));
    assert!(add("tensorboard", 0).starts_with("Adding tensorboard=yes to `a`"));
    assert!(add("tensorboard", 0).contains("Nothing to change"));
    assert!(add("mpi", 0).starts_with("Adding strategy=multi-worker-mirrored to `a`"));
    let said = add("cluster", 0);
    assert!(said.starts_with("Adding cluster=kubernetes"), "{said}");
    let said = add("hardware", 2);
    assert!(
        said.contains("write `hardware=cuda` or `hardware=wgpu`"),
        "{said}"
    );
    let said = add("slrum", 2);
    assert!(said.contains("nothing called `slrum` to add"), "{said}");
    assert!(said.contains("`slurm`"), "{said}");
    let said = add("ci=gitlab", 2);
    assert!(said.contains("not a value of the option `ci`"), "{said}");
}

#[test]
fn an_example_keeps_what_it_is() {
    let place = tempfile::tempdir().unwrap();
    let args = [
        "new",
        "a",
        "--example",
        "callbacks",
        "--yes",
        "--vcs",
        "none",
    ];
    runs(place.path(), &args, 0);
    let model = fs::read(place.path().join("a/src/model.rs")).unwrap();
    let said = runs(place.path(), &["add", "slurm", "--path", "a"], 0);
    assert!(said.contains("added     launch/slurm.sh"), "{said}");
    assert_eq!(
        fs::read(place.path().join("a/src/model.rs")).unwrap(),
        model
    );
    let said = runs(place.path(), &["update", "a"], 0);
    assert!(said.contains("Nothing to change"), "{said}");
}
