//! Text between the tags of Liquid, which is copied as it is: the parser need not see it. It looks at each
//! character many times, which would be most of the time of `kiln new`.

use std::ops::Range;

use crate::tags;

/// What stands for a piece of text begins with it. Unicode promises that no text has it.
pub(crate) const MARK: char = '\u{fdd0}';
/// Text that is shorter gains nothing.
const SHORTEST: usize = 24;
/// Blocks whose text is not copied as it is: `capture` gives it to filters, `ifchanged` compares it, and
/// in the others tags are text. The filter may make a mark out of letters.
const SPECIAL: [&str; 5] = ["capture", "comment", "ifchanged", "raw", "url_decode"];

/// A text of Liquid in which marks stand for what is copied as it is.
pub(crate) struct Shortened<'t> {
    original: &'t str,
    /// What the parser is to see.
    pub text: String,
    /// What the marks stand for, by their number.
    pieces: Vec<Range<usize>>,
}

impl<'t> Shortened<'t> {
    /// Shortens a text; `None` where that is not sure to make no difference.
    pub fn of(original: &'t str) -> Option<Self> {
        if original.contains(MARK) || SPECIAL.iter().any(|word| original.contains(word)) {
            return None;
        }
        let mut short = Self {
            original,
            text: String::new(),
            pieces: Vec::new(),
        };
        let mut at = 0;
        for tag in tags::tags(original) {
            if tag.is_open(original) {
                return None;
            }
            short.push(at..tag.span.start);
            short.text.push_str(&original[tag.span.clone()]);
            at = tag.span.end;
        }
        short.push(at..original.len());
        Some(short)
    }

    /// Adds text between tags. White space at its ends stays, as `-` in a tag takes it away.
    fn push(&mut self, range: Range<usize>) {
        let text = &self.original[range.clone()];
        let inner = text.trim();
        if inner.len() < SHORTEST || tags::has_liquid(text.as_bytes()) {
            self.text.push_str(text);
            return;
        }
        let start = range.start + (text.len() - text.trim_start().len());
        let end = start + inner.len();
        self.text.push_str(&self.original[range.start..start]);
        let number = self.pieces.len();
        self.text.push_str(&format!("{MARK}{number}{MARK}"));
        self.text.push_str(&self.original[end..range.end]);
        self.pieces.push(start..end);
    }

    /// What was rendered of the short text, with everything in its place again; `None` where a value
    /// has a mark.
    pub fn expand(&self, rendered: &str) -> Option<String> {
        let mut text = String::with_capacity(self.original.len());
        let mut parts = rendered.split(MARK);
        text.push_str(parts.next()?);
        while let Some(number) = parts.next() {
            let piece = self.pieces.get(number.parse::<usize>().ok()?)?;
            text.push_str(&self.original[piece.clone()]);
            text.push_str(parts.next()?);
        }
        Some(text)
    }
}
