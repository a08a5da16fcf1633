//! The example that is a template: its tests pass, which compile and train its projects; it has all
//! files of Kiln's template; and cargo-generate renders it too.

use std::{fs, path::Path};

use kiln::{
    name::Name,
    project::{overlay::render_example, todo},
    template::{Template, answers::Answers, example::Example},
};
use kiln_tests::{
    NAME, cargo_outside, combinations,
    rendered::{Project, replace_in, text},
    repository,
    running::{self, BUILD},
    shared_target, template_folder, write,
};
use tempfile::TempDir;

use crate::peer::{Peer, assert_same};

fn house() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let template = Template::embedded().unwrap();
    let example = Example::embedded(&template, "house-template").unwrap();
    let answers = Answers::defaults(&template, Name::parse("house").unwrap()).unwrap();
    let rendered = render_example(&template, Some(&example), &answers, folder.path());
    write(&rendered.unwrap(), folder.path()).unwrap();
    folder
}

/// Makes the example depend on this repository's Kiln and on the versions in its lock file.
fn depend_on_this_kiln(house: &Path) {
    let manifest = house.join("Cargo.toml");
    let dependency = "kiln = { package = \"burn-kiln\", version = \"0.3.0\"";
    let path = repository().join("generator").display().to_string();
    let here = format!("kiln = {{ package = \"burn-kiln\", path = {path:?}");
    replace_in(&manifest, dependency, &here);
    fs::copy(repository().join("Cargo.lock"), house.join("Cargo.lock")).unwrap();
}

/// A folder for temporary folders, in which cargo finds settings: a fast build of the engine.
fn with_quick_engine() -> TempDir {
    let place = tempfile::tempdir().unwrap();
    let settings = place.path().join(".cargo");
    fs::create_dir(&settings).unwrap();
    let quick = "[profile.dev.package.kiln-engine]\nopt-level = 1\n";
    fs::write(settings.join("config.toml"), quick).unwrap();
    place
}

/// The example's tests render, compile and train a project, with the Burn of the other tests.
#[test]
#[ignore = "long"]
fn its_own_tests_pass_and_notice_a_change() {
    let house = house();
    depend_on_this_kiln(house.path());
    fs::create_dir_all(shared_target()).unwrap();
    let lock = repository().join("tests/fixtures/Cargo.lock");
    fs::copy(lock, shared_target().join("Cargo.lock")).unwrap();
    let place = with_quick_engine();
    let test = |only: &str| {
        let mut cargo = cargo_outside(&["test", only], house.path());
        cargo
            .env("KILN_BUILD_DIR", shared_target())
            .env("TMPDIR", place.path())
            .env("INSTA_UPDATE", "no");
        let output = running::output(&mut cargo, BUILD);
        (output.status.success(), text(&output))
    };
    let (passes, printed) = test("");
    assert!(passes, "{printed}");
    fs::write(
        house.path().join("template/CODEOWNERS.liquid"),
        "* @me/me\n",
    )
    .unwrap();
    let (passes, printed) = test("the_default_project");
    assert!(!passes && printed.contains("+* @me/me"), "{printed}");
    assert!(
        printed.contains("renew it with `INSTA_UPDATE=always cargo test`"),
        "{printed}"
    );
}

/// In the folder of the example's tests, while these train.
#[test]
#[ignore = "long"]
fn its_projects_are_clean() {
    let project = Project::of_template(&house().path().join("template"));
    project.is_clean();
}

/// Both tools render the same project from a team's template.
#[test]
fn cargo_generate_renders_it_too() {
    let house = house();
    assert_parity(
        &house.path().join("template"),
        &[
            ("owner", "@speech/core"),
            ("description", "naïve: 'a' # {{b}}"),
        ],
    );
    assert_parity(
        &repository().join("generator/tests/fixtures/team"),
        &[("owner", "@core")],
    );
}

/// Checks each value of each option, all options different at once, and these texts.
fn assert_parity(folder: &Path, texts: &[(&str, &str)]) {
    let template = Template::from_folder(folder).unwrap();
    template.check().unwrap();
    let peer = Peer::new();
    let mut all = combinations(&template, NAME);
    let default = all[0].answers.clone();
    let most = all.iter().map(|one| one.changes.len()).max();
    all.retain(|one| one.changes.len() <= 1 || Some(one.changes.len()) == most);
    assert!(all.len() > 3);
    for combination in &all {
        assert_same(&peer, folder, &combination.answers);
    }
    let other = texts.iter().fold(default, |all, (option, text)| {
        all.with(&template, option, text).unwrap()
    });
    assert_same(&peer, folder, &other);
}

/// Files that the example copies from Kiln's template must follow their originals.
#[test]
fn it_has_all_options_and_sites_of_kiln() {
    let house = house();
    let (ours, kilns) = (house.path().join("template"), template_folder());
    let [theirs, kiln] = [&ours, &kilns].map(|folder| Template::from_folder(folder).unwrap());
    for option in kiln.options() {
        let own = theirs.option(&option.name).unwrap();
        assert_eq!(own.prompt, option.prompt);
    }
    let sites = todo::read_sites(&ours).unwrap();
    for site in todo::read_sites(&kilns).unwrap() {
        let own = sites.iter().find(|own| own.id == site.id).unwrap();
        assert_eq!(
            (&own.file, &own.what, &own.tests),
            (&site.file, &site.what, &site.tests)
        );
    }
    let modules =
        |folder: &Path| fs::read_to_string(folder.join("tests/contract/main.rs")).unwrap();
    let own = modules(&ours).replace("mod house;\n", "");
    assert_eq!(own, modules(&kilns));
}
