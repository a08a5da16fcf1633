//! `kiln examples`: the worked examples.

use std::process::ExitCode;

use crate::{
    error::Result,
    example::{self, Example},
    template::Template,
};

/// Runs `kiln examples`.
///
/// # Errors
/// An example is wrong.
pub(crate) fn run() -> Result<ExitCode> {
    let template = Template::embedded()?;
    let width = example::names()
        .into_iter()
        .map(str::len)
        .max()
        .unwrap_or(0);
    for name in example::names() {
        let description = Example::embedded(&template, name)?.description();
        println!("{name:width$}  {description}");
    }
    println!("\nMake one with `kiln new NAME --example EXAMPLE`.");
    Ok(ExitCode::SUCCESS)
}
