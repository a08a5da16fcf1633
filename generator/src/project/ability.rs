//! Abilities of a project: what its training does by an option, by a command or at a TODO site.
//!
//! The template lists them in `abilities.toml`. The help of an option is read from the sources that
//! define it.

use std::{fs, io, path::Path};

use heck::{ToSnakeCase, ToUpperCamelCase};
use serde::Serialize;

use crate::{
    document::{Document, Place},
    error::{Error, Kind, Result},
};

/// The file of a project that lists its abilities.
pub const ABILITIES_FILE: &str = "abilities.toml";
/// The sources of a project that define its options and commands.
pub(crate) const OPTION_SOURCES: [&str; 2] = ["engine/src/options.rs", "src/cli.rs"];
const KEYS: &[&str] = &[
    "id", "name", "what", "use", "site", "try", "example", "guide",
];

/// An ability of a training: by an option, by a command or at a TODO site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ability {
    /// Unique id.
    pub id: String,
    /// The name in a table.
    pub name: String,
    /// Its effect, in one sentence.
    pub what: String,
    /// Its options, such as `--ema`, and commands, such as `find-lr`.
    #[serde(rename = "use")]
    pub uses: Vec<String>,
    /// The TODO site at which code decides about it.
    pub site: Option<String>,
    /// Commands to try it, run in a new project.
    #[serde(rename = "try")]
    pub tries: Vec<String>,
    /// The example whose `README.md` shows it.
    pub example: Option<String>,
    /// The heading of its part of Kiln's `docs/features.md`.
    pub guide: Option<String>,
}

impl Ability {
    /// True if it has an option or a command of this name, without `--`.
    pub(crate) fn has(&self, name: &str) -> bool {
        let mut names = self.uses.iter();
        names.any(|word| word.strip_prefix("--").unwrap_or(word) == name)
    }
}

/// Reads the abilities of the project in `root`, which are none without a list.
///
/// # Errors
/// The list is invalid or cannot be read.
pub fn read_abilities(root: &Path) -> Result<Vec<Ability>> {
    let path = root.join(ABILITIES_FILE);
    match fs::read_to_string(&path) {
        Ok(text) => parse_abilities(&path.display().to_string(), &text),
        Err(cause)
            if matches!(
                cause.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(Vec::new())
        }
        Err(cause) => Err(Error::io("read", &path, cause)),
    }
}

/// Parses a list of abilities, which messages call `name`.
///
/// # Errors
/// The text is not TOML or not a list of abilities.
pub fn parse_abilities(name: &str, text: &str) -> Result<Vec<Ability>> {
    let document = Document::new(name, text, Kind::Input);
    document.items("ability", parse_ability, |ability| &ability.id)
}

fn parse_ability(document: &Document<'_>, value: &Place<'_>) -> Result<Ability> {
    let table = document.table("ability", value)?;
    for key in table.keys() {
        if !KEYS.contains(&key.get_ref().as_ref()) {
            return Err(document.unknown_key(key, KEYS));
        }
    }
    let text = |key| {
        let value = table.get(key);
        value.map(|value| document.string(key, value)).transpose()
    };
    let texts = |key| {
        let Some(value) = table.get(key) else {
            return Ok(Vec::new());
        };
        let texts = document.strings(key, value)?.into_iter();
        Ok(texts.map(toml::Spanned::into_inner).collect())
    };
    let missing = |key| {
        let message = format!("an ability has no `{key}`");
        let error = document.error_at(value.span(), message, "this ability");
        error.help("an ability has `id`, `name`, `what`, and `use` or `site`")
    };
    let ability = Ability {
        id: text("id")?.ok_or_else(|| missing("id"))?,
        name: text("name")?.ok_or_else(|| missing("name"))?,
        what: text("what")?.ok_or_else(|| missing("what"))?,
        uses: texts("use")?,
        site: text("site")?,
        tries: texts("try")?,
        example: text("example")?,
        guide: text("guide")?,
    };
    if ability.uses.is_empty() && ability.site.is_none() {
        return Err(missing("use"));
    }
    Ok(ability)
}

/// The documentation of an option (`--ema`) or a command (`find-lr`) in a source that defines it for
/// clap.
pub(crate) fn documentation(source: &str, name: &str) -> Option<String> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let field = name
        .strip_prefix("--")
        .map(|option| format!("pub {}:", option.to_snake_case()));
    let variant = name.to_upper_camel_case();
    let defines = |line: &str| match &field {
        Some(field) => line.starts_with(field),
        None => {
            let rest = line.strip_prefix(variant.as_str());
            rest.is_some_and(|rest| rest.starts_with('(') || rest == ",")
        }
    };
    let defined = lines.iter().enumerate().filter(|(_, line)| defines(line));
    let mut documented = defined.filter_map(|(at, _)| {
        let above = lines[..at].iter().rev();
        let above = above.take_while(|line| line.starts_with("///") || line.starts_with("#["));
        let above: Vec<&str> = above.copied().collect();
        let is_option = above
            .iter()
            .any(|line| line.starts_with("#[arg(") && line.contains("long"));
        let comments = above.iter().rev();
        let comments = comments.filter_map(|line| line.strip_prefix("///"));
        let comments: Vec<&str> = comments.map(str::trim).collect();
        (!comments.is_empty() && is_option == field.is_some()).then(|| comments.join(" "))
    });
    documented.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_commands_are_documented_where_they_are_defined() {
        let source = "struct Options {\n    /// Averages,\n    /// slowly.\n    #[arg(long, global = true)]\n    \
            pub ema_rate: f64,\n\n    /// No option.\n    pub file: PathBuf,\n}\n\
            enum Command {\n    /// Search.\n    FindLr(FindLr),\n    /// Train.\n    Train,\n}\n\
            /// Another.\nstruct Train;\n";
        let found = |name| documentation(source, name);
        assert_eq!(found("--ema-rate").as_deref(), Some("Averages, slowly."));
        assert_eq!(found("find-lr").as_deref(), Some("Search."));
        assert_eq!(found("train").as_deref(), Some("Train."));
        for name in ["--ema", "--file", "find", "file", "options", ""] {
            assert_eq!(found(name), None, "{name}");
        }
    }
}
