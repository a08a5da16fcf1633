//! The wizard of `kiln new`, controlled through a terminal.

#![cfg(unix)]

use std::{collections::BTreeMap, thread};

use crate::common::Place;
use crate::terminal::Terminal;
use kiln::{
    name::Name,
    render::render,
    template::{Template, answers::Answers},
};
use rexpect::process::{Signal, WaitStatus};

const DOWN: &str = "\x1b[B";
const UP: &str = "\x1b[A";
const ENTER: &str = "\r";
const ESC: &str = "\x1b";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const BACKSPACE: &str = "\x7f";

const DECISION: &str = "Create the project?";

/// The number of questions if the name is asked too.
fn questions() -> usize {
    Template::embedded().unwrap().options().len() + 1
}

/// The files of a project, by path.
fn files(name: &str, answers: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
    let template = Template::embedded().unwrap();
    let defaults = Answers::defaults(&template, Name::parse(name).unwrap()).unwrap();
    let answers = answers.iter().fold(defaults, |all, (key, value)| {
        all.with(&template, key, value).unwrap()
    });
    let rendered = render(&template, &answers).unwrap();
    let file = |file: &kiln::render::RenderedFile<'_>| {
        let path = format!("{name}/{}", file.path.display());
        (path, file.contents.to_vec())
    };
    rendered.files.iter().map(file).collect()
}

fn written(place: &Place) -> BTreeMap<String, Vec<u8>> {
    let mut tree = place.tree();
    tree.retain(|path, _| !path.ends_with('/'));
    tree
}

/// Waits for a question by its number, as a hint is on the screen only while its question is open.
fn at(terminal: &Terminal, step: usize, of: usize) {
    terminal.wait(&format!("{step} of {of}: "));
}

/// Deletes the typed text.
fn erase(terminal: &mut Terminal) {
    terminal.send(&BACKSPACE.repeat(40));
}

fn assert_made(terminal: Terminal) -> String {
    let (status, log) = terminal.end();
    assert!(
        matches!(status, WaitStatus::Exited(_, 0)),
        "{status:?}: {log}"
    );
    assert!(log.contains("Created `"), "{log}");
    log
}

fn assert_cancelled(terminal: Terminal, place: &Place) {
    let (status, log) = terminal.end();
    assert!(
        matches!(status, WaitStatus::Exited(_, 130)),
        "{status:?}: {log}"
    );
    assert!(log.contains("cancelled, and nothing was written"), "{log}");
    assert_eq!(place.tree().len(), 0);
}

/// The command at the end of a summary.
fn repeating(screen: &str) -> Vec<String> {
    let (_, after) = screen.split_once("The same without prompts:\n").unwrap();
    let end = after.find(" --yes").unwrap() + " --yes".len();
    // The terminal wraps a long line anywhere.
    let command: String = after[..end]
        .lines()
        .map(|line| format!("{line:80}"))
        .collect();
    shell_words::split(command.trim()).unwrap()
}

