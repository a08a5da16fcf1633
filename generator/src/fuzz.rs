//! Randomly mutated inputs of users and templates: none may cause a panic.
//!
//! `KILN_FUZZ_CASES` sets the number of cases of each kind, `KILN_FUZZ_SEED` the seed.

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Component, PathBuf},
};

use crate::{
    error::Error,
    name::Name,
    project::{
        ability::{ABILITIES_FILE, parse_abilities},
        merge::{Labels, merge_texts},
        overlay::patch::FilePatch,
        record::{RECORD_FILE, Record},
        todo::{SITES_FILE, Scan, parse_sites, scan_text, without_marker},
    },
    render::render,
    template::{
        CONFIG_FILE, Template,
        answers::Answers,
        config::Config,
        embedded::{EXAMPLES, TEMPLATE},
        example::Example,
        values,
    },
};

/// Cases of each kind by default.
const CASES: u64 = 3_000;

/// Fragments that mutations insert.
const PIECES: &[&str] = &[
    "{{",
    "}}",
    "{%",
    "%}",
    "-%}",
    "{{-",
    "raw",
    "{% comment %}",
    "{% endcomment %}",
    "{% capture c %}",
    "{% endcapture %}",
    "{% ifchanged %}",
    "{% endifchanged %}",
    "{% unless text %}",
    "{% endunless %}",
    "{% case text %}",
    "{% when 'a' %}",
    "{% endcase %}",
    "{% for i in (1..3) %}",
    "{% endfor %}",
    "{% tablerow i in (1..3) cols:0 %}",
    "{% endtablerow %}",
    "{% cycle 'a', text %}",
    "{% increment n %}",
    "{% assign c = text %}",
    "{% include 'a' %}",
    "{% break %}",
    "{% else %}",
    "{% raw %}",
    "{% endraw %}",
    "{{ '}}' }}",
    "{{ \"%}\" | append: '{{' }}",
    " | divided_by: 0",
    " | divided_by: -1",
    " | times: 9223372036854775807",
    " | minus: 9223372036854775807",
    " | slice: -9, 99",
    " | truncate: 1, ''",
    " | date: '%Q'",
    " | url_decode",
    " | round: 99",
    " | modulo: 0",
    "99999999999999999999",
    "-9223372036854775808",
    "..",
    ":",
    "endraw",
    "if ",
    "endif",
    "| ",
    "\"",
    "'",
    "\"\"\"",
    "[",
    "]",
    "[[",
    "]]",
    "{",
    "}",
    "=",
    ",",
    ".",
    "\n",
    "\r\n",
    "\t",
    "\\",
    "\\u{110000}",
    "#",
    "//",
    "<!--",
    "-->",
    "TODO(",
    ")",
    ": ",
    "    ",
    "é",
    "\u{feff}",
    "\u{0}",
    "\u{202e}",
    "💥",
    "0",
    "-1",
    "1e999",
    "true",
    "../",
    "/",
    "C:\\",
    "con",
    "template",
    "options",
    "name",
    "include",
    "ignore",
    "<<<<<<< yours",
    "=======",
    ">>>>>>> new",
    "^",
    "$",
    "(",
    "*",
    "+",
    "{9999999}",
    "\\p{",
];

/// A deterministic random number generator: xorshift64*, Vigna 2016.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).expect("it is below a usize")
    }

    /// A random character boundary of `text`.
    fn place(&mut self, text: &str) -> usize {
        let mut at = self.below(text.len() + 1);
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    }

    /// A copy of `text` with a few random mutations.
    fn broken(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for _ in 0..=self.below(6) {
            let (a, b) = (self.place(&text), self.place(&text));
            let (from, to) = (a.min(b), a.max(b).min(a.min(b) + 40));
            let to = (to..=text.len())
                .find(|at| text.is_char_boundary(*at))
                .unwrap_or(from);
            match self.below(4) {
                0 => text.replace_range(from..to, ""),
                1 => text.replace_range(from..to, PIECES[self.below(PIECES.len())]),
                2 => text.insert_str(from, PIECES[self.below(PIECES.len())]),
                _ => {
                    let part = text[from..to].to_owned();
                    let at = self.place(&text);
                    text.insert_str(at, &part);
                }
            }
        }
        text
    }
}

/// Feeds mutations of `seeds` to `read`.
fn fuzz(what: &str, seeds: &[&str], read: impl Fn(&str, &mut Numbers)) {
    fuzz_less(1, what, seeds, read);
}

/// Like `fuzz`, with fewer cases, for slow readers.
fn fuzz_less(part: u64, what: &str, seeds: &[&str], read: impl Fn(&str, &mut Numbers)) {
    let number = |name: &str, default: u64| {
        let value = env::var(name).ok().and_then(|value| value.parse().ok());
        value.unwrap_or(default)
    };
    let cases = number("KILN_FUZZ_CASES", CASES) / part;
    let mut numbers = Numbers(number("KILN_FUZZ_SEED", 1) | 1 << 40);
    for case in 0..cases {
        let seed = seeds[numbers.below(seeds.len())];
        let text = numbers.broken(seed);
        let state = numbers.0;
        let read = AssertUnwindSafe(|| read(&text, &mut Numbers(state)));
        assert!(catch_unwind(read).is_ok(), "{what}, case {case}:\n{text}");
    }
}

