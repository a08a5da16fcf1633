//! The record of a project, `.kiln.toml`: its template, example and answers. The record is part of
//! the template, so that cargo-generate writes it too.

use std::{fs, io, path::Path};

use toml::de::{DeTable, DeValue};

use super::origin::{Origin, recorded};
use crate::{
    document::{Document, Place},
    error::{Error, Kind, Result},
    name::Name,
    template::{Template, answers::Values, history::Release, values},
};

use super::markers::conflicts;

pub use crate::template::history::RECORD_FILE;

const KEYS: &[&str] = &[
    "kiln", "template", "engine", "example", "name", "options", "source",
];
const EXAMPLE_KEYS: &[&str] = &["name", "hash"];

/// The record of a project.
#[derive(Debug, Clone)]
pub struct Record {
    /// The version of Kiln.
    pub kiln: String,
    /// The [hash](Release::hash) of the template, or the name of a team's own template.
    pub template: String,
    /// The [hash](super::engine::engine_hash) of the rendered engine, if recorded.
    pub engine: Option<String>,
    /// The example, and the hash of its files.
    pub example: Option<(String, String)>,
    /// The original name of the project.
    pub name: Name,
    /// The commit of the template, if that is in a Git repository.
    pub(crate) origin: Option<Origin>,
    place: String,
    text: String,
}

impl Record {
    /// Reads the record of the project in `folder`.
    ///
    /// # Errors
    /// The record is missing, so Kiln did not generate this project, or the record is invalid or in
    /// conflict.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(RECORD_FILE);
        let bytes = fs::read(&path).map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Error::input(format!(
                "`{}` has no `{RECORD_FILE}`, the record of a project's template and answers",
                folder.display()
            ))
            .help("give the folder of a project that Kiln created"),
            _ => Error::io("read", &path, cause),
        })?;
        let place = path.display().to_string();
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            Error::input(format!("`{place}` is not UTF-8 (byte {at})"))
                .help("restore the file from version control; Kiln maintains it")
        })?;
        Self::parse(&place, &text)
    }

    /// Parses a record, which messages call `place`.
    ///
    /// # Errors
    /// The text is not TOML or not a record.
    pub fn parse(place: &str, text: &str) -> Result<Self> {
        refuse_markers(place, text)?;
        let document = Document::new(place, text, Kind::Input);
        let table = document.parse()?;
        known_keys(&document, &table, KEYS)?;
        let name = field(&document, &table, "name")?;
        let name = Name::parse(&document.string("name", name)?)
            .map_err(|error| document.relocate(error, name))?;
        if let Some(options) = table.get("options") {
            document.table("options", options)?;
        }
        Ok(Self {
            kiln: document.string("kiln", field(&document, &table, "kiln")?)?,
            template: document.string("template", field(&document, &table, "template")?)?,
            engine: table
                .get("engine")
                .map(|engine| document.string("engine", engine))
                .transpose()?,
            example: match table.get("example") {
                Some(example) => Some(parse_example(&document, example)?),
                None => None,
            },
            name,
            origin: match table.get("source") {
                Some(source) => Some(recorded::parse(&document, source)?),
                None => None,
            },
            place: place.to_owned(),
            text: text.to_owned(),
        })
    }

    /// The answers, parsed by the template that the project was generated from.
    ///
    /// # Errors
    /// An option is unknown or has an invalid value.
    pub fn values(&self, template: &Template) -> Result<Values> {
        self.with_options(|document, options| values::read_table(template, document, options))
    }

    /// Checks that all options of the template that the project was generated from are recorded, but
    /// for those of conditions.
    ///
    /// # Errors
    /// An option is unknown, has an invalid value, or is not recorded.
    pub fn check_complete(&self, template: &Template) -> Result<()> {
        let values = self.values(template)?;
        let mut options = template.options().iter();
        if let Some(option) = options.find(|option| !values.contains_key(&option.name)) {
            let name = &option.name;
            let message = format!("`{}` does not record the option `{name}`", self.place);
            let start = self.text.find("[options]");
            let span = start.map_or(0..0, |start| start..start + "[options]".len());
            return Err(Error::input(message)
                .at(&self.place, &self.text, span, "not recorded here")
                .help(format!(
                    "the template has this option: add `{name} = \"...\"` with the answer that the \
                     project was made with"
                )));
        }
        Ok(())
    }

    /// The answers that are valid for another template, and the names of the other options.
    ///
    /// # Errors
    /// The record is invalid.
    pub fn values_that_fit(&self, template: &Template) -> Result<(Values, Vec<String>)> {
        self.with_options(|document, options| {
            let mut fitting = Values::new();
            let mut others = Vec::new();
            for (key, place) in options {
                let name = key.get_ref().as_ref();
                let mut definitions = template.definitions(name);
                let value =
                    definitions.find_map(|option| values::read_value(document, option, place).ok());
                match value {
                    Some(value) => drop(fitting.insert(name.to_owned(), value)),
                    None => others.push(name.to_owned()),
                }
            }
            Ok((fitting, others))
        })
    }

    /// The release that the project was generated from.
    ///
    /// # Errors
    /// The template is not embedded in this version of Kiln: it is a team's own or was never released.
    pub fn release(&self) -> Result<Release> {
        let example = self.example.as_ref();
        let example = example.map(|(name, hash)| (name.as_str(), hash.as_str()));
        Release::find(&self.kiln, &self.template, example).ok_or_else(|| {
            let message = format!(
                "Kiln {} does not include the template `{}` that this project was generated from",
                env!("CARGO_PKG_VERSION"),
                self.template
            );
            let document = Document::new(&self.place, &self.text, Kind::Input);
            let table = document.parse();
            let place = table
                .ok()
                .and_then(|table| Some(table.get("template")?.span()));
            Error::input(message)
                .at(&self.place, &self.text, place.unwrap_or(0..0), "this template")
                .help(match &self.example {
                    Some(_) => format!(
                        "use the version of Kiln that created the project: `cargo install burn-kiln --version {}`",
                        self.kiln
                    ),
                    None => "the template is a team's own, unreleased, or of a later version of Kiln: \
                             give the folder of its old version with `--from` and, to `kiln \
                             update`, the folder of its new version with `--template`"
                        .to_owned(),
                })
        })
    }

    fn with_options<T>(
        &self,
        read: impl FnOnce(&Document<'_>, &DeTable<'_>) -> Result<T>,
    ) -> Result<T> {
        let document = Document::new(&self.place, &self.text, Kind::Input);
        let table = document.parse()?;
        match table.get("options") {
            Some(options) => read(&document, document.table("options", options)?),
            None => read(&document, &DeTable::new()),
        }
    }
}

