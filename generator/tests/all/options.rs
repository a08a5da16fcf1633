//! `kiln options`: every option with its actual effect.

use std::path::Path;

use crate::common::Place;
use kiln::{
    name::Name,
    project::record::RECORD_FILE,
    render::render,
    template::{Template, answers::Answers},
};

#[test]
fn lists_every_option_and_what_it_changes() {
    let output = Place::new().kiln("options").output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();

    let template = Template::embedded().unwrap();
    let defaults = Answers::defaults(&template, Name::parse("my-model").unwrap()).unwrap();
    let before = render(&template, &defaults).unwrap();
    for option in template.options() {
        let start = text
            .find(&format!("{}: {}\n", option.name, option.prompt))
            .unwrap_or_else(|| panic!("`{}` is not listed in:\n{text}", option.name));
        let block = text[start..].split("\n\n").next().unwrap();
        assert_eq!(block.matches("(default)").count(), 1, "{block}");
        let says = |change: String| block.lines().any(|line| line.trim() == change);
        for value in option.values() {
            let value = value.to_string();
            assert!(block.contains(&value), "{value} is not in:\n{block}");
            let answers = defaults
                .clone()
                .with(&template, &option.name, &value)
                .unwrap();
            let after = render(&template, &answers).unwrap();
            // Changes of the record are not listed.
            let recorded = |path: &Path| path == Path::new(RECORD_FILE);
            for file in after.files.iter().filter(|file| !recorded(&file.path)) {
                let old = before.get(&file.path);
                let path = file.path.display();
                if old.is_none() {
                    assert!(says(format!("adds {path}")), "{path}:\n{block}");
                } else if old != Some(&*file.contents) {
                    assert!(says(format!("changes {path}")), "{path}:\n{block}");
                }
            }
        }
    }
}