fn embedded(path: &str) -> &'static str {
    let file = TEMPLATE.iter().find(|(name, ..)| *name == path);
    str::from_utf8(file.unwrap().1).unwrap()
}

/// Checks that an error can be drawn and that its span lies in the text.
fn is_drawn(error: &Error, text: &str) {
    assert!(!error.draw(false).is_empty());
    if let Some((_, line, column)) = error.place() {
        assert!(
            line <= text.matches(['\n', '\r']).count() + 1 && column >= 1,
            "{error} at {line}:{column}"
        );
    }
}

#[test]
fn configurations() {
    fuzz(
        "cargo-generate.toml",
        &[embedded(CONFIG_FILE)],
        |text, _| {
            let errors = match Config::parse("t", text) {
                Ok(mut config) => {
                    let faults = std::mem::take(&mut config.faults).into_iter();
                    faults.chain(config.wrong_regexes()).collect()
                }
                Err(error) => vec![error],
            };
            for error in errors {
                is_drawn(&error, text);
            }
        },
    );
}

#[test]
fn values_files() {
    let template = Template::embedded().unwrap();
    let seeds = [
        "[values]\nstrategy = \"mirrored\"\nhardware = \"cuda\"\n",
        "ci = 'none'\ndescription = \"é\"\ntensorboard = true\n",
    ];
    fuzz("a values file", &seeds, |text, _| {
        if let Err(error) = values::parse_file(&template, "v", text) {
            is_drawn(&error, text);
        }
    });
}

#[test]
fn records() {
    let template = Template::embedded().unwrap();
    let answers = Answers::defaults(&template, Name::parse("a").unwrap()).unwrap();
    let rendered = render(&template, &answers).unwrap();
    let record = str::from_utf8(rendered.get(RECORD_FILE).unwrap()).unwrap();
    let example = record.replace(
        "name =",
        "example = { name = \"callbacks\", hash = \"a\" }\nname =",
    );
    fuzz("a record", &[record, &example], |text, _| {
        let read = Record::parse(RECORD_FILE, text).and_then(|record| {
            record.values_that_fit(&template)?;
            record.values(&template)
        });
        if let Err(error) = read {
            is_drawn(&error, text);
        }
    });
}

#[test]
fn answers_of_examples() {
    let template = Template::embedded().unwrap();
    let answers = EXAMPLES
        .iter()
        .filter(|(path, ..)| path.ends_with("/answers.toml"));
    let seeds: Vec<_> = answers
        .map(|(_, bytes, _)| str::from_utf8(bytes).unwrap())
        .collect();
    fuzz("answers.toml", &seeds, |text, _| {
        if let Err(error) = Example::parse(&template, "e", "answers.toml", text, Vec::new()) {
            is_drawn(&error, text);
        }
    });
}

#[test]
fn patches_of_examples() {
    let base = "one\ntwo\n\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n";
    let new = base.replace("two\n", "").replace("ten", "9.5\nten");
    let seed = diffy::create_patch(base, &new).to_string();
    fuzz("f.patch", &[&seed], |text, _| {
        let patch = FilePatch::parse("f.patch", text.as_bytes());
        for made in [
            patch.and_then(|patch| patch.apply(base)),
            FilePatch::parse("f.patch", text.as_bytes()).and_then(|one| one.apply_moved(base)),
        ] {
            if let Err(error) = made {
                is_drawn(&error, text);
            }
        }
    });
}

#[test]
fn lists_of_sites() {
    fuzz("todos.toml", &[embedded(SITES_FILE)], |text, _| {
        if let Err(error) = parse_sites(SITES_FILE, text) {
            is_drawn(&error, text);
        }
    });
}

#[test]
fn lists_of_abilities() {
    fuzz("abilities.toml", &[embedded(ABILITIES_FILE)], |text, _| {
        if let Err(error) = parse_abilities(ABILITIES_FILE, text) {
            is_drawn(&error, text);
        }
    });
}

#[test]
fn markers() {
    let seeds = [
        embedded("src/loss.rs"),
        embedded("src/metric.rs"),
        embedded("Cargo.toml.liquid"),
    ];
    fuzz("markers", &seeds, |text, numbers| {
        let file = ["a.rs", "a.toml", "a.md", "a.sql", "a"][numbers.below(5)];
        let mut scan = Scan::default();
        scan_text(file, text, &mut scan);
        for todo in &scan.todos {
            assert!(text.lines().nth(todo.line - 1).unwrap().contains(&todo.id));
            // Only whole lines are removed, and no others change.
            let without = without_marker(file, text, &todo.id).unwrap();
            assert!(without.len() < text.len());
        }
    });
}