#[test]
fn every_question_wrong_answers_back_change_and_confirmation() {
    let place = Place::new();
    let of = questions();
    let mut terminal = Terminal::start(place.path(), &["new", "--vcs", "none"]);

    // The name: errors are shown as it is typed.
    at(&terminal, 1, of);
    terminal.wait("What is the project called? (my-model)");
    terminal.send("my model");
    terminal.wait("✗ `my model` cannot name a project");
    terminal.wait("try `my-model`");
    terminal.send(ENTER);
    terminal.wait("correct the text to continue");
    // An error cannot be selected as a suggestion.
    terminal.send(DOWN);
    terminal.send(ENTER);
    erase(&mut terminal);
    terminal.wait_until("empty text", |screen| !screen.contains('✗'));
    terminal.send("digits");
    terminal.wait("called? digits");
    terminal.send(ENTER);

    // The description.
    at(&terminal, 2, of);
    terminal.send("Say \"ah\"");
    terminal.wait("✗ \"Say \\\"ah\\\"\" is not a value");
    terminal.send(ENTER);
    erase(&mut terminal);
    terminal.wait_until("empty text", |screen| !screen.contains('✗'));
    terminal.send("It's 1 of $HOME");
    terminal.wait("It's 1 of $HOME");
    terminal.send(ENTER);

    // Back over the answers, and forward again.
    at(&terminal, 3, of);
    terminal.send(ESC);
    at(&terminal, 2, of);
    terminal.wait_until("answer before", |screen| {
        screen.matches("train? It's 1 of $HOME").count() == 2
    });
    terminal.send(ESC);
    at(&terminal, 1, of);
    terminal.wait("? What is the project called? digits");
    terminal.send("2");
    terminal.wait("digits2");
    terminal.send(ENTER);
    at(&terminal, 2, of);
    terminal.send(ENTER);

    // Choices, with the default selected.
    at(&terminal, 3, of);
    terminal.wait("> mirrored (default)");
    terminal.send(DOWN);
    terminal.wait("> one-device");
    terminal.send(ENTER);
    at(&terminal, 4, of);
    terminal.send(DOWN);
    terminal.wait("> cuda");
    terminal.send(ENTER);
    for step in 5..=of {
        at(&terminal, step, of);
        terminal.send(ENTER);
    }

    // The summary, back from it, and forward again.
    terminal.wait(DECISION);
    terminal.send(ESC);
    at(&terminal, of, of);
    terminal.send(ENTER);
    terminal.wait(DECISION);

    // Change one answer.
    terminal.send(DOWN);
    terminal.wait("> change an answer");
    terminal.send(ENTER);
    terminal.wait("Which answer?");
    for _ in 0..3 {
        terminal.send(DOWN);
    }
    terminal.wait("> hardware      cuda");
    terminal.send(ENTER);
    terminal.wait("Which hardware");
    terminal.wait("> cuda");
    terminal.send(DOWN);
    terminal.wait("> wgpu");
    terminal.send(ENTER);
    terminal.wait_until("new summary", |screen| {
        let last = screen.rsplit("The same without prompts").next();
        last.is_some_and(|last| last.contains("hardware=wgpu") && last.contains(DECISION))
    });
    let screen = terminal.screen();
    let words = repeating(screen.rsplit_once("digits2: ").unwrap().1);
    terminal.send(ENTER);
    let log = assert_made(terminal);
    assert!(log.contains("Created `digits2` in digits2"), "{log}");

    let expected = files(
        "digits2",
        &[
            ("description", "It's 1 of $HOME"),
            ("strategy", "one-device"),
            ("hardware", "wgpu"),
        ],
    );
    assert_eq!(written(&place), expected);

    // The command in the summary creates the same project.
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let options = [
        "-d",
        "description=It's 1 of $HOME",
        "-d",
        "strategy=one-device",
        "-d",
        "hardware=wgpu",
    ];
    let start = ["kiln", "new", "digits2"];
    let command = [&start[..], &options[..], &["--vcs", "none", "--yes"]].concat();
    assert_eq!(words, command);
    let again = Place::new();
    again.command().args(&words[1..]).assert().success();
    assert_eq!(written(&again), expected);
}

#[test]
fn asks_in_order_for_what_is_not_given() {
    let template = Template::embedded().unwrap();
    let place = Place::new();
    let args = ["new", "a", "--vcs", "none", "--define", "hardware=cuda"];
    let mut terminal = Terminal::start(place.path(), &args);
    let open = template.options().iter().filter(|o| o.name != "hardware");
    let of = template.options().len() - 1;
    for (before, option) in open.enumerate() {
        at(&terminal, before + 1, of);
        terminal.wait(&option.prompt);
        terminal.send(ENTER);
    }
    terminal.wait(DECISION);
    assert!(!terminal.log().contains("Which hardware"));
    terminal.send(ENTER);
    assert_made(terminal);
    assert_eq!(written(&place), files("a", &[("hardware", "cuda")]));
}

#[test]
fn a_list_goes_round() {
    let place = Place::new();
    let mut terminal = Terminal::start(place.path(), &["new", "a", "--vcs", "none"]);
    at(&terminal, 1, 6);
    terminal.send(ENTER);
    at(&terminal, 2, 6);
    terminal.send(UP);
    terminal.wait("> multi-worker-mirrored");
    terminal.send(CTRL_C);
    assert_cancelled(terminal, &place);
}

#[test]
fn cancelling_at_any_question_leaves_nothing() {
    let of = questions();
    for stop in 1..=of + 2 {
        let place = Place::new();
        let mut terminal = Terminal::start(place.path(), &["new"]);
        for step in 1..stop.min(of + 1) {
            at(&terminal, step, of);
            terminal.send(ENTER);
        }
        if stop <= of {
            at(&terminal, stop, of);
            terminal.send(CTRL_C);
        } else {
            terminal.wait(DECISION);
            terminal.send(if stop == of + 1 { CTRL_C } else { UP });
            if stop == of + 2 {
                terminal.wait("> cancel without writing");
                terminal.send(ENTER);
            }
        }
        assert_cancelled(terminal, &place);
    }
}

#[test]
fn escape_goes_back_to_the_first_question_and_out() {
    let place = Place::new();
    let of = questions();
    let mut terminal = Terminal::start(place.path(), &["new"]);
    for step in 1..=of {
        at(&terminal, step, of);
        terminal.send(ENTER);
    }
    terminal.wait(DECISION);
    for step in (1..=of).rev() {
        terminal.send(ESC);
        at(&terminal, step, of);
    }
    terminal.wait("esc cancels");
    terminal.send(ESC);
    assert_cancelled(terminal, &place);
}

