//! Rendering a template into memory, to the same bytes as cargo-generate.

use std::{
    borrow::Cow,
    ops::Range,
    path::{Path, PathBuf},
    rc::Rc,
};

use liquid::{Parser, ParserBuilder};
use rhai::{Dynamic, Engine, EvalAltResult};
use toml::Spanned;

use crate::{
    config::{Config, Matcher, Rules, is_ignored},
    error::{Error, Result, nearest, suggest},
    filters,
    literals::{self, Shortened},
    option::Answers,
    quiet,
    tags::{self, Tag, has_liquid},
    template::{Template, TemplateFile, not_utf8},
    variables::Variables,
};

/// A file that is ready to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedFile<'t> {
    /// Its path below the project's folder.
    pub path: PathBuf,
    /// Its bytes.
    pub contents: Cow<'t, [u8]>,
    /// Whether it can be run.
    pub executable: bool,
}

/// A project in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered<'t> {
    /// Its files, in the order of their paths.
    pub files: Vec<RenderedFile<'t>>,
    /// Its folders, in order, also those without a file.
    pub folders: Vec<PathBuf>,
}

impl Rendered<'_> {
    /// The bytes of the file at `path`.
    pub fn get(&self, path: impl AsRef<Path>) -> Option<&[u8]> {
        let path = path.as_ref();
        let file = self.files.iter().find(|file| file.path == path)?;
        Some(&file.contents)
    }
}

/// Renders a template for a project in the folder of its name, below the current one.
///
/// # Errors
/// The template is wrong: the error names file, line, column and expression.
pub fn render<'t>(template: &'t Template, answers: &Answers) -> Result<Rendered<'t>> {
    render_at(template, answers, Path::new(answers.name().package()))
}

/// Renders a template for a project that will stand at `destination`.
///
/// # Errors
/// The template is wrong: the error names file, line, column and expression.
pub fn render_at<'t>(
    template: &'t Template,
    answers: &Answers,
    destination: &Path,
) -> Result<Rendered<'t>> {
    render_with(template, Variables::new(answers, absolute(destination)?))
}

/// Renders a template with an author of whom the machine knows nothing.
///
/// # Errors
/// The template is wrong: the error names file, line, column and expression.
#[cfg(feature = "snapshot")]
pub(crate) fn render_by<'t>(
    template: &'t Template,
    answers: &Answers,
    destination: &Path,
    author: [&str; 2],
) -> Result<Rendered<'t>> {
    let variables = Variables::new(answers, absolute(destination)?);
    render_with(template, variables.by(author))
}

fn absolute(destination: &Path) -> Result<PathBuf> {
    std::path::absolute(destination)
        .map_err(|cause| Error::io("find the folder", destination, cause))
}

fn render_with(template: &Template, variables: Variables) -> Result<Rendered<'_>> {
    let (renderer, ignored) = Renderer::new(template, variables)?;
    renderer.project(template, &ignored)
}

/// As many blocks may lie in one another. The parser calls itself for each, and overflows its stack, which
/// cannot be caught, at some thousand.
const DEEPEST: usize = 100;
/// As much of a panic's message is shown: the parser's may quote the whole text.
const LONGEST_WHY: usize = 160;
/// What the parser panics with where a block in a comment is not closed.
const OPEN_IN_COMMENT: &str = "File shouldn't end before EOI.";

struct Renderer {
    matcher: Matcher,
    parser: Parser,
    variables: Rc<Variables>,
}

impl Renderer {
    /// A renderer of a template, and what is left out of it.
    fn new(template: &Template, variables: Variables) -> Result<(Self, Vec<String>)> {
        let variables = Rc::new(variables);
        let rules = rules(template.config(), &variables)?;
        let ignored = rules
            .ignore
            .iter()
            .map(|entry| template.config().ignored_path(entry))
            .collect::<Result<Vec<_>>>()?;
        let renderer = Self {
            matcher: template.config().matcher(&rules)?,
            parser: filters::add(ParserBuilder::with_stdlib())
                .build()
                .expect("a parser without partials always builds"),
            variables,
        };
        Ok((renderer, ignored))
    }

