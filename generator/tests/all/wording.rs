//! Messages about paths, names and values say what is wrong in words, and nothing is written.

use crate::common::Place;

/// Runs the binary in an empty folder; returns what it says, on one line.
fn refused(args: &[&str]) -> String {
    let place = Place::new();
    let output = place.command().args(args).assert().code(2);
    let said = String::from_utf8(output.get_output().stderr.clone()).unwrap();
    assert!(
        place.tree().is_empty(),
        "{args:?} writes {:?}",
        place.tree()
    );
    let words = said.split_whitespace().filter(|word| *word != "│");
    words.collect::<Vec<_>>().join(" ")
}

fn assert_says(args: &[&str], parts: &[&str]) {
    let said = refused(args);
    for part in parts {
        assert!(said.contains(part), "{args:?}: no {part:?} in {said}");
    }
}

#[test]
fn a_tilde_is_the_home_folder_or_refused() {
    for args in [
        &["new", "a", "--yes", "--vcs=none", "--path=~/in/a"][..],
        &["new", "~/in/a", "--yes", "--vcs=none"],
    ] {
        let place = Place::new();
        let command = place.command().env("HOME", place.path());
        command.args(args).assert().success();
        assert!(place.join("in/a/Cargo.toml").exists(), "{args:?}");
    }
    for args in [
        &["new", "a", "--yes", "--path=~other/a"][..],
        &["new", "~other/a", "--yes"],
        &["todos", "~other/a"],
    ] {
        assert_says(args, &["home folder of another user", "`./~other`"]);
    }
}

#[test]
fn dots_do_not_lead_back_out_of_what_does_not_exist() {
    for (path, instead) in [
        ("absent/../b", "write `b`"),
        ("absent/x/../../c/b", "write `c/b`"),
        ("absent/../../b", "write `../b`"),
        ("absent/..", "write `.`"),
    ] {
        let parts = ["leads back out of `absent", instead];
        assert_says(&["new", "a", "--yes", "--path", path], &parts);
    }
    let place = Place::new();
    place.put("there/file", "");
    place
        .kiln("new there/../b --yes --vcs none")
        .assert()
        .success();
    assert!(place.join("b/Cargo.toml").exists());
}

#[test]
fn long_names_are_refused_before_anything_is_written() {
    for count in [101, 240, 250, 300, 5_000] {
        let name = "a".repeat(count);
        let said = refused(&["new", &name, "--yes"]);
        assert!(said.contains("longer than 100 characters"), "{said}");
        assert!(said.len() < 300, "{said}");
    }
    let path = "a".repeat(300);
    for path in [path.clone(), format!("b/{path}"), format!("{path}/b")] {
        assert_says(&["new", "a", "--yes", "--path", &path], &["too long"]);
    }
    let place = Place::new();
    let path = "a".repeat(250);
    let args = format!("new a --yes --vcs none --path {path}");
    place.kiln(&args).assert().success();
}

#[test]
fn letters_of_other_scripts_are_letters() {
    for (name, letter) in [
        ("модель", 'м'),
        ("モデル", 'モ'),
        ("نموذج", 'ن'),
        ("mодель", 'о'),
        ("été", 'é'),
    ] {
        let letter = format!("it contains {letter:?}");
        let parts = [
            &*letter,
            "the letters a to z and A to Z, digits, `-` and `_`",
        ];
        assert_says(&["new", name, "--yes"], &parts);
    }
}

#[test]
fn what_a_text_may_be_is_said_in_words() {
    let define = ["new", "a", "--yes", "--define", "description=\""];
    let said = refused(&define);
    assert!(said.contains("give any text without `\"`"), "{said}");
    assert!(!said.contains("cntrl"), "{said}");
    let place = Place::new();
    let output = place.kiln("options").assert().success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    assert!(
        !text.contains("regex") && text.contains("any text without"),
        "{text}"
    );
}

#[test]
fn ids_of_sites_are_guessed() {
    for given in ["model.arch", "model.architecure", "architecture"] {
        assert_says(&["explain", given], &["did you mean `model.architecture`?"]);
    }
    let parts = ["did you mean `kiln explain model.architecture`?"];
    assert_says(&["todos", "model.architecure"], &parts);
}

#[test]
fn what_is_said_of_a_choice_must_be_one() {
    let place = Place::new();
    let config = "[template]\nfmt = false\n[placeholders.size]\nprompt = \"Size?\"\nchoices = [\"small\", \"large\"]\n\
        help = { small = \"quick\", larg = \"good\" }\n";
    place.put("t/cargo-generate.toml", config);
    let output = place.kiln("options --template t").assert().code(4);
    let said = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
    assert!(
        said.contains("`larg` is not a choice of the option"),
        "{said}"
    );
    assert!(said.contains("did you mean `large`?"), "{said}");
    place.put("t/cargo-generate.toml", &config.replace("larg ", "large "));
    let output = place.kiln("options --template t").assert().success();
    let text = String::from_utf8_lossy(&output.get_output().stdout).into_owned();
    assert!(
        text.contains("small: quick") && text.contains("large: good"),
        "{text}"
    );
}

#[test]
fn an_option_to_add_is_called_what_it_is() {
    let place = Place::new();
    place.kiln("new a --yes --vcs none").assert().success();
    for (given, part) in [("nmae=x", "[OPTION:1:1]"), ("ci=x", "[OPTION:1:4]")] {
        let output = place
            .kiln(&format!("add {given} --path a"))
            .assert()
            .code(2);
        let said = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn what_has_nothing_in_common_is_not_suggested() {
    let said = refused(&["new", "a", "--yes", "-d", "tensorboard=zz"]);
    assert!(
        said.contains("`yes`, `no`") && !said.contains("did you mean"),
        "{said}"
    );
    assert_says(
        &["new", "a", "--yes", "-d", "tensorboard=on"],
        &["did you mean `no`?"],
    );
}
