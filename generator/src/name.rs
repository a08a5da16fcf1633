//! The name of a new project. The rules are those of `cargo new`, with its warnings as errors.

use heck::{ToKebabCase, ToSnakeCase};
use toml::de::DeTable;

use crate::error::{Error, Result};

/// Reserved words of Rust, in any edition.
const KEYWORDS: &[&str] = &[
    "Self", "abstract", "as", "async", "await", "become", "box", "break", "const", "continue",
    "crate", "do", "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if",
    "impl", "in", "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub",
    "ref", "return", "self", "static", "struct", "super", "trait", "true", "try", "type", "typeof",
    "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];
/// Crates of the standard library.
const BUILT_IN: &[&str] = &["alloc", "core", "proc-macro", "proc_macro", "std"];
/// Folders that cargo creates in its build folder.
const BUILD_FOLDERS: &[&str] = &["build", "deps", "examples", "incremental"];

/// The longest name: files in the build folder have it twice, beside two hashes, and file systems
/// take 255 bytes.
const LONGEST: usize = 100;
/// The characters of a longer name that a message shows.
const SHOWN: usize = 30;

/// A valid name, as given and as the package name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    given: String,
    package: String,
}

impl Name {
    /// Parses a name. As with `cargo generate`, a snake_case name stays as it is, and any other
    /// becomes kebab-case.
    ///
    /// # Errors
    /// `cargo new` refuses the name or warns about it.
    pub fn parse(given: &str) -> Result<Self> {
        if given.is_empty() {
            return Err(Error::input("the name of a project cannot be empty")
                .help("give a name, such as `my-model`"));
        }
        if given.chars().count() > LONGEST {
            let start: String = given.chars().take(SHOWN).collect();
            let message =
                format!("`{start}…` cannot name a project: it is longer than {LONGEST} characters");
            return Err(Error::input(message)
                .help("choose a shorter one: the compiler's files have the name twice"));
        }
        check_characters(given)?;
        let package = if given.to_snake_case() == given {
            given.to_owned()
        } else {
            given.to_kebab_case()
        };
        if package.is_empty() {
            return Err(refuse(given, "has no letter"));
        }
        for name in [given, &package] {
            check_characters(name)
                .and_then(|()| check_reserved(name))
                .map_err(|error| match name == given {
                    true => error,
                    false => {
                        let label = format!("becomes `{name}`");
                        error.in_argument("NAME", given, 0..given.len(), &label)
                    }
                })?;
        }
        Ok(Self {
            given: given.to_owned(),
            package,
        })
    }

    /// The name as given.
    pub fn given(&self) -> &str {
        &self.given
    }

    /// The name of the package and, by default, of its folder.
    pub fn package(&self) -> &str {
        &self.package
    }

    /// The name as a Rust identifier.
    pub fn crate_name(&self) -> String {
        self.given.to_snake_case()
    }

    /// Checks that no dependency in `manifest`, the rendered `Cargo.toml`, has this name.
    ///
    /// # Errors
    /// A dependency has this name, or the manifest is not TOML.
    pub fn check_dependencies(&self, manifest: &str) -> Result<()> {
        let table = DeTable::parse(manifest).map_err(|error| {
            let why = error.message().replace('\n', ", ");
            let span = error.span().unwrap_or(0..0);
            Error::template(format!(
                "the rendered `Cargo.toml` is not valid TOML: {why}"
            ))
            .at("Cargo.toml", manifest, span, "here")
        })?;
        match dependencies(table.get_ref()).find(|name| same_crate(name, &self.package)) {
            None => Ok(()),
            Some(_) => {
                let reason = "is the name of one of the new crate's own dependencies";
                Err(refuse(&self.package, reason).in_argument(
                    "NAME",
                    &self.given,
                    0..self.given.len(),
                    "taken",
                ))
            }
        }
    }
}

/// The names of all dependencies of a manifest; of a renamed dependency, both names.
fn dependencies<'t>(manifest: &'t DeTable<'_>) -> impl Iterator<Item = &'t str> {
    let targets = manifest
        .get("target")
        .and_then(|all| all.get_ref().as_table());
    let targets = targets.into_iter().flat_map(DeTable::values);
    let targets = targets.filter_map(|target| target.get_ref().as_table());
    std::iter::once(manifest)
        .chain(targets)
        .flat_map(|table| {
            ["dependencies", "dev-dependencies", "build-dependencies"]
                .iter()
                .filter_map(|key| table.get(*key)?.get_ref().as_table())
        })
        .flatten()
        .flat_map(|(name, value)| {
            let package = value
                .get_ref()
                .as_table()
                .and_then(|value| value.get("package"));
            let package = package.and_then(|package| package.get_ref().as_str());
            std::iter::once(name.get_ref().as_ref()).chain(package)
        })
}

fn same_crate(one: &str, other: &str) -> bool {
    one.replace('-', "_") == other.replace('-', "_")
}

fn check_characters(name: &str) -> Result<()> {
    let refuse_at = |at: usize, c: char, reason: &str| {
        let span = at..at + c.len_utf8();
        refuse(name, reason).in_argument("NAME", name, span, "here")
    };
    let first = name.chars().next().unwrap_or('_');
    if first.is_ascii_digit() {
        return Err(refuse_at(0, first, "starts with a digit").help(suggestion(name)));
    }
    if !first.is_alphabetic() && first != '_' {
        return Err(refuse_at(0, first, "does not start with a letter").help(suggestion(name)));
    }
    let wrong = name
        .char_indices()
        .find(|(_, c)| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_')));
    match wrong {
        None => Ok(()),
        Some((at, c @ ('/' | '\\'))) => Err(refuse_at(at, c, &format!("contains `{c}`"))
            .help("to choose the folder, add `--path FOLDER`")),
        Some((at, c)) => Err(refuse_at(
            at,
            c,
            &format!(
                "contains {c:?}; a name has the letters a to z and A to Z, digits, `-` and `_`"
            ),
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

/// Whether a lower-case name is a reserved device name on Windows.
pub(crate) fn is_windows_device(lower: &str) -> bool {
    let numbered = |prefix| {
        lower
            .strip_prefix(prefix)
            .is_some_and(|rest| matches!(rest.as_bytes(), [b'1'..=b'9']))
    };
    matches!(lower, "con" | "prn" | "aux" | "nul") || numbered("com") || numbered("lpt")
}

fn refuse(name: &str, reason: &str) -> Error {
    Error::input(format!("`{name}` cannot name a project: it {reason}"))
        .in_argument("NAME", name, 0..name.len(), "this name")
        .help("choose another name, such as `my-model`")
}

/// Help for a name with invalid characters: a valid name like it.
fn suggestion(name: &str) -> String {
    // A name in another script would lose most of its letters.
    let letters = || name.chars().filter(|c| c.is_alphabetic());
    if 2 * letters().filter(char::is_ascii).count() < letters().count() {
        return "choose another name, such as `my-model`".to_owned();
    }
    let kebab: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect::<String>()
        .to_kebab_case();
    let kebab = kebab.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
    match Name::parse(kebab) {
        Ok(name) => format!("try `{}`", name.package),
        Err(_) => "choose another name, such as `my-model`".to_owned(),
    }
}