    fn project<'t>(&self, template: &'t Template, ignored: &[String]) -> Result<Rendered<'t>> {
        let kept = template.files().iter();
        let kept = kept.filter(|file| !is_ignored(&file.path, ignored));
        let mut files = Vec::new();
        for file in kept {
            files.push((file, self.file(file)?));
        }
        files.sort_by(|(_, one), (_, other)| one.path.cmp(&other.path));
        for pair in files.windows(2) {
            let [(one, first), (other, second)] = pair else {
                continue;
            };
            if first.path == second.path {
                return Err(Error::template(format!(
                    "`{}` and `{}` come out at the same path",
                    one.source, other.source
                ))
                .help("rename one of them, or leave one out with a `[conditional]` rule"));
            }
        }
        let files: Vec<_> = files.into_iter().map(|(_, file)| file).collect();
        Ok(Rendered {
            folders: self.folders(template, ignored, files.iter().map(|file| &file.path))?,
            files,
        })
    }

    fn file<'t>(&self, file: &'t TemplateFile) -> Result<RenderedFile<'t>> {
        let path = self.path(&file.path, &file.source)?;
        let moved = path != Path::new(&file.path);
        let rendered = self.matcher.renders(&file.path);
        let contents = if rendered {
            self.contents(file)?
        } else {
            Cow::Borrowed(&*file.contents)
        };
        Ok(RenderedFile {
            // A rendered file that moves is written anew, and so loses its permission to run.
            executable: file.executable && !(rendered && moved),
            path,
            contents,
        })
    }

    fn contents<'t>(&self, file: &'t TemplateFile) -> Result<Cow<'t, [u8]>> {
        let text = str::from_utf8(&file.contents).map_err(|_| not_utf8(file))?;
        if !has_liquid(text.as_bytes()) {
            return Ok(Cow::Borrowed(text.as_bytes()));
        }
        let rendered = self.text(&file.source, text)?;
        Ok(Cow::Owned(rendered.into_bytes()))
    }

    fn text(&self, name: &str, text: &str) -> Result<String> {
        if let Some(tag) = tags::too_deep(text, DEEPEST) {
            let message = format!("`{name}` has more than {DEEPEST} blocks in one another");
            return Err(Error::template(message)
                .at(name, text, tag.span, "one too many")
                .help("close blocks sooner, or take the file apart"));
        }
        if let Some(rendered) = self.shortened(text) {
            return Ok(rendered);
        }
        self.whole_text(name, text)
    }

    /// Renders a text of which the parser sees but the tags; `None` where something is wrong, as only the
    /// whole text shows the place.
    fn shortened(&self, text: &str) -> Option<String> {
        let short = Shortened::of(text, &self.variables)?;
        self.variables.take_unknown();
        let rendered = quiet::catch(|| self.render(&short.text)).ok()?.ok()?;
        let known = self.variables.take_unknown().is_empty();
        let unmarked = !self.variables.contain(literals::MARK);
        (known && unmarked).then(|| short.expand(&rendered))?
    }

    /// Parses and renders; both may panic.
    fn render(&self, text: &str) -> std::result::Result<String, liquid::Error> {
        self.parser.parse(text)?.render(&*self.variables)
    }

    fn whole_text(&self, name: &str, text: &str) -> Result<String> {
        let parsed = quiet::catch(|| self.parser.parse(text))
            .map_err(|why| self.panic_error(name, text, &why))?
            .map_err(|error| syntax_error(name, text, &error))?;
        self.variables.take_unknown();
        let rendered = quiet::catch(|| parsed.render(&*self.variables));
        self.check_unknown(name, text)?;
        rendered
            .map_err(|why| self.panic_error(name, text, &why))?
            .map_err(|error| render_error(name, text, &error))
    }

    /// What is wrong with a text that Liquid panics on.
    fn panic_error(&self, name: &str, text: &str, why: &str) -> Error {
        let comment = tags::comment(text);
        if let (Some(tag), OPEN_IN_COMMENT) = (&comment, why) {
            let message = format!("`{name}` has a comment in which a block is not closed");
            return Error::template(message)
                .at(name, text, tag.span.clone(), "one like this")
                .help("close the block, or put what is left out into `{% raw %}`");
        }
        let tags = tags::tags(text);
        let panics = |tag: &&Tag| quiet::catch(|| self.render(&text[tag.span.clone()])).is_err();
        let tag = tags.iter().find(panics).or(tags.first());
        let span = tag
            .or(comment.as_ref())
            .map_or(0..0, |tag| tag.span.clone());
        let why: String = why.chars().take(LONGEST_WHY).collect();
        Error::template(format!("Liquid cannot cope with `{name}`: {why}"))
            .at(name, text, span, "here")
            .help("write it more simply; whole numbers lie within 64 bits, also those that filters make")
    }

    /// Points at the first variable that was asked for and does not exist.
    fn check_unknown(&self, name: &str, text: &str) -> Result<()> {
        let unknown = self.variables.take_unknown();
        let tags = tags::tags(text);
        // Loops look for a loop around them, and counters make their variable when first used.
        let made = |word: &str| {
            matches!(word, "forloop" | "tablerowloop")
                || tags.iter().any(|tag| counts(tag.inner(text), word))
        };
        let found = tags.iter().find_map(|tag| {
            tags::identifiers(tag.inner(text))
                .find(|word| unknown.contains(*word) && !made(word))
                .map(|word| (word, word_span(text, word)))
        });
        let Some((word, span)) = found else {
            return Ok(());
        };
        if matches!(word, "authors" | "username") {
            return Err(Error::system(format!("`{word}` is not known"))
                .at(name, text, span, "asked for here")
                .help("set `user.name` in git's configuration, or the variable `USER`"));
        }
        Err(
            Error::template(format!("there is no variable `{word}` in `{name}`"))
                .at(name, text, span, "unknown")
                .help(suggest(word, self.variables.names(), "the variables")),
        )
    }

    /// Renders each part of a path and replaces what no file system takes.
    fn path(&self, path: &str, source: &str) -> Result<PathBuf> {
        path.split('/')
            .map(|part| {
                let rendered = if has_liquid(part.as_bytes()) {
                    self.text(source, part)?
                } else {
                    part.to_owned()
                };
                let clean = sanitize(&rendered);
                if clean.is_empty() {
                    return Err(Error::template(format!(
                        "the part `{part}` of the path `{source}` comes out empty"
                    ))
                    .at(source, path, word_span(path, part), "empty")
                    .help(
                        "leave the file out with a `[conditional]` rule, or give the part a name",
                    ));
                }
                Ok(clean)
            })
            .collect()
    }

    /// The folders that are left: those of the files, and of the others those that keep their name.
    fn folders<'f>(
        &self,
        template: &Template,
        ignored: &[String],
        files: impl Iterator<Item = &'f PathBuf>,
    ) -> Result<Vec<PathBuf>> {
        let mut folders: Vec<PathBuf> = files
            .flat_map(|file| file.ancestors().skip(1))
            .map(Path::to_path_buf)
            .collect();
        for folder in template.folders() {
            if is_ignored(folder, ignored) {
                continue;
            }
            let path = self.path(folder, folder)?;
            if path == Path::new(folder) {
                folders.push(path);
            } else if !self.matcher.renders(folder) {
                return Err(Error::template(format!(
                    "cargo-generate cannot rename the folder `{folder}`, which is not rendered"
                ))
                .help("add the folder to `include`, or take it out of `exclude`"));
            }
        }
        folders.retain(|folder| !folder.as_os_str().is_empty());
        folders.sort();
        folders.dedup();
        Ok(folders)
    }
}

