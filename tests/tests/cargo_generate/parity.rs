//! `kiln new` and `cargo generate` render the same files from the same answers.

use std::{fs, path::Path, process::Command};

use kiln::{
    name::Name,
    template::{Template, answers::Answers},
};
use kiln_tests::{
    NAME, checkout, combinations, diff, folder_in_memory, generate, parallel, read_tree, repository,
};
use tempfile::TempDir;

use crate::peer::{Peer, Tool, assert_same};

fn source() -> TempDir {
    let folder = folder_in_memory();
    checkout(folder.path()).unwrap();
    folder
}

#[test]
fn every_combination_of_the_template() {
    let template = Template::embedded().unwrap();
    let source = source();
    let peer = Peer::new();
    let all = combinations(&template, NAME);
    assert!(all.len() > 1);
    parallel::for_each(&all, |combination| {
        assert_same(&peer, source.path(), &combination.answers);
    });
}

#[test]
fn awkward_names() {
    let template = Template::embedded().unwrap();
    let source = source();
    let peer = Peer::new();
    let names = [
        "a",
        "Z",
        "x1",
        "my_model",
        "my-model",
        "MyModel",
        "myModel2",
        "HTTPServer",
        "a-b_c",
        "under_score_2",
        "a--b",
        "tail-",
        "tail_",
        "_lead",
        "__x__",
        "a1b2C3",
        "training",
        "digits-8x8",
        "A-B",
        "snake_Case",
    ];
    for name in names {
        let name = Name::parse(name).unwrap();
        let answers = Answers::defaults(&template, name).unwrap();
        assert_same(&peer, source.path(), &answers);
    }
}

#[test]
fn awkward_texts() {
    let template = Template::embedded().unwrap();
    let source = source();
    let peer = Peer::new();
    let defaults = Answers::defaults(&template, Name::parse(NAME).unwrap()).unwrap();
    let texts = [
        "",
        "a=b, c: 'd' # e",
        "{{ project-name }} {% raw %}",
        "naïve 数字 ✓",
        "<b>&amp;</b>",
        "trailing ",
    ];
    for text in texts {
        let answers = defaults
            .clone()
            .with(&template, "description", text)
            .unwrap();
        assert_same(&peer, source.path(), &answers);
    }
}

fn git(folder: &Path, args: &[&str]) -> String {
    let identity = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "commit.gpgsign=false",
    ];
    let mut git = Command::new("git");
    git.args(identity).args(args).current_dir(folder);
    let output = git.env_remove("GIT_DIR").output().unwrap();
    assert!(output.status.success(), "git {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Without a subfolder, cargo-generate selects the template of a clone of this repository, and not
/// another one in it.
#[test]
fn the_repository_as_a_template() {
    let (whole, clone) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options = [
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ];
    let listed = git(&repository(), &options);
    for path in listed.split('\0').filter(|path| !path.is_empty()) {
        // A file may be deleted and still be listed.
        if let Ok(bytes) = fs::read(repository().join(path)) {
            let target = whole.path().join(path);
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::write(target, bytes).unwrap();
        }
    }
    git(whole.path(), &["init", "-q"]);
    git(whole.path(), &["add", "-A"]);
    git(whole.path(), &["commit", "-q", "-m", "all"]);
    let url = format!("file://{}", whole.path().display());
    git(clone.path(), &["clone", "-q", "--depth=1", &url, "."]);
    let made = |template: &Path| {
        let peer = Peer::new();
        peer.generate(Tool::CargoGenerate, template, NAME, &[])
            .unwrap()
    };
    let (of_template, of_repository) = (made(source().path()), made(clone.path()));
    assert!(
        of_template == of_repository,
        "{}",
        diff(&of_template, &of_repository)
    );
}

/// The template embedded in the binary equals the template's folder.
#[test]
fn the_embedded_template() {
    let template = Template::embedded().unwrap();
    template.check().unwrap();
    let source = source();
    let folder = folder_in_memory();
    for (at, combination) in combinations(&template, NAME).into_iter().enumerate() {
        let project = folder.path().join(at.to_string());
        generate(&template, &combination.answers, &project).unwrap();
        let embedded = read_tree(&project).unwrap();
        let read = Peer::new().render(Tool::Kiln, source.path(), &combination.answers);
        assert!(embedded == read, "{}", diff(&read, &embedded));
    }
}

/// The environment and the user's configuration affect cargo-generate, so that the other tests need
/// a clean environment; they do not affect Kiln.
#[test]
fn the_environment() {
    let template = Template::embedded().unwrap();
    let source = source();
    let mut configured = Peer::new().with_env("USER", "Somebody Else");
    let mut config = "[values]\n".to_owned();
    for option in template.options() {
        let other = option.values().pop().unwrap().to_string();
        config.push_str(&format!("{} = {other:?}\n", option.name));
        let variable = format!("CARGO_GENERATE_VALUE_{}", option.name.to_uppercase());
        configured = configured.with_env(&variable, &other);
    }
    let path = configured.cargo_home().join("cargo-generate.toml");
    fs::write(path, config).unwrap();

    let made = |peer: &Peer, tool| peer.generate(tool, source.path(), NAME, &[]).unwrap();
    let clean = Peer::new();
    for (tool, leaks) in [(Tool::CargoGenerate, true), (Tool::Kiln, false)] {
        let same = made(&clean, tool) == made(&configured, tool);
        assert_eq!(!same, leaks, "{tool:?}");
    }

    // With every answer given, both agree nevertheless.
    for combination in combinations(&template, NAME).iter().step_by(7) {
        assert_same(&configured, source.path(), &combination.answers);
    }
}
