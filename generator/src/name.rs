//! The name of a new project: what `cargo new` takes, less what it only warns about.

use heck::{ToKebabCase, ToSnakeCase};

use crate::error::{Error, Result};

/// Words that Rust keeps for itself, in any edition.
const KEYWORDS: &[&str] = &[
    "Self", "abstract", "as", "async", "await", "become", "box", "break", "const", "continue",
    "crate", "do", "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if",
    "impl", "in", "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub",
    "ref", "return", "self", "static", "struct", "super", "trait", "true", "try", "type", "typeof",
    "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];
/// Crates that come with the compiler.
const BUILT_IN: &[&str] = &["alloc", "core", "proc-macro", "proc_macro", "std"];
/// Folders that cargo makes in its build folder.
const BUILD_FOLDERS: &[&str] = &["build", "deps", "examples", "incremental"];

/// A valid name, as it was given and as the package gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    given: String,
    package: String,
}

impl Name {
    /// Checks a name and brings it into the form that `cargo generate` gives it: a snake_case name
    /// stays, every other becomes kebab-case.
    ///
    /// # Errors
    /// `cargo new` refuses the name or warns about it.
    pub fn parse(given: &str) -> Result<Self> {
        check_characters(given)?;
        let package = if given.to_snake_case() == given {
            given.to_owned()
        } else {
            given.to_kebab_case()
        };
        check_characters(&package)?;
        for name in [given, &package] {
            check_reserved(name)?;
        }
        Ok(Self {
            given: given.to_owned(),
            package,
        })
    }

    /// The name as it was given.
    pub fn given(&self) -> &str {
        &self.given
    }

    /// The name of the package and, unless a path is given, of its folder.
    pub fn package(&self) -> &str {
        &self.package
    }

    /// The name as an identifier of Rust.
    pub fn crate_name(&self) -> String {
        self.given.to_snake_case()
    }

    /// Checks that no dependency in `manifest`, the rendered `Cargo.toml`, has this name.
    ///
    /// # Errors
    /// A dependency has it, or the manifest is not TOML.
    pub fn check_dependencies(&self, manifest: &str) -> Result<()> {
        let table: toml::Table = manifest.parse().map_err(|error: toml::de::Error| {
            let why = error.message().replace('\n', ", ");
            let span = error.span().unwrap_or(0..0);
            Error::template(format!(
                "the rendered `Cargo.toml` is not valid TOML: {why}"
            ))
            .at("Cargo.toml", manifest, span, "here")
        })?;
        match dependencies(&table).find(|name| same_crate(name, &self.package)) {
            None => Ok(()),
            Some(_) => Err(refuse(
                &self.package,
                "is the name of one of the new crate's own dependencies",
            )),
        }
    }
}

/// The names of all dependencies of a manifest, those that are renamed under both names.
fn dependencies(manifest: &toml::Table) -> impl Iterator<Item = &str> {
    let targets = manifest
        .get("target")
        .and_then(toml::Value::as_table)
        .into_iter()
        .flat_map(|targets| targets.values().filter_map(toml::Value::as_table));
    std::iter::once(manifest)
        .chain(targets)
        .flat_map(|table| {
            ["dependencies", "dev-dependencies", "build-dependencies"]
                .iter()
                .filter_map(|key| table.get(*key)?.as_table())
        })
        .flatten()
        .flat_map(|(name, value)| {
            let package = value.get("package").and_then(toml::Value::as_str);
            std::iter::once(name.as_str()).chain(package)
        })
}

fn same_crate(one: &str, other: &str) -> bool {
    one.replace('-', "_") == other.replace('-', "_")
}

fn check_characters(name: &str) -> Result<()> {
    let Some(first) = name.chars().next() else {
        return Err(Error::input("the name of a project cannot be empty"));
    };
    if first.is_ascii_digit() {
        return Err(refuse(name, "starts with a digit").help(suggestion(name)));
    }
    if !first.is_ascii_alphabetic() && first != '_' {
        return Err(refuse(name, "does not start with a letter").help(suggestion(name)));
    }
    let wrong = name
        .chars()
        .find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_')));
    match wrong {
        None => Ok(()),
        Some(c @ ('/' | '\\')) => Err(refuse(name, &format!("contains `{c}`"))
            .help("to choose the folder, add `--path FOLDER`")),
        Some(c) => Err(refuse(
            name,
            &format!("contains {c:?}; ASCII letters, digits, `-` and `_` make a name"),
        )
        .help(suggestion(name))),
    }
}

fn check_reserved(name: &str) -> Result<()> {
    let lower = name.to_ascii_lowercase();
    let reason = if KEYWORDS.contains(&name) {
        "is a keyword of Rust"
    } else if name == "test" {
        "conflicts with Rust's built-in test library"
    } else if BUILT_IN.contains(&name) {
        "is part of Rust's standard library"
    } else if BUILD_FOLDERS.contains(&name) {
        "conflicts with the names of cargo's build folders"
    } else if is_windows_device(&lower) {
        "is a reserved file name on Windows"
    } else {
        return Ok(());
    };
    Err(refuse(name, reason))
}

fn is_windows_device(lower: &str) -> bool {
    let numbered = |prefix| {
        lower
            .strip_prefix(prefix)
            .is_some_and(|rest| matches!(rest.as_bytes(), [b'1'..=b'9']))
    };
    matches!(lower, "con" | "prn" | "aux" | "nul") || numbered("com") || numbered("lpt")
}

fn refuse(name: &str, reason: &str) -> Error {
    Error::input(format!("`{name}` cannot name a project: it {reason}"))
        .help("choose another name, such as `my-model`")
}

/// A way out for a name of wrong characters.
fn suggestion(name: &str) -> String {
    let kebab: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect::<String>()
        .to_kebab_case();
    let kebab = kebab.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
    match Name::parse(kebab) {
        Ok(name) => format!("`{}` would do", name.package),
        Err(_) => "choose another name, such as `my-model`".to_owned(),
    }
}
