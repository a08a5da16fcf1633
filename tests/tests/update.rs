//! Projects of all released templates update to today's, compile and train.

use std::{fs, process::Command};

use kiln::{history::Release, name::Name, option::Answers, record::RECORD_FILE, render::render};
use kiln_tests::{
    NAME,
    rendered::{Project, SHARED},
    running::{self, TRAINING},
};

/// What the user of each project has changed.
const EDITS: [(&str, &str, &str); 2] = [
    (
        "model.rs",
        "device.seed(args.seed)",
        "device.seed(args.seed + 1)",
    ),
    ("main.rs", "fn main()", "/// Mine.\nfn main()"),
];

#[test]
fn every_release_updates_to_this_version() {
    assert!(!Release::history().is_empty());
    for release in Release::history() {
        let project = Project::of_release(release);
        for (file, from, to) in EDITS {
            project.edit(file, from, to);
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln_command"));
        command
            .args(["update", "--allow-dirty"])
            .current_dir(project.path());
        let output = running::output(&mut command, TRAINING);
        let version = release.version();
        assert!(output.status.success(), "{version}: {output:?}");
        is_of_this_version(&project, version);
        project.cargo(&["test", "--test", "contract"]);
        project.cargo(&["run", "--", "--epochs", "1", "--steps-per-epoch", "4"]);
    }
}

/// Every file is that of this version, but those that the user edited, which hold the edits too.
fn is_of_this_version(project: &Project, version: &str) {
    let template = Release::current().template().unwrap();
    let answers = Answers::defaults(&template, Name::parse(NAME).unwrap()).unwrap();
    let mut edited = 0;
    for file in render(&template, &answers).unwrap().files {
        let is = fs::read(project.path().join(&file.path)).unwrap();
        if is == *file.contents {
            continue;
        }
        let mut text = String::from_utf8(is).unwrap();
        for (_, from, to) in EDITS {
            edited += text.matches(to).count();
            text = text.replace(to, from);
        }
        // What lets all rendered projects share their builds is an edit, too.
        text = text.replacen(SHARED, "", 1);
        let path = file.path.display();
        assert!(
            text.as_bytes() == &*file.contents,
            "{version}: {path}:\n{text}"
        );
    }
    assert_eq!(edited, EDITS.len(), "{version}");
    let record = fs::read_to_string(project.path().join(RECORD_FILE)).unwrap();
    let current = format!("kiln = {:?}", Release::current().version());
    assert!(record.contains(&current), "{record}");
}
