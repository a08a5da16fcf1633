//! The error type: a message, its place in a file, and help.

use std::{fmt, io, ops::Range, path::Path};

use indexmap::IndexSet;
use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, SourceCode,
};

use crate::wrapping::{WIDTH, separator, splitter};

/// Maximum number of reasons in one error.
const MOST_REASONS: usize = 20;
/// Maximum length of a source line that is shown.
const LONGEST_LINE: usize = 400;

/// The result of every fallible function of Kiln.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of an error, which decides the exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Invalid input: an argument, a name, an option, a values file or a folder.
    Input,
    /// The file system or another program failed.
    System,
    /// The template is invalid.
    Template,
    /// Conflicts are left in a project.
    Unresolved,
    /// The user left a prompt or pressed Ctrl-C.
    Cancelled,
}

impl Kind {
    /// The exit status of the binary.
    pub fn exit_status(self) -> u8 {
        match self {
            Kind::Unresolved => 1,
            Kind::Input => 2,
            Kind::System => 3,
            Kind::Template => 4,
            Kind::Cancelled => 130,
        }
    }
}

/// An error, optionally with its place in a file and help.
pub struct Error(Box<Inner>);

struct Inner {
    kind: Kind,
    message: String,
    help: Option<String>,
    place: Option<Place>,
    cause: Option<io::Error>,
    /// The errors that this one consists of.
    reasons: Vec<Error>,
}

struct Place {
    source: NamedSource<String>,
    label: LabeledSpan,
}

impl Error {
    fn new(kind: Kind, message: String) -> Self {
        Self(Box::new(Inner {
            kind,
            message,
            help: None,
            place: None,
            cause: None,
            reasons: Vec::new(),
        }))
    }

    /// An error for invalid input.
    pub fn input(message: impl Into<String>) -> Self {
        Self::new(Kind::Input, message.into())
    }

    /// An error for a failure of the file system or of another program.
    pub fn system(message: impl Into<String>) -> Self {
        Self::new(Kind::System, message.into())
    }

    /// An error for conflicts that are left in a project.
    pub fn unresolved(message: impl Into<String>) -> Self {
        Self::new(Kind::Unresolved, message.into())
    }

    /// An error for an invalid template.
    pub fn template(message: impl Into<String>) -> Self {
        Self::new(Kind::Template, message.into())
    }

    /// All reasons why the template `name` is refused, in one error; a single reason is the error.
    pub(crate) fn of_reasons(name: &str, reasons: Vec<Self>) -> Result<()> {
        let mut reasons: Vec<Self> = reasons.into_iter().flat_map(Self::into_reasons).collect();
        let mut said = IndexSet::new();
        reasons.retain(|reason| said.insert((reason.to_string(), reason.place())));
        if reasons.len() < 2 {
            return reasons.pop().map_or(Ok(()), Err);
        }
        let left_out = reasons.len().saturating_sub(MOST_REASONS);
        let count = reasons.len();
        reasons.truncate(MOST_REASONS);
        let kind = reasons.first().map_or(Kind::Template, Self::kind);
        let more = match left_out {
            0 => String::new(),
            _ => format!("; the first {MOST_REASONS}"),
        };
        let message = format!("`{name}` cannot be rendered, for {count} reasons{more}:");
        let mut error = Self::new(kind, message);
        error.0.reasons = reasons;
        Err(error)
    }

    fn into_reasons(mut self) -> Vec<Self> {
        match self.0.reasons.is_empty() {
            true => vec![self],
            false => std::mem::take(&mut self.0.reasons),
        }
    }

    /// The errors that this one consists of; none, if it is a single one.
    pub fn reasons(&self) -> &[Self] {
        &self.0.reasons
    }

    /// The message with its place on one line, for warnings.
    pub(crate) fn line(&self) -> String {
        let place = self.place();
        let place = place.map(|(file, line, column)| format!(" ({file}:{line}:{column})"));
        let help = self.help_text().map(|help| format!(": {help}"));
        format!(
            "{self}{}{}",
            place.unwrap_or_default(),
            help.unwrap_or_default()
        )
    }

    /// The user left a prompt.
    pub fn cancelled() -> Self {
        Self::new(
            Kind::Cancelled,
            "cancelled, and nothing was written".to_owned(),
        )
    }

    /// The user pressed Ctrl-C while child processes ran.
    pub fn interrupted() -> Self {
        let message = "interrupted; all child processes were stopped";
        Self::new(Kind::Cancelled, message.to_owned())
    }

    /// An error for `action` on `path` that failed in the file system.
    pub fn io(action: &str, path: &Path, cause: io::Error) -> Self {
        let mut error = Self::system(format!("cannot {action} `{}`", path.display()));
        error.0.help = help_for(&cause).map(str::to_owned);
        error.0.cause = Some(cause);
        error
    }

    /// Points at the first byte of a file that is not UTF-8.
    #[must_use]
    pub(crate) fn at_wrong_byte(self, name: &str, bytes: &[u8]) -> Self {
        let Err(error) = str::from_utf8(bytes) else {
            return self;
        };
        // Only the invalid bytes are replaced, so the offsets before them stay the same.
        let (at, text) = (error.valid_up_to(), String::from_utf8_lossy(bytes));
        let start = text[..at].rfind('\n').map_or(0, |line| line + 1);
        let end = text[at..].find('\n').map_or(text.len(), |line| at + line);
        if end - start > LONGEST_LINE {
            return self;
        }
        let wrong = at..at + char::REPLACEMENT_CHARACTER.len_utf8();
        self.at(name, &text, wrong, "not UTF-8")
    }

    /// The same error with kind [`Kind::Input`].
    #[must_use]
    pub(crate) fn into_input(mut self) -> Self {
        self.0.kind = Kind::Input;
        self
    }