/// Side by side, as drawing is waited for most of the time.
#[test]
fn a_window_may_change_its_size_at_any_question() {
    thread::scope(|scope| {
        for columns in [20, 200, 1, 80] {
            scope.spawn(move || a_window_may_change_its_size_to(columns));
        }
    });
}

fn a_window_may_change_its_size_to(columns: u16) {
    let place = Place::new();
    let of = questions();
    let mut terminal = Terminal::start(place.path(), &["new", "--vcs", "none"]);
    for step in 1..=of {
        terminal.wait_log(&format!("{step} of {of}: "));
        terminal.resize(columns);
        terminal.settle();
        // Keys that redraw the screen but change nothing.
        terminal.send(if step <= 2 { "x" } else { DOWN });
        terminal.settle();
        terminal.send(if step <= 2 { BACKSPACE } else { UP });
        terminal.settle();
        terminal.resize(if step % 2 == 0 { 20 } else { 120 });
        terminal.settle();
        terminal.send(ENTER);
    }
    terminal.wait_log(DECISION);
    for (columns, key) in [(20, DOWN), (200, UP), (80, ENTER)] {
        terminal.resize(columns);
        terminal.settle();
        terminal.send(key);
    }
    let log = assert_made(terminal);
    assert_eq!(written(&place), files("my-model", &[]));
    // The report is the same as without a terminal.
    let other = Place::new();
    let said = other
        .kiln("new my-model --yes --vcs none")
        .output()
        .unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    let log = log.replace("\r\n", "\n");
    assert!(log.ends_with(&said), "{log}");
}

#[test]
fn a_dumb_terminal_is_asked_line_by_line() {
    let place = Place::new();
    let args = ["new", "--vcs", "none"];
    let mut terminal = Terminal::start_with(place.path(), &args, &[("TERM", "dumb")]);
    terminal.wait("What is the project called? [my-model]:");
    terminal.send("1st\n");
    terminal.wait("`1st` cannot name a project: it starts with a digit");
    terminal.send("first\n");
    terminal.wait("What does the project train? [A model trained");
    terminal.send("\n");
    terminal.wait("Which distribution strategy is the default? [mirrored]:");
    terminal.send("<\n");
    terminal.wait_until("question again", |screen| {
        screen.matches("What does the project train?").count() == 2
    });
    terminal.send("\n");
    terminal.wait_until("question again", |screen| {
        screen.matches("Which distribution strategy").count() == 2
    });
    terminal.send("?\n");
    terminal.wait("mirrored (default)");
    terminal.send("one-devise\n");
    terminal.wait("`one-device`? its values are");
    terminal.send("one-device\n");
    terminal.wait("Which hardware");
    terminal.send("\n\n\n\n");
    terminal.wait("Create the project? [make]:");
    terminal.send("change\n");
    terminal.wait("Which answer?");
    terminal.send("ci\n");
    terminal.wait("workflow? [none]: ");
    terminal.send("github\n");
    terminal.wait_until("second summary", |screen| {
        screen.matches("Create the project?").count() == 2
    });
    terminal.send("\n");
    let log = assert_made(terminal);
    assert!(!log.contains('\x1b'), "{log:?}");
    let answers = [("strategy", "one-device"), ("ci", "github")];
    assert_eq!(written(&place), files("first", &answers));
}

#[test]
fn a_dumb_terminal_can_be_left() {
    let place = Place::new();
    let dumb = [("TERM", "dumb")];
    let mut terminal = Terminal::start_with(place.path(), &["new", "a"], &dumb);
    terminal.wait("What does the project train?");
    terminal.send(CTRL_D);
    assert_cancelled(terminal, &place);

    // With a name on the command line, there are fewer questions; `TERM` may be missing.
    let mut terminal = Terminal::start_with(place.path(), &["new"], &[]);
    terminal.wait("What is the project called?");
    terminal.send("<\n");
    assert_cancelled(terminal, &place);

    // Ctrl-C ends the process; shells report status 130.
    let mut terminal = Terminal::start_with(place.path(), &["new", "a"], &dumb);
    terminal.wait("What does the project train?");
    terminal.send(CTRL_C);
    let (status, _) = terminal.end();
    assert!(
        matches!(status, WaitStatus::Signaled(_, Signal::SIGINT, _)),
        "{status:?}"
    );
    assert_eq!(place.tree().len(), 0);
}

#[test]
fn asks_nothing_when_told() {
    let place = Place::new();
    let terminal = Terminal::start(place.path(), &["new", "a", "--vcs", "none", "--yes"]);
    let (_, log) = terminal.end();
    assert!(log.starts_with("Created `a`"), "{log}");

    // A dry run does not prompt, so it requires a name.
    let terminal = Terminal::start(place.path(), &["new", "b", "--dry-run"]);
    let (_, log) = terminal.end();
    assert!(log.starts_with("b: "), "{log}");
    let terminal = Terminal::start(place.path(), &["new", "--yes"]);
    let (status, log) = terminal.end();
    assert!(matches!(status, WaitStatus::Exited(_, 2)), "{status:?}");
    assert!(log.contains("the project has no name"), "{log}");
}

