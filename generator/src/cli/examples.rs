//! `kiln examples`: the list of worked examples.

use std::{fmt::Write as _, process::ExitCode};

use super::output::print;
use crate::{
    error::Result,
    template::{
        Template,
        example::{self, Example},
    },
};

/// Runs `kiln examples`.
///
/// # Errors
/// An example is invalid.
pub(crate) fn run() -> Result<ExitCode> {
    let template = Template::embedded()?;
    let width = example::names()
        .into_iter()
        .map(str::len)
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for name in example::names() {
        let description = Example::embedded(&template, name)?.description();
        let _ = writeln!(text, "{name:width$}  {description}");
    }
    text.push_str("\nMake one with `kiln new NAME --example EXAMPLE`.\n");
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
