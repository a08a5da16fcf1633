//! Where the tags of a Liquid text stand, to point at them in errors.

use std::ops::Range;

/// A `{{ … }}` or `{% … %}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tag {
    /// Its bytes, delimiters included.
    pub span: Range<usize>,
}

impl Tag {
    /// What stands between the delimiters.
    pub fn inner<'t>(&self, text: &'t str) -> &'t str {
        let inner = &text[self.span.clone()];
        let inner = inner.get(2..inner.len().saturating_sub(2)).unwrap_or("");
        inner.trim_matches('-').trim()
    }

    fn starts(&self, text: &str, word: &str) -> bool {
        identifiers(self.inner(text)).next() == Some(word)
            && text[self.span.start..].starts_with("{%")
    }
}

/// Whether a text has anything for Liquid to do.
pub(crate) fn has_liquid(text: &[u8]) -> bool {
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'{') {
        if matches!(rest.get(at + 1), Some(b'{' | b'%')) {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}

/// All complete tags, but for those in `raw` and `comment` blocks.
pub(crate) fn tags(text: &str) -> Vec<Tag> {
    let mut tags = Vec::new();
    let mut at = 0;
    let mut closing = None;
    while let Some(tag) = next(text, at) {
        at = tag.span.end;
        match closing {
            Some(end) if tag.starts(text, end) => closing = None,
            // What looks like a tag in a raw block may reach over the end of the block.
            Some(_) => at = tag.span.start + 2,
            None if tag.starts(text, "raw") => closing = Some("endraw"),
            None if tag.starts(text, "comment") => closing = Some("endcomment"),
            None => tags.push(tag),
        }
    }
    tags
}

/// The innermost block that is never closed.
pub(crate) fn unclosed(text: &str) -> Option<Range<usize>> {
    const BLOCKS: &[&str] = &[
        "if",
        "unless",
        "case",
        "for",
        "tablerow",
        "capture",
        "ifchanged",
    ];
    let mut open = Vec::new();
    for tag in tags(text) {
        let word = identifiers(tag.inner(text)).next().unwrap_or("");
        if !text[tag.span.start..].starts_with("{%") {
            continue;
        } else if BLOCKS.contains(&word) {
            open.push(tag.span);
        } else if word
            .strip_prefix("end")
            .is_some_and(|block| BLOCKS.contains(&block))
        {
            open.pop();
        }
    }
    open.pop()
}

fn next(text: &str, from: usize) -> Option<Tag> {
    let rest = &text[from..];
    let (start, close) = [("{{", "}}"), ("{%", "%}")]
        .into_iter()
        .filter_map(|(open, close)| Some((rest.find(open)?, close)))
        .min()?;
    let end = rest[start + 2..].find(close)?;
    Some(Tag {
        span: from + start..from + start + 2 + end + 2,
    })
}

/// The words of a tag that are not in quotes and not after a dot.
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
    fn finds_identifiers() {
        let words: Vec<_> = identifiers(r#"if a.b == "c d" and project-name"#).collect();
        assert_eq!(words, ["if", "a", "and", "project-name"]);
    }
}