#[test]
fn a_template_is_confirmed_without_a_question() {
    let place = Place::new();
    let args = ["new", "ours", "--example", "house-template", "--vcs=none"];
    let mut terminal = Terminal::start(place.path(), &args);
    terminal.wait(DECISION);
    let screen = terminal.screen();
    assert!(!screen.contains("change an answer"), "{screen}");
    let command = ["kiln", "new", "ours", "--example", "house-template"];
    assert_eq!(
        repeating(&screen),
        [&command[..], &["--vcs", "none", "--yes"]].concat()
    );
    terminal.send(ENTER);
    assert_made(terminal);
}

/// A team's template with an option of each type, without defaults.
fn without_defaults() -> Place {
    let place = Place::new();
    place.put(
        "t/cargo-generate.toml",
        "[template]\nfmt = false\n[placeholders]\n\
         owner = { prompt = \"Who owns it?\", regex = \"^@[a-z]*$\" }\n\
         motto = { prompt = \"Which motto?\" }\n\
         size = { prompt = \"Which size?\", choices = [\"small\", \"large\"] }\n\
         logo = { prompt = \"A logo?\", type = \"bool\" }\n",
    );
    place.put("t/all.txt", "{{owner}} {{motto}} {{size}} {{logo}}\n");
    place
}

fn assert_all(place: &Place, all: &str) {
    let written = std::fs::read_to_string(place.join("a/all.txt"));
    assert_eq!(written.unwrap(), all);
}

const OF_TEAM: [&str; 5] = ["new", "--template", "t", "--vcs", "none"];

#[test]
fn asks_until_there_is_an_answer_where_there_is_no_default() {
    let place = without_defaults();
    let mut terminal = Terminal::start(place.path(), &OF_TEAM);
    at(&terminal, 1, 5);
    terminal.send("a");
    terminal.wait("called? a");
    terminal.send(ENTER);
    for (step, wrong, answer) in [(2, "@1", "@us"), (3, " ", "It's all right")] {
        at(&terminal, step, 5);
        terminal.send(ENTER);
        terminal.wait("has no default: type a text");
        terminal.send(wrong);
        terminal.wait("✗");
        terminal.send(ENTER);
        terminal.wait("correct the text to continue");
        erase(&mut terminal);
        terminal.wait_until("empty text", |screen| !screen.contains('✗'));
        terminal.send(answer);
        terminal.wait(answer);
        terminal.send(ENTER);
    }
    at(&terminal, 4, 5);
    terminal.wait("> small");
    terminal.send(DOWN);
    terminal.wait("> large");
    terminal.send(ENTER);
    at(&terminal, 5, 5);
    terminal.send(ENTER);
    terminal.wait(DECISION);
    let words = repeating(&terminal.screen());
    terminal.send(ENTER);
    assert_made(terminal);
    assert_all(&place, "@us It's all right large true\n");

    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let again = without_defaults();
    again.command().args(&words[1..]).assert().success();
    assert_all(&again, "@us It's all right large true\n");
}

#[test]
fn a_dumb_terminal_asks_until_there_is_an_answer() {
    let place = without_defaults();
    let mut terminal = Terminal::start_with(place.path(), &OF_TEAM, &[("TERM", "dumb")]);
    terminal.wait("What is the project called?");
    terminal.send("a\n");
    for (question, wrong, why, answer) in [
        (
            "Who owns it?",
            "us",
            "give text in the template's form,",
            "@us",
        ),
        (
            "Which motto?",
            " ",
            "`motto` has no default: type a text",
            "Go",
        ),
        ("Which size?", "larg", "did you mean `large`?", "large"),
        (
            "A logo?",
            "perhaps",
            "its values are `true` and `false`",
            "no",
        ),
    ] {
        terminal.wait(question);
        terminal.send("\n");
        terminal.wait_until("question again", |s| s.matches(question).count() == 2);
        terminal.send(&format!("{wrong}\n"));
        terminal.wait(why);
        terminal.send(&format!("{answer}\n"));
    }
    terminal.wait(DECISION);
    terminal.send("\n");
    assert_made(terminal);
    assert_all(&place, "@us Go large false\n");
}

#[test]
fn what_has_no_default_is_named_where_nothing_is_asked() {
    let place = without_defaults();
    let args = [&OF_TEAM[..], &["a", "--yes", "--define", "logo=true"]].concat();
    let terminal = Terminal::start(place.path(), &args);
    let (status, log) = terminal.end();
    assert!(matches!(status, WaitStatus::Exited(_, 2)), "{status:?}");
    for said in [
        "the options `owner`, `motto`, `size` have no default",
        "`--define owner=VALUE --define motto=VALUE --define size=VALUE`",
        "the values of `size` are `small`, `large`",
    ] {
        assert!(log.contains(said), "{log}");
    }
    let args = [
        &args[..],
        &["-d", "owner=@a", "-d", "motto=", "-d", "size=small"],
    ]
    .concat();
    assert_made(Terminal::start(place.path(), &args));
    assert_all(&place, "@a  small true\n");
}

