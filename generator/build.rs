//! Embeds the template and the examples: writes one `include_bytes!` a file, so that the binary alone
//! is enough.

use std::{
    env,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let template = root.join("template");
    let mut files = Vec::new();
    collect(&template, "", &mut files)?;
    assert!(
        files.iter().any(|(path, _)| path == "cargo-generate.toml"),
        "{} holds no template",
        template.display()
    );

    embed(&template, &files, "FILES", "embedded.rs")?;

    let examples = root.join("examples");
    let mut files = Vec::new();
    collect(&examples, "", &mut files)?;
    embed(&examples, &files, "EXAMPLES", "examples.rs")
}

/// Writes a table of files with their contents, as Rust code in the file `output`.
fn embed(root: &Path, files: &[(String, bool)], table: &str, output: &str) -> io::Result<()> {
    let mut code = format!("static {table}: &[(&str, &[u8], bool)] = &[\n");
    for (path, executable) in files {
        let source = root.join(path).display().to_string();
        writeln!(
            code,
            "    ({path:?}, include_bytes!({source:?}), {executable}),"
        )
        .expect("a string takes all");
    }
    code.push_str("];\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join(output), code)
}

/// Every file below `folder`, in order, but what no template holds: `.git`, build folders, and what
/// Python leaves.
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
