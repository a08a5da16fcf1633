//! A line of text that is being typed, with the keys of GNU readline's Emacs mode.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use unicode_segmentation::UnicodeSegmentation;

/// A line and its cursor.
#[derive(Debug, Default)]
pub(super) struct Line {
    text: String,
    /// The byte before which text is inserted, between two graphemes.
    cursor: usize,
    /// Text that Ctrl-Y inserts.
    killed: String,
    /// Whether the previous key killed text, so that the next one adds to it.
    killing: bool,
}

/// A direction to move or delete in.
#[derive(Clone, Copy)]
enum To {
    Left,
    Right,
    WordLeft,
    WordRight,
    /// The start of the word before, where words are separated by spaces alone.
    SpaceLeft,
    Start,
    End,
}

impl Line {
    /// A line with the cursor at its end.
    pub fn new(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            cursor: text.len(),
            ..Self::default()
        }
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text before and after the cursor.
    pub fn parts(&self) -> (&str, &str) {
        self.text.split_at(self.cursor)
    }

    /// Handles a key. Keys without a meaning here insert nothing.
    pub fn press(&mut self, key: &KeyEvent) {
        let killing = std::mem::take(&mut self.killing);
        let has = |modifier| key.modifiers.contains(modifier);
        // Windows reports AltGr as both.
        let is_alt_gr = cfg!(windows) && has(KeyModifiers::CONTROL) && has(KeyModifiers::ALT);
        let (control, alt) = match is_alt_gr {
            true => (false, false),
            false => (has(KeyModifiers::CONTROL), has(KeyModifiers::ALT)),
        };
        match (key.code, control, alt) {
            (KeyCode::Home, ..) | (KeyCode::Char('a'), true, false) => self.go(To::Start),
            (KeyCode::End, ..) | (KeyCode::Char('e'), true, false) => self.go(To::End),
            (KeyCode::Left, false, false) | (KeyCode::Char('b'), true, false) => self.go(To::Left),
            (KeyCode::Right, false, false) | (KeyCode::Char('f'), true, false) => {
                self.go(To::Right);
            }
            (KeyCode::Left, ..) | (KeyCode::Char('b'), false, true) => self.go(To::WordLeft),
            (KeyCode::Right, ..) | (KeyCode::Char('f'), false, true) => self.go(To::WordRight),
            (KeyCode::Backspace, false, false) | (KeyCode::Char('h'), true, false) => {
                self.delete(To::Left);
            }
            (KeyCode::Delete, false, false) | (KeyCode::Char('d'), true, false) => {
                self.delete(To::Right);
            }
            (KeyCode::Backspace, ..) => self.kill(To::WordLeft, killing),
            (KeyCode::Delete, ..) | (KeyCode::Char('d'), false, true) => {
                self.kill(To::WordRight, killing);
            }
            (KeyCode::Char('w'), true, false) => self.kill(To::SpaceLeft, killing),
            (KeyCode::Char('u'), true, false) => self.kill(To::Start, killing),
            (KeyCode::Char('k'), true, false) => self.kill(To::End, killing),
            (KeyCode::Char('y'), true, false) => {
                let killed = self.killed.clone();
                self.insert(&killed);
            }
            (KeyCode::Char('t'), true, false) => self.transpose(),
            (KeyCode::Char(c), false, false) => self.insert(c.encode_utf8(&mut [0; 4])),
            _ => {}
        }
    }

    /// Inserts pasted text. Line breaks become spaces; other control characters are dropped.
    pub fn paste(&mut self, text: &str) {
        let text = text.trim_end_matches(['\r', '\n']).replace("\r\n", " ");
        let text = text.replace(['\r', '\n', '\t'], " ");
        let text: String = text.chars().filter(|c| !c.is_control()).collect();
        self.killing = false;
        self.insert(&text);
    }

    fn insert(&mut self, text: &str) {
        self.text.insert_str(self.cursor, text);
        self.cursor += text.len();
    }

    fn go(&mut self, to: To) {
        self.cursor = self.place(to);
    }

    fn delete(&mut self, to: To) -> String {
        let other = self.place(to);
        let range = other.min(self.cursor)..other.max(self.cursor);
        self.cursor = range.start;
        self.text.drain(range).collect()
    }

    /// Deletes text that Ctrl-Y inserts again.
    fn kill(&mut self, to: To, more: bool) {
        let is_before = self.place(to) < self.cursor;
        let text = self.delete(to);
        self.killed = match (more, is_before) {
            (false, _) => text,
            (true, true) => [&*text, &self.killed].concat(),
            (true, false) => [&self.killed, &*text].concat(),
        };
        self.killing = true;
    }

    /// Exchanges the characters around the cursor, at the end those before it.
    fn transpose(&mut self) {
        let middle = match self.cursor == self.text.len() {
            true => self.place(To::Left),
            false => self.cursor,
        };
        self.cursor = middle;
        let (start, end) = (self.place(To::Left), self.place(To::Right));
        if start < middle && middle < end {
            let swapped = [&self.text[middle..end], &self.text[start..middle]].concat();
            self.text.replace_range(start..end, &swapped);
        }
        self.cursor = end;
    }

