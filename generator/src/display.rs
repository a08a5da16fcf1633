//! Sizes, numbers and paths as people read them.

use std::path::Path;

/// A size for people.
pub(crate) fn size(bytes: usize) -> String {
    // Rounding is what is wanted of a size that somebody reads.
    #[allow(clippy::cast_precision_loss)]
    let shown = bytes as f64;
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} KB", shown / 1e3),
        _ => format!("{:.1} MB", shown / 1e6),
    }
}

/// The path of a file in a project with `/` between its parts, as all systems read it.
pub(crate) fn slashed(path: &Path) -> String {
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("/")
}

/// `1 file`, or so many `files`.
pub(crate) fn files(count: usize) -> String {
    counted(count, "file")
}

/// So many of what is called `one`, which ends in an `s` where there are several.
pub(crate) fn counted(count: usize, one: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{count} {one}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_project_have_the_same_names_everywhere() {
        let path = Path::new("src").join("model").join("layer.rs");
        assert_eq!(slashed(&path), "src/model/layer.rs");
        assert_eq!(slashed(Path::new("README.md")), "README.md");
        let backslash = if cfg!(windows) { "a/b" } else { r"a\b" };
        assert_eq!(slashed(Path::new(r"a\b")), backslash);
    }

    #[test]
    fn one_is_not_several() {
        assert_eq!([0, 1, 2].map(files), ["0 files", "1 file", "2 files"]);
        assert_eq!(counted(1, "byte"), "1 byte");
    }
}
