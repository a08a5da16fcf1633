//! Shortening of Liquid texts: text between tags and plain variables are replaced by short marks.
//! The parser scans each character many times. CPU time of `kiln new` with and without this file:
//! 5 and 48 ms for a template of 40 Liquid files of 7 KB; 11.6 and 11.9 ms for Kiln's own template,
//! with few Liquid files, and 12.1 and 13.2 ms with its GPU, cluster and CI options (medians of 60
//! and 240 runs in turn, on two busy cores).

use std::mem;

use crate::template::{tags, variables::Variables};

/// The delimiter of marks. It is a Unicode noncharacter, so no text contains it.
pub(crate) const MARK: char = '\u{fdd0}';
/// Minimum length of text that is worth a mark.
const SHORTEST: usize = 24;
/// Words in whose presence a text is not shortened: `capture` passes its text to filters,
/// `ifchanged` compares it, in `comment` and `raw` tags are text, and `url_decode` may produce a
/// mark.
const SPECIAL: [&str; 5] = ["capture", "comment", "ifchanged", "raw", "url_decode"];

/// A Liquid text with marks in place of literal text and variables.
pub(crate) struct Shortened {
    /// The text for the parser.
    pub text: String,
    /// The text that each mark stands for, by its number.
    pieces: Vec<String>,
    /// Pending text that is not yet in `text`.
    run: Run,
}

/// Literal text and variables between two tags that the parser must see.
#[derive(Default)]
struct Run {
    text: String,
    /// The range without the surrounding whitespace, which `-` in a tag strips.
    content: Option<(usize, usize)>,
    has_values: bool,
    /// Whether the parser may see a delimiter in the text.
    has_liquid: bool,
}

impl Run {
    fn push_text(&mut self, text: &str) {
        let (at, content) = (self.text.len(), text.trim());
        self.text.push_str(text);
        self.has_liquid |= tags::has_liquid(text.as_bytes());
        if !content.is_empty() {
            let start = at + (text.len() - text.trim_start().len());
            self.extend(start, start + content.len());
        }
    }

    fn push_value(&mut self, value: &str) {
        let at = self.text.len();
        self.text.push_str(value);
        self.has_values = true;
        self.extend(at, at + value.len());
    }

    fn extend(&mut self, start: usize, end: usize) {
        let start = self.content.map_or(start, |(first, _)| first);
        self.content = Some((start, end));
    }
}

impl Shortened {
    /// Shortens a text; `None` unless the result is certain to be the same.
    pub fn of(original: &str, variables: &Variables) -> Option<Self> {
        if original.contains(MARK) || SPECIAL.iter().any(|word| original.contains(word)) {
            return None;
        }
        let tags = tags::tags(original);
        let constant = tags.iter().all(|tag| tag.keeps_variables(original));
        let mut short = Self {
            text: String::new(),
            pieces: Vec::new(),
            run: Run::default(),
        };
        let mut at = 0;
        for tag in tags {
            if tag.is_open(original) {
                return None;
            }
            short.run.push_text(&original[at..tag.span.start]);
            let variable = tag.variable(original).filter(|_| constant);
            match variable.and_then(|name| variables.output(name)) {
                Some(value) => short.run.push_value(&value),
                None => {
                    short.end_run()?;
                    short.text.push_str(&original[tag.span.clone()]);
                }
            }
            at = tag.span.end;
        }
        short.run.push_text(&original[at..]);
        short.end_run()?;
        Some(short)
    }

    /// Ends the pending run, with a mark if it is worth one; `None` if the parser must see the run
    /// but cannot.
    fn end_run(&mut self) -> Option<()> {
        let run = mem::take(&mut self.run);
        let (start, end) = run.content.unwrap_or_default();
        let inner = &run.text[start..end];
        if run.has_values && run.has_liquid {
            return None;
        }
        if run.has_liquid || (inner.len() < SHORTEST && !run.has_values) {
            self.text.push_str(&run.text);
            return Some(());
        }
        self.text.push_str(&run.text[..start]);
        let number = self.pieces.len();
        self.text.push_str(&format!("{MARK}{number}{MARK}"));
        self.text.push_str(&run.text[end..]);
        self.pieces.push(inner.to_owned());
        Some(())
    }

    /// Replaces the marks in the rendered text; `None` if a value contains a mark.
    pub fn expand(&self, rendered: &str) -> Option<String> {
        let mut text = String::new();
        let mut parts = rendered.split(MARK);
        text.push_str(parts.next()?);
        while let Some(number) = parts.next() {
            text.push_str(self.pieces.get(number.parse::<usize>().ok()?)?);
            text.push_str(parts.next()?);
        }
        Some(text)
    }
}
