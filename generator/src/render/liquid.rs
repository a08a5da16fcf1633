//! Rendering of one Liquid text, and locating errors in it.

use std::{cell::RefCell, collections::BTreeSet, ops::Range, rc::Rc, sync::Arc};

use liquid::{Parser, ParserBuilder, Template};

use super::{
    filters,
    literals::{self, Shortened},
    scripts::{RhaiParser, Scripts},
    warning::Warning,
};
use crate::{
    error::{Error, Result, nearest, suggest},
    quiet,
    template::{
        tags::{self, Tag},
        variables::Variables,
    },
};

/// Maximum nesting of blocks. The parser is recursive and overflows its stack, which cannot be
/// caught, at a few thousand.
const DEEPEST: usize = 100;

/// Maximum length of a panic message that is shown: the parser's may quote the whole text.
const LONGEST_WHY: usize = 160;

/// The panic message of the parser for an unclosed block in a comment.
const OPEN_IN_COMMENT: &str = "File shouldn't end before EOI.";

/// A Liquid renderer with the variables of a project.
pub(super) struct Liquid {
    parser: Parser,
    pub(super) variables: Rc<Variables>,
    /// Whether mistakes that cargo-generate renders are errors.
    strict: bool,
    warnings: RefCell<Vec<Warning>>,
}

impl Liquid {
    /// A Liquid renderer with the filters of cargo-generate; `rhai` is one if there are scripts. If
    /// not `strict`, mistakes that cargo-generate renders are warnings.
    pub(super) fn new(
        variables: Rc<Variables>,
        strict: bool,
        scripts: Option<Arc<Scripts>>,
    ) -> Self {
        let mut builder = filters::add(ParserBuilder::with_stdlib());
        if let Some(scripts) = scripts {
            builder = builder.filter(RhaiParser { scripts });
        }
        Self {
            parser: builder
                .build()
                .expect("a parser without partials always builds"),
            variables,
            strict,
            warnings: RefCell::default(),
        }
    }

    /// Adds a warning, unless the file has one.
    pub(super) fn warn(&self, warning: Warning) {
        let mut warnings = self.warnings.borrow_mut();
        if warnings.iter().all(|one| one.file() != warning.file()) {
            warnings.push(warning);
        }
    }

    /// The warnings since the last call, at most one for each file.
    pub(super) fn take_warnings(&self) -> Vec<Warning> {
        self.warnings.take()
    }

    /// Renders a text that messages call `name`.
    ///
    /// # Errors
    /// The text is invalid: the error names line, column and expression.
    pub(super) fn text(&self, name: &str, text: &str) -> Result<String> {
        if let Some(tag) = tags::too_deep(text, DEEPEST) {
            let message = format!("`{name}` nests more than {DEEPEST} blocks");
            return Err(Error::template(message)
                .at(name, text, tag.span, "one too many")
                .help("close blocks earlier, or split the file"));
        }
        if let Some(rendered) = self.shortened(text) {
            return Ok(rendered);
        }
        match self.strict {
            true => self.whole_text(name, text),
            false => self.lenient_text(name, text),
        }
    }

    /// Renders a shortened text, of which the parser sees little more than the tags. `None` on any
    /// error, as only the whole text locates it.
    fn shortened(&self, text: &str) -> Option<String> {
        let short = Shortened::of(text, &self.variables)?;
        self.variables.take_unknown();
        let rendered = quiet::catch(|| self.render(&short.text)).ok()?.ok()?;
        let known = self.variables.take_unknown().is_empty();
        let unmarked = !self.variables.contain(literals::MARK);
        (known && unmarked).then(|| short.expand(&rendered))?
    }

    /// Parses and renders a text; both may panic.
    fn render(&self, text: &str) -> std::result::Result<String, liquid::Error> {
        self.parser.parse(text)?.render(&*self.variables)
    }

    /// Parses a text that messages call `name`.
    pub(super) fn parse(&self, name: &str, text: &str) -> Result<Template> {
        quiet::catch(|| self.parser.parse(text))
            .map_err(|why| self.panic_error(name, text, &why))?
            .map_err(|error| syntax_error(name, text, &error))
    }

    fn whole_text(&self, name: &str, text: &str) -> Result<String> {
        let parsed = self.parse(name, text)?;
        self.variables.take_unknown();
        let rendered = quiet::catch(|| self.render_absent(&parsed));
        self.check_unknown(name, text)?;
        rendered
            .map_err(|why| self.panic_error(name, text, &why))?
            .map_err(|error| render_error(name, text, &error))
    }

