//! A scanner for Liquid tags, which locates them for error messages.

use std::ops::Range;

/// Tags that open a block.
const BLOCKS: &[&str] = &[
    "if",
    "unless",
    "case",
    "for",
    "tablerow",
    "capture",
    "ifchanged",
    "comment",
];

/// Literals of Liquid that look like variables.
const LITERALS: &[&str] = &["blank", "empty", "false", "nil", "null", "true"];

/// True if a tag opens or closes a block.
enum Step {
    In,
    Out,
}

/// A tag, `{{ … }}` or `{% … %}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tag {
    /// Byte range, including the delimiters.
    pub span: Range<usize>,
}

impl Tag {
    /// The text between the delimiters.
    pub fn inner<'t>(&self, text: &'t str) -> &'t str {
        let inner = &text[self.span.clone()];
        let inner = inner.get(2..inner.len().saturating_sub(2)).unwrap_or("");
        inner.trim_matches('-').trim()
    }

    /// Whether the tag has an unclosed quote, so that Liquid may see its end elsewhere.
    pub fn is_open(&self, text: &str) -> bool {
        let mut quote = None;
        for c in text[self.span.clone()].chars() {
            match quote {
                Some(open) if c == open => quote = None,
                Some(_) => {}
                None => quote = matches!(c, '"' | '\'').then_some(c),
            }
        }
        quote.is_some()
    }

    /// The variable of a plain `{{ name }}`, without filters or whitespace control.
    pub fn variable<'t>(&self, text: &'t str) -> Option<&'t str> {
        let tag = &text[self.span.clone()];
        let name = tag
            .strip_prefix("{{")?
            .strip_suffix("}}")?
            .trim_matches(' ');
        let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(word)
            && !name.ends_with('-')
            && !LITERALS.contains(&name);
        is_name.then_some(name)
    }

    /// True if the tag is an output or a condition, neither of which assigns a variable.
    pub fn keeps_variables(&self, text: &str) -> bool {
        let conditions = ["if", "elsif", "else", "endif", "unless", "endunless"];
        text[self.span.start..].starts_with("{{")
            || self
                .word(text)
                .is_some_and(|word| conditions.contains(&word))
    }

    fn starts(&self, text: &str, word: &str) -> bool {
        self.word(text) == Some(word)
    }

    /// The first word of a `{% … %}` tag.
    fn word<'t>(&self, text: &'t str) -> Option<&'t str> {
        let is_tag = text[self.span.start..].starts_with("{%");
        identifiers(self.inner(text)).next().filter(|_| is_tag)
    }

    fn step(&self, text: &str) -> Option<Step> {
        let word = self.word(text)?;
        if BLOCKS.contains(&word) {
            return Some(Step::In);
        }
        let closes = BLOCKS.contains(&word.strip_prefix("end")?);
        closes.then_some(Step::Out)
    }
}

/// Whether a text contains a Liquid delimiter.
pub(crate) fn has_liquid(text: &[u8]) -> bool {
    opening(text).is_some()
}

/// The position of the first `{{` or `{%`.
fn opening(text: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'{', text).find(|at| matches!(text.get(at + 1), Some(b'{' | b'%')))
}

/// All complete tags outside `raw` and `comment` blocks.
pub(crate) fn tags(text: &str) -> Vec<Tag> {
    let mut tags = Vec::new();
    let mut at = 0;
    let mut closing = None;
    while let Some(tag) = next(text, at) {
        at = tag.span.end;
        match closing {
            Some(end) if tag.starts(text, end) => closing = None,
            // An apparent tag in a raw block may extend beyond the end of the block.
            Some(_) => at = tag.span.start + 2,
            None if tag.starts(text, "raw") => closing = Some("endraw"),
            None if tag.starts(text, "comment") => closing = Some("endcomment"),
            None => tags.push(tag),
        }
    }
    tags
}

/// The first tag that opens a comment.
pub(crate) fn comment(text: &str) -> Option<Tag> {
    let mut at = 0;
    while let Some(tag) = next(text, at) {
        if tag.starts(text, "comment") {
            return Some(tag);
        }
        at = tag.span.end;
    }
    None
}

/// The span of the innermost unclosed block.
pub(crate) fn unclosed(text: &str) -> Option<Range<usize>> {
    let mut open = Vec::new();
    for tag in tags(text) {
        match tag.step(text) {
            Some(Step::In) => open.push(tag.span),
            Some(Step::Out) => drop(open.pop()),
            None => {}
        }
    }
    open.pop()
}

/// The first block that is nested in `limit` others, including blocks in comments.
pub(crate) fn too_deep(text: &str, limit: usize) -> Option<Tag> {
    if memchr::memmem::find_iter(text.as_bytes(), "{%").count() <= limit {
        return None;
    }
    let (mut at, mut open) = (0, 0_usize);
    while let Some(tag) = next(text, at) {
        at = tag.span.end;
        match tag.step(text) {
            Some(Step::In) if open == limit => return Some(tag),
            Some(Step::In) => open += 1,
            Some(Step::Out) => open = open.saturating_sub(1),
            None => {}
        }
    }
    None
}

