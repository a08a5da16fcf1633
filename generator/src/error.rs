//! What can go wrong, said for people: what is wrong, where, and what to do about it.

use std::{fmt, io, ops::Range, path::Path};

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, SourceCode,
};

/// How wide messages are.
const WIDTH: usize = 100;
/// Longer lines than this are not shown.
const LONGEST_LINE: usize = 400;

/// The result of every fallible function of Kiln.
pub type Result<T> = std::result::Result<T, Error>;

/// What sort of thing went wrong. It decides the exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// What the user gave is wrong: an argument, a name, an option, a values file, a folder.
    Input,
    /// The file system or another program failed.
    System,
    /// The template is wrong.
    Template,
    /// The user left a prompt, or pressed Ctrl-C.
    Cancelled,
}

impl Kind {
    /// The exit status of the binary.
    pub fn exit_status(self) -> u8 {
        match self {
            Kind::Input => 2,
            Kind::System => 3,
            Kind::Template => 4,
            Kind::Cancelled => 130,
        }
    }
}

/// An error with, where it has one, its place in a file and a way out.
pub struct Error(Box<Inner>);

struct Inner {
    kind: Kind,
    message: String,
    help: Option<String>,
    place: Option<Place>,
    cause: Option<io::Error>,
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
        }))
    }

    /// What the user gave is wrong.
    pub fn input(message: impl Into<String>) -> Self {
        Self::new(Kind::Input, message.into())
    }

    /// The file system or another program failed.
    pub fn system(message: impl Into<String>) -> Self {
        Self::new(Kind::System, message.into())
    }

    /// The template is wrong.
    pub fn template(message: impl Into<String>) -> Self {
        Self::new(Kind::Template, message.into())
    }

    /// The user left a prompt.
    pub fn cancelled() -> Self {
        Self::new(
            Kind::Cancelled,
            "cancelled, and nothing was written".to_owned(),
        )
    }

    /// The user pressed Ctrl-C while other programs ran.
    pub fn interrupted() -> Self {
        let message = "stopped, with all that was started";
        Self::new(Kind::Cancelled, message.to_owned())
    }

    /// `action` on `path` failed in the file system.
    pub fn io(action: &str, path: &Path, cause: io::Error) -> Self {
        let mut error = Self::system(format!("cannot {action} `{}`", path.display()));
        error.0.help = way_out(&cause).map(str::to_owned);
        error.0.cause = Some(cause);
        error
    }

    /// Points at the first byte of a file that is not UTF-8.
    #[must_use]
    pub(crate) fn at_wrong_byte(self, name: &str, bytes: &[u8]) -> Self {
        let Err(error) = str::from_utf8(bytes) else {
            return self;
        };
        // What is wrong is replaced, and all before it keeps its place.
        let (at, text) = (error.valid_up_to(), String::from_utf8_lossy(bytes));
        let start = text[..at].rfind('\n').map_or(0, |line| line + 1);
        let end = text[at..].find('\n').map_or(text.len(), |line| at + line);
        if end - start > LONGEST_LINE {
            return self;
        }
        let wrong = at..at + char::REPLACEMENT_CHARACTER.len_utf8();
        self.at(name, &text, wrong, "no UTF-8")
    }

    /// The same error, laid to what the user gave.
    #[must_use]
    pub(crate) fn into_input(mut self) -> Self {
        self.0.kind = Kind::Input;
        self
    }

    /// Says what to do about it.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.0.help = Some(help.into());
        self
    }

    /// Points at bytes of a text that is known as `name`.
    #[must_use]
    pub fn at(mut self, name: &str, text: &str, span: Range<usize>, label: &str) -> Self {
        let mut text = text.to_owned();
        if span.start >= text.len() {
            // Nothing is drawn below what is not there.
            text.push(' ');
        }
        self.0.place = Some(Place {
            source: NamedSource::new(name, text),
            label: LabeledSpan::new_with_span(Some(label.to_owned()), span),
        });
        self
    }

    /// Points at bytes of an argument of the command line that is known as `name`.
    #[must_use]
    pub(crate) fn in_argument(
        self,
        name: &str,
        argument: &str,
        span: Range<usize>,
        label: &str,
    ) -> Self {
        // There is nothing to point at in an empty one.
        if argument.trim().is_empty() {
            return self;
        }
        self.at(name, argument, span, label)
    }

    /// Draws it for people: what is wrong, the place with a caret, and what to do about it.
    pub fn draw(&self, color: bool) -> String {
        let theme = if color {
            GraphicalTheme::unicode()
        } else {
            GraphicalTheme::unicode_nocolor()
        };
        let mut text = String::new();
        let drawn = GraphicalReportHandler::new_themed(theme)
            .with_width(WIDTH)
            .render_report(&mut text, self);
        match drawn {
            Ok(()) => text.trim_start_matches('\n').to_owned(),
            Err(_) => format!("{self}\n"),
        }
    }

    /// The way out, where one is known.
    pub(crate) fn way_out(&self) -> Option<&str> {
        self.0.help.as_deref()
    }

    /// What sort of thing went wrong.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Where it is: the name of the text, and line and column from 1.
    pub fn place(&self) -> Option<(String, usize, usize)> {
        let place = self.0.place.as_ref()?;
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

/// What to do where the file system fails like this.
fn way_out(cause: &io::Error) -> Option<&'static str> {
    use io::ErrorKind;
    Some(match cause.kind() {
        ErrorKind::NotFound => "check the path: a part of it does not exist",
        ErrorKind::AlreadyExists => "something of this name is there already: move it away first",
        ErrorKind::PermissionDenied => "check who may read and write there",
        ErrorKind::ReadOnlyFilesystem => "choose a place that can be written",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room on the disk, and try again",
        ErrorKind::IsADirectory => "give a file; this is a folder",
        ErrorKind::NotADirectory => "give a folder; a part of this path is a file",
        ErrorKind::InvalidFilename => "choose a shorter name, or one with other characters",
        _ => return None,
    })
}

/// The candidate that `given` was probably meant to be.
pub fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if given.is_empty() {
        return None;
    }
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(given, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().max(6) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `` did you mean `x`? `` where something is near, and else what there is.
pub fn suggest<'a>(
    given: &str,
    candidates: impl IntoIterator<Item = &'a str> + Clone,
    what: &str,
) -> String {
    let all: Vec<_> = candidates.into_iter().collect();
    let list = all
        .iter()
        .map(|one| format!("`{one}`"))
        .collect::<Vec<_>>()
        .join(", ");
    match nearest(given, all.iter().copied()) {
        Some(near) => format!("did you mean `{near}`? {what} are {list}"),
        None => format!("{what} are {list}"),
    }
}