#[test]
fn an_example_asks_for_what_it_leaves_open() {
    let place = Place::new();
    let args = ["new", "--example", "keras-cnn"];
    let mut terminal = Terminal::start(place.path(), &args);
    terminal.wait("What is the project called? (keras-cnn)");
    terminal.send(ENTER);
    terminal.wait("2 of ");
    let screen = terminal.screen();
    assert!(!screen.contains("What does the project train?"), "{screen}");
    terminal.send(CTRL_C);
    assert_cancelled(terminal, &place);
}

#[test]
fn a_name_is_refused_whose_folder_is_taken() {
    let place = Place::new();
    place.put("my-model/Cargo.toml", "");
    let mut terminal = Terminal::start(place.path(), &["new"]);
    terminal.wait("What is the project called?");
    // An existing folder is not proposed.
    assert!(!terminal.screen().contains("(my-model)"));
    terminal.send(ENTER);
    terminal.wait("the name of a project cannot be empty");
    terminal.send("my-model");
    terminal.wait("✗ the folder `my-model` has a file of the template");
    erase(&mut terminal);
    terminal.send("burn");
    terminal.wait("✗ `burn` cannot name a project");
    terminal.send(CTRL_C);
    let (status, _) = terminal.end();
    assert!(matches!(status, WaitStatus::Exited(_, 130)), "{status:?}");
}

/// Recovery happens only in the folder that will be written, not in folders whose names are prefixes of it.
#[test]
fn what_is_half_done_is_undone_where_the_project_is_made() {
    let place = Place::new();
    let journal = "{\"entries\":[{\"path\":\"half.txt\",\"new\":\"e3b0c44298fc1c149afbf4c8996fb924\
                   27ae41e4649b934ca495991b7852b855\",\"old\":false}],\"folders\":[]}";
    for name in ["n", "ne", "net"] {
        place.put(&format!("{name}/.kiln-transaction/journal.json"), journal);
        place.put(&format!("{name}/half.txt"), "");
    }
    place.put("net/mine.txt", "");
    place.put("net/todos.toml", "");
    let half = || ["n", "ne", "net"].map(|name| place.join(name).join("half.txt").exists());
    let of = questions();
    let mut terminal = Terminal::start(place.path(), &["new", "--vcs=none"]);
    at(&terminal, 1, of);
    for name in ["n", "ne", "net"] {
        terminal.send(&name[name.len() - 1..]);
        terminal.wait_until(name, |screen| screen.contains(&format!("called? {name}\n")));
        terminal.settle();
        assert_eq!(half(), [true; 3]);
    }
    for step in 1..=of {
        at(&terminal, step, of);
        assert_eq!(half(), [true; 3]);
        terminal.send(ENTER);
    }
    // The folder also has a file of the user.
    terminal.wait("× the folder `net` has a file of the template");
    assert_eq!(half(), [true, true, false]);
    terminal.wait("? What is the project called? net");
    terminal.send(BACKSPACE);
    terminal.wait_until("shorter name", |screen| !screen.contains('✗'));
    terminal.send(ENTER);
    terminal.wait(DECISION);
    terminal.send(ENTER);
    assert_made(terminal);
    assert_eq!(half(), [true, false, false]);
    assert!(place.join("ne/Cargo.toml").exists() && place.join("net/mine.txt").exists());
}

#[test]
fn the_workspace_around_the_project_is_asked_about() {
    let place = Place::new();
    place.put("Cargo.toml", "[workspace]\nmembers = [\"*\"]\n");
    // The name is given, and there is a question more.
    let of = questions();
    let mut terminal = Terminal::start(place.path(), &["new", "a", "--vcs", "none"]);
    for step in 1..of {
        at(&terminal, step, of);
        terminal.send(ENTER);
    }
    at(&terminal, of, of);
    terminal.wait("What shall the Cargo workspace around the project do with it?");
    terminal.wait("> exclude it there");
    terminal.send(DOWN);
    terminal.wait("> make it a member");
    terminal.send(ENTER);
    terminal.wait(DECISION);
    terminal.wait("is the member \"a\" of the workspace `Cargo.toml`");
    terminal.wait("--workspace member");
    terminal.send(ENTER);
    assert_made(terminal);
    let root = std::fs::read_to_string(place.join("Cargo.toml")).unwrap();
    assert!(root.contains("[profile.dev.package.kiln-engine]"), "{root}");
    let own = std::fs::read_to_string(place.join("a/Cargo.toml")).unwrap();
    assert!(!own.contains("[workspace]"), "{own}");
}