    fn place(&self, to: To) -> usize {
        let (before, after) = self.parts();
        match to {
            To::Start => 0,
            To::End => self.text.len(),
            To::Left => before
                .grapheme_indices(true)
                .next_back()
                .map_or(0, |(at, _)| at),
            To::Right => self.cursor + after.graphemes(true).next().map_or(0, str::len),
            To::WordLeft => word_start(before, char::is_alphanumeric),
            To::SpaceLeft => word_start(before, |c| !c.is_whitespace()),
            To::WordRight => {
                let rest = after.trim_start_matches(|c: char| !c.is_alphanumeric());
                let rest = rest.trim_start_matches(char::is_alphanumeric);
                self.text.len() - rest.len()
            }
        }
    }
}

/// The start of the last word of a text.
fn word_start(text: &str, is_in_word: impl Fn(char) -> bool) -> usize {
    let text = text.trim_end_matches(|c| !is_in_word(c));
    text.trim_end_matches(is_in_word).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Presses a key, such as `C-w` or `M-b`, with the cursor at `|` in a text.
    fn pressed(text: &str, keys: &[&str]) -> String {
        let (before, after) = text.split_once('|').unwrap();
        let mut line = Line::new(&[before, after].concat());
        line.cursor = before.len();
        for key in keys {
            line.press(&event(key));
        }
        let (before, after) = line.parts();
        format!("{before}|{after}")
    }

    fn event(key: &str) -> KeyEvent {
        let (modifier, name) = match key.split_once('-') {
            Some(("C", name)) => (KeyModifiers::CONTROL, name),
            Some(("M", name)) => (KeyModifiers::ALT, name),
            _ => (KeyModifiers::NONE, key),
        };
        let code = match name {
            "BS" => KeyCode::Backspace,
            "DEL" => KeyCode::Delete,
            "LEFT" => KeyCode::Left,
            "RIGHT" => KeyCode::Right,
            "HOME" => KeyCode::Home,
            "END" => KeyCode::End,
            name => KeyCode::Char(name.chars().next().unwrap()),
        };
        KeyEvent::new(code, modifier)
    }

    #[test]
    fn each_key() {
        let cases = [
            ("C-a", "one two-th|ree", "|one two-three"),
            ("HOME", "one two-th|ree", "|one two-three"),
            ("C-e", "one two-th|ree", "one two-three|"),
            ("END", "one two-th|ree", "one two-three|"),
            ("C-b", "on|e", "o|ne"),
            ("LEFT", "|one", "|one"),
            ("C-f", "on|e", "one|"),
            ("RIGHT", "one|", "one|"),
            ("C-h", "on|e", "o|e"),
            ("BS", "|one", "|one"),
            ("C-d", "o|ne", "o|e"),
            ("DEL", "one|", "one|"),
            ("C-u", "one two|-three", "|-three"),
            ("C-k", "one two|-three", "one two|"),
            ("C-w", "one two-three  |x", "one |x"),
            ("M-BS", "one two-three  |x", "one two-|x"),
            ("M-d", "one| two-three", "one|-three"),
            ("C-DEL", "one| two-three", "one|-three"),
            ("M-b", "one two-|three", "one |two-three"),
            ("C-LEFT", "one two-|three", "one |two-three"),
            ("M-f", "one| two-three", "one two|-three"),
            ("C-RIGHT", "one| two-three", "one two|-three"),
            ("C-t", "ab|cd", "acb|d"),
            ("C-t", "abcd|", "abdc|"),
            ("C-t", "|ab", "a|b"),
            ("C-t", "a|", "a|"),
            ("x", "a|b", "ax|b"),
            ("ü", "a|b", "aü|b"),
        ];
        for (key, before, after) in cases {
            assert_eq!(pressed(before, &[key]), after, "{key}");
        }
    }

    #[test]
    fn other_keys_insert_nothing() {
        for c in ('a'..='z').chain(['_', '4', '5', '6', '7', ' ', '/', '[']) {
            for modifier in ["C", "M"] {
                let after = pressed("|", &[&format!("{modifier}-{c}")]);
                assert_eq!(after, "|", "{modifier}-{c}");
            }
        }
    }

    #[test]
    fn what_is_killed_can_be_inserted_again() {
        assert_eq!(pressed("one two|", &["C-u", "x", "C-y"]), "xone two|");
        // Consecutive keys kill one text.
        assert_eq!(pressed("a b c|d", &["C-w", "C-w", "C-k", "C-y"]), "a b cd|");
        assert_eq!(pressed("a b|", &["C-w", "C-b", "C-w", "C-y"]), "a| ");
    }

    #[test]
    fn a_character_of_several_code_points_is_one() {
        assert_eq!(pressed("ae\u{301}|", &["C-b"]), "a|e\u{301}");
        assert_eq!(pressed("a👩‍🚀|", &["BS"]), "a|");
    }

    #[test]
    fn pasted_text_is_one_line() {
        let mut line = Line::new("");
        line.paste("one\r\ntwo\u{7}\n");
        assert_eq!(line.text(), "one two");
    }
}
