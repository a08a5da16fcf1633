//! `kiln::snapshot`, with a template that does not use Burn: `tests/fixtures/team`.

use std::{
    fs,
    panic::{self, AssertUnwindSafe},
    path::Path,
};

use kiln::{
    assert_snapshot,
    name::Name,
    snapshot::{Entry, NAME, Project, Snapshot, combinations},
    template::Template,
};
use tempfile::TempDir;

const TEAM: &str = "tests/fixtures/team";

/// The panic message of a helper.
fn refusal(test: impl FnOnce()) -> String {
    let payload = panic::catch_unwind(AssertUnwindSafe(test)).expect_err("this is refused");
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => (*payload.downcast::<&str>().expect("a message")).to_owned(),
    }
}

fn edit(project: &Project, file: &str, from: &str, to: &str) {
    let path = project.path().join(file);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(path, text.replace(from, to)).unwrap();
}

#[test]
fn the_tree_and_the_contents() {
    assert_snapshot!(Project::render(TEAM, &[]), "default");
}

#[test]
fn every_option_by_what_it_changes() {
    let default = Project::render(TEAM, &[]);
    let mut labels = Vec::new();
    for (label, project) in Project::combinations(TEAM, 1) {
        if label != "default" {
            assert_snapshot!(project.changes_from(&default), label);
        }
        assert_eq!(
            project.changes_from(&default).is_empty(),
            label == "default"
        );
        labels.push(label);
    }
    assert_eq!(
        labels,
        ["default", "logo=false", "size=large"]
            .map(str::to_owned)
            .as_slice()
    );
}

#[test]
fn combinations_are_all_values_of_all_options() {
    let template = Template::from_folder(Path::new(TEAM)).unwrap();
    let all = combinations(&template, &Name::parse(NAME).unwrap());
    let labels: Vec<_> = all.iter().map(|one| one.label()).collect();
    let expected = [
        "default",
        "logo=false",
        "size=large+logo=false",
        "size=large",
    ];
    assert_eq!(labels.len(), expected.len(), "{labels:?}");
    assert!(
        expected
            .iter()
            .all(|label| labels.iter().any(|one| one == label)),
        "{labels:?}"
    );
    assert_eq!(labels[0], "default");
}

#[test]
fn what_is_shown_and_redacted() {
    let project = Project::render(TEAM, &[("owner", "@core")])
        .redact("@[a-z]+", "@TEAM")
        .redact(r"logo\.(png)", "picture.$1")
        .showing(&["OWNERS", "logo.png"]);
    let text = project.snapshot();
    let list = "Cargo.toml\nLICENSE\nOWNERS\npicture.png\nrun.sh (executable)\n";
    assert!(text.starts_with(list), "{text}");
    let contents = "\n==== OWNERS\n* @TEAM\n\n==== picture.png\n8 bytes, sha256 ";
    assert!(text.contains(contents), "{text}");
    assert!(!text.contains("==== Cargo.toml"), "{text}");
}

/// Files that differ only in invisible characters have different snapshots.
#[test]
fn ends_of_lines_and_of_texts() {
    let ends: [(&[u8], &str); 7] = [
        (b"a\nb\n", "a\nb\n"),
        (b"a\nb", "a\nb\n\\ no newline at the end\n"),
        (b"a\nb\n\n", "a\nb\n\n\\ an empty line at the end\n"),
        (b"a\r\nb\n", "a\u{240d}\nb\n"),
        (b"a\nb\r", "a\nb\u{240d}\n\\ no newline at the end\n"),
        (b"\n", "\n\\ an empty line at the end\n"),
        (b"", ""),
    ];
    let projects = ends.map(|(contents, shown)| {
        let place = TempDir::new().unwrap();
        fs::write(place.path().join("f.txt"), contents).unwrap();
        let project = Project::of_folder(place.path());
        assert_eq!(project.snapshot(), format!("f.txt\n\n==== f.txt\n{shown}"));
        project
    });
    // insta ignores carriage returns and trailing whitespace.
    let compared = |text: String| text.replace('\r', "").trim_end().to_owned();
    for (at, one) in projects.iter().enumerate() {
        for other in &projects[..at] {
            let (text, before) = (one.snapshot(), other.snapshot());
            assert_ne!(compared(text), compared(before));
            let changes = [one.changes_from(other), other.changes_from(one)];
            let [there, back] = changes.map(|changes| compared(changes.snapshot()));
            assert_ne!(there, back);
            assert!(there.contains("\n@@ "), "{there}");
        }
    }
}

