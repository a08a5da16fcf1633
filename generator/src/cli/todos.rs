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
    error::{Error, Result, nearest},
    project::{
        explain::site_ids,
        todo::{self, Scan, Todo},
    },
    template::Template,
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
    let scan = match todo::scan(&args.path) {
        Err(error) if !args.path.exists() => return Err(no_folder(&args.path, error)?),
        scan => scan?,
    };
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

/// The error for a folder that does not exist; it may be the id of a site.
fn no_folder(path: &Path, error: Error) -> Result<Error> {
    let given = path.to_string_lossy();
    let ids = site_ids(&Template::embedded()?)?;
    let ids = ids.iter().map(|(id, _)| id.as_str());
    Ok(match nearest(&given, ids) {
        None => error,
        Some(id) => Error::input(format!("there is no folder `{given}`")).help(format!(
            "`kiln todos` takes the folder of a project; did you mean `kiln explain {id}`?"
        )),
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
        "{} of {} open in `{}`",
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
