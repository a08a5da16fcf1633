//! Lines of messages, broken between words: never inside of a path, an address, or code in backticks,
//! so that they can be copied.

use std::io;

use textwrap::{Options, WordSeparator, WordSplitter, core::Word};

/// Maximum width of a message.
pub(crate) const WIDTH: usize = 100;
/// Width below which no terminal is readable; its lines are broken by the terminal.
const NARROWEST: usize = 20;

/// Lines above commands, which end at an empty line.
const BEFORE_COMMANDS: [&str; 2] = ["Next:", "The same without prompts:"];

/// The width of messages on a terminal of this many columns.
fn fitting(columns: usize) -> usize {
    match columns {
        // Some terminals do not know their size.
        0 => WIDTH,
        columns => columns.clamp(NARROWEST, WIDTH),
    }
}

/// The width of messages on `stream`: that of the terminal, if it is one.
pub(crate) fn width_of(stream: &impl io::IsTerminal) -> usize {
    if !stream.is_terminal() {
        return WIDTH;
    }
    crossterm::terminal::size().map_or(WIDTH, |(columns, _)| fitting(columns.into()))
}

/// Breaks the lines of a text that are wider than `width`; further lines are indented. Commands are left
/// to the terminal, which joins what it breaks where it is copied.
pub(crate) fn fill(text: &str, width: usize) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut is_command = false;
    for line in text.split_inclusive('\n') {
        let bare = line.trim_end_matches('\n');
        is_command = BEFORE_COMMANDS.contains(&bare) || (is_command && !bare.is_empty());
        if is_command || textwrap::core::display_width(bare) <= width {
            filled.push_str(line);
            continue;
        }
        let indent = " ".repeat(bare.len() - bare.trim_start_matches(' ').len() + 2);
        let options = Options::new(width)
            .word_separator(separator())
            .word_splitter(splitter())
            .break_words(false)
            .subsequent_indent(&indent);
        filled.push_str(&textwrap::fill(bare, options));
        filled.push_str(&line[bare.len()..]);
    }
    filled
}

/// Words end at spaces outside of code in backticks.
pub(crate) fn separator() -> WordSeparator {
    WordSeparator::Custom(words)
}

/// Words are not divided at their hyphens.
pub(crate) fn splitter() -> WordSplitter {
    WordSplitter::NoHyphenation
}

fn words(line: &str) -> Box<dyn Iterator<Item = Word<'_>> + '_> {
    // A single backtick begins no code.
    let has_code = line.matches('`').count().is_multiple_of(2);
    let mut words = Vec::new();
    let (mut start, mut in_code, mut before) = (0, false, ' ');
    for (at, c) in line.char_indices() {
        if before == ' ' && c != ' ' && at > start && !in_code {
            words.push(Word::from(&line[start..at]));
            start = at;
        }
        in_code ^= has_code && c == '`';
        before = c;
    }
    if start < line.len() {
        words.push(Word::from(&line[start..]));
    }
    Box::new(words.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_commands_are_whole() {
        let text = "cannot read `/a/long-path/to/a-file`: see `git log -1 x`, or a/b-c.rs now\n";
        assert_eq!(
            fill(text, 21),
            "cannot read\n  `/a/long-path/to/a-file`:\n  see `git log -1 x`,\n  or a/b-c.rs now\n"
        );
        assert_eq!(
            fill("a ` b c d e f g h i j k l", 12),
            "a ` b c d e\n  f g h i j\n  k l"
        );
        assert_eq!(
            fill("  one two three four", 12),
            "  one two\n    three\n    four"
        );
        let command = "Next:\n  a command of many words\n\n";
        assert_eq!(
            fill(&format!("{command}many words"), 6),
            format!("{command}many\n  words")
        );
        assert_eq!(fill("as wide\n\nas it is", 100), "as wide\n\nas it is");
    }

    #[test]
    fn narrow_and_unknown_terminals_have_a_width() {
        assert_eq!([0, 1, 40, 300].map(fitting), [100, 20, 40, 100]);
    }
}