fn sanitize(part: &str) -> String {
    let plain = part
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    if plain && part.len() <= 255 && !part.bytes().all(|byte| byte == b'.') && !cfg!(windows) {
        return part.to_owned();
    }
    let options = sanitize_filename::Options {
        truncate: true,
        replacement: "_",
        ..sanitize_filename::Options::default()
    };
    sanitize_filename::sanitize_with_options(part, options)
}

/// Where `word`, which is a part of `text`, stands in it.
fn word_span(text: &str, word: &str) -> Range<usize> {
    let at = word.as_ptr() as usize - text.as_ptr() as usize;
    at..at + word.len()
}

/// Whether a tag is `increment word` or `decrement word`, which make their variable.
fn counts(inner: &str, word: &str) -> bool {
    let mut words = tags::identifiers(inner);
    matches!(words.next(), Some("increment" | "decrement")) && words.next() == Some(word)
}

/// Liquid's own words for what is wrong, without their drawing, and the lists in them.
fn message_of(error: &liquid::Error) -> (String, Vec<String>) {
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

/// The line and column that Liquid's parser says, as an offset.
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
                return "Kiln runs no scripts: use options, `[conditional]` rules and Liquid"
                    .to_owned();
            }
            "put what is not meant for Liquid between `{% raw %}` and `{% endraw %}`".to_owned()
        },
        |near| format!("did you mean `{near}`?"),
    );
    Error::template(format!("`{name}` is not valid Liquid: {why}"))
        .at(name, text, span, "here")
        .help(help)
}

fn render_error(name: &str, text: &str, error: &liquid::Error) -> Error {
    let span = quoted_place(text, error);
    let (why, _) = message_of(error);
    Error::template(format!("`{name}` cannot be rendered: {why}"))
        .at(name, text, span, "here")
        .help("what tags and filters take is at https://shopify.github.io/liquid")
}

/// From `at` to the end of its tag.
fn tag_at(text: &str, at: usize) -> Option<Range<usize>> {
    let tag = tags::tags(text)
        .into_iter()
        .find(|tag| tag.span.contains(&at))?;
    Some(at..tag.span.end)
}

