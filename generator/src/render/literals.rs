//! Text between the tags of Liquid, which is copied as it is, and tags that are a variable and no more: the
//! parser need not see them. It looks at each character many times, which would be most of the time of
//! `kiln new`.

use std::mem;

use crate::template::{tags, variables::Variables};

/// What stands for a piece of text begins with it. Unicode promises that no text has it.
pub(crate) const MARK: char = '\u{fdd0}';
/// Text that is shorter gains nothing.
const SHORTEST: usize = 24;
/// Blocks whose text is not copied as it is: `capture` gives it to filters, `ifchanged` compares it, and
/// in the others tags are text. The filter may make a mark out of letters.
const SPECIAL: [&str; 5] = ["capture", "comment", "ifchanged", "raw", "url_decode"];

/// A text of Liquid in which marks stand for what is copied as it is, and for variables.
pub(crate) struct Shortened {
    /// What the parser is to see.
    pub text: String,
    /// What the marks stand for, by their number.
    pieces: Vec<String>,
    /// What comes next, and is not yet in `text`.
    run: Run,
}

/// Text and variables between tags that the parser has to see.
#[derive(Default)]
struct Run {
    text: String,
    /// Where it begins and ends but for white space, which `-` in a tag takes away.
    content: Option<(usize, usize)>,
    has_values: bool,
    /// Whether the parser may see the beginning of a tag in it.
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
    /// Shortens a text; `None` where that is not sure to make no difference.
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

    /// Adds a mark for what has come since the last tag, if that is worth it; `None` where the parser has
    /// to see it and cannot.
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

    /// What was rendered of the short text, with everything in its place again; `None` where a value
    /// has a mark.
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
