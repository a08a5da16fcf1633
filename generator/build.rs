//! Embeds the template, the examples and those of earlier releases in the binary, with one
//! `include_bytes!` for each distinct content.

use std::{
    collections::HashMap,
    env,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let mut blobs = Blobs::default();
    let mut tables = String::new();
    for (folder, table) in [("template", "TEMPLATE"), ("examples", "EXAMPLES")] {
        let folder = root.join(folder);
        let mut files = Vec::new();
        collect(&folder, "", &mut files)?;
        assert!(!files.is_empty(), "{} has no files", folder.display());
        let files = blobs.table(files.iter().map(|(path, executable)| {
            let source = folder.join(path);
            (path.as_str(), source, *executable)
        }))?;
        writeln!(tables, "pub(crate) static {table}: Files = {files};").expect("a string");
    }
    let history = history(&root.join("history"), &mut blobs)?;
    writeln!(
        tables,
        "pub(crate) static HISTORY: &[Release] = &[{history}];"
    )
    .expect("a string");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("embedded.rs"), blobs.code + &tables)
}

/// The distinct contents of all files, most of which are equal in several releases.
#[derive(Default)]
struct Blobs {
    names: HashMap<Vec<u8>, String>,
    code: String,
}

impl Blobs {
    /// The name of the static with the contents of the file at `path`.
    fn name(&mut self, path: &Path) -> io::Result<String> {
        let contents = fs::read(path)?;
        if let Some(name) = self.names.get(&contents) {
            return Ok(name.clone());
        }
        let name = format!("BLOB_{}", self.names.len());
        let source = path.display().to_string();
        writeln!(
            self.code,
            "static {name}: &[u8] = include_bytes!({source:?});"
        )
        .expect("a string");
        self.names.insert(contents, name.clone());
        Ok(name)
    }

    /// A table of files with path, contents and executable bit.
    fn table<'p>(
        &mut self,
        files: impl Iterator<Item = (&'p str, PathBuf, bool)>,
    ) -> io::Result<String> {
        let mut code = String::from("&[");
        for (path, source, executable) in files {
            let blob = self.name(&source)?;
            writeln!(code, "({path:?}, {blob}, {executable}),").expect("a string");
        }
        code.push(']');
        Ok(code)
    }
}

/// The releases in `folder`, oldest first. `VERSION.txt` lists the files of a release, one per
/// line, as hash, mode and path; `objects` has the contents by hash.
fn history(folder: &Path, blobs: &mut Blobs) -> io::Result<String> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut releases = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "txt") {
            let version = path.file_stem().expect("a name").to_string_lossy();
            releases.push((version.into_owned(), fs::read_to_string(&path)?));
        }
    }
    releases.sort_by_key(|(version, _)| ordered(version));
    let mut code = String::new();
    for (version, list) in &releases {
        let mut tables = Vec::new();
        for part in ["template/", "examples/"] {
            let files = list.lines().filter_map(|line| {
                let mut words = line.splitn(3, ' ');
                let (hash, mode) = (words.next()?, words.next()?);
                let path = words.next()?.strip_prefix(part)?;
                Some((path, folder.join("objects").join(hash), mode == "755"))
            });
            tables.push(blobs.table(files)?);
        }
        let (template, examples) = (&tables[0], &tables[1]);
        write!(
            code,
            "Release {{ version: {version:?}, template: {template}, examples: {examples} }},"
        )
        .expect("a string");
    }
    Ok(code)
}

/// The numbers of a version, for sorting.
fn ordered(version: &str) -> Vec<u64> {
    let numbers = version.split('.').map(|number| number.parse());
    numbers
        .collect::<Result<_, _>>()
        .unwrap_or_else(|_| panic!("history/{version}.txt: a release is called x.y.z"))
}

/// All files below `folder`, in order, without `.git`, build folders and Python caches.
fn collect(folder: &Path, prefix: &str, files: &mut Vec<(String, bool)>) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_str().expect("template paths are UTF-8");
        let path = format!("{prefix}{name}");
        let kind = entry.file_type()?;
        if kind.is_dir()
            && ![".git", "__pycache__"].contains(&name)
            && !entry.path().join("CACHEDIR.TAG").exists()
        {
            collect(&entry.path(), &format!("{path}/"), files)?;
        } else if kind.is_file() {
            println!("cargo::rerun-if-changed={}", entry.path().display());
            files.push((path, is_executable(&entry.metadata()?)));
        }
    }
    Ok(())
}

#[cfg(unix)]
fn is_executable(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o111 != 0
}

#[cfg(not(unix))]
fn is_executable(_: &fs::Metadata) -> bool {
    false
}