/// The answers are kept if the folder is created while the user answers.
#[test]
fn a_name_that_can_no_longer_be_used_is_asked_for_again() {
    let place = Place::new();
    let of = questions();
    let mut terminal = Terminal::start(place.path(), &["new", "--vcs", "none"]);
    for step in 1..=of {
        at(&terminal, step, of);
        if step == 4 {
            terminal.send(DOWN);
            terminal.wait("> cuda");
        }
        if step == of {
            place.put("my-model/Cargo.toml", "somebody's");
        }
        terminal.send(ENTER);
    }
    terminal.wait("× the folder `my-model` has a file of the template");
    terminal.wait("[enter accepts, esc goes back");
    terminal.send(ENTER);
    terminal.wait("# the folder `my-model` has a file of the template");
    terminal.send("other");
    terminal.wait("called? other");
    terminal.send(ENTER);
    terminal.wait(DECISION);
    terminal.send(ENTER);
    assert_made(terminal);
    std::fs::remove_dir_all(place.join("my-model")).unwrap();
    assert_eq!(written(&place), files("other", &[("hardware", "cuda")]));
}

/// If an option has no default, the dependencies are known only at the end.
#[test]
fn a_name_that_turns_out_to_be_a_dependency_can_be_changed() {
    let place = without_defaults();
    let manifest = "[package]\nname = \"{{project-name}}\"\n[dependencies]\nrand = \"1\"\n";
    place.put("t/Cargo.toml", manifest);
    let args = [
        &OF_TEAM[..],
        &["-d", "motto=", "-d", "owner=@", "-d", "logo=true"],
    ]
    .concat();
    let mut terminal = Terminal::start_with(place.path(), &args, &[("TERM", "dumb")]);
    terminal.wait("What is the project called?");
    terminal.send("rand\nsmall\n");
    terminal.wait("× `rand` cannot name a project");
    terminal.wait("Which answer?");
    terminal.send("project-name\n");
    terminal.wait("called? [rand]:");
    terminal.send("a\n");
    terminal.wait(DECISION);
    terminal.send("\n");
    assert_made(terminal);
    assert_all(&place, "@  small true\n");
}

#[test]
fn shows_what_would_be_replaced() {
    let place = Place::new();
    place.kiln("new a --yes --vcs none").assert().success();
    place.put("a/README.md", "mine");
    let args = ["new", "a", "--force", "--vcs=none"];
    let mut terminal = Terminal::start(place.path(), &args);
    for step in 1..=6 {
        at(&terminal, step, 6);
        terminal.send(ENTER);
    }
    terminal.wait(DECISION);
    terminal.wait("1 replaced");
    terminal.wait("replaces README.md");
    terminal.send(CTRL_C);
    terminal.end();
    let readme = std::fs::read(place.join("a/README.md")).unwrap();
    assert_eq!(readme, b"mine");
}

#[test]
fn colours_can_be_refused() {
    for (value, colors) in [("", true), ("1", false)] {
        let place = Place::new();
        let variables = [("TERM", "xterm-256color"), ("NO_COLOR", value)];
        let mut terminal = Terminal::start_with(place.path(), &["new", "a"], &variables);
        at(&terminal, 1, 6);
        terminal.send("\"");
        terminal.wait("✗");
        assert_eq!(terminal.has_colors(), colors, "NO_COLOR={value}");
        terminal.send(CTRL_C);
        assert_cancelled(terminal, &place);
    }
}

/// Escape sequences for colours would be shown as text.
#[test]
fn errors_have_colours_where_the_terminal_has() {
    for (term, colors) in [("xterm-256color", true), ("dumb", false)] {
        let place = Place::new();
        let args = ["new", "a", "--yes", "-d", "x=1"];
        let terminal = Terminal::start_with(place.path(), &args, &[("TERM", term)]);
        let (_, log) = terminal.end();
        assert!(log.contains("there is no option"), "{log}");
        assert_eq!(log.contains("\x1b[3"), colors, "{term}: {log:?}");
    }
}

#[test]
fn help_has_colours_where_the_terminal_has() {
    for (term, colors) in [("xterm-256color", true), ("dumb", false)] {
        let place = Place::new();
        for args in [&["--help"][..], &["new", "--help"], &["help", "--help"]] {
            let terminal = Terminal::start_with(place.path(), args, &[("TERM", term)]);
            let (_, log) = terminal.end();
            assert!(log.contains("Usage"), "{log}");
            assert_eq!(log.contains("\x1b["), colors, "{term}: {log:?}");
        }
    }
}

#[test]
fn a_window_may_be_closed() {
    for variables in [("TERM", "xterm-256color"), ("TERM", "dumb")] {
        let place = Place::new();
        let terminal = Terminal::start_with(place.path(), &["new", "a"], &[variables]);
        terminal.wait("What does the project train?");
        let status = terminal.close();
        assert!(
            matches!(status, WaitStatus::Signaled(_, Signal::SIGHUP, _)),
            "{status:?}"
        );
        assert_eq!(place.tree().len(), 0);
    }
}

