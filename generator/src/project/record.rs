//! The record in a project of what it was made from: `.kiln.toml`, which the template holds and both
//! routes render.

use std::{fs, io, path::Path};

use toml::de::{DeTable, DeValue};

use crate::{
    document::{Document, Place},
    error::{Error, Kind, Result},
    name::Name,
    template::{Template, answers::Values, history::Release, values},
};

pub use crate::template::history::RECORD_FILE;

const KEYS: &[&str] = &["kiln", "template", "example", "name", "options"];
const EXAMPLE_KEYS: &[&str] = &["name", "hash"];

/// What a project was made from.
#[derive(Debug, Clone)]
pub struct Record {
    /// The version of Kiln.
    pub kiln: String,
    /// The [hash](Release::hash) of the template, or what a team calls its own.
    pub template: String,
    /// The example, and the hash of its files.
    pub example: Option<(String, String)>,
    /// The name that the project was made with.
    pub name: Name,
    place: String,
    text: String,
}

impl Record {
    /// Reads the record of the project in `folder`.
    ///
    /// # Errors
    /// There is none, so `kiln new` did not make this project, or it is wrong: the error points at
    /// the place.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(RECORD_FILE);
        let bytes = fs::read(&path).map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Error::input(format!(
                "`{}` holds no `{RECORD_FILE}`, the record of what a project was made from",
                folder.display()
            ))
            .help("give the folder of a project that Kiln made"),
            _ => Error::io("read", &path, cause),
        })?;
        let place = path.display().to_string();
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            Error::input(format!("`{place}` is not UTF-8 (byte {at})"))
                .help("bring it back from version control; Kiln writes it")
        })?;
        Self::parse(&place, &text)
    }

    /// Parses the text of a record that is known as `place`.
    ///
    /// # Errors
    /// It is not TOML or not such a record; the error points at the place.
    pub fn parse(place: &str, text: &str) -> Result<Self> {
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
            example: match table.get("example") {
                Some(example) => Some(parse_example(&document, example)?),
                None => None,
            },
            name,
            place: place.to_owned(),
            text: text.to_owned(),
        })
    }

    /// The options, as the template that the project was made from reads them.
    ///
    /// # Errors
    /// One is unknown, or has a value that it does not take; the error points at the place.
    pub fn values(&self, template: &Template) -> Result<Values> {
        self.with_options(|document, options| values::read_table(template, document, options))
    }

    /// The options that another template has too, with the values that it takes, and the names of
    /// those that it has not or whose value it does not take.
    ///
    /// # Errors
    /// None that reading the record did not give.
    pub fn values_that_fit(&self, template: &Template) -> Result<(Values, Vec<String>)> {
        self.with_options(|document, options| {
            let mut fitting = Values::new();
            let mut others = Vec::new();
            for (key, place) in options {
                let name = key.get_ref().as_ref();
                let option = template.option(name);
                let value =
                    option.and_then(|option| values::read_value(document, option, place).ok());
                match value {
                    Some(value) => drop(fitting.insert(name.to_owned(), value)),
                    None => others.push(name.to_owned()),
                }
            }
            Ok((fitting, others))
        })
    }

    /// The release that the project was made from.
    ///
    /// # Errors
    /// This Kiln knows none such: the template is a team's own or was never released.
    pub fn release(&self) -> Result<Release> {
        let example = self.example.as_ref();
        let example = example.map(|(name, hash)| (name.as_str(), hash.as_str()));
        Release::find(&self.kiln, &self.template, example).ok_or_else(|| {
            let message = format!(
                "Kiln {} does not know the template `{}` that this project was made from",
                env!("CARGO_PKG_VERSION"),
                self.template
            );
            let document = Document::new(&self.place, &self.text, Kind::Input);
            let table = document.parse();
            let place = table
                .ok()
                .and_then(|table| Some(table.get("template")?.span()));
            Error::input(message)
                .at(&self.place, &self.text, place.unwrap_or(0..0), "this one")
                .help(match &self.example {
                    Some(_) => format!(
                        "use the Kiln that made the project: `cargo install burn-kiln --version {}`",
                        self.kiln
                    ),
                    None => "it is a team's own, or that of a Kiln between releases or newer than \
                             this one: give the folder that has it as it was with `--from`, and to \
                             `kiln update` the folder that has it as it is now with `--template`"
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

/// The lines that record an example, to stand before the name.
pub(crate) fn example_line(name: &str, hash: &str) -> String {
    format!("example = {{ name = \"{name}\", hash = \"{hash}\" }}\n")
}

fn parse_example(document: &Document<'_>, value: &Place<'_>) -> Result<(String, String)> {
    let table = document.table("example", value)?;
    known_keys(document, table, EXAMPLE_KEYS)?;
    let text = |key| {
        let value = table.get(key).ok_or_else(|| {
            document.error_at(
                value.span(),
                format!("an example has no `{key}`"),
                "this one",
            )
        })?;
        document.string(key, value)
    };
    Ok((text("name")?, text("hash")?))
}

fn known_keys(document: &Document<'_>, table: &DeTable<'_>, known: &[&str]) -> Result<()> {
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
            .error_at(0..0, format!("`{RECORD_FILE}` has no `{key}`"), "in here")
            .help("bring it back from version control; Kiln writes it")
    })
}