    /// Renders a text, in which an option that does not apply is the empty text once it is
    /// output, as in cargo-generate.
    fn render_absent(&self, parsed: &Template) -> std::result::Result<String, liquid::Error> {
        loop {
            let rendered = parsed.render(&*self.variables);
            let Err(error) = &rendered else {
                return rendered;
            };
            let said = error.to_string();
            let missing = said
                .lines()
                .find_map(|line| line.split_once("requested variable="));
            let absent = missing.filter(|(_, name)| self.variables.is_absent(name.trim()));
            if !absent.is_some_and(|(_, name)| self.variables.supply(name.trim())) {
                return rendered;
            }
        }
    }

    /// The error for a text on which Liquid panics.
    pub(super) fn panic_error(&self, name: &str, text: &str, why: &str) -> Error {
        let comment = tags::comment(text);
        if let (Some(tag), OPEN_IN_COMMENT) = (&comment, why) {
            let message = format!("`{name}` has a comment with an unclosed block");
            return Error::template(message)
                .at(name, text, tag.span.clone(), "a comment like this")
                .help("close the block, or put the commented text into `{% raw %}`");
        }
        let tags = tags::tags(text);
        let panics = |tag: &&Tag| quiet::catch(|| self.render(&text[tag.span.clone()])).is_err();
        let tag = tags.iter().find(panics).or(tags.first());
        let span = tag
            .or(comment.as_ref())
            .map_or(0..0, |tag| tag.span.clone());
        let why: String = why.chars().take(LONGEST_WHY).collect();
        Error::template(format!("Liquid panicked on `{name}`: {why}"))
            .at(name, text, span, "here")
            .help("simplify the tag; integers, including results of filters, have 64 bits")
    }

    /// Points at the first unknown variable that the text refers to.
    fn check_unknown(&self, name: &str, text: &str) -> Result<()> {
        let unknown = self.variables.take_unknown();
        self.check_author(name, text, &unknown)?;
        let Some((word, span)) = first_unknown(text, &unknown) else {
            return Ok(());
        };
        Err(
            Error::template(format!("there is no variable `{word}` in `{name}`"))
                .at(name, text, span, "unknown")
                .help(suggest(word, self.variables.names(), "the variables")),
        )
    }

    /// Refuses a text that needs the author if nobody is configured, as cargo-generate does.
    pub(super) fn check_author(
        &self,
        name: &str,
        text: &str,
        unknown: &BTreeSet<String>,
    ) -> Result<()> {
        match first_unknown(text, unknown) {
            Some((word @ ("authors" | "username"), span)) => {
                Err(Error::system(format!("`{word}` is unknown"))
                    .at(name, text, span, "used here")
                    .help("set `user.name` in git's configuration, or the variable `USER`"))
            }
            _ => Ok(()),
        }
    }
}

/// The first unknown variable that a text refers to.
pub(super) fn first_unknown<'t>(
    text: &'t str,
    unknown: &BTreeSet<String>,
) -> Option<(&'t str, Range<usize>)> {
    if unknown.is_empty() {
        return None;
    }
    let tags = tags::tags(text);
    // Loops look up an outer loop, and counters create their variable on first use.
    let made = |word: &str| {
        matches!(word, "forloop" | "tablerowloop")
            || tags.iter().any(|tag| counts(tag.inner(text), word))
    };
    tags.iter().find_map(|tag| {
        tags::identifiers(tag.inner(text))
            .find(|word| unknown.contains(*word) && !made(word))
            .map(|word| (word, word_span(text, word)))
    })
}

/// The span of `word`, a slice of `text`, in `text`.
pub(super) fn word_span(text: &str, word: &str) -> Range<usize> {
    let at = word.as_ptr() as usize - text.as_ptr() as usize;
    at..at + word.len()
}

/// True if a tag is `increment word` or `decrement word`, which create their variable.
fn counts(inner: &str, word: &str) -> bool {
    let mut words = tags::identifiers(inner);
    matches!(words.next(), Some("increment" | "decrement")) && words.next() == Some(word)
}