/// The tag that an error quotes as `from: …` or by one of its values, or the first tag.
fn quoted_place(text: &str, error: &liquid::Error) -> Range<usize> {
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

/// The rules that hold for these variables.
fn rules(config: &Config, variables: &Rc<Variables>) -> Result<Rules> {
    let mut rules = config.rules.clone();
    if config.conditionals.is_empty() {
        return Ok(rules);
    }
    let engine = engine(variables);
    for conditional in &config.conditionals {
        let expression = conditional.expression.get_ref();
        let truth = quiet::catch(|| engine.eval_expression::<bool>(expression))
            .unwrap_or_else(|why| Err(why.into()))
            .map_err(|error| {
                expression_error(config, &conditional.expression, &error, variables)
            })?;
        if truth {
            rules.merge(&conditional.rules);
        }
    }
    Ok(rules)
}

fn engine(variables: &Rc<Variables>) -> Engine {
    let mut engine = Engine::new();
    let variables = Rc::clone(variables);
    #[allow(
        deprecated,
        reason = "the function is not deprecated but marked as volatile"
    )]
    engine.on_var(move |name, _, _| variables.value(name).map(to_rhai).transpose());
    engine
}

fn to_rhai(value: &liquid::model::Value) -> std::result::Result<Dynamic, Box<EvalAltResult>> {
    use liquid::{ValueView, model::Value};
    match value {
        Value::Scalar(scalar) => Ok(match scalar.to_bool() {
            Some(flag) => flag.into(),
            None => scalar.to_kstr().into_string().into(),
        }),
        Value::Array(items) => {
            let items = items
                .iter()
                .map(to_rhai)
                .collect::<std::result::Result<_, _>>();
            Ok(Dynamic::from_array(items?))
        }
        other => Err(format!("{} cannot be in a condition", other.type_name()).into()),
    }
}

fn expression_error(
    config: &Config,
    expression: &Spanned<String>,
    error: &EvalAltResult,
    variables: &Variables,
) -> Error {
    let text = expression.get_ref();
    let column = error.position().position().unwrap_or(1) - 1;
    let at = text
        .char_indices()
        .nth(column)
        .map_or(text.len(), |(at, _)| at);
    let message = match error {
        EvalAltResult::ErrorMismatchOutputType(_, actual, _) => {
            format!("it gives `{actual}`, not true or false")
        }
        EvalAltResult::ErrorVariableNotFound(name, _) => {
            let near = nearest(name, variables.names());
            let near = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            format!("there is no variable `{name}`{near}")
        }
        other => other.to_string(),
    };
    let span = config.inside(expression, at.min(text.len().saturating_sub(1)));
    config
        .error_at(span, format!("the condition `{text}` is wrong"), &message)
        .help("a condition is an expression of Rhai over the options, such as `ci == \"none\"`")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{embedded::Files, name::Name, template::CONFIG_FILE};

    const CONFIG: &str =
        "[template]\nfmt = false\n[placeholders]\nword = { prompt = \"?\", default = \"a b\" }\n";
    const FILES: Files = &[(CONFIG_FILE, CONFIG.as_bytes(), false)];

    fn renderer(template: &Template, value: &str) -> Renderer {
        let name = Name::parse("a").unwrap();
        let answers = Answers::defaults(template, name).unwrap();
        let answers = answers.with(template, "word", value).unwrap();
        let variables = Variables::new(&answers, PathBuf::from("/a"));
        Renderer::new(template, variables).unwrap().0
    }

    /// Text that is long enough to be left out, and alike often enough for `ifchanged`.
    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            Just("the same words, and many of them\n".to_owned()),
            Just("more words, which are others, it's so".to_owned()),
            " {0,3}[a-zA-Zé{}% \n\"']{0,60}\n{0,2}",
        ]
    }

    /// Something in quotes, also what looks like the end of a tag.
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

    /// What stands alone: whole tags, and pieces that go wrong.
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

    /// Texts of which most are right.
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

    /// What the parser does not see makes no difference.
    #[test]
    fn shortened_texts_render_as_whole_ones() {
        let template = Template::from_files("t", FILES).unwrap();
        let values = ["x", "\n x ", "\u{fdd0}0\u{fdd0}"];
        let renderers = values.map(|value| renderer(&template, value));
        proptest!(|(text in liquid(), one in 0..3_usize)| {
            let renderer = &renderers[one];
            let whole = renderer.whole_text("f", &text).map_err(|error| error.to_string());
            let short = renderer.text("f", &text).map_err(|error| error.to_string());
            prop_assert_eq!(short, whole);
        });
    }

    /// None of these ends the process.
    #[test]
    fn texts_that_are_too_much_for_liquid() {
        let template = Template::from_files("t", FILES).unwrap();
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
            assert!(error.to_string().len() < 250 && error.way_out().is_some());
        }
    }

    /// Blocks, filters and quotes in which the text between tags counts.
    #[test]
    fn texts_that_cannot_be_shortened() {
        let template = Template::from_files("t", FILES).unwrap();
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
