//! The modules of the library depend on each other in one direction.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Each module uses only those before it.
const ORDER: [&str; 4] = ["template", "render", "project", "cli"];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false => vec![path],
        })
        .collect()
}

#[test]
fn no_folder_uses_a_later_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (place, folder) in ORDER.iter().enumerate() {
        let sources = sources(&root.join(folder));
        assert!(!sources.is_empty(), "{folder} is empty");
        for source in sources {
            let text = fs::read_to_string(&source).unwrap();
            let (code, _unit_tests) = text.split_once("#[cfg(test)]").unwrap_or((&text, ""));
            // In `use crate::{..}`, names are written without `crate::`.
            let code: String = code.split_whitespace().collect();
            for later in &ORDER[place + 1..] {
                let grouped = code.split("usecrate::{").skip(1).any(|rest| {
                    let group = rest.split("};").next().unwrap_or_default();
                    group.starts_with(&format!("{later}::"))
                        || group.contains(&format!(",{later}::"))
                });
                let uses = code.contains(&format!("crate::{later}::")) || grouped;
                assert!(!uses, "{} uses `{later}`", source.display());
            }
        }
    }
}
