//! `kiln new --example` and `kiln examples`.

use std::{env, fs, path::Path};

use crate::common::Place;
use crate::patches::{create, equal_lines};
use kiln::{
    name::Name,
    project::{
        overlay::{
            patch::{FilePatch, RENEWAL},
            render_base, render_example,
        },
        record::RECORD_FILE,
    },
    render::{Rendered, render},
    template::{
        Template,
        answers::Answers,
        example::{Example, ExampleFile, names},
    },
};

/// The largest share of the template's lines among those of the examples' files, in percent.
const MOST: usize = 15;

#[test]
fn an_example_is_the_template_with_its_files_and_nothing_left_to_do() {
    for example in names() {
        let place = Place::new();
        let new = format!("new my-model --example {example} --yes --vcs none");
        let printed = place.kiln(&new).assert().success().stderr_eq("");
        let printed = String::from_utf8_lossy(&printed.get_output().stdout).into_owned();
        assert!(
            printed.contains(&format!("The example `{example}`: ")),
            "{printed}"
        );
        assert!(printed.contains("less README.md"), "{printed}");
        let template = Template::embedded().unwrap();
        let example = Example::embedded(&template, example).unwrap();
        if !example.is_template() {
            place.kiln("todos my-model --deny").assert().success();
        }
        for file in example.files() {
            let path = format!("my-model/{}", file.path.display());
            let made = fs::read(place.join(&path)).unwrap();
            if file.is_patch {
                // Without the changes, it is the template's.
                let patch = diffy::Patch::from_bytes(file.contents).unwrap();
                let base = diffy::apply_bytes(&made, &patch.reverse()).unwrap();
                let is_base = Some(&base[..]) == based(&template, &example).get(&file.path);
                assert!(is_base, "{path}");
            } else {
                assert_eq!(made, file.contents, "{path}");
            }
        }
        assert!(!place.join("my-model/answers.toml").exists());
    }
}

/// The base of an example: the files that its own are laid over.
fn based<'t>(template: &'t Template, example: &Example) -> Rendered<'t> {
    let name = Name::parse("my-model").unwrap();
    let answers = Answers::complete(template, name, example.values().clone()).unwrap();
    render_base(template, example, &answers, Path::new("my-model")).unwrap()
}

/// The template's file and the example's, if they can be stored as a patch: both are text, and the
/// template's file is the same for all answers.
fn originals<'b>(base: &'b Rendered<'_>, file: &ExampleFile) -> Option<(&'b str, &'static str)> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let in_template = file.path.strip_prefix("template").unwrap_or(&file.path);
    let is_fixed = repository.join("template").join(in_template).is_file();
    // The template's record states hashes, which change with each of its files.
    let is_record = file.path.ends_with(format!("{RECORD_FILE}.liquid"));
    let rendered = base.files.iter().find(|one| one.path == file.path)?;
    if !is_fixed || is_record || rendered.executable != file.executable {
        return None;
    }
    let old = str::from_utf8(&rendered.contents).ok()?;
    Some((old, str::from_utf8(file.contents).ok()?))
}