/// Types a text, presses keys, types `|`, and returns the text on the screen.
fn edited(text: &str, keys: &str) -> String {
    let place = Place::new();
    let mut terminal = Terminal::start(place.path(), &["new", "a"]);
    at(&terminal, 1, 6);
    let title = "? What does the project train? ";
    terminal.send(text);
    terminal.wait(&format!("{title}{text}"));
    terminal.send(keys);
    terminal.settle();
    terminal.send("|");
    terminal.wait("|");
    let screen = terminal.screen();
    terminal.send(CTRL_C);
    assert_cancelled(terminal, &place);
    let line = screen.lines().find_map(|line| line.strip_prefix(title));
    line.unwrap_or_else(|| panic!("{screen}")).to_owned()
}

#[test]
fn keys_of_readline_edit_the_text() {
    let cases = [
        ("\x01", "|one two-three"),
        ("\x01\x05", "one two-three|"),
        ("\x02\x02", "one two-thr|ee"),
        ("\x01\x06", "o|ne two-three"),
        ("\x02\x04", "one two-thre|"),
        ("\x08", "one two-thre|"),
        ("\x02\x0b", "one two-thre|"),
        ("\x02\x15", "|e"),
        ("\x17", "one |"),
        ("\x17\x17\x19\x19", "one two-threeone two-three|"),
        ("\x14", "one two-three|"),
        ("\x1bb", "one two-|three"),
        ("\x01\x1bf", "one| two-three"),
        ("\x01\x1bd", "| two-three"),
        ("\x1b\x7f", "one two-|"),
        ("\x1b[H", "|one two-three"),
        ("\x1b[H\x1b[F", "one two-three|"),
        ("\x1b[1;5D", "one two-|three"),
        ("\x1b[D\x1b[3~", "one two-thre|"),
        ("\x1b[200~ and\r\nfour\x1b[201~", "one two-three and four|"),
        // All others.
        (
            "\x07\t\x0e\x0f\x10\x11\x12\x13\x16\x18\x1a\x1c\x1d\x1e\x1f",
            "one two-three|",
        ),
        ("\x1bz\x1bx\x1b[15~\x1b[A\x1b[B\x1b[5~", "one two-three|"),
    ];
    thread::scope(|scope| {
        for cases in cases.chunks(6) {
            scope.spawn(move || {
                for (keys, expected) in cases {
                    assert_eq!(edited("one two-three", keys), *expected, "{keys:?}");
                }
            });
        }
    });
}

#[test]
fn messages_wrap_between_words() {
    let place = Place::new();
    let mut terminal = Terminal::start(place.path(), &["new"]);
    at(&terminal, 1, 7);
    terminal.resize(40);
    terminal.send("my model");
    terminal.wait("✗ `my model` cannot name a project: it");
    terminal.settle();
    let screen = terminal.screen();
    assert!(!screen.contains("my-mode\nl"), "{screen}");
    let rows = [
        "? What is the project called? my model",
        "✗ `my model` cannot name a project: it",
        "contains ' '; a name has the letters a",
        "to z and A to Z, digits, `-` and `_`:",
        "try `my-model`",
        "[1 of 7: enter accepts, esc cancels]",
    ];
    let shown: Vec<_> = screen.lines().map(str::trim_end).collect();
    assert!(shown.ends_with(&rows), "{screen}");
    // A prompt that is longer than a row, and the cursor behind it.
    erase(&mut terminal);
    terminal.send("digits\r");
    terminal.wait("2 of 7: ");
    terminal.send("a text of more than one row");
    terminal.wait("train? a text");
    terminal.settle();
    let screen = terminal.screen();
    let rows = [
        "? What does the project train? a text of",
        " more than one row",
        "  any text without `\"`, `\\` and control",
        "characters",
        "[2 of 7: enter accepts, esc goes back,",
        "ctrl-c cancels]",
    ];
    let shown: Vec<_> = screen.lines().map(str::trim_end).collect();
    assert!(shown.ends_with(&rows), "{screen}");
    terminal.send(CTRL_C);
    assert_cancelled(terminal, &place);
}

#[test]
fn a_summary_wraps_between_words() {
    let place = Place::new();
    let description = "A text of some words, longer than a row of a narrow window";
    let define = format!("description={description}");
    let mut terminal = Terminal::start(place.path(), &["new", "net", "-d", &define]);
    at(&terminal, 1, 5);
    terminal.resize(40);
    terminal.settle();
    for step in 1..=5 {
        at(&terminal, step, 5);
        terminal.send(ENTER);
    }
    terminal.wait(DECISION);
    terminal.settle();
    let screen = terminal.screen();
    let words: Vec<_> = screen.split_whitespace().collect();
    let words = words.join(" ");
    for whole in [
        "5 files 46.4 KB",
        &format!("description {description} strategy"),
    ] {
        assert!(words.contains(whole), "{whole}: {screen}");
    }
    // A command can be copied.
    let again = format!("  kiln new net -d description='{description}' --yes\r\n");
    assert!(terminal.log().contains(&again), "{screen}");
    terminal.send(CTRL_C);
    assert_cancelled(terminal, &place);
}

