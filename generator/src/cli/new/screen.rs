//! The lines of an open prompt on the terminal, which are drawn over and over at the same place.

use std::io::{self, Write};

use crossterm::{
    cursor::{Hide, MoveTo, MoveToColumn, MoveUp, Show},
    event::{DisableBracketedPaste, EnableBracketedPaste},
    execute, queue,
    style::{ContentStyle, PrintStyledContent, StyledContent},
    terminal::{self, Clear, ClearType},
};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// Part of a line before it is wrapped.
#[derive(Debug, Clone)]
pub(super) enum Piece {
    /// Text that is wrapped between words.
    Words(String, ContentStyle),
    /// Text with every space, as it is being typed.
    Typed(String),
    /// The place of the cursor.
    Cursor,
    /// The start of a line that must be seen in a low window, as the choice at the cursor.
    Focus,
}

impl Piece {
    /// Words without a style.
    pub fn plain(text: &str) -> Self {
        Piece::Words(text.to_owned(), ContentStyle::new())
    }

    /// Words with a style.
    pub fn styled(text: &str, style: ContentStyle) -> Self {
        Piece::Words(text.to_owned(), style)
    }
}

type Row = Vec<StyledContent<String>>;

/// Wrapped lines.
#[derive(Debug, Default)]
struct Page {
    rows: Vec<Row>,
    /// Cells in the last row.
    used: usize,
    width: usize,
    /// Row and column of the cursor.
    cursor: Option<(usize, usize)>,
    /// Whether the cursor is where the next typed character is.
    awaits: bool,
    /// The row that must be seen, if the cursor is not shown.
    focus: usize,
}

impl Page {
    fn of(lines: &[Vec<Piece>], width: usize) -> Self {
        let mut page = Self {
            width: width.max(1),
            ..Self::default()
        };
        for line in lines {
            page.new_row();
            for piece in line {
                page.add(piece);
            }
            page.set_cursor();
        }
        page
    }

    fn add(&mut self, piece: &Piece) {
        match piece {
            Piece::Cursor => self.awaits = true,
            Piece::Focus => self.focus = self.rows.len().saturating_sub(1),
            Piece::Words(text, style) => {
                self.set_cursor();
                for (at, line) in text.split('\n').enumerate() {
                    if at > 0 {
                        self.new_row();
                    }
                    for word in line.split_inclusive(' ') {
                        self.word(word, *style);
                    }
                }
            }
            Piece::Typed(text) => {
                for one in text.graphemes(true) {
                    self.cells(one, ContentStyle::new());
                }
            }
        }
    }

    /// Places a word with the space after it, which may be lost at the end of a row.
    fn word(&mut self, word: &str, style: ContentStyle) {
        let bare = word.trim_end_matches(' ');
        if self.used > 0 && self.used + bare.width() > self.width {
            self.new_row();
        }
        if bare.width() > self.width {
            for one in bare.graphemes(true) {
                self.cells(one, style);
            }
        } else {
            self.put(bare, style);
        }
        if bare.len() < word.len() && self.used < self.width {
            self.put(" ", style);
        }
    }

    /// Places a character in this row or the next.
    fn cells(&mut self, one: &str, style: ContentStyle) {
        if self.used > 0 && self.used + one.width() > self.width {
            self.new_row();
        }
        self.set_cursor();
        self.put(one, style);
    }

    fn put(&mut self, text: &str, style: ContentStyle) {
        // Control characters could do anything to the terminal.
        let text = text
            .replace('\n', "↵")
            .replace(char::is_control, "\u{fffd}");
        self.used += text.width();
        let Some(row) = self.rows.last_mut() else {
            return;
        };
        match row.last_mut().filter(|last| *last.style() == style) {
            Some(last) => {
                let joined = format!("{}{text}", last.content());
                *last = StyledContent::new(style, joined);
            }
            None => row.push(StyledContent::new(style, text)),
        }
    }

    fn new_row(&mut self) {
        self.rows.push(Vec::new());
        self.used = 0;
    }

    /// Sets the cursor, if it is awaited, behind what is placed.
    fn set_cursor(&mut self) {
        if !std::mem::take(&mut self.awaits) {
            return;
        }
        if self.used >= self.width {
            self.new_row();
        }
        self.cursor = Some((self.rows.len().saturating_sub(1), self.used));
    }

    /// Drops what does not fit into a window, which cannot be drawn over: the first rows if the cursor
    /// or the focus would be lost, otherwise the last.
    fn fit(&mut self, height: usize) {
        let height = height.max(1);
        let row = self.cursor.map_or(self.focus, |(row, _)| row);
        let first = (row + 1).saturating_sub(height);
        self.rows.drain(..first);
        self.rows.truncate(height);
        self.cursor = self.cursor.map(|(row, column)| (row - first, column));
    }
}

/// The terminal in raw mode, with the drawn lines of a prompt.
pub(super) struct Screen {
    /// The rows of the prompt above the cursor.
    above: usize,
}

