//! The example that is a template of its own: its tests pass, what it renders compiles and trains,
//! and it has all that Kiln's template has.

use std::{fs, path::Path, process::Command};

use kiln::{
    example::{Example, render_example},
    name::Name,
    option::Answers,
    template::Template,
    todo,
};
use kiln_tests::{
    rendered::{Project, text},
    repository, template_folder, write,
};
use serde_json::Value;
use tempfile::TempDir;

fn house() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let template = Template::embedded().unwrap();
    let example = Example::embedded(&template, "house-template").unwrap();
    let answers = Answers::defaults(&template, Name::parse("house").unwrap()).unwrap();
    let rendered = render_example(&template, Some(&example), &answers, folder.path());
    write(&rendered.unwrap(), folder.path()).unwrap();
    folder
}

/// Uses this repository's Kiln, and its versions of everything else.
fn depend_on_this_kiln(house: &Path) {
    let manifest = house.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).unwrap();
    let dependency = "kiln = \"0.2.0\"";
    assert!(text.contains(dependency), "{text}");
    let path = repository().join("generator");
    let here = format!("kiln = {{ path = {:?} }}", path.display().to_string());
    fs::write(&manifest, text.replace(dependency, &here)).unwrap();
    fs::copy(repository().join("Cargo.lock"), house.join("Cargo.lock")).unwrap();
}

#[test]
fn its_own_tests_pass_and_notice_a_change() {
    let house = house();
    depend_on_this_kiln(house.path());
    let target = repository().join("target/house-template");
    let test = || {
        let output = Command::new(env!("CARGO"))
            .arg("test")
            .current_dir(house.path())
            .env("CARGO_TARGET_DIR", &target)
            .env("INSTA_UPDATE", "no")
            .output();
        let output = output.unwrap();
        (output.status.success(), text(&output))
    };
    let (passes, printed) = test();
    assert!(passes, "{printed}");
    fs::write(
        house.path().join("template/CODEOWNERS.liquid"),
        "* @me/me\n",
    )
    .unwrap();
    let (passes, printed) = test();
    assert!(!passes && printed.contains("+* @me/me"), "{printed}");
}

#[test]
fn what_it_renders_passes_its_contract_tests_and_trains() {
    let house = house();
    let project = Project::of_template(&house.path().join("template"));
    project.is_clean("");
    project.cargo(&["test", "--test", "contract"]);
    for replicas in ["1", "2"] {
        let options = ["--replicas", replicas, "--output-dir", replicas];
        project.cargo(&[&["run", "--"], &options[..]].concat());
        let log = fs::read_to_string(project.path().join(replicas).join("metrics.jsonl")).unwrap();
        let test: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        assert!(test["accuracy"].as_f64().unwrap() >= 0.97, "{log}");
    }
    fs::write(project.path().join("data/more.csv"), "").unwrap();
    let output = project.try_cargo(&["test", "--test", "contract", "house"]);
    let printed = text(&output);
    assert!(!output.status.success(), "{printed}");
    assert!(
        printed.contains("TODO(house.data-card)")
            && printed.contains("DATA_CARD.md does not tell of data/more.csv"),
        "{printed}"
    );
}

/// Where the house has its own copy of a file, it must follow Kiln's.
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
