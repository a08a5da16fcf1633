//! Templates in Git repositories, favourites, and answers of another project. All repositories are
//! local, and nothing of the user's configuration is read.

#![cfg(unix)]

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::PathBuf,
    process::Command,
};

use tempfile::TempDir;

const CONFIG: &str = "[template]\nfmt = false\n\
    [placeholders.word]\nprompt = \"?\"\ndefault = \"hello\"\n\
    [placeholders.size]\nprompt = \"?\"\nchoices = [\"small\", \"large\"]\ndefault = \"small\"\n";
const TEXT: &str = "{{word}} {{size}}\none\ntwo\nthree\nfour\nfive\nsix\n";

/// A folder with a home, an empty folder for temporary files, and repositories.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        for folder in ["home", "tmp", "work"] {
            fs::create_dir(place.path(folder)).unwrap();
        }
        place.put(
            "home/.gitconfig",
            "[user]\nname = a\nemail = a@b\n[init]\ndefaultBranch = main\n[commit]\ngpgsign = false\n",
        );
        place
    }

    /// A place with a repository `t` of one template, tagged `v1`.
    fn with_template() -> Self {
        let place = Self::new();
        place.put("t/cargo-generate.toml", CONFIG);
        place.put("t/a.txt", TEXT);
        place.git("t", &["init", "-q"]);
        place.commit("t");
        place.git("t", &["tag", "v1"]);
        place
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn url(&self, path: &str) -> String {
        format!("file://{}", self.path(path).display())
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|why| panic!("{path}: {why}"))
    }

    fn edit(&self, path: &str, from: &str, to: &str) {
        let text = self.read(path);
        assert!(text.contains(from), "{path}: {text}");
        self.put(path, &text.replace(from, to));
    }

    /// A program in a folder, with nothing of the user's configuration.
    fn program(&self, program: &str, folder: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.path(folder));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("GIT_")) {
            command.env_remove(name);
        }
        command
            .env("HOME", self.path("home"))
            .env("XDG_CONFIG_HOME", self.path("home/.config"))
            .env("CARGO_HOME", self.path("home/.cargo"))
            .env("TMPDIR", self.path("tmp"))
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CEILING_DIRECTORIES", self.path(""))
            .env("GIT_ALLOW_PROTOCOL", "file:ext");
        command
    }

    #[track_caller]
    fn git(&self, folder: &str, args: &[&str]) -> String {
        let output = self.program("git", folder).args(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {args:?}: {said}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    #[track_caller]
    fn commit(&self, folder: &str) -> String {
        self.git(folder, &["add", "-A"]);
        self.git(folder, &["commit", "-q", "--allow-empty", "-m", "all"]);
        self.git(folder, &["rev-parse", "HEAD"])
    }

    /// Runs Kiln in `work`; returns its output. No temporary files are left.
    #[track_caller]
    fn kiln(&self, args: &[&str], status: i32) -> String {
        let kiln = self.program(env!("CARGO_BIN_EXE_kiln"), "work");
        self.run(kiln, args, status)
    }

    #[track_caller]
    fn run(&self, mut kiln: Command, args: &[&str], status: i32) -> String {
        let output = kiln.args(args).output().unwrap();
        let parts = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        let said = parts.concat();
        assert_eq!(output.status.code(), Some(status), "kiln {args:?}: {said}");
        let left = fs::read_dir(self.path("tmp")).unwrap().count();
        assert_eq!(left, 0, "temporary files after kiln {args:?}");
        said
    }

    /// A committed project `name` of a template.
    #[track_caller]
    fn made(&self, name: &str, args: &[&str]) -> String {
        let said = self.kiln(&[&["new", name, "--yes"], args].concat(), 0);
        self.commit(&format!("work/{name}"));
        said
    }

    fn record(&self, name: &str) -> toml::Table {
        let text = self.read(&format!("work/{name}/.kiln.toml"));
        text.parse().unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    fn source(&self, name: &str) -> toml::Table {
        self.record(name)["source"].as_table().unwrap().clone()
    }
}

/// The message and help of an error on one line.
fn flat(said: &str) -> String {
    let words = said.split_whitespace().filter(|word| *word != "│");
    words.collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn has(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(flat(said).contains(part), "no {part:?} in: {said}");
    }
}

#[test]
fn a_template_updates_its_projects_over_versions() {
    let place = Place::with_template();
    let said = place.made("p", &["--template", &place.url("t"), "-d", "size=large"]);
    let first = place.git("t", &["rev-parse", "HEAD"]);
    has(&said, &["from file://", &first[..10]]);
    assert_eq!(place.source("p")["commit"].as_str(), Some(&*first));
    assert_eq!(place.source("p")["git"].as_str(), Some(&*place.url("t")));
    // Edits of the user, which stay.
    place.edit("work/p/a.txt", "six", "SIX");
    place.commit("work/p");
    // The second version adds an option.
    place.edit("t/a.txt", "one", "one {{more}}");
    let more = "[placeholders.more]\nprompt = \"?\"\ntype = \"bool\"\ndefault = false\n";
    place.put("t/cargo-generate.toml", &format!("{CONFIG}{more}"));
    let second = place.commit("t");
    let said = place.kiln(&["update", "p", "-d", "more=true"], 0);
    assert!(said.contains("Next:\n  git diff"), "not in Rust: {said}");
    let text = place.read("work/p/a.txt");
    assert_eq!(text, "hello large\none true\ntwo\nthree\nfour\nfive\nSIX\n");
    assert_eq!(place.source("p")["commit"].as_str(), Some(&*second));
    assert_eq!(place.record("p")["options"]["more"].as_str(), Some("true"));
    place.commit("work/p");
    has(&place.kiln(&["update", "p"], 0), &["Nothing to change"]);
    // The third renames a choice and removes an option.
    let config = format!("{CONFIG}{more}").replace("large", "big");
    let word = config.find("[placeholders.word]").unwrap();
    let size = config.find("[placeholders.size]").unwrap();
    place.put(
        "t/cargo-generate.toml",
        &[&config[..word], &config[size..]].concat(),
    );
    place.edit("t/a.txt", "{{word}}", "greetings");
    let third = place.commit("t");
    let said = place.kiln(&["update", "p", "-d", "size=big"], 0);
    has(
        &said,
        &["the option `word`", "the option `size`", &third[..10]],
    );
    let text = place.read("work/p/a.txt");
    assert_eq!(
        text,
        "greetings big\none true\ntwo\nthree\nfour\nfive\nSIX\n"
    );
    let options = place.record("p")["options"].as_table().unwrap().clone();
    assert_eq!(options.keys().collect::<Vec<_>>(), ["size", "more"]);
    assert_eq!(options["size"].as_str(), Some("big"));
    place.commit("work/p");
    has(&place.kiln(&["update", "p"], 0), &["Nothing to change"]);
}

#[test]
fn a_conflict_names_the_commits() {
    let place = Place::with_template();
    place.made("p", &["--template", &place.url("t")]);
    place.edit("work/p/a.txt", "three", "mine");
    place.commit("work/p");
    place.edit("t/a.txt", "three", "theirs");
    let tip = place.commit("t");
    has(&place.kiln(&["update", "p"], 1), &["conflict a.txt"]);
    has(
        &place.read("work/p/a.txt"),
        &[">>>>>>> file://", &tip[..10]],
    );
    place.kiln(&["update", "p", "--abort"], 0);
    assert!(place.read("work/p/a.txt").contains("mine"));
}

#[test]
fn every_form_of_an_address() {
    let place = Place::with_template();
    place.git("", &["clone", "-q", "--bare", "t", "bare.git"]);
    place.git("", &["clone", "-q", "--bare", "t", "hub/team/vision.git"]);
    let hub = place.url("hub/");
    for host in ["https://github.com/", "https://gitlab.com/"] {
        let key = format!("url.{hub}.insteadOf");
        place.git("", &["config", "--global", "--add", &key, host]);
    }
    let bare = place.path("bare.git").display().to_string();
    let github = "https://github.com/team/vision.git";
    let forms = [
        (place.url("t"), place.url("t")),
        (bare.clone(), bare.clone()),
        ("../bare.git".to_owned(), bare),
        ("team/vision".to_owned(), github.to_owned()),
        ("gh:team/vision".to_owned(), github.to_owned()),
        (
            "gl:team/vision".to_owned(),
            "https://gitlab.com/team/vision.git".to_owned(),
        ),
    ];
    for (at, (given, recorded)) in forms.iter().enumerate() {
        let name = format!("p{at}");
        place.made(&name, &["--template", given]);
        let recorded = match given.starts_with("..") {
            // `..` would need the folder that it leaves.
            true => fs::canonicalize(recorded).unwrap().display().to_string(),
            false => recorded.clone(),
        };
        assert_eq!(
            place.source(&name)["git"].as_str(),
            Some(&*recorded),
            "{given}"
        );
        assert_eq!(
            place.read(&format!("work/{name}/a.txt")).lines().next(),
            Some("hello small")
        );
        has(&place.kiln(&["update", &name], 0), &["Nothing to change"]);
    }
    // A folder is one, even if it looks like an address; of a version, it is a repository.
    place.put("work/team/vision/cargo-generate.toml", CONFIG);
    place.kiln(&["new", "f", "--yes", "--template", "team/vision"], 0);
    assert!(!place.path("work/f/.kiln.toml").exists());
    place.made("g", &["--template", "../t", "--tag", "v1"]);
    assert_eq!(place.source("g")["tag"].as_str(), Some("v1"));
    has(
        &place.kiln(&["update", "g"], 0),
        &["stays at the tag `v1`", "Nothing to change"],
    );
    // A name that is neither a folder nor a repository.
    let said = place.kiln(&["new", "h", "--yes", "--template", "team/absent"], 3);
    has(
        &said,
        &[
            "cannot read the repository",
            "no folder `team/absent` either",
        ],
    );
}

#[test]
fn folders_of_killed_runs_are_removed_by_the_next() {
    let place = Place::with_template();
    place.put("tmp/kiln-template-left/lock", "");
    place.put("tmp/kiln-template-left/project/a.txt", "");
    place.made("p", &["--template", &place.url("t")]);
    assert_eq!(fs::read_dir(place.path("tmp")).unwrap().count(), 0);
}

#[test]
fn branches_tags_and_commits() {
    let place = Place::with_template();
    let url = place.url("t");
    place.git("t", &["switch", "-q", "-c", "next"]);
    place.edit("t/a.txt", "two", "2");
    place.commit("t");
    place.edit("t/a.txt", "three", "3");
    let tip = place.commit("t");
    place.git("t", &["tag", "-a", "-m", "two", "v2"]);
    place.git("t", &["switch", "-q", "main"]);
    place.made("p", &["--template", &url]);
    place.made("b", &["--template", &url, "--branch", "next"]);
    place.made("r", &["--template", &url, "--rev", "next~1"]);
    place.made("s", &["--template", &url, "--rev", &tip]);
    place.made("h", &["--template", &url, "--rev", &tip[..9]]);
    let first = |name: &str| place.read(&format!("work/{name}/a.txt"));
    assert!(first("p").contains("two") && first("b").contains("3"));
    assert!(
        first("r").contains("2\nthree") && first("s") == first("b") && first("h") == first("b")
    );
    assert_eq!(place.source("b")["branch"].as_str(), Some("next"));
    // The branch moves, and so do its projects, but not those of a commit.
    place.git("t", &["switch", "-q", "next"]);
    place.edit("t/a.txt", "four", "4");
    place.commit("t");
    place.git("t", &["switch", "-q", "main"]);
    place.kiln(&["update", "b"], 0);
    assert!(first("b").contains("\n4\n"));
    has(
        &place.kiln(&["update", "s"], 0),
        &["stays at the rev", "Nothing to change"],
    );
    has(&place.kiln(&["update", "p"], 0), &["Nothing to change"]);
    // An update to a tag, which is peeled to its commit.
    place.kiln(&["update", "p", "--tag", "v2"], 0);
    assert_eq!(place.source("p")["commit"].as_str(), Some(&*tip));
    assert_eq!(place.source("p")["tag"].as_str(), Some("v2"));
    place.commit("work/p");
    place.kiln(&["update", "p", "--branch", "next"], 0);
    assert!(first("p").contains("\n4\n"));
    // Missing parts, and options that exclude each other.
    let new = ["new", "x", "--yes", "--template", &url];
    let fails = |more: &[&str], parts: &[&str]| {
        has(&place.kiln(&[&new, more].concat(), 2), parts);
        assert!(!place.path("work/x").exists());
    };
    fails(
        &["--branch", "nexd"],
        &["has no branch `nexd`", "did you mean `next`?"],
    );
    fails(&["--tag", "v3"], &["has no tag `v3`", "`v1`", "`v2`"]);
    fails(&["--rev", "absent"], &["has no commit `absent`"]);
    fails(&["--rev", &"0".repeat(40)], &["has no commit `0000"]);
    fails(
        &["--branch", "next", "--tag", "v1"],
        &["cannot be used with"],
    );
    fails(&["--branch=-x"], &["`-x` is not the name of a branch"]);
    fails(&["--tag", "a:b"], &["`a:b` is not the name of a tag"]);
    has(
        &place.kiln(&["new", "x", "--yes", "--tag", "v1"], 2),
        &["`--tag` needs `--template`"],
    );
    place.put("work/f/cargo-generate.toml", CONFIG);
    let said = place.kiln(
        &[
            "new",
            "x",
            "--yes",
            "--template",
            "f/absent/x",
            "--tag",
            "v1",
        ],
        2,
    );
    has(&said, &["there is no repository `f/absent/x`"]);
}

#[test]
fn a_folder_of_a_repository() {
    let place = Place::new();
    place.put("t/README.md", "not this");
    place.put("t/templates/one/cargo-generate.toml", CONFIG);
    place.put("t/templates/one/a.txt", TEXT);
    place.git("t", &["init", "-q"]);
    place.commit("t");
    let url = place.url("t");
    // The only one is found, as by cargo-generate.
    place.made("p", &["--template", &url]);
    assert_eq!(
        place.source("p")["subfolder"].as_str(),
        Some("templates/one")
    );
    assert!(!place.path("work/p/README.md").exists());
    place.put("t/templates/two/cargo-generate.toml", CONFIG);
    place.put("t/templates/two/b.txt", "b");
    symlink("two", place.path("t/templates/link")).unwrap();
    place.commit("t");
    has(
        &place.kiln(&["update", "p"], 0),
        &["/templates/one at", "replaced .kiln.toml Next"],
    );
    place.made(
        "q",
        &["--template", &url, "--subfolder", "./templates/two/"],
    );
    assert_eq!(
        place.source("q")["subfolder"].as_str(),
        Some("templates/two")
    );
    assert_eq!(place.read("work/q/b.txt"), "b");
    let new = ["new", "x", "--yes", "--template", &url];
    let fails = |more: &[&str], parts: &[&str]| {
        has(&place.kiln(&[&new, more].concat(), 2), parts);
    };
    let ways = "`--subfolder templates/one` or `--subfolder templates/two`";
    fails(&[], &["has several templates", ways]);
    fails(
        &["--subfolder", "templates/tow"],
        &["no folder `templates/tow`", "`templates/two`"],
    );
    // A link in the repository is no folder.
    fails(
        &["--subfolder", "templates/link"],
        &["has no folder `templates/link`"],
    );
    fails(
        &["--subfolder", "../t"],
        &["not a folder in the template's repository"],
    );
    fails(
        &["--subfolder", "/etc"],
        &["not a folder in the template's repository"],
    );
    // A local folder has subfolders as well.
    let local = [
        "new",
        "y",
        "--yes",
        "--template",
        "../t",
        "--subfolder",
        "templates/two",
    ];
    place.kiln(&local, 0);
    assert_eq!(place.read("work/y/b.txt"), "b");
}

#[test]
fn nothing_of_a_repository_is_run() {
    let place = Place::with_template();
    let trap = place.path("trap");
    let script = format!("#!/bin/sh\ntouch '{}'\ncat\n", trap.display());
    place.put("script", &script);
    let run = fs::Permissions::from_mode(0o755);
    fs::set_permissions(place.path("script"), run.clone()).unwrap();
    let program = place.path("script").display().to_string();
    // Hooks and a monitor of the repository, and of every new one; a filter of the user.
    for hook in [
        "post-checkout",
        "reference-transaction",
        "pre-auto-gc",
        "post-merge",
    ] {
        for folder in ["t/.git/hooks", "home/template/hooks"] {
            place.put(&format!("{folder}/{hook}"), &script);
            let hook = place.path(&format!("{folder}/{hook}"));
            fs::set_permissions(hook, run.clone()).unwrap();
        }
    }
    place.git("t", &["config", "core.fsmonitor", &program]);
    let hooks = place.path("home/template/hooks").display().to_string();
    for (key, value) in [
        (
            "init.templateDir",
            place.path("home/template").to_str().unwrap(),
        ),
        ("core.hooksPath", &hooks),
        ("core.fsmonitor", &program),
        ("filter.trap.smudge", &program),
        ("filter.trap.process", &program),
    ] {
        place.git("", &["config", "--global", key, value]);
    }
    place.put("t/.gitattributes", "*.txt filter=trap\n*.bin filter=lfs\n");
    place.put("t/b.txt", "raw\n");
    let quiet = [
        "-c",
        "core.hooksPath=/x",
        "-c",
        "core.fsmonitor=false",
        "-c",
    ];
    let filter = ["filter.trap.process=", "-c", "filter.trap.clean=cat"];
    let base = [&quiet[..], &filter].concat();
    place.git("t", &[&base[..], &["add", "-A"]].concat());
    place.git("t", &[&base[..], &["commit", "-q", "-m", "b"]].concat());
    let _ = fs::remove_file(&trap);
    place.kiln(
        &[
            "new",
            "p",
            "--yes",
            "--vcs",
            "none",
            "--template",
            &place.url("t"),
        ],
        0,
    );
    assert_eq!(place.read("work/p/b.txt"), "raw\n");
    place.kiln(&["update", "p", "--dry-run"], 0);
    assert!(!trap.exists(), "something was run");
    // Addresses that name a program, also in the record of a stranger's project.
    let ext = format!("ext::{program}");
    let said = place.kiln(&["new", "x", "--yes", "--template", &ext], 2);
    has(&said, &["`git-remote-ext`"]);
    let upload = format!("--upload-pack={program}");
    let given = format!("--template={upload}");
    has(
        &place.kiln(&["new", "x", "--yes", &given], 2),
        &["starts with a dash"],
    );
    for (key, value) in [
        ("git", ext.as_str()),
        ("git", &upload),
        ("commit", "--exec=x"),
    ] {
        let text = place.read("work/p/.kiln.toml");
        let lines = text
            .lines()
            .map(|line| match line.starts_with(&format!("{key} = ")) {
                true => format!("{key} = \"{value}\"\n"),
                false => format!("{line}\n"),
            });
        place.put("work/p/.kiln.toml", &lines.collect::<String>());
        has(&place.kiln(&["update", "p"], 2), &["p/.kiln.toml"]);
        place.put("work/p/.kiln.toml", &text);
    }
    assert!(!trap.exists() && !place.path("work/x").exists());
}

#[test]
fn entries_that_a_template_cannot_have() {
    let place = Place::with_template();
    let url = place.url("t");
    let fails = |parts: &[&str]| {
        has(
            &place.kiln(&["new", "x", "--yes", "--strict", "--template", &url], 4),
            parts,
        );
        place.git("t", &["reset", "-q", "--hard", "v1"]);
    };
    symlink("/etc", place.path("t/link")).unwrap();
    place.commit("t");
    fails(&["/link`", "symbolic link"]);
    let lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
    place.put("t/weights.bin", lfs);
    place.commit("t");
    fails(&["/weights.bin` is kept by Git LFS"]);
    let head = place.git("t", &["rev-parse", "HEAD"]);
    let entry = format!("160000,{head},sub");
    place.git("t", &["update-index", "--add", "--cacheinfo", &entry]);
    place.git("t", &["commit", "-q", "-m", "sub"]);
    fails(&["/sub` is a submodule"]);
    // Errors in files name the repository, not a temporary folder.
    place.put("t/a.txt", "a\n{{ wrod }}\n");
    place.commit("t");
    fails(&[&format!("[{url}/a.txt:2:4]")]);
    place.put("t/run.sh", "#!/bin/sh\n");
    fs::set_permissions(place.path("t/run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    place.commit("t");
    place.made("p", &["--template", &url]);
    let mode = fs::metadata(place.path("work/p/run.sh"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o111, 0o111);
    assert_eq!(mode & 0o111, 0o111);
}

#[test]
fn a_commit_that_no_branch_has() {
    let place = Place::with_template();
    place.made("p", &["--template", &place.url("t")]);
    place.edit("t/a.txt", "two", "2");
    place.git("t", &["commit", "-q", "-a", "--amend", "-m", "amended"]);
    place.git("t", &["tag", "-d", "v1"]);
    // The commit is still there, and is fetched by its hash.
    let dry = place.kiln(&["update", "p", "--dry-run"], 0);
    has(&dry, &["replaced a.txt"]);
    place.git("t", &["reflog", "expire", "--expire=now", "--all"]);
    place.git("t", &["gc", "-q", "--prune=now"]);
    let before = place.read("work/p/a.txt");
    let said = place.kiln(&["update", "p"], 3);
    has(
        &said,
        &[
            "no longer has the commit",
            "`--from FOLDER`",
            "nothing was changed",
        ],
    );
    assert_eq!(place.read("work/p/a.txt"), before);
    place.put("old/cargo-generate.toml", CONFIG);
    place.put("old/a.txt", TEXT);
    place.kiln(&["update", "p", "--from", "../old"], 0);
    assert!(place.read("work/p/a.txt").contains("one\n2\n"));
    place.commit("work/p");
    has(&place.kiln(&["update", "p"], 0), &["Nothing to change"]);
}

#[test]
fn a_repository_that_cannot_be_read_or_has_moved() {
    let place = Place::with_template();
    place.made("p", &["--template", &place.url("t")]);
    fs::rename(place.path("t"), place.path("moved")).unwrap();
    let said = place.kiln(&["update", "p"], 3);
    has(
        &said,
        &[
            "git cannot read the repository `file://",
            "check the address, the network",
        ],
    );
    has(
        &place.kiln(&["add", "word=x", "--path", "p"], 3),
        &["git cannot read"],
    );
    place.edit("moved/a.txt", "two", "2");
    place.commit("moved");
    place.kiln(&["update", "p", "--template", &place.url("moved")], 0);
    assert!(place.read("work/p/a.txt").contains("one\n2\n"));
    assert_eq!(
        place.source("p")["git"].as_str(),
        Some(&*place.url("moved"))
    );
    // Without git, and with an empty repository.
    let mut kiln = place.program(env!("CARGO_BIN_EXE_kiln"), "work");
    kiln.env("PATH", "");
    let url = place.url("moved");
    let said = place.run(kiln, &["new", "x", "--yes", "--template", &url], 3);
    has(&said, &["cannot run git"]);
    fs::create_dir(place.path("empty")).unwrap();
    place.git("empty", &["init", "-q"]);
    let url = place.url("empty");
    has(
        &place.kiln(&["new", "x", "--yes", "--template", &url], 2),
        &["has no commits"],
    );
}

#[test]
fn other_commands_on_such_a_project() {
    let place = Place::with_template();
    let url = place.url("t");
    place.made("p", &["--template", &url]);
    // `add` keeps the commit, although the template has a later one.
    place.edit("t/a.txt", "two", "2");
    place.commit("t");
    let commit = place.source("p")["commit"].clone();
    place.kiln(&["add", "large", "--path", "p"], 0);
    assert_eq!(
        place.read("work/p/a.txt"),
        TEXT.replace("{{word}} {{size}}", "hello large")
    );
    assert_eq!(place.source("p")["commit"], commit);
    assert_eq!(place.record("p")["options"]["size"].as_str(), Some("large"));
    has(&place.kiln(&["todos", "p"], 0), &["0 of 0 sites open"]);
    has(
        &place.kiln(&["explain", "--path", "p"], 0),
        &["no TODO sites"],
    );
    let said = place.kiln(&["diff", "--template", &url, "-d", "word=bye"], 0);
    has(&said, &["-hello small", "+bye small"]);
    has(
        &place.kiln(&["options", "--template", &url, "--tag", "v1"], 0),
        &["size: ?", "large"],
    );
    let said = place.kiln(
        &["new", "d", "--dry-run", "--template", &url, "--tag", "v1"],
        0,
    );
    has(&said, &["at v1 (", ".kiln.toml"]);
}

#[test]
fn a_password_is_not_recorded_and_git_does_not_ask() {
    let place = Place::with_template();
    let key = format!("url.{}.insteadOf", place.url(""));
    place.git(
        "",
        &["config", "--global", &key, "https://me:secret@example.org/"],
    );
    let log = place.path("log");
    let real = place.git("", &["--exec-path"]);
    let wrapper = format!(
        "#!/bin/sh\necho \"$GIT_TERMINAL_PROMPT\" >> '{}'\nexec '{real}/git' \"$@\"\n",
        log.display()
    );
    place.put("bin/git", &wrapper);
    let run = fs::Permissions::from_mode(0o755);
    fs::set_permissions(place.path("bin/git"), run).unwrap();
    let mut kiln = place.program(env!("CARGO_BIN_EXE_kiln"), "work");
    kiln.env(
        "PATH",
        format!("{}:/usr/bin:/bin", place.path("bin").display()),
    );
    let given = "https://me:secret@example.org/t";
    let said = place.run(kiln, &["new", "p", "--yes", "--template", given], 0);
    assert!(!said.contains("secret"), "{said}");
    assert!(!place.read("work/p/.kiln.toml").contains("secret"));
    assert_eq!(
        place.source("p")["git"].as_str(),
        Some("https://example.org/t")
    );
    assert!(place.read("log").lines().any(|line| line == "0"));
}

#[test]
fn favourites() {
    let place = Place::with_template();
    has(
        &place.kiln(&["templates"], 0),
        &["no favourites", "home/.config/kiln/config.toml"],
    );
    let url = place.url("t");
    let own = format!(
        "[favorites.vision]\ngit = \"{url}\"\ntag = \"v1\"\ndescription = \"our models\"\n\
         [favorites.vision.values]\nword = \"hi\"\nsize = \"large\"\n"
    );
    place.put("home/.config/kiln/config.toml", &own);
    let theirs = format!(
        "[values]\nx = 1\n[favorites.local]\npath = \"{}\"\nvcs = \"None\"\n\
         [favorites.vision]\ngit = \"gh:a/b\"\n",
        place.path("t").display()
    );
    place.put("home/.cargo/cargo-generate.toml", &theirs);
    let listed = place.kiln(&["templates"], 0);
    has(&listed, &["vision our models", "local /"]);
    place.edit("t/a.txt", "two", "2");
    place.commit("t");
    place.made("p", &["--template", "vision", "-d", "size=small"]);
    assert_eq!(
        place.read("work/p/a.txt"),
        TEXT.replace("{{word}} {{size}}", "hi small")
    );
    assert_eq!(place.source("p")["tag"].as_str(), Some("v1"));
    place.made("q", &["--template", "vision", "--branch", "main"]);
    assert!(place.read("work/q/a.txt").starts_with("hi large\none\n2\n"));
    place.kiln(&["new", "r", "--yes", "--template", "local"], 0);
    assert!(
        place
            .read("work/r/a.txt")
            .starts_with("hello small\none\n2\n")
    );
    let said = place.kiln(&["new", "s", "--yes", "--template", "visoin"], 2);
    has(
        &said,
        &[
            "no folder or favourite `visoin`",
            "did you mean the favourite `vision`?",
        ],
    );
    // Mistakes in Kiln's own file are errors with their place; in the other, warnings.
    place.put("home/.cargo/cargo-generate.toml", "[favorites");
    has(
        &place.kiln(&["templates"], 0),
        &["warning: no favourites of cargo-generate", "vision"],
    );
    let fails = |text: &str, parts: &[&str]| {
        place.put("home/.config/kiln/config.toml", text);
        let said = place.kiln(&["new", "s", "--yes", "--template", "vision"], 2);
        has(&said, &[parts, &["kiln/config.toml:"]].concat());
    };
    fails(
        &own.replace("tag", "tga"),
        &["unknown key `tga`", "did you mean `tag`?"],
    );
    fails(
        &own.replace("git =", "path = \"/\"\ngit ="),
        &["needs either `git` or `path`"],
    );
    fails(
        &own.replace("tag", "branch = \"a\"\ntag"),
        &["more than one version"],
    );
    fails(
        &own.replace("word =", "wrod ="),
        &["there is no option `wrod`"],
    );
    fails(
        &own.replace("favorites", "favourites"),
        &["did you mean `favorites`?"],
    );
    place.put(
        "home/.config/kiln/config.toml",
        "[favorites.vision]\npath = \"absent\"\n",
    );
    let said = place.kiln(&["new", "s", "--yes", "--template", "vision"], 2);
    has(
        &said,
        &[
            "the favourite `vision` is the folder `absent`",
            "kiln/config.toml`",
        ],
    );
}

#[test]
fn answers_of_another_project() {
    let place = Place::with_template();
    let url = place.url("t");
    place.made(
        "p",
        &["--template", &url, "-d", "word=hi", "-d", "size=large"],
    );
    let text = TEXT.replace("{{word}} {{size}}", "hi large");
    for (name, file) in [("q", "p/.kiln.toml"), ("r", "p")] {
        place.made(name, &["--template", &url, "--values", file]);
        assert_eq!(place.read(&format!("work/{name}/a.txt")), text);
    }
    place.made(
        "s",
        &["--template", &url, "--values", "p", "-d", "word=bye"],
    );
    assert!(place.read("work/s/a.txt").starts_with("bye large"));
    // Parts that another template does not have are left out and named.
    place.edit("t/cargo-generate.toml", "\"large\"", "\"big\"");
    place.commit("t");
    let said = place.made("u", &["--template", &url, "--values", "p"]);
    has(
        &said,
        &["`p/.kiln.toml` has values that this template does not have: `size`"],
    );
    assert!(place.read("work/u/a.txt").starts_with("hi small"));
    place.edit("work/p/.kiln.toml", "[options]", "[options");
    let said = place.kiln(&["new", "v", "--yes", "--values", "p/.kiln.toml"], 2);
    has(&said, &["p/.kiln.toml", "not valid TOML"]);
    // A project of Kiln's own template.
    place.kiln(
        &["new", "k", "--yes", "--vcs", "none", "-d", "hardware=wgpu"],
        0,
    );
    place.kiln(
        &[
            "new",
            "l",
            "--yes",
            "--vcs",
            "none",
            "--values",
            "k/.kiln.toml",
        ],
        0,
    );
    assert_eq!(
        place.record("l")["options"]["hardware"].as_str(),
        Some("wgpu")
    );
}

#[test]
fn a_record_of_the_template_has_every_answer() {
    let place = Place::new();
    let config = format!(
        "{CONFIG}[placeholders.on]\nprompt = \"?\"\ntype = \"bool\"\ndefault = true\n\
         [placeholders.parts]\nprompt = \"?\"\ntype = \"array\"\nchoices = [\"a\", \"b\"]\n\
         default = [\"a\", \"b\"]\n"
    );
    place.put("work/t/cargo-generate.toml", &config);
    let record = |options: &str| {
        let text = format!(
            "kiln = \"1\"\ntemplate = \"t\"\nname = \"{{{{project-name}}}}\"\n[options]\n{options}"
        );
        place.put("work/t/.kiln.toml.liquid", &text);
    };
    let lines = [
        "word = \"{{word}}\"",
        "size = \"{{size}}\"",
        "on = {{on}}",
        "parts = \"{{parts | join: \",\"}}\"",
    ];
    let new = ["new", "p", "--yes", "--vcs", "none", "--template", "t"];
    for missing in 0..lines.len() {
        let others = lines.iter().enumerate().filter(|(at, _)| *at != missing);
        let others: String = others.map(|(_, line)| format!("{line}\n")).collect();
        record(&others);
        let said = place.kiln(&new, 4);
        let name = lines[missing].split(' ').next().unwrap();
        let wrong = format!("does not record the option `{name}`");
        let write = format!("write `{}`", lines[missing]);
        has(&said, &[&wrong, &write, "t/.kiln.toml.liquid:4:1"]);
        assert!(!place.path("work/p").exists());
    }
    let all: String = lines.iter().map(|line| format!("{line}\n")).collect();
    record(&all.replace("{{word}}", "{{word | upcase}}"));
    has(
        &place.kiln(&new, 4),
        &["records `HELLO` for the option `word`", ".liquid:5:1"],
    );
    record(&all.replace("{{size}}", "x{{size}}"));
    has(
        &place.kiln(&new, 4),
        &["records something else for the option `size`"],
    );
    record(&format!("{all}more = \"1\"\n"));
    has(&place.kiln(&new, 2), &["there is no option `more`"]);
    record(&all);
    place.kiln(&new, 0);
    assert_eq!(place.record("p")["options"]["parts"].as_str(), Some("a,b"));
    // From a repository, Kiln adds the commit to the template's own record.
    place.git("work/t", &["init", "-q"]);
    let commit = place.commit("work/t");
    place.made("q", &["--template", &place.url("work/t")]);
    assert_eq!(place.source("q")["commit"].as_str(), Some(&*commit));
    assert_eq!(place.record("q")["template"].as_str(), Some("t"));
    // A record without an answer, of a project made before this check.
    place.edit("work/p/.kiln.toml", "on = true\n", "");
    let update = ["update", "p", "--from", "t", "--template", "t"];
    has(
        &place.kiln(&update, 2),
        &["does not record the option `on`", "p/.kiln.toml:4:1"],
    );
    let half = ["update", "p", "--from", "t"];
    has(&place.kiln(&half, 2), &["`--from` needs `--template`"]);
}