const CONFIG: &str = "[template]\nfmt = false\n[placeholders]\ntext = { prompt = \"?\" }\n";

/// A template of one option and these files, leaked to be `'static` as embedded files are.
fn leaked(texts: &[(&str, &str)]) -> Result<Template, Error> {
    let leak = |text: &str| &*Box::leak(text.to_owned().into_boxed_str());
    let files = texts
        .iter()
        .map(|(path, text)| (leak(path), leak(text).as_bytes(), false));
    Template::from_files("t", Box::leak(files.collect()))
}

/// The paths that a template of one option renders for a value.
fn rendered_with(template: &Template, value: &str) -> Result<Vec<PathBuf>, Error> {
    let value = crate::template::option::Value::Text(value.to_owned());
    let values = [("text".to_owned(), value)].into_iter().collect();
    let answers = Answers::complete(template, Name::parse("a")?, values)?;
    let rendered = render(template, &answers)?;
    let files = rendered.files.into_iter().map(|file| file.path);
    Ok(files.chain(rendered.folders).collect())
}

#[test]
fn conditions() {
    let seeds = [
        "text == \"a\" && crate_type.len() > 1",
        "text.sub_string(1, 2) in [\"a\", `b`] || 7 / 2 % 3 << 1 == -1",
        "text.index_of('a') == 9223372036854775807 + 1",
    ];
    // Building a Rhai engine takes milliseconds.
    fuzz_less(10, "a condition", &seeds, |text, numbers| {
        // JSON quotes a text as TOML does.
        let name = serde_json::Value::from(text).to_string();
        let config = format!("{CONFIG}[conditional.{name}]\nignore = []\n");
        let template = leaked(&[(CONFIG_FILE, &config)]);
        let rendered = template.and_then(|template| rendered_with(&template, &numbers.broken("a")));
        if let Err(error) = rendered {
            is_drawn(&error, &config);
        }
    });
}

/// Covers file names too: none may lead out of the project.
#[test]
fn liquid() {
    let strategy = embedded("src/strategy.rs.liquid");
    let seeds = [
        &strategy[strategy.find("{{").unwrap()..],
        "{% if text == \"a\" %}{{text}}{% endif %}\n",
        "{% case text %}{% when 'a', '}}' %}b{% else %}{{ 7 | divided_by: 2 }}{% endcase %}\n",
        "{% for i in (1..4) %}{% ifchanged %}{{ i | modulo: 2 }} and words, many of them\
         {% endifchanged %}{% endfor %}",
        "{% comment %}{% if text %}{% raw %}{{ }}{% endraw %}{% endif %}{% endcomment %}",
        "{{ text | append: \"'}}\" | replace: '\"', '%}' | slice: 1, 3 | url_decode | date: '%Y' }}",
    ];
    fuzz("Liquid", &seeds, |text, numbers| {
        // The file is leaked, so it is kept short.
        let end = (0..=text.len().min(200))
            .rev()
            .find(|at| text.is_char_boundary(*at));
        let name = numbers
            .broken("a/{{text}}/{{project-name}}.txt")
            .replace(['\0', '\n'], "");
        let template = leaked(&[(CONFIG_FILE, CONFIG), (&name, &text[..end.unwrap()])]);
        let value = numbers.broken("../a");
        let rendered = template.and_then(|template| {
            // Templates that fail the check are rendered too.
            if let Err(error) = template.check() {
                assert!(!error.draw(false).is_empty());
            }
            rendered_with(&template, &value)
        });
        match rendered {
            Ok(paths) => {
                for path in paths {
                    let inside = |part: Component<'_>| matches!(part, Component::Normal(_));
                    assert!(
                        path.components().all(inside),
                        "{name:?} and {value:?}: {path:?}"
                    );
                }
            }
            Err(error) => assert!(!error.draw(false).is_empty()),
        }
    });
}

#[test]
fn merges() {
    let labels = Labels {
        mine: "yours",
        base: "old",
        new: "new",
    };
    let seeds = [embedded("src/loss.rs"), "a\nb\nc\n", ""];
    fuzz("a merge", &seeds, |text, numbers| {
        let (mine, new) = (numbers.broken(text), numbers.broken(text));
        let (_, merged) = merge_texts(text, &mine, &new, labels);
        // White space around a line is layout, which is lost where the template changed the line.
        let is_layout = |c: char| c.is_whitespace() || c == '\u{feff}';
        let has = |text: &str, line: &str| {
            let line = line.trim_matches(is_layout);
            let mut lines = text.lines();
            lines.any(|other| other.trim_matches(is_layout) == line)
        };
        for line in mine.lines().filter(|line| !has(text, line)) {
            let is_there = has(&merged, line);
            assert!(is_there, "{line:?} is lost:\n{merged}");
        }
    });
}