fn next(text: &str, from: usize) -> Option<Tag> {
    let rest = &text[from..];
    let start = opening(rest.as_bytes())?;
    let close = match rest.as_bytes()[start + 1] {
        b'{' => "}}",
        _ => "%}",
    };
    let inner = &rest[start + 2..];
    let end = outside_quotes(inner, close).or_else(|| inner.find(close))?;
    Some(Tag {
        span: from + start..from + start + 2 + end + 2,
    })
}

/// The position of `close` outside quotes. `None` also if a line ends inside quotes, as after a
/// lone apostrophe.
fn outside_quotes(inner: &str, close: &str) -> Option<usize> {
    let mut quote = None;
    for (at, c) in inner.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) if c == '\n' => return None,
            Some(_) => {}
            None if inner[at..].starts_with(close) => return Some(at),
            None => quote = matches!(c, '"' | '\'').then_some(c),
        }
    }
    None
}

/// The identifiers in a tag: words outside quotes, except those after a dot.
pub(crate) fn identifiers(inner: &str) -> impl Iterator<Item = &str> {
    let mut words = Vec::new();
    let mut quote = None;
    let mut start = None;
    for (at, c) in inner.char_indices().chain([(inner.len(), ' ')]) {
        let word = quote.is_none() && (c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        match (start, word) {
            (None, true) => start = Some(at),
            (Some(from), false) => {
                if !inner[..from].ends_with('.') {
                    words.push(&inner[from..at]);
                }
                start = None;
            }
            _ => {}
        }
        match quote {
            Some(open) if c == open => quote = None,
            None if matches!(c, '"' | '\'') => quote = Some(c),
            _ => {}
        }
    }
    words.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<&str> {
        tags(text).into_iter().map(|tag| &text[tag.span]).collect()
    }

    #[test]
    fn finds_tags_outside_raw_and_comments() {
        assert_eq!(found("a {{ b }} {%- if c -%}"), ["{{ b }}", "{%- if c -%}"]);
        assert_eq!(found("{% raw %}{{ a }{% endraw %}{{b}}"), ["{{b}}"]);
        assert_eq!(found("{% comment %}{{ a }}{% endcomment %}"), [""; 0]);
        assert_eq!(found("{{ open"), [""; 0]);
        assert_eq!(found("{{}} {%%}"), ["{{}}", "{%%}"]);
    }

    #[test]
    fn finds_ends_as_liquid_does() {
        assert_eq!(found(r#"{{ "}}" }} b"#), [r#"{{ "}}" }}"#]);
        assert_eq!(found(r#"{% if a == '"%}' %}"#), [r#"{% if a == '"%}' %}"#]);
        assert_eq!(found("{{ it's }}\nit's }}"), ["{{ it's }}"]);
        let is_open = |text| tags(text)[0].is_open(text);
        assert!(is_open("{{ it's }}") && is_open("{{ 'a\n}}' }}"));
        assert!(!is_open("{{ '\"' }}") && !is_open("{{ 'a\n' }}"));
    }

    #[test]
    fn finds_variables() {
        let variable = |text| tags(text)[0].variable(text);
        assert_eq!(variable("{{ project-name }}"), Some("project-name"));
        assert_eq!(variable("{{a}}"), Some("a"));
        for other in [
            "{{- a }}",
            "{{ a -}}",
            "{{ a | size }}",
            "{{ 1 }}",
            "{{ nil }}",
            "{% a %}",
            "{{}}",
        ] {
            assert_eq!(variable(other), None, "{other}");
        }
        let keeps = |text| tags(text)[0].keeps_variables(text);
        assert!(keeps("{{ a }}") && keeps("{%- if a -%}") && keeps("{% else %}"));
        assert!(!keeps("{% assign a = 1 %}") && !keeps("{% for a in b %}"));
    }

    #[test]
    fn finds_blocks_that_lie_too_deep() {
        let at = |tags: &[&str]| too_deep(&tags.concat(), 2).map(|tag| tag.span.start);
        let (open, close) = ("{% if a %}", "{%- endif %}");
        assert_eq!(at(&[open, open, close, open, close, close]), None);
        assert_eq!(at(&[open, close].repeat(9)), None);
        assert_eq!(at(&[open, "{{ if }}", open, open]), Some(28));
        assert_eq!(at(&[open, "{% comment %}", open]), Some(23));
    }

    #[test]
    fn finds_the_first_comment() {
        let at = |text| comment(text).map(|tag| tag.span.start);
        assert_eq!(at("a comment {{ comment }}"), None);
        assert_eq!(at("comment {{ a }}{%- comment -%}{% comment %}"), Some(15));
    }

    #[test]
    fn finds_identifiers() {
        let words: Vec<_> = identifiers(r#"if a.b == "c d" and project-name"#).collect();
        assert_eq!(words, ["if", "a", "and", "project-name"]);
    }
}
