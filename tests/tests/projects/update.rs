//! A project of an earlier template is updated to the current one, compiles and trains.

use std::{fs, path::Path, process::Command};

use kiln::{
    name::Name,
    project::record::RECORD_FILE,
    render::{Rendered, render},
    template::{Template, answers::Answers, history::Release},
};
use kiln_tests::{
    NAME, checkout,
    rendered::{Project, replace_in},
    repository,
    running::{self, TRAINING},
};

/// Text of the current template, and the earlier text in its place.
const CHANGED: [(&str, &str, &str); 4] = [
    (
        ".kiln.toml.liquid",
        "\ntemplate = \"",
        "\ntemplate = \"earlier",
    ),
    ("README.md.liquid", "## What a run leaves", "## Output"),
    (
        "src/validation.rs",
        "//! The validation after each epoch.",
        "//! Validation.",
    ),
    (
        "engine/src/picture/curves.rs",
        "//! The metrics of a run as curves over epochs.",
        "//! Curves.",
    ),
];

/// A file of the earlier template that the current one does not have.
const GONE: &str = "engine/src/report/gone.rs";
/// A file of the current template that the earlier one does not have.
const ADDED: &str = "engine/src/files/whole_file.rs";

/// Edits of the user, including one of the engine.
const EDITS: [(&str, &str, &str); 3] = [
    (
        "src/model.rs",
        "device.seed(args.options.seed)",
        "device.seed(args.options.seed + 1)",
    ),
    ("src/main.rs", "fn main()", "/// Mine.\nfn main()"),
    (
        "engine/src/picture/curves.rs",
        "pub fn draw(",
        "#[inline(never)]\npub fn draw(",
    ),
];

#[test]
#[ignore = "long"]
fn an_earlier_project_updates_to_this_version() {
    let earlier = tempfile::tempdir().unwrap();
    make_earlier(earlier.path());
    // A fast build, as speed does not matter here.
    let quick = ["profile.dev.package.kiln-engine.opt-level=0"];
    let project = Project::with_own_engine(earlier.path()).with_settings(quick);
    for (file, from, to) in EDITS {
        replace_in(&project.path().join(file), from, to);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln_command"));
    command
        .args(["update", "--allow-dirty", "--from"])
        .arg(earlier.path())
        .arg("--template")
        .arg(repository().join("template"))
        .current_dir(project.path());
    let output = running::output(&mut command, TRAINING);
    assert!(output.status.success(), "{output:?}");
    is_of_this_version(&project);
    project.cargo(&["test", "--test", "contract"]);
    project.cargo(&["run", "--", "--epochs", "1", "--steps-per-epoch", "4"]);
}

/// Writes the earlier template, without the changes since.
fn make_earlier(folder: &Path) {
    checkout(folder).unwrap();
    for (file, today, then) in CHANGED {
        replace_in(&folder.join(file), today, then);
    }
    fs::write(folder.join(GONE), "//! Gone.\n").unwrap();
    fs::remove_file(folder.join(ADDED)).unwrap();
}

/// Checks that every file is that of the current version, and that edited files contain the edits too.
fn is_of_this_version(project: &Project) {
    let template = Template::from_folder(&repository().join("template")).unwrap();
    let answers = Answers::defaults(&template, Name::parse(NAME).unwrap()).unwrap();
    let Rendered { files, .. } = render(&template, &answers).unwrap();
    let mut edited = 0;
    for file in files {
        let is = fs::read(project.path().join(&file.path)).unwrap();
        if is == *file.contents {
            continue;
        }
        let mut text = String::from_utf8(is).unwrap();
        for (_, from, to) in EDITS {
            edited += text.matches(to).count();
            text = text.replace(to, from);
        }
        let path = file.path.display();
        assert!(text.as_bytes() == &*file.contents, "{path}:\n{text}");
    }
    assert_eq!(edited, EDITS.len());
    assert!(!project.path().join(GONE).exists());
    let record = fs::read_to_string(project.path().join(RECORD_FILE)).unwrap();
    let current = format!("template = {:?}", Release::current().hash());
    assert!(record.contains(&current), "{record}");
}