/// Snapshots are the same for each machine, user and year.
#[test]
fn nothing_of_the_machine() {
    let project = Project::render(TEAM, &[]);
    let text = project.snapshot();
    assert!(
        text.contains("authors = [\"Somebody <somebody@example.org>\"]"),
        "{text}"
    );
    assert!(text.contains("Copyright [year] Somebody\n"), "{text}");
    let Some(Entry::File { contents, .. }) = project.tree().get("LICENSE") else {
        panic!("no licence");
    };
    assert!(
        !contents.starts_with(b"Copyright ["),
        "only snapshots are redacted"
    );
}

#[test]
fn a_project_that_is_filled_in() {
    let made = Project::render(TEAM, &[]);
    let put = |file: &str, text: &str| {
        let path = made.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put(".gitignore", "/data\n");
    put("data/large.bin", "ignored");
    put("target/debug/x", "built");
    put("Cargo.lock", "# whatever cargo finds");
    put("src/place.txt", "here\n");
    put(
        ".kiln.toml",
        "version = \"0.1.0\"\nhash = \"00112233445566778899\"\n",
    );
    edit(&made, "Cargo.toml", "Somebody", "Me");
    let project = Project::of_folder(made.path());
    fs::write(project.path().join("src/place.txt"), "later").unwrap();
    assert_snapshot!(
        project.showing(&[".kiln.toml", "Cargo.lock", "Cargo.toml", "src/place.txt"]),
        "filled in"
    );
}

#[test]
fn two_snapshots_with_one_name() {
    let [one, other] = ["@one", "@other"].map(|owner| Project::render(TEAM, &[("owner", owner)]));
    let said = refusal(|| {
        for project in [&one.changes_from(&one), &other.changes_from(&one)] {
            // The first text is empty, which is equal to a missing snapshot.
            let named = kiln::snapshot::Named::new(project, &"same", module_path!());
            assert_eq!(named.name(), "same");
        }
    });
    assert_eq!(
        said,
        "two different snapshots of this module are called `same`: rename one"
    );
}

#[test]
fn wrong_templates_and_answers_are_drawn() {
    let place = TempDir::new().unwrap();
    fs::write(
        place.path().join("cargo-generate.toml"),
        "[template]\nfmt = false\nhook = 1\n",
    )
    .unwrap();
    let said = refusal(|| drop(Project::render(place.path(), &[])));
    for part in [
        "unknown key `hook`",
        "cargo-generate.toml:3:1]",
        "─┬─",
        "unknown key",
    ] {
        assert!(said.contains(part), "{said}");
    }
    for (answer, part) in [
        (("sise", "small"), "did you mean `size`?"),
        (("size", "smal"), "did you mean `small`?"),
        (("owner", "me"), "in the form of"),
    ] {
        let said = refusal(|| drop(Project::render(TEAM, &[answer])));
        assert!(said.contains(part), "{said}");
    }
    let said = refusal(|| drop(Project::render(TEAM, &[]).showing(&["OWNER"])));
    assert_eq!(said, "the project has no file `OWNER` to show");
    let said = refusal(|| drop(Project::render(TEAM, &[]).redact("[", "")));
    assert!(said.contains("unclosed character class"), "{said}");
    let said = refusal(|| drop(Project::of_folder("absent")));
    assert!(said.contains("cannot find the folder `absent`"), "{said}");
}

#[test]
fn a_project_that_works() {
    let project = Project::render(TEAM, &[]);
    let before = project.snapshot();
    project.assert_works();
    assert_eq!(project.train(&["--epochs", "7"]).len(), 7);
    assert_eq!(
        project.snapshot(),
        before,
        "what is built is in no snapshot"
    );
}

#[test]
fn warnings_and_errors_of_the_compiler() {
    let project = Project::render(TEAM, &[]);
    edit(
        &project,
        "tests/contract/main.rs",
        "assert_eq!",
        "let unused = 1;\n    assert_eq!",
    );
    let said = refusal(|| project.assert_compiles());
    assert!(
        said.starts_with("the project compiles with warnings:\nwarning: unused variable"),
        "{said}"
    );
    edit(
        &project,
        "src/main.rs",
        "1.0 / f64::from(epoch)",
        "\"text\"",
    );
    edit(&project, "src/main.rs", "fn main() ->", "fn main() =>");
    let said = refusal(|| project.assert_compiles());
    assert!(
        said.starts_with("the project does not compile:\nerror: "),
        "{said}"
    );
}

#[test]
fn contract_tests_that_fail_or_are_not_there() {
    let project = Project::render(TEAM, &[]);
    edit(&project, "tests/contract/main.rs", "1 + 1", "1 + 2");
    let said = refusal(|| project.assert_contracts());
    assert!(
        said.contains("numbers_add_up") && said.contains("left: 3"),
        "{said}"
    );
    edit(
        &project,
        "tests/contract/main.rs",
        "#[test]",
        "#[allow(dead_code)]",
    );
    let said = refusal(|| project.assert_contracts());
    assert!(
        said.starts_with("the project's contract tests are empty"),
        "{said}"
    );
    fs::remove_dir_all(project.path().join("tests")).unwrap();
    let said = refusal(|| project.assert_contracts());
    assert!(
        said.starts_with("the project has no contract tests"),
        "{said}"
    );
}

#[test]
fn trainings_that_go_wrong() {
    let project = Project::render(TEAM, &[]);
    let loss = "1.0 / f64::from(epoch)";
    edit(&project, "src/main.rs", loss, "f64::from(epoch)");
    let said = refusal(|| project.assert_trains());
    assert!(
        said.starts_with("the loss does not fall") && said.contains("\"loss\":3"),
        "{said}"
    );

    edit(&project, "src/main.rs", "\\\"train\\\"", "\\\"test\\\"");
    let said = refusal(|| project.assert_trains());
    assert!(said.starts_with("the loss does not fall"), "{said}");

    edit(
        &project,
        "src/main.rs",
        "\\\"loss\\\": {loss}}}",
        "\\\"loss\\\": {loss}",
    );
    let said = refusal(|| project.assert_trains());
    assert!(said.starts_with("`metrics.jsonl` is not JSON"), "{said}");

    edit(&project, "src/main.rs", "metrics.jsonl", "metrics.json");
    let said = refusal(|| project.assert_trains());
    assert!(
        said.starts_with("the training wrote no `metrics.jsonl`"),
        "{said}"
    );

    let said = refusal(|| drop(project.train(&["--epochs", "many"])));
    assert!(
        said.starts_with("the training with [\"--epochs\", \"many\"] fails"),
        "{said}"
    );
    assert!(said.contains("InvalidDigit"), "{said}");
}

/// The lock file determines the versions of this project only.
#[test]
fn a_lock_file() {
    let place = TempDir::new().unwrap();
    let lock = place.path().join("Cargo.lock");
    fs::write(&lock, "# A comment of ours.\nversion = 4\n\n[[package]]\nname = \"my-model\"\nversion = \"0.1.0\"\n").unwrap();
    let project = Project::render(TEAM, &[]).lock(&lock);
    project.cargo(&["check", "--locked"]);
    let used = fs::read_to_string(project.path().join("Cargo.lock")).unwrap();
    assert!(used.starts_with("# A comment of ours."), "{used}");
    let other = Project::render(TEAM, &[]);
    other.cargo(&["check"]);
    let shared = fs::read_to_string(other.path().join("Cargo.lock")).unwrap();
    assert!(!shared.contains("comment of ours"), "{shared}");
    let said = refusal(|| drop(Project::render(TEAM, &[]).lock("absent.lock")));
    assert!(said.contains("cannot copy `absent.lock`"), "{said}");
}
