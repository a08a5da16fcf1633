//! The user's favourite templates: short names for repositories and folders, in Kiln's configuration
//! file and in that of cargo-generate, which has the same form.

use std::{
    env,
    ffi::OsStr,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use toml::de::DeTable;

use super::{
    folder,
    output::{note, print},
};
use crate::{
    document::{Document, Place},
    error::{Error, Kind, Result},
    project::origin::Revision,
    template::{Template, answers::Values, values},
};

const SECTION: &str = "favorites";
const KEYS: &[&str] = &[
    "description",
    "git",
    "path",
    "branch",
    "tag",
    "revision",
    "rev",
    "subfolder",
    "values",
];
/// Keys of cargo-generate that concern its own command line.
const UNUSED: &[&str] = &["vcs", "init", "overwrite"];

/// A favourite.
#[derive(Debug, Clone)]
pub(crate) struct Favourite {
    pub name: String,
    pub description: Option<String>,
    /// The value of `--template` that the name stands for.
    pub address: PathBuf,
    /// Whether the address is that of a repository, even if it looks like a folder.
    pub is_git: bool,
    pub revision: Revision,
    pub subfolder: Option<String>,
    file: PathBuf,
    text: String,
}

impl Favourite {
    /// Checks that the folder that the favourite stands for is there.
    ///
    /// # Errors
    /// It is not.
    pub fn check_folder(&self, folder: &Path) -> Result<()> {
        if folder.exists() {
            return Ok(());
        }
        let (name, shown) = (&self.name, folder.display());
        let message =
            format!("the favourite `{name}` is the folder `{shown}`, which does not exist");
        let help = format!("correct it in `{}`; give a whole path", self.file.display());
        Err(Error::input(message).help(help))
    }

    /// The values of options that the user prefers for this template.
    ///
    /// # Errors
    /// The template does not have an option or refuses a value.
    pub fn values(&self, template: &Template) -> Result<Values> {
        let file = self.file.display().to_string();
        let document = Document::new(&file, &self.text, Kind::Input);
        let table = document.parse()?;
        let table = document.table(SECTION, &table[SECTION])?;
        let table = document.table(&self.name, &table[self.name.as_str()])?;
        match table.get("values") {
            Some(given) => {
                values::read_table(template, &document, document.table("values", given)?)
            }
            None => Ok(Values::new()),
        }
    }
}

/// Lists the favourites.
///
/// # Errors
/// A configuration file is invalid, or standard output fails.
pub(crate) fn run() -> Result<ExitCode> {
    let all = all()?;
    let mut text = String::new();
    if all.is_empty() {
        let file = own_file().unwrap_or_else(|| PathBuf::from("kiln/config.toml"));
        let _ = write!(
            text,
            "There are no favourites. Write them in {}:\n\n\
             [favorites.vision]\n\
             git = \"https://github.com/OWNER/NAME\"\n\
             description = \"our vision models\"\n",
            file.display()
        );
    } else {
        let width = all.iter().map(|one| one.name.len()).max().unwrap_or(0);
        for one in &all {
            let address = crate::project::origin::address::without_password(
                &one.address.display().to_string(),
            );
            let description = one.description.as_deref().unwrap_or(&address);
            let _ = writeln!(text, "{:width$}  {description}", one.name);
        }
        text.push_str("\nMake a project with `kiln new NAME --template TEMPLATE`.\n");
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The favourite called `name`; a path or URL is none.
///
/// # Errors
/// Kiln's configuration file is invalid.
pub(crate) fn find(name: &Path) -> Result<Option<Favourite>> {
    let Some(name) = name.to_str().filter(|name| is_name(name)) else {
        return Ok(None);
    };
    Ok(all()?.into_iter().find(|one| one.name == name))
}

/// The names of all favourites, for suggestions.
pub(crate) fn names() -> Vec<String> {
    let all = all().unwrap_or_default();
    all.into_iter().map(|one| one.name).collect()
}

/// True if a text can be the name of a favourite, rather than a path or URL.
fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.starts_with(['.', '~']) && !text.contains(['/', '\\', ':'])
}

/// All favourites, sorted by name. Kiln's own file has precedence.
fn all() -> Result<Vec<Favourite>> {
    let mut all: Vec<Favourite> = Vec::new();
    if let Some(file) = own_file() {
        all = read(&file, true)?;
    }
    if let Some(file) = cargo_generate_file() {
        match read(&file, false) {
            Ok(more) => {
                for one in more {
                    if !all.iter().any(|other| other.name == one.name) {
                        all.push(one);
                    }
                }
            }
            // The file belongs to another program, so an error in it is only a warning.
            Err(error) => note(&format!(
                "warning: no favourites of cargo-generate: {error}"
            )),
        }
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(all)
}

/// Kiln's configuration file, where other programs of the platform have theirs.
fn own_file() -> Option<PathBuf> {
    let folder = |name: &str| {
        let folder = PathBuf::from(env::var_os(name)?);
        folder.is_absolute().then_some(folder)
    };
    let base = if cfg!(windows) {
        folder("APPDATA")?
    } else {
        let home = || Some(home()?.join(".config"));
        folder("XDG_CONFIG_HOME").or_else(home)?
    };
    Some(base.join("kiln").join("config.toml"))
}

/// The configuration file of cargo-generate, with or without its extension.
fn cargo_generate_file() -> Option<PathBuf> {
    let cargo = env::var_os("CARGO_HOME").filter(|folder| !folder.is_empty());
    let cargo = cargo
        .map(PathBuf::from)
        .or_else(|| Some(home()?.join(".cargo")))?;
    let files = ["cargo-generate.toml", "cargo-generate"].map(|name| cargo.join(name));
    files.into_iter().find(|file| file.is_file())
}

fn home() -> Option<PathBuf> {
    env::home_dir().filter(|home| !home.as_os_str().is_empty())
}

/// The favourites in a file; none if it does not exist.
fn read(file: &Path, own: bool) -> Result<Vec<Favourite>> {
    let bytes = match fs::read(file) {
        Ok(bytes) => bytes,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(Error::io("read", file, cause).into_input()),
    };
    let name = file.display().to_string();
    let text = String::from_utf8(bytes).map_err(|error| {
        Error::input(format!("`{name}` is not UTF-8"))
            .at_wrong_byte(&name, error.as_bytes())
            .help("save the file as UTF-8; it is TOML")
    })?;
    let document = Document::new(&name, &text, Kind::Input);
    let table = document.parse()?;
    let others = |key: &&toml::Spanned<_>| AsRef::<str>::as_ref(key.get_ref()) != SECTION;
    if let Some(key) = table.keys().find(others).filter(|_| own) {
        return Err(document.unknown_key(key, &[SECTION]));
    }
    let Some(section) = table.get(SECTION) else {
        return Ok(Vec::new());
    };
    let section = document.table(SECTION, section)?;
    let favourites = section.iter().map(|(key, value)| {
        let reader = Reader {
            document,
            file,
            text: &text,
            own,
        };
        reader.favourite(key, value)
    });
    favourites.collect()
}

struct Reader<'r> {
    document: Document<'r>,
    file: &'r Path,
    text: &'r str,
    own: bool,
}

impl Reader<'_> {
    fn favourite(
        &self,
        key: &toml::Spanned<impl AsRef<str>>,
        value: &Place<'_>,
    ) -> Result<Favourite> {
        let document = &self.document;
        let name = key.get_ref().as_ref();
        let table = document.table(name, value)?;
        let is_known = |key: &str| KEYS.contains(&key) || (!self.own && UNUSED.contains(&key));
        if let Some(key) = table.keys().find(|key| !is_known(key.get_ref().as_ref())) {
            return Err(document.unknown_key(key, KEYS));
        }
        let (git, path) = (self.text(table, "git")?, self.text(table, "path")?);
        let is_git = git.is_some();
        let address = match (git, path) {
            (Some(git), None) => folder::path(OsStr::new(&git))?,
            (None, Some(path)) => folder::path(OsStr::new(&path))?,
            (None, None) | (Some(_), Some(_)) => {
                let message = format!("the favourite `{name}` needs either `git` or `path`");
                let error = document.error_at(key.span(), message, "this favourite");
                return Err(error
                    .help("write `git = \"https://host/owner/name\"`, or `path = \"/a/folder\"`"));
            }
        };
        let rev = match self.text(table, "revision")? {
            Some(rev) => Some(rev),
            None => self.text(table, "rev")?,
        };
        let (branch, tag) = (self.text(table, "branch")?, self.text(table, "tag")?);
        let given = [&branch, &tag, &rev].into_iter().flatten().count();
        if given > 1 {
            let message = format!("the favourite `{name}` names more than one version");
            let error = document.error_at(key.span(), message, "this favourite");
            return Err(error.help("keep one of `branch`, `tag` and `revision`"));
        }
        let revision = Revision::of(branch.as_deref(), tag.as_deref(), rev.as_deref());
        Ok(Favourite {
            name: name.to_owned(),
            description: self.text(table, "description")?,
            address,
            is_git,
            revision: revision.map_err(|error| document.relocate(error, value))?,
            subfolder: self.text(table, "subfolder")?,
            file: self.file.to_path_buf(),
            text: self.text.to_owned(),
        })
    }

    fn text(&self, table: &DeTable<'_>, key: &str) -> Result<Option<String>> {
        let value = table.get(key);
        value
            .map(|value| self.document.string(key, value))
            .transpose()
    }
}