/// Liquid's error message without its drawing, and the lists of candidates in it.
pub(super) fn message_of(error: &liquid::Error) -> (String, Vec<String>) {
    let text = error.to_string();
    let lines = text.lines().map(|line| {
        let line = line.trim();
        let line = line.strip_prefix("liquid:").unwrap_or(line);
        line.strip_prefix('=').unwrap_or(line).trim()
    });
    let drawn = |line: &str| {
        line.is_empty()
            || line.starts_with("-->")
            || line.starts_with('|')
            || line.starts_with("from:")
            || line == "with:"
            || line
                .split_once(" |")
                .is_some_and(|(number, _)| number.parse::<u32>().is_ok())
    };
    let (lists, words): (Vec<_>, Vec<_>) = lines
        .filter(|line| !drawn(line))
        .partition(|line| line.starts_with("available "));
    let lists = lists.iter().filter_map(|list| list.split_once('='));
    let available = lists.flat_map(|(_, list)| list.split(',').map(|one| one.trim().to_owned()));
    let words: Vec<_> = words
        .into_iter()
        .map(|word| word.trim_end_matches('.'))
        .collect();
    (words.join("; "), available.collect())
}

/// The offset of the line and column in Liquid's error message.
fn stated_place(text: &str, error: &liquid::Error) -> Option<usize> {
    let message = error.to_string();
    let place = message.split_once("--> ")?.1.lines().next()?;
    let (line, column) = place.trim().split_once(':')?;
    let (line, column) = (line.parse::<usize>().ok()?, column.parse::<usize>().ok()?);
    let start = text
        .split_inclusive('\n')
        .take(line.checked_sub(1)?)
        .map(str::len)
        .sum::<usize>();
    let in_line = text[start..]
        .char_indices()
        .nth(column.checked_sub(1)?)
        .map_or(text.len() - start, |(at, _)| at);
    Some(start + in_line)
}

fn syntax_error(name: &str, text: &str, error: &liquid::Error) -> Error {
    let span = match stated_place(text, error) {
        Some(at) => tag_at(text, at)
            .or_else(|| tags::unclosed(text).filter(|_| at >= text.len()))
            .unwrap_or(at..at),
        None => quoted_place(text, error),
    };
    let (why, available) = message_of(error);
    let given = text.get(span.clone()).unwrap_or("");
    let near = tags::identifiers(given)
        .find_map(|word| nearest(word, available.iter().map(String::as_str)));
    let help = near.map_or_else(
        || {
            if why.contains("requested filter=rhai") {
                return "Kiln does not run scripts: use options, `[conditional]` rules and Liquid"
                    .to_owned();
            }
            "put text that is not Liquid between `{% raw %}` and `{% endraw %}`".to_owned()
        },
        |near| format!("did you mean `{near}`?"),
    );
    Error::template(format!("`{name}` is not valid Liquid: {why}"))
        .at(name, text, span, "here")
        .help(help)
}

pub(super) fn render_error(name: &str, text: &str, error: &liquid::Error) -> Error {
    let span = quoted_place(text, error);
    let (why, _) = message_of(error);
    let help = match why.contains("script `") {
        true => "use options, `[conditional]` rules and Liquid instead of the script",
        false => "see the tags and filters at https://shopify.github.io/liquid",
    };
    Error::template(format!("`{name}` cannot be rendered: {why}"))
        .at(name, text, span, "here")
        .help(help)
}

/// The span from `at` to the end of its tag.
fn tag_at(text: &str, at: usize) -> Option<Range<usize>> {
    let tag = tags::tags(text)
        .into_iter()
        .find(|tag| tag.span.contains(&at))?;
    Some(at..tag.span.end)
}

