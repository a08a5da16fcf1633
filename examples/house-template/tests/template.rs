//! What the template renders, in snapshots: a change that nobody meant shows in a review.
//! `INSTA_UPDATE=always cargo test` writes them anew.

use std::{fmt::Write as _, path::Path};

use kiln::{
    name::Name,
    option::Answers,
    project::{self, Vcs, WriteOptions},
    render::{Rendered, render},
    template::Template,
    todo,
};

/// The files that the house wrote. Those of Kiln are in the list of files only.
const OWN: [&str; 4] = [
    "CODEOWNERS",
    "DATA_CARD.md",
    "src/callbacks.rs",
    "tests/contract/house.rs",
];

fn template() -> Template {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("template");
    Template::from_folder(&folder).unwrap()
}

fn answers(template: &Template) -> Answers {
    Answers::defaults(template, Name::parse("my-model").unwrap()).unwrap()
}

/// The text of a file; nothing where it is not there.
fn file(rendered: &Rendered<'_>, path: &str) -> String {
    String::from_utf8_lossy(rendered.get(path).unwrap_or_default()).into_owned()
}

#[test]
fn the_template_is_right() {
    template().check().unwrap();
}

#[test]
fn the_default_project() {
    let template = template();
    let rendered = render(&template, &answers(&template)).unwrap();
    let mut text = String::new();
    for file in &rendered.files {
        let _ = writeln!(text, "{}", file.path.display());
    }
    for path in OWN {
        let _ = write!(text, "\n==== {path}\n{}", file(&rendered, path));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn the_owner_is_an_option() {
    let template = template();
    let answers = answers(&template);
    let other = answers.clone().with(&template, "owner", "@speech/core");
    let rendered = render(&template, &other.unwrap()).unwrap();
    assert_eq!(file(&rendered, "CODEOWNERS"), "* @speech/core\n");
    let refused = answers.with(&template, "owner", "nobody").unwrap_err();
    assert!(refused.to_string().contains("owner"), "{refused}");
}

#[test]
fn every_site_is_marked_where_the_list_says() {
    let template = template();
    let rendered = render(&template, &answers(&template)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let options = WriteOptions {
        force: false,
        vcs: Vcs::None,
        require_vcs: false,
    };
    let project = folder.path().join("my-model");
    project::write(&rendered, &project, options).unwrap();
    let scan = todo::scan(&project).unwrap();
    let marked: Vec<_> = scan
        .todos
        .iter()
        .map(|todo| (&todo.id, &todo.file))
        .collect();
    let sites = todo::read_sites(&project).unwrap();
    let listed: Vec<_> = sites.iter().map(|site| (&site.id, &site.file)).collect();
    assert_eq!(marked, listed);
    assert!(scan.warnings.is_empty());
}
