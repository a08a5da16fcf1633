//! Properties for random input: no panics, and accepted input is valid.

use kiln::{
    name::Name,
    project::todo::{Scan, parse_sites, scan_text},
    render::render,
    template::{Template, answers::Answers, option::Value},
};
use proptest::prelude::*;

fn template(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        std::fs::write(folder.path().join(path), text).unwrap();
    }
    folder
}

const CONFIG: &str =
    "[template]\nfmt = false\n[placeholders]\ntext = { prompt = \"?\", default = \"\" }\n";

/// Fragments that are difficult for Liquid.
fn liquid() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "\\PC{0,6}",
        Just("{{".to_owned()),
        Just("}}".to_owned()),
        Just("{%".to_owned()),
        Just("-%}".to_owned()),
        Just("%}".to_owned()),
        Just(" text ".to_owned()),
        Just("| upcase".to_owned()),
        Just("if text == 'é'".to_owned()),
        Just("endif".to_owned()),
        Just("raw".to_owned()),
        Just("endraw".to_owned()),
        Just("for x in (1..2)".to_owned()),
        Just("\n".to_owned()),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn names(given in "\\PC{0,12}|[a-zA-Z0-9_-]{0,12}") {
        if let Ok(name) = Name::parse(&given) {
            let package = name.package();
            // Normalising a package name again does not change it, and it yields an identifier.
            let again = Name::parse(package).unwrap();
            prop_assert_eq!(again.package(), package);
            prop_assert!(package.starts_with(|c: char| c.is_ascii_alphabetic()));
            let identifier = name.crate_name();
            prop_assert!(identifier.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
        }
    }

    #[test]
    fn rendering_any_text(text in liquid()) {
        let folder = template(&[("cargo-generate.toml", CONFIG), ("f.txt", &text)]);
        let template = Template::from_folder(folder.path()).unwrap();
        let answers = Answers::defaults(&template, Name::parse("a").unwrap()).unwrap();
        let has_liquid = text.contains("{{") || text.contains("{%");
        match render(&template, &answers) {
            Ok(rendered) => {
                let out = rendered.get("f.txt").unwrap();
                prop_assert!(has_liquid || out == text.as_bytes());
            }
            Err(error) => {
                prop_assert!(has_liquid);
                let (file, line, column) = error.place().expect("every error of Liquid has a place");
                prop_assert!(file.ends_with("f.txt"));
                prop_assert!(line <= text.lines().count().max(1) + 1 && column >= 1);
            }
        }
    }

    #[test]
    fn rendering_any_value(value in "\\PC{0,20}") {
        let folder = template(&[("cargo-generate.toml", CONFIG), ("f.txt", "<{{text}}>")]);
        let template = Template::from_folder(folder.path()).unwrap();
        let answers = Answers::defaults(&template, Name::parse("a").unwrap()).unwrap();
        let answers = answers.with(&template, "text", &value).unwrap();
        prop_assert_eq!(answers.get("text"), Some(&Value::Text(value.clone())));
        let rendered = render(&template, &answers).unwrap();
        let expected = format!("<{value}>");
        prop_assert_eq!(rendered.get("f.txt"), Some(expected.as_bytes()));
    }

    #[test]
    fn any_configuration(text in "\\PC{0,40}|(\\[(template|placeholders|conditional)\\]\n|[a-z]{1,8} = (true|3|'x'|\\['y'\\])\n){0,6}") {
        let folder = template(&[("cargo-generate.toml", &text)]);
        if let Ok(template) = Template::from_folder(folder.path()) {
            let _ = template.check();
        }
    }

    #[test]
    fn any_marker(line in "(//|#|<!--|--|;)? ?(TODO)?\\(?\\PC{0,10}\\)?:?\\PC{0,10}", file in "[a-z]{1,3}\\.(rs|md|toml|x)") {
        let mut scan = Scan::default();
        let text = format!("fn f() {{}}\n{line}\n//   Now: this\n//  é: \n");
        scan_text(&file, &text, &mut scan);
        for todo in &scan.todos {
            prop_assert_eq!(todo.line, 2);
            let marker = format!("TODO({})", todo.id);
            prop_assert!(line.contains(&marker));
        }
    }

    #[test]
    fn markers_are_found(id in "[a-z][a-z0-9.-]{0,10}", what in "[a-zA-Z ]{0,20}", now in "[a-z ]{0,20}") {
        let mut scan = Scan::default();
        let text = format!("x();\n    // TODO({id}): {what}\n    //   Now: {now}\ny();\n");
        scan_text("a.rs", &text, &mut scan);
        prop_assert_eq!(scan.todos.len(), 1);
        prop_assert_eq!(&scan.todos[0].id, &id);
        prop_assert_eq!(&scan.todos[0].what, what.trim());
        prop_assert_eq!(scan.todos[0].now.as_deref(), Some(now.trim()));
    }

    #[test]
    fn any_list_of_sites(text in "\\PC{0,40}|(\\[\\[site\\]\\]\n|(id|file|what|now|test) = ('x'|3|\\[\\]|\\['t'\\])\n){0,8}") {
        let _ = parse_sites("todos.toml", &text);
    }
}
