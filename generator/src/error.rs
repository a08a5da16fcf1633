//! What can go wrong, said for people: what is wrong, where, and what to do about it.

use std::{fmt, io, ops::Range, path::Path};

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, SourceCode,
};

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
    /// The user left a prompt.
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

    /// `action` on `path` failed in the file system.
    pub fn io(action: &str, path: &Path, cause: io::Error) -> Self {
        let mut error = Self::system(format!("cannot {action} `{}`", path.display()));
        error.0.cause = Some(cause);
        error
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
        self.0.place = Some(Place {
            source: NamedSource::new(name, text.to_owned()),
            label: LabeledSpan::new_with_span(Some(label.to_owned()), span),
        });
        self
    }

    /// Draws it for people: the message, the place with a caret, and what to do.
    pub fn draw(&self, color: bool) -> String {
        let theme = if color {
            GraphicalTheme::unicode()
        } else {
            GraphicalTheme::unicode_nocolor()
        };
        let mut text = String::new();
        let drawn = GraphicalReportHandler::new_themed(theme)
            .with_width(100)
            .render_report(&mut text, self);
        match drawn {
            Ok(()) => text.trim_start_matches('\n').to_owned(),
            Err(_) => format!("{self}\n"),
        }
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

/// The candidate that `given` was probably meant to be.
pub fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
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