impl Screen {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// The terminal fails.
    pub fn open() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        let screen = Self { above: 0 };
        execute!(io::stderr(), EnableBracketedPaste)?;
        Ok(screen)
    }

    /// The size of the window in columns and rows.
    ///
    /// # Errors
    /// The terminal fails.
    pub fn size() -> io::Result<(usize, usize)> {
        let (columns, rows) = terminal::size()?;
        // Some terminals do not know their size.
        let or = |cells: u16, otherwise| match cells {
            0 => otherwise,
            cells => usize::from(cells),
        };
        Ok((or(columns, 80), or(rows, 24)))
    }

    /// Draws lines in place of the previous ones.
    ///
    /// # Errors
    /// The terminal fails.
    pub fn draw(&mut self, lines: &[Vec<Piece>]) -> io::Result<()> {
        let (columns, rows) = Self::size()?;
        let mut page = Page::of(lines, columns);
        page.fit(rows);
        let mut bytes = Vec::new();
        self.write_rows(&mut bytes, &page.rows)?;
        let last = page.rows.len().saturating_sub(1);
        let (row, column) = page.cursor.unwrap_or((last, 0));
        up(&mut bytes, last - row)?;
        queue!(bytes, MoveToColumn(narrow(column)))?;
        if page.cursor.is_some() {
            queue!(bytes, Show)?;
        }
        self.above = row;
        send(&bytes)
    }

    /// Draws the last lines of the prompt and leaves the cursor below them.
    ///
    /// # Errors
    /// The terminal fails.
    pub fn finish(mut self, lines: &[Vec<Piece>]) -> io::Result<()> {
        let page = Page::of(lines, Self::size()?.0);
        let mut bytes = Vec::new();
        self.write_rows(&mut bytes, &page.rows)?;
        bytes.extend_from_slice(b"\r\n");
        self.above = 0;
        send(&bytes)
    }

    fn write_rows(&self, bytes: &mut Vec<u8>, rows: &[Row]) -> io::Result<()> {
        queue!(bytes, Hide, MoveToColumn(0))?;
        up(bytes, self.above)?;
        queue!(bytes, Clear(ClearType::FromCursorDown))?;
        for (at, row) in rows.iter().enumerate() {
            if at > 0 {
                bytes.extend_from_slice(b"\r\n");
            }
            for piece in row {
                queue!(bytes, PrintStyledContent(piece.clone()))?;
            }
        }
        Ok(())
    }

    /// Clears the window, so that the prompt is drawn at its top.
    ///
    /// # Errors
    /// The terminal fails.
    pub fn clear(&mut self) -> io::Result<()> {
        self.above = 0;
        execute!(io::stderr(), Clear(ClearType::All), MoveTo(0, 0))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that fails here has failed before.
        let _ = execute!(io::stderr(), Show, DisableBracketedPaste);
        let _ = terminal::disable_raw_mode();
    }
}

fn up(bytes: &mut Vec<u8>, rows: usize) -> io::Result<()> {
    match rows {
        0 => Ok(()),
        rows => queue!(bytes, MoveUp(narrow(rows))),
    }
}

fn narrow(cells: usize) -> u16 {
    u16::try_from(cells).unwrap_or(u16::MAX)
}

fn send(bytes: &[u8]) -> io::Result<()> {
    let mut terminal = io::stderr().lock();
    terminal.write_all(bytes)?;
    terminal.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(page: &Page) -> Vec<String> {
        let text = |row: &Row| row.iter().map(|one| one.content().as_str()).collect();
        page.rows.iter().map(text).collect()
    }

    #[test]
    fn words_are_whole() {
        let line = vec![Piece::plain("? "), Piece::plain("What is it called, a-b?")];
        assert_eq!(
            rows(&Page::of(std::slice::from_ref(&line), 10)),
            ["? What is ", "it called,", "a-b?"]
        );
        assert_eq!(
            rows(&Page::of(&[line], 5)),
            ["? ", "What ", "is it", "calle", "d, ", "a-b?"]
        );
    }

    #[test]
    fn the_cursor_is_where_the_next_character_is() {
        let line = |before: &str, after: &str| {
            let typed = |text: &str| Piece::Typed(text.to_owned());
            vec![
                Piece::plain("? "),
                typed(before),
                Piece::Cursor,
                typed(after),
            ]
        };
        let cursor = |before, after| {
            let page = Page::of(&[line(before, after)], 6);
            (rows(&page), page.cursor.unwrap())
        };
        let is = |rows: &[&str]| rows.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(cursor("", ""), (is(&["? "]), (0, 2)));
        assert_eq!(cursor("a  b", ""), (is(&["? a  b", ""]), (1, 0)));
        assert_eq!(cursor("a  b", "c"), (is(&["? a  b", "c"]), (1, 0)));
        assert_eq!(cursor("a", "bcd"), (is(&["? abcd"]), (0, 3)));
        // A wide character does not fit into the last cell.
        assert_eq!(cursor("abc", "語"), (is(&["? abc", "語"]), (1, 0)));
    }

    #[test]
    fn control_characters_are_shown() {
        let line = vec![Piece::plain("a\nb\u{1b}"), Piece::Typed("\n\t".to_owned())];
        assert_eq!(rows(&Page::of(&[line], 9)), ["a", "b\u{fffd}↵\u{fffd}"]);
    }

    #[test]
    fn what_does_not_fit_is_dropped_but_the_cursor_stays() {
        let lines: Vec<_> = (0..5)
            .map(|at| vec![Piece::plain(&at.to_string())])
            .collect();
        let mut page = Page::of(&lines, 9);
        page.fit(2);
        assert_eq!(rows(&page), ["0", "1"]);
        let mut page = Page::of(&[&lines[..], &[vec![Piece::Cursor]]].concat(), 9);
        page.fit(2);
        assert_eq!((rows(&page).len(), page.cursor), (2, Some((1, 0))));
        let mut focused = lines;
        focused[3].insert(0, Piece::Focus);
        let mut page = Page::of(&focused, 9);
        page.fit(2);
        assert_eq!(
            (rows(&page), page.cursor),
            (vec!["2".to_owned(), "3".to_owned()], None)
        );
    }
}
