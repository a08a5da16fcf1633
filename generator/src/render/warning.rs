//! Warnings about mistakes of a template that cargo-generate renders too.

use std::fmt;

/// A mistake in a template that does not stop its rendering, as it does not stop cargo-generate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The file, or the template's folder.
    file: String,
    /// The line and column, counted from 1, if known.
    place: Option<(usize, usize)>,
    message: String,
    help: &'static str,
}

impl Warning {
    pub(crate) fn new(file: &str, message: String, help: &'static str) -> Self {
        Self {
            file: file.to_owned(),
            place: None,
            message,
            help,
        }
    }

    /// The same warning with the place of byte `at` of the file's `text`.
    #[must_use]
    pub(crate) fn at(mut self, text: &str, at: usize) -> Self {
        let before = &text[..at.min(text.len())];
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        let line = before.matches('\n').count() + 1;
        self.place = Some((line, before[start..].chars().count() + 1));
        self
    }

    /// The same warning with a line and a column.
    #[must_use]
    pub(crate) fn at_line(mut self, line: usize, column: usize) -> Self {
        self.place = Some((line, column));
        self
    }

    /// The file that the warning is about.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Advice; the same for all warnings of a kind.
    pub fn help(&self) -> &'static str {
        self.help
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some((line, column)) => write!(f, "{}:{line}:{column}: ", self.file)?,
            None => write!(f, "{}: ", self.file)?,
        }
        f.write_str(&self.message)
    }
}