/// The line that records an example, to insert before the name.
pub(crate) fn example_line(name: &str, hash: &str) -> String {
    format!("example = {{ name = \"{name}\", hash = \"{hash}\" }}\n")
}

/// Refuses a record in which two branches meet. With the earlier version in the record, the next
/// update merges all that either branch did not have.
fn refuse_markers(place: &str, text: &str) -> Result<()> {
    let Some(line) = conflicts(text, None).first().copied() else {
        return Ok(());
    };
    Err(
        Error::unresolved(format!("conflict markers of a merge are left in `{place}:{line}`"))
            .help(
                "of `kiln`, `template` and `engine` keep those of the earlier version, of the options \
                 those that the project has, delete the markers, then run `kiln update`, which merges \
                 what is missing",
            ),
    )
}

fn parse_example(document: &Document<'_>, value: &Place<'_>) -> Result<(String, String)> {
    let table = document.table("example", value)?;
    known_keys(document, table, EXAMPLE_KEYS)?;
    let text = |key| {
        let value = table.get(key).ok_or_else(|| {
            document.error_at(
                value.span(),
                format!("an example has no `{key}`"),
                "this example",
            )
        })?;
        document.string(key, value)
    };
    Ok((text("name")?, text("hash")?))
}

pub(super) fn known_keys(
    document: &Document<'_>,
    table: &DeTable<'_>,
    known: &[&str],
) -> Result<()> {
    let unknown = table
        .keys()
        .find(|key| !known.contains(&key.get_ref().as_ref()));
    unknown.map_or(Ok(()), |key| Err(document.unknown_key(key, known)))
}

fn field<'t, 'd>(
    document: &Document<'_>,
    table: &'t DeTable<'d>,
    key: &str,
) -> Result<&'t toml::Spanned<DeValue<'d>>> {
    table.get(key).ok_or_else(|| {
        document
            .error_at(
                0..0,
                format!("`{RECORD_FILE}` has no `{key}`"),
                "in this file",
            )
            .help("restore the file from version control; Kiln maintains it")
    })
}