    /// Adds help: how to resolve the error.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.0.help = Some(help.into());
        self
    }

    /// Points at a span of `text`, which messages call `name`.
    #[must_use]
    pub fn at(mut self, name: &str, text: &str, span: Range<usize>, label: &str) -> Self {
        let mut text = text.to_owned();
        if span.start >= text.len() {
            // An empty span at the end of the text would not be drawn.
            text.push(' ');
        }
        self.0.place = Some(Place {
            source: NamedSource::new(name, text),
            label: LabeledSpan::new_with_span(Some(label.to_owned()), span),
        });
        self
    }

    /// Points at a span of the command-line argument `name`.
    #[must_use]
    pub(crate) fn in_argument(
        self,
        name: &str,
        argument: &str,
        span: Range<usize>,
        label: &str,
    ) -> Self {
        // An empty argument has no span to point at.
        if argument.trim().is_empty() {
            return self;
        }
        self.at(name, argument, span, label)
    }

    /// Renders the error: the message, its place with a caret, and the help.
    pub fn draw(&self, color: bool) -> String {
        self.draw_within(WIDTH, color)
    }

    /// Renders the error in lines of at most `width` cells, unless a path or command is longer.
    pub(crate) fn draw_within(&self, width: usize, color: bool) -> String {
        let theme = if color {
            GraphicalTheme::unicode()
        } else {
            GraphicalTheme::unicode_nocolor()
        };
        let mut text = String::new();
        let drawn = GraphicalReportHandler::new_themed(theme)
            .with_width(width)
            .with_break_words(false)
            .with_word_separator(separator())
            .with_word_splitter(splitter())
            .render_report(&mut text, self);
        let mut text = match drawn {
            Ok(()) => text.trim_start_matches('\n').to_owned(),
            Err(_) => format!("{self}\n"),
        };
        for reason in self.reasons() {
            text.push_str(&reason.draw_within(width, color));
        }
        text
    }

    /// The help text.
    pub(crate) fn help_text(&self) -> Option<&str> {
        self.0.help.as_deref()
    }

    /// The kind of the error.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The place: the name of the text, and the line and column, counted from 1.
    pub fn place(&self) -> Option<(String, usize, usize)> {
        let Some(place) = self.0.place.as_ref() else {
            return self.0.reasons.first()?.place();
        };
        let contents = place.source.read_span(place.label.inner(), 0, 0).ok()?;
        Some((
            place.source.name().to_owned(),
            contents.line() + 1,
            contents.column() + 1,
        ))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.message)?;
        if let Some((file, line, column)) = self.place() {
            write!(f, " ({file}:{line}:{column})")?;
        }
        if let Some(cause) = &self.0.cause {
            write!(f, ": {cause}")?;
        }
        for reason in &self.0.reasons {
            write!(f, "\n{reason:?}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.cause.as_ref().map(|cause| cause as _)
    }
}

impl Diagnostic for Error {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.0.help.as_ref().map(|help| Box::new(help) as _)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.0.place.as_ref().map(|place| &place.source as _)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let place = self.0.place.as_ref()?;
        Some(Box::new(std::iter::once(place.label.clone())))
    }
}

/// Help for a kind of I/O error.
fn help_for(cause: &io::Error) -> Option<&'static str> {
    use io::ErrorKind;
    Some(match cause.kind() {
        ErrorKind::NotFound => "check the path: part of it does not exist",
        ErrorKind::AlreadyExists => "a file or folder of this name exists: move it away first",
        ErrorKind::PermissionDenied => "check the permissions of the path",
        ErrorKind::ReadOnlyFilesystem => "choose a writable file system",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some disk space and try again",
        ErrorKind::IsADirectory => "give a file; this is a folder",
        ErrorKind::NotADirectory => "give a folder; part of this path is a file",
        ErrorKind::InvalidFilename => "choose a shorter name, or one with other characters",
        _ => return None,
    })
}

/// The candidate nearest to `given` by edit distance, if one is near enough.
pub fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if given.is_empty() {
        return None;
    }
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(given, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().max(6) / 3)
        // Nothing of a short text may be left.
        .filter(|(distance, candidate)| {
            *distance < given.chars().count().max(candidate.chars().count())
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The candidate that `given` begins, is a misspelling of, or is a part of.
pub fn similar<'a>(
    given: &str,
    candidates: impl IntoIterator<Item = &'a str> + Clone,
) -> Option<&'a str> {
    let all = || candidates.clone();
    let near = completed(given, all()).or_else(|| nearest(given, all()));
    near.or_else(|| with_part(given, all()))
}

/// The only candidate that starts with `given`.
fn completed<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let mut longer = candidates.into_iter().filter(|one| one.starts_with(given));
    let first = longer.next().filter(|_| given.len() >= 3)?;
    longer.next().is_none().then_some(first)
}

/// The first candidate such as `model.architecture` with a part between dots near to `given`.
fn with_part<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let mut dotted = candidates.into_iter().filter(|one| one.contains('.'));
    let part = given.rsplit('.').next()?;
    dotted.find(|one| nearest(part, one.rsplit('.')).is_some())
}

/// `` did you mean `x`? `` if a candidate is near, and the list of all candidates.
pub fn suggest<'a>(
    given: &str,
    candidates: impl IntoIterator<Item = &'a str> + Clone,
    what: &str,
) -> String {
    let all: IndexSet<_> = candidates.into_iter().collect();
    let list = all
        .iter()
        .map(|one| format!("`{one}`"))
        .collect::<Vec<_>>()
        .join(", ");
    let all = || all.iter().copied();
    match similar(given, all()) {
        Some(near) => format!("did you mean `{near}`? {what} are {list}"),
        None => format!("{what} are {list}"),
    }
}
