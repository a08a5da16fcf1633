//! Human-readable formatting of sizes, numbers, paths and hashes.

use std::path::Path;

use sha2::{Digest, Sha256};

/// A size in bytes, KB or MB.
pub(crate) fn size(bytes: usize) -> String {
    // Rounding is intended: the size is displayed only.
    #[allow(clippy::cast_precision_loss)]
    let shown = bytes as f64;
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} KB", shown / 1e3),
        _ => format!("{:.1} MB", shown / 1e6),
    }
}

/// A path with `/` as separator, on every platform.
pub(crate) fn slashed(path: &Path) -> String {
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("/")
}

/// The digest as lower-case hexadecimal digits.
pub(crate) fn hex(hash: Sha256) -> String {
    let digest = hash.finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The SHA-256 of `bytes` as lower-case hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(Sha256::new().chain_update(bytes))
}

/// `1 file`, or `count` followed by `files`.
pub(crate) fn files(count: usize) -> String {
    counted(count, "file")
}

/// `count` and the noun `one`, with a plural `s` unless `count` is 1.
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