/// Files that have enough of the template's lines are stored as patches, in one form.
/// EXAMPLES=overwrite makes them from whole files, and moves their hunks after a change of the
/// template.
#[test]
fn files_that_are_mostly_the_templates_are_patches() {
    let template = Template::embedded().unwrap();
    let overwrite = env::var_os("EXAMPLES").is_some_and(|value| value == "overwrite");
    let mut wrong = String::new();
    for name in names() {
        let example = Example::embedded(&template, name).unwrap();
        let base = based(&template, &example);
        let is_whole = |file: &ExampleFile| {
            let mut others = example.files().iter();
            others.any(|other| other.path == file.path && !other.is_patch)
        };
        for file in example.files() {
            let place = format!("examples/{name}/{}", file.path.display());
            let result = if !file.is_patch {
                let made = originals(&base, file);
                Ok(made.and_then(|(old, new)| create(&file.path, old, new)))
            } else if is_whole(file) {
                continue;
            } else {
                renewed(&base, file, &place, overwrite)
            };
            let made = match result {
                Ok(made) => made,
                Err(error) => {
                    wrong.push_str(&error);
                    continue;
                }
            };
            let is_right = match &made {
                Some(patch) => file.is_patch && patch.as_bytes() == file.contents,
                None => !file.is_patch,
            };
            if overwrite {
                store(&place, file, made.as_deref());
            } else if !is_right {
                let form = if made.is_some() { "a patch" } else { "whole" };
                wrong.push_str(&format!("{place} should be {form}, or is not renewed\n"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}renew them with `{RENEWAL}`");
}

/// The patch `file` for the template's file as it is now.
fn renewed(
    base: &Rendered<'_>,
    file: &ExampleFile,
    place: &str,
    moved: bool,
) -> Result<Option<String>, String> {
    let name = format!("{place}.patch");
    let old = base
        .get(&file.path)
        .and_then(|old| str::from_utf8(old).ok());
    let old = old.ok_or_else(|| format!("{name} changes no text of the template\n"))?;
    let patch = FilePatch::parse(&name, file.contents).map_err(|error| error.draw(false))?;
    let new = match moved {
        true => patch.apply_moved(old),
        false => patch.apply(old),
    };
    let new = new.map_err(|error| error.draw(false))?;
    // A file that has become too different stays a patch until the whole file is put in its place.
    let made = create(&file.path, old, &new);
    Ok(made.or_else(|| str::from_utf8(file.contents).ok().map(str::to_owned)))
}

/// Writes a patch in place of the whole file or the earlier patch; or deletes the patch that an
/// edited whole file makes superfluous.
fn store(place: &str, file: &ExampleFile, patch: Option<&str>) {
    let whole = Path::new(env!("CARGO_MANIFEST_DIR")).join(place);
    let patched = whole.with_file_name(format!(
        "{}.patch",
        whole.file_name().unwrap().to_string_lossy()
    ));
    match patch {
        Some(patch) if !file.is_patch || patch.as_bytes() != file.contents => {
            fs::write(&patched, patch).unwrap();
            println!("renewed {place}.patch");
            if !file.is_patch {
                fs::remove_file(&whole).unwrap();
            }
        }
        None if patched.exists() => fs::remove_file(&patched).unwrap(),
        _ => {}
    }
}

#[test]
fn a_file_with_few_lines_of_the_template_is_stored_whole() {
    let base: String = (0..20).map(|line| format!("line {line}\n")).collect();
    let with = |equal: usize, count: usize| -> String {
        let lines = (0..count).map(|line| match line < equal {
            true => format!("line {line}\n"),
            false => format!("new {line}\n"),
        });
        lines.collect()
    };
    let made = |new: &str| create(Path::new("f"), &base, new);
    assert!(made(&with(2, 10)).is_some() && made(&with(4, 20)).is_some());
    assert!(made(&with(1, 10)).is_none() && made(&with(3, 20)).is_none());
    assert!(made(&with(8, 9)).is_none(), "it is short");
    assert!(made(&base).is_none(), "it is the template's");
    let new = base.replace("line 4\n", "\nnew\n\n") + "without an end";
    let patch = made(&new).unwrap();
    let applied = FilePatch::parse("f.patch", patch.as_bytes()).unwrap();
    assert_eq!(applied.apply(&base).unwrap(), new, "{patch}");
}

/// Lines of patches count with their headers; added files are those of `src/`.
#[test]
fn few_lines_of_the_examples_are_the_templates() {
    let template = Template::embedded().unwrap();
    let (mut overriding, mut equal, mut added) = (0, 0, 0);
    for name in names() {
        let example = Example::embedded(&template, name).unwrap();
        let base = based(&template, &example);
        let before = (overriding, equal, added);
        for file in example.files() {
            let Ok(text) = str::from_utf8(file.contents) else {
                continue;
            };
            let in_template = file.path.strip_prefix("template").unwrap_or(&file.path);
            match base.get(&file.path) {
                Some(_) if file.is_patch => {
                    let patch = FilePatch::parse("a patch", file.contents).unwrap();
                    let (lines, context) = patch.size();
                    overriding += lines;
                    equal += context;
                }
                Some(old) => {
                    overriding += text.lines().count();
                    equal += equal_lines(&String::from_utf8_lossy(old), text);
                }
                None if in_template.starts_with("src") => added += text.lines().count(),
                None => {}
            }
        }
        println!(
            "{name}: {} lines for files of the template, {} of them its own; {} lines of other code",
            overriding - before.0,
            equal - before.1,
            added - before.2
        );
    }
    let share = 100.0 * equal as f64 / (overriding + added) as f64;
    println!("all: {overriding}, {equal}, {added}; {share:.1}% are the template's");
    assert!(equal * 100 <= MOST * (overriding + added), "{share:.1}%");
}

/// Patches must fit whatever is answered.
#[test]
fn patches_fit_with_other_answers_and_names() {
    let template = Template::embedded().unwrap();
    for name in names() {
        let example = Example::embedded(&template, name).unwrap();
        let fits = |answers: &Answers| {
            let path = Path::new(answers.name().package());
            render_example(&template, Some(&example), answers, path).unwrap();
        };
        for project in ["a", "a-name-that-is-longer-than-a-line-of-most-other-names"] {
            let project = Name::parse(project).unwrap();
            let values = example.values().clone();
            let answers = Answers::complete(&template, project, values).unwrap();
            fits(&answers);
            for option in template.options() {
                for value in option.values() {
                    let other = answers.clone();
                    let other = other.with(&template, &option.name, &value.to_string());
                    fits(&other.unwrap());
                }
            }
        }
    }
}

/// An example must not repeat files of the template or change the engine.
#[test]
fn an_example_holds_only_what_differs_and_what_a_task_may_change() {
    let template = Template::embedded().unwrap();
    let name = Name::parse("my-model").unwrap();
    for example in names() {
        let example = Example::embedded(&template, example).unwrap();
        let answers = Answers::complete(&template, name.clone(), example.values().clone()).unwrap();
        let plain = render(&template, &answers).unwrap();
        for file in example.files() {
            let path = format!("{}: {}", example.name(), file.path.display());
            let in_template = file.path.strip_prefix("template").unwrap_or(&file.path);
            assert_ne!(plain.get(in_template), Some(file.contents), "{path}");
            let is_engine = in_template.starts_with("engine");
            assert!(!is_engine, "{path} is nothing that a task changes");
        }
    }
}

#[test]
fn what_an_example_answers_can_be_answered_otherwise() {
    let place = Place::new();
    place
        .kiln("new a --example fashion-mnist --yes --vcs none -d strategy=one-device -d ci=github")
        .assert()
        .success();
    let strategy = fs::read_to_string(place.join("a/src/strategy.rs")).unwrap();
    assert!(strategy.contains("DEFAULT_STRATEGY: &str = \"one-device\""));
    assert!(place.join("a/.github").is_dir());
}

#[test]
fn the_manifest_keeps_its_form_and_has_what_an_example_adds() {
    let template = Template::embedded().unwrap();
    let example = Example::embedded(&template, "fashion-mnist").unwrap();
    let name = Name::parse("my-model").unwrap();
    let answers = Answers::complete(&template, name, example.values().clone()).unwrap();
    let path = std::path::Path::new("my-model");
    let plain = render(&template, &answers).unwrap();
    let rendered = render_example(&template, Some(&example), &answers, path).unwrap();
    let lines = |manifest: Option<&[u8]>| -> Vec<String> {
        let text = String::from_utf8(manifest.unwrap().to_vec()).unwrap();
        text.lines().map(str::to_owned).collect()
    };
    let (before, after) = (
        lines(plain.get("Cargo.toml")),
        lines(rendered.get("Cargo.toml")),
    );
    let changed: Vec<_> = before
        .iter()
        .zip(&after)
        .filter(|(old, new)| old != new)
        .collect();
    assert_eq!(before.len(), after.len());
    assert_eq!(changed.len(), 1, "{changed:?}");
    assert_eq!(
        changed[0].1,
        r#"default = ["flex", "cpu-layers", "tensorboard", "download"]"#
    );
}

#[test]
fn examples_are_listed_and_an_unknown_one_is_refused() {
    let place = Place::new();
    let listed = place.kiln("examples").assert().success();
    let listed = String::from_utf8_lossy(&listed.get_output().stdout).into_owned();
    for example in names() {
        let line = listed
            .lines()
            .find(|line| line.starts_with(example))
            .unwrap();
        assert!(line.len() > 40, "{line} tells what it is");
    }
    let refused = place.kiln("new a --example fashion-minst --yes").assert();
    let refused = refused.code(2).get_output().stderr.clone();
    let refused = String::from_utf8_lossy(&refused);
    assert!(
        refused.contains("there is no example `fashion-minst`"),
        "{refused}"
    );
    assert!(
        refused.contains("did you mean `fashion-mnist`?"),
        "{refused}"
    );
    assert!(place.tree().is_empty());
}

#[test]
fn an_example_that_is_a_template_is_made_whole_and_asks_nothing() {
    let place = Place::new();
    let new = "new house --example house-template --vcs none";
    place.kiln(new).assert().success();
    let template = Template::from_folder(&place.join("house/template")).unwrap();
    template.check().unwrap();
    for option in ["-d ci=none", "--train"] {
        let refused = place
            .kiln(&format!("new other --example house-template {option}"))
            .assert()
            .code(2);
        let refused = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
        assert!(
            refused.contains("is a template, not a project"),
            "{refused}"
        );
    }
    assert!(!place.join("other").exists());
}