#[test]
fn the_choice_is_seen_in_a_low_window() {
    let place = Place::new();
    let mut terminal = Terminal::start(place.path(), &["new", "net"]);
    for step in 1..=2 {
        at(&terminal, step, 6);
        terminal.send(ENTER);
    }
    at(&terminal, 3, 6);
    terminal.resize_to(40, 5);
    terminal.settle();
    for choice in ["cuda", "wgpu", "vulkan", "metal", "rocm"] {
        terminal.send(DOWN);
        terminal.wait(&format!("> {choice}"));
    }
    terminal.send(CTRL_C);
    assert_cancelled(terminal, &place);
}

#[test]
fn the_end_of_the_input_cancels_an_empty_prompt() {
    let place = Place::new();
    let mut terminal = Terminal::start(place.path(), &["new"]);
    at(&terminal, 1, 7);
    // Behind a text, nothing can be deleted.
    terminal.send("net\x04");
    terminal.settle();
    terminal.wait("called? net");
    erase(&mut terminal);
    terminal.send(CTRL_D);
    assert_cancelled(terminal, &place);
}

#[test]
fn errors_wrap_between_words_and_paths_are_whole() {
    let place = Place::new();
    let path = "a/path/that-is/longer/than/a-row/of-a/narrow/window";
    let narrow = "stty cols 40; exec \"$0\" update \"$1\"";
    let args = ["-c", narrow, env!("CARGO_BIN_EXE_kiln"), path];
    let terminal = Terminal::run(
        place.path(),
        "sh",
        &args,
        &[("TERM", "xterm"), ("NO_COLOR", "1")],
    );
    let (status, log) = terminal.end();
    assert!(matches!(status, WaitStatus::Exited(_, 2)), "{status:?}");
    let rows: Vec<_> = log.lines().map(str::trim_end).collect();
    assert!(rows.iter().any(|row| row.contains(path)), "{log}");
    for row in rows.iter().filter(|row| !row.contains(path)) {
        assert!(row.chars().count() <= 40, "{row:?} in {log}");
    }
}

#[test]
fn the_choice_that_is_pointed_at_is_explained() {
    let place = Place::new();
    let mut terminal = Terminal::start(place.path(), &["new", "a"]);
    at(&terminal, 1, 6);
    terminal.send(ENTER);
    at(&terminal, 2, 6);
    terminal.send(ENTER);
    at(&terminal, 3, 6);
    terminal.wait("  nothing more: the CPU alone\n[3 of 6");
    terminal.send("j");
    terminal.wait("  NVIDIA GPUs, with CUDA\n[3 of 6");
    // As in the other prompts.
    for (key, chosen) in [
        ("\x0e", "wgpu"),
        ("\x10", "cuda"),
        ("\x05", "rocm"),
        ("\x01", "flex"),
        ("\x15\x0b\x17x", "flex"),
    ] {
        terminal.send(key);
        terminal.wait(&format!("> {chosen}"));
    }
    terminal.send(CTRL_C);
    assert_cancelled(terminal, &place);
}

/// The screenshots in the documentation.
#[test]
fn pictures() {
    let place = Place::new();
    let mut terminal = Terminal::start(place.path(), &["new"]);
    let of = questions();
    at(&terminal, 1, of);
    terminal.send("2nd model");
    terminal.wait("try `nd-model`");
    snapbox::assert_data_eq!(
        terminal.picture(),
        snapbox::file!["../../../docs/wizard-refusal.svg"].raw()
    );
    erase(&mut terminal);
    terminal.send("digits");
    terminal.wait("? What is the project called? digits");
    terminal.send(ENTER);
    at(&terminal, 2, of);
    terminal.send("Handwritten digits");
    terminal.wait("Handwritten digits");
    terminal.send(ENTER);
    at(&terminal, 3, of);
    terminal.send(ENTER);
    at(&terminal, 4, of);
    terminal.send(DOWN);
    terminal.wait("> cuda");
    snapbox::assert_data_eq!(
        terminal.picture(),
        snapbox::file!["../../../docs/wizard-choice.svg"].raw()
    );
    terminal.send(ENTER);
    for step in 5..=of {
        at(&terminal, step, of);
        terminal.send(ENTER);
    }
    terminal.wait(DECISION);
    snapbox::assert_data_eq!(
        terminal.picture(),
        snapbox::file!["../../../docs/wizard-summary.svg"].raw()
    );
    terminal.send(CTRL_C);
    assert_cancelled(terminal, &place);
}
