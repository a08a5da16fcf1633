//! Next steps that reports propose.

/// The command that tests a project, with its comment from `column`. A team's template may have no
/// contract tests, or not be of Rust, given by `has` for the path of a file.
pub(super) fn test_step(has: impl Fn(&str) -> bool, column: usize) -> Option<String> {
    has("Cargo.toml").then(|| match has("tests/contract/main.rs") {
        true => format!("{:column$}# the contract tests", "cargo test"),
        false => "cargo test".to_owned(),
    })
}
