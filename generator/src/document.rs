//! TOML documents whose errors point at line and column.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::error::{Error, Kind, Result};

/// A TOML text with its name.
#[derive(Clone, Copy)]
pub struct Document<'a> {
    name: &'a str,
    text: &'a str,
    kind: Kind,
}

/// A key or value of a document, with its span.
pub type Place<'a> = Spanned<DeValue<'a>>;

impl<'a> Document<'a> {
    /// A text named `name` in messages; its errors are of `kind`.
    pub fn new(name: &'a str, text: &'a str, kind: Kind) -> Self {
        Self { name, text, kind }
    }

    /// Parses the text.
    ///
    /// # Errors
    /// The text is not TOML.
    pub fn parse(&self) -> Result<DeTable<'a>> {
        DeTable::parse(self.text)
            .map(Spanned::into_inner)
            .map_err(|error| {
                let span = error.span().unwrap_or(0..0);
                let why = error.message().replace('\n', ", ");
                let message = format!("`{}` is not valid TOML: {why}", self.name);
                let error = self.error_at(span, message, "here");
                error.help("lines of TOML are `key = \"text\"`, `[table]` or `# comment`")
            })
    }

    /// An error in this document without a span.
    pub fn error(&self, message: impl Into<String>) -> Error {
        match self.kind {
            Kind::Template => Error::template(message),
            _ => Error::input(message),
        }
    }

    /// An error that points at `span`.
    pub fn error_at(&self, span: Range<usize>, message: impl Into<String>, label: &str) -> Error {
        self.error(message).at(self.name, self.text, span, label)
    }

    /// The string in `value`.
    ///
    /// # Errors
    /// `value` is not a string.
    pub fn string(&self, key: &str, value: &Place<'_>) -> Result<String> {
        value
            .get_ref()
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| self.wrong_type(key, value, "a string"))
    }

    /// The boolean in `value`.
    ///
    /// # Errors
    /// `value` is not a boolean.
    pub fn boolean(&self, key: &str, value: &Place<'_>) -> Result<bool> {
        value
            .get_ref()
            .as_bool()
            .ok_or_else(|| self.wrong_type(key, value, "true or false"))
    }

    /// The table in `value`.
    ///
    /// # Errors
    /// `value` is not a table.
    pub fn table<'v, 'd>(&self, key: &str, value: &'v Place<'d>) -> Result<&'v DeTable<'d>> {
        value
            .get_ref()
            .as_table()
            .ok_or_else(|| self.wrong_type(key, value, "a table"))
    }

    /// The strings in `value`, each with its span.
    ///
    /// # Errors
    /// `value` is not an array of strings.
    pub fn strings(&self, key: &str, value: &Place<'_>) -> Result<Vec<Spanned<String>>> {
        let array = value
            .get_ref()
            .as_array()
            .ok_or_else(|| self.wrong_type(key, value, "an array of strings"))?;
        array
            .iter()
            .map(|one| Ok(Spanned::new(one.span(), self.string(key, one)?)))
            .collect()
    }

    /// The items of a document that has nothing but the array of tables `key`, each with its id.
    ///
    /// # Errors
    /// The text is not TOML, has another key, or an item is invalid or has the id of another one.
    pub fn items<T>(
        &self,
        key: &str,
        parse: impl Fn(&Self, &Place<'_>) -> Result<T>,
        id: impl Fn(&T) -> &str,
    ) -> Result<Vec<T>> {
        let mut items: Vec<T> = Vec::new();
        for (given, value) in &self.parse()? {
            if given.get_ref() != key {
                return Err(self.unknown_key(given, &[key]));
            }
            let array = value.get_ref().as_array();
            let array = array.ok_or_else(|| self.wrong_type(key, value, "an array of tables"))?;
            for table in array.iter() {
                let item = parse(self, table)?;
                if items.iter().any(|other| id(other) == id(&item)) {
                    let message = format!("the {key} `{}` is listed twice", id(&item));
                    let error = self.error_at(table.span(), message, "the duplicate");
                    return Err(error.help("rename or remove one of the two"));
                }
                items.push(item);
            }
        }
        Ok(items)
    }

    /// The same error, pointing at `value`.
    pub fn relocate(&self, error: Error, value: &Place<'_>) -> Error {
        error.at(self.name, self.text, value.span(), "this value")
    }

    /// An error for a value of `key` that has the wrong type.
    pub fn wrong_type(&self, key: &str, value: &Place<'_>, wanted: &str) -> Error {
        self.error_at(
            value.span(),
            format!("`{key}` should be {wanted}"),
            &format!("this is {}", with_article(value.get_ref().type_str())),
        )
        .help(format!("write {}", written(key, wanted)))
    }

    /// An error for a key that is not in `known`.
    pub fn unknown_key(&self, key: &Spanned<impl AsRef<str>>, known: &[&str]) -> Error {
        let given = key.get_ref().as_ref();
        self.error_at(
            key.span(),
            format!("unknown key `{given}` in `{}`", self.name),
            "unknown key",
        )
        .help(crate::error::suggest(
            given,
            known.iter().copied(),
            "the keys",
        ))
    }
}

/// An example of TOML syntax for a value of type `sort`.
fn written(key: &str, sort: &str) -> String {
    match sort {
        "true or false" => format!("`{key} = true` or `{key} = false`"),
        "a table" => format!("`[{key}]`, and its keys on the lines below"),
        "an array" | "an array of strings" => format!("`{key} = [\"one\", \"two\"]`"),
        "an array of tables" => format!("`[[{key}]]` above each table"),
        _ => format!("`{key} = \"text\"`"),
    }
}

fn with_article(noun: &str) -> String {
    let article = if noun.starts_with(['a', 'e', 'i', 'o', 'u']) {
        "an"
    } else {
        "a"
    };
    format!("{article} {noun}")
}
