//! `kiln todos`: the open TODO sites of a project.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use super::output::{Format, print};
use crate::{
    display::counted,
    error::{Error, Result},
    project::todo::{self, Scan, Todo},
};

/// The exit status of `--deny` if a site is open.
const LEFT: u8 = 1;

/// Arguments of `kiln todos`.
#[derive(Debug, Args)]
pub struct TodosArgs {
    /// Folder of the project.
    #[arg(default_value = ".", value_parser = super::folder::PathParser)]
    pub path: PathBuf,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Exit with status 1 if a site is open.
    #[arg(long)]
    pub deny: bool,
}

/// Runs `kiln todos`.
///
/// # Errors
/// The folder has no project, or a file cannot be read.
pub(crate) fn run(args: &TodosArgs) -> Result<ExitCode> {
    let scan = todo::scan(&args.path)?;
    match args.format {
        Format::Text => print(&text(&scan, &args.path))?,
        Format::Json => print(&(json(&scan)? + "\n"))?,
    }
    Ok(if args.deny && !scan.is_done() {
        ExitCode::from(LEFT)
    } else {
        ExitCode::SUCCESS
    })
}

fn json(scan: &Scan) -> Result<String> {
    serde_json::to_string_pretty(scan)
        .map_err(|error| Error::system(format!("cannot write JSON: {error}")))
}

fn text(scan: &Scan, path: &Path) -> String {
    let mut text = String::new();
    for todo in &scan.todos {
        write_todo(&mut text, todo);
        text.push('\n');
    }
    for warning in &scan.warnings {
        let _ = writeln!(
            text,
            "warning: {}:{}: {}",
            warning.file, warning.line, warning.message
        );
    }
    let sites = scan.todos.iter().filter(|todo| !todo.custom);
    let left: std::collections::BTreeSet<_> = sites.map(|todo| &todo.id).collect();
    let custom = scan.todos.iter().filter(|todo| todo.custom).count();
    let _ = write!(
        text,
        "{} of {} open in {}",
        left.len(),
        counted(scan.sites, "site"),
        path.display()
    );
    if custom > 0 {
        let _ = write!(text, ", and {custom} that the template does not define");
    }
    text.push_str(".\n");
    text
}

fn write_todo(text: &mut String, todo: &Todo) {
    let own = if todo.custom {
        "  (not in the template)"
    } else {
        ""
    };
    let _ = writeln!(text, "{}  {}:{}{own}", todo.id, todo.file, todo.line);
    if !todo.what.is_empty() {
        let _ = writeln!(text, "  {}", todo.what);
    }
    if let Some(now) = &todo.now {
        let _ = writeln!(text, "  Now: {now}");
    }
    for (title, note) in &todo.notes {
        let _ = writeln!(text, "  {title}: {note}");
    }
    if !todo.tests.is_empty() {
        let _ = writeln!(text, "  Guarded by: {}", todo.tests.join(", "));
    }
}