/// The span of the tag that an error quotes as `from: …` or by one of its values, or else of the first tag.
pub(super) fn quoted_place(text: &str, error: &liquid::Error) -> Range<usize> {
    let message = error.to_string();
    let squeeze = |text: &str| text.split_whitespace().collect::<String>();
    let tags = tags::tags(text);
    let quoted = message
        .lines()
        .filter_map(|line| line.trim().strip_prefix("from:"))
        .map(squeeze);
    for quote in quoted {
        let found = tags.iter().find(|tag| {
            let source = squeeze(
                &text[tag.span.clone()]
                    .replace("{{-", "{{")
                    .replace("-}}", "}}"),
            );
            source == quote
        });
        if let Some(tag) = found {
            return tag.span.clone();
        }
    }
    let values: Vec<_> = message
        .lines()
        .filter_map(|line| Some(line.split_once('=')?.1.trim()))
        .collect();
    let found = tags
        .iter()
        .find(|tag| tags::identifiers(tag.inner(text)).any(|word| values.contains(&word)));
    found.or(tags.first()).map_or(0..0, |tag| tag.span.clone())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        name::Name,
        template::{CONFIG_FILE, Template as Source, answers::Answers, embedded::Files},
    };

    const CONFIG: &str =
        "[template]\nfmt = false\n[placeholders]\nword = { prompt = \"?\", default = \"a b\" }\n";
    const FILES: Files = &[(CONFIG_FILE, CONFIG.as_bytes(), false)];

    fn renderer(template: &Source, value: &str) -> Liquid {
        let name = Name::parse("a").unwrap();
        let answers = Answers::defaults(template, name).unwrap();
        let answers = answers.with(template, "word", value).unwrap();
        let variables = Variables::new(&answers, "/a".into());
        Liquid::new(Rc::new(variables), true, None)
    }

    /// Text that is long enough to be shortened and repetitive enough for `ifchanged`.
    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            Just("the same words, and many of them\n".to_owned()),
            Just("more words, which are others, it's so".to_owned()),
            " {0,3}[a-zA-Zé{}% \n\"']{0,60}\n{0,2}",
        ]
    }

    /// A quoted string, which may contain an apparent end of a tag.
    fn quoted() -> impl Strategy<Value = String> {
        let inner = prop_oneof![
            Just("}}".to_owned()),
            Just("%}".to_owned()),
            Just("{{ word }}".to_owned()),
            Just("{% endif %}".to_owned()),
            Just("%EF%B7%900%EF%B7%90".to_owned()),
            "[a-z{}%\\n -]{0,30}",
        ];
        (inner, any::<bool>(), "['\"]?").prop_map(|(inner, double, other)| {
            let quote = if double { '"' } else { '\'' };
            let other = other.replace(quote, "");
            format!("{quote}{inner}{other}{quote}")
        })
    }

    /// Elements without a block: whole tags, and invalid fragments.
    fn element() -> impl Strategy<Value = String> {
        let alone = prop::sample::select(vec![
            "{{word}}",
            "{{ word }} ",
            " {{ crate_name }}",
            "{{- word -}}",
            "{{ word | upcase | size }}",
            "{% increment n %}",
            "{%- decrement n -%}",
            "{% cycle 'a', 'b' %}",
            "{% cycle word: 'one', word %}",
            "{% assign c = word %}",
            "{{ c | size }}",
            "{% break %}",
            "{% continue %}",
            "{{ forloop.index }}",
        ]);
        let wrong = prop::sample::select(vec![
            "{{ nothing }}",
            "{{",
            "}}",
            "{%",
            "%}",
            "\"",
            "'",
            "{% if word %}",
            "{% raw %}",
            "{% endraw %}",
            "{% comment %}",
            "{% endcomment %}",
            "{% else %}",
            "{% endif %}",
            "{{ 99999999999999999999 }}",
        ]);
        let filter = prop::sample::select(vec!["append", "remove", "split", "default", "prepend"]);
        prop_oneof![
            6 => text(),
            3 => alone.prop_map(str::to_owned),
            1 => wrong.prop_map(str::to_owned),
            1 => quoted().prop_map(|quoted| format!("{{{{ {quoted} }}}}")),
            1 => (filter, quoted(), quoted()).prop_map(|(filter, one, other)| {
                format!("{{{{ {one} | {filter}: {other} }}}}")
            }),
            1 => quoted().prop_map(|quoted| format!("{{{{- {quoted} | url_decode -}}}}")),
            1 => quoted().prop_map(|quoted| format!("{{% assign c = {quoted} %}}")),
        ]
    }

    /// Liquid texts, most of them valid.
    fn liquid() -> impl Strategy<Value = String> {
        element().prop_recursive(3, 24, 5, |inner| {
            let body = prop::collection::vec(inner.clone(), 0..5).prop_map(|all| all.concat());
            let body = body.boxed();
            let block = prop::sample::select(vec![
                ("{% if word == 'x' %}", "{% endif %}"),
                ("{%- if word -%}", "{%- endif -%}"),
                ("{% unless word == 'x' %}", "{% endunless %}"),
                ("{% for i in (1..3) %}", "{% endfor %}"),
                ("{% for i in (1..4) reversed %}", "{% endfor %}"),
                ("{% tablerow i in (1..3) cols:2 %}", "{% endtablerow %}"),
                ("{% ifchanged %}", "{% endifchanged %}"),
                ("{%- ifchanged -%}", "{% endifchanged %}"),
                ("{% capture c %}", "{% endcapture %}"),
                ("{% raw %}", "{% endraw %}"),
                ("{% comment %}", "{% endcomment %}"),
            ]);
            prop_oneof![
                3 => body.clone(),
                4 => (block, body.clone())
                    .prop_map(|((open, close), body)| format!("{open}{body}{close}")),
                1 => (quoted(), body.clone(), body.clone()).prop_map(|(quoted, one, other)| {
                    format!("{{% if word != {quoted} %}}{one}{{% else %}}{other}{{% endif %}}")
                }),
                1 => (quoted(), text(), body.clone(), body).prop_map(|(quoted, text, one, other)| {
                    let when = format!("{{% when {quoted}, 'x' %}}");
                    format!("{{% case word %}}{text}{when}{one}{{% else %}}{other}{{% endcase %}}")
                }),
            ]
        })
    }

    /// Hiding literal text from the parser does not change the result.
    #[test]
    fn shortened_texts_render_as_whole_ones() {
        let template = Source::from_files("t", FILES).unwrap();
        let values = ["x", "\n x ", "\u{fdd0}0\u{fdd0}"];
        let renderers = values.map(|value| renderer(&template, value));
        proptest!(|(text in liquid(), one in 0..3_usize)| {
            let renderer = &renderers[one];
            let whole = renderer.whole_text("f", &text).map_err(|error| error.to_string());
            let short = renderer.text("f", &text).map_err(|error| error.to_string());
            prop_assert_eq!(short, whole);
        });
    }

    /// No input aborts the process.
    #[test]
    fn texts_that_are_too_much_for_liquid() {
        let template = Source::from_files("t", FILES).unwrap();
        let renderer = renderer(&template, "9223372036854775807");
        let nested = |times| {
            format!(
                "{}{}",
                "{% if word %}".repeat(times),
                "{% endif %}".repeat(times)
            )
        };
        assert_eq!(renderer.text("f", &nested(DEEPEST)).unwrap(), "");
        let brackets = format!(
            "ok {{{{ {}1{} }}}}",
            "word[".repeat(30_000),
            "]".repeat(30_000)
        );
        for (text, line, column) in [
            (nested(DEEPEST + 1), 1, DEEPEST * 13 + 1),
            (nested(9_999), 1, DEEPEST * 13 + 1),
            (brackets, 1, 4),
            (
                "{{word}}\n{{ word | divided_by: 99999999999999999999 }}".to_owned(),
                2,
                1,
            ),
            (
                "a\n {% for i in (-1..9223372036854775806) %}{% endfor %}".to_owned(),
                2,
                2,
            ),
            (
                "a {{ -9223372036854775808 | divided_by: -1 }}".to_owned(),
                1,
                3,
            ),
        ] {
            let error = renderer.text("f", &text).unwrap_err();
            assert_eq!(
                error.place(),
                Some(("f".to_owned(), line, column)),
                "{error}"
            );
            assert!(error.to_string().len() < 250 && error.help_text().is_some());
        }
    }

    /// Blocks, filters and quotes that depend on the text between tags.
    #[test]
    fn texts_that_cannot_be_shortened() {
        let template = Source::from_files("t", FILES).unwrap();
        let renderer = renderer(&template, "x");
        let long = "these words are long enough to be left out";
        let twice = format!("{{% ifchanged %}}{long}{{% endifchanged %}}").repeat(2);
        assert_eq!(renderer.text("f", &twice).unwrap(), long);
        let mark = "{{ '%EF%B7%900%EF%B7%90' | url_decode }}";
        let marked = renderer.text("f", &format!("{long}{mark}")).unwrap();
        assert_eq!(marked, format!("{long}\u{fdd0}0\u{fdd0}"));
        let quoted = format!("{{{{ 'a\n}}}} {long} {{{{ ' | size }}}}");
        let size = format!("a\n}}}} {long} {{{{ ").len();
        assert_eq!(renderer.text("f", &quoted).unwrap(), size.to_string());
        let unclosed = format!("{{{{ 1 | append: 'x }}}}\n{long}\n' {{{{ ' }}}}");
        assert!(renderer.text("f", &unclosed).is_err());
    }
}
