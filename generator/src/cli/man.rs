//! `kiln man`: manual pages.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Command};
use clap_mangen::{
    Man,
    roff::{Roff, roman},
};

use super::output::print;
use crate::error::{Error, Result};

/// Arguments of `kiln man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Folder to write kiln.1 and one page per subcommand to [default: print kiln.1].
    pub folder: Option<PathBuf>,
}

/// Runs `kiln man` for a command line.
///
/// # Errors
/// The folder or standard output cannot be written.
pub(crate) fn run(args: &ManArgs, command: Command) -> Result<ExitCode> {
    let pages = pages(command)?;
    match &args.folder {
        Some(folder) => write(folder, &pages)?,
        None => print(&String::from_utf8_lossy(&pages[0].1))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn write(folder: &Path, pages: &[(String, Vec<u8>)]) -> Result<()> {
    fs::create_dir_all(folder).map_err(|cause| Error::io("create the folder", folder, cause))?;
    for (name, page) in pages {
        let path = folder.join(name);
        fs::write(&path, page).map_err(|cause| Error::io("write", &path, cause))?;
    }
    let (count, folder) = (pages.len(), folder.display());
    print(&format!("Wrote {count} manual pages to {folder}.\n"))
}

/// All pages with their file names, the main page first.
fn pages(command: Command) -> Result<Vec<(String, Vec<u8>)>> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    // Exit statuses are the same for all subcommands; only the main page lists them.
    let statuses = command.get_after_help().map(ToString::to_string);
    let statuses = statuses.unwrap_or_default();
    let subcommands = command.get_subcommands().filter(|one| !one.is_hide_set());
    let all = std::iter::once(&command).chain(subcommands);
    all.map(|command| {
        let source = concat!("kiln ", env!("CARGO_PKG_VERSION"));
        let man = Man::new(command.clone()).source(source).manual("Kiln");
        let page = page(&man, command, &statuses)
            .map_err(|cause| Error::system(format!("cannot write a manual page: {cause}")))?;
        Ok((man.get_filename(), page))
    })
    .collect()
}

fn page(man: &Man, command: &Command, statuses: &str) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    } else if let Some(notes) = command.get_after_help() {
        block("NOTES", &notes.to_string(), &mut page)?;
    }
    exit_status(statuses).to_writer(&mut page)?;
    Ok(page)
}

/// The exit statuses from the end of `kiln help`, as a section.
fn exit_status(statuses: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for line in statuses.lines().skip(1) {
        let line = line.trim();
        match line.split_once(' ') {
            Some((status, meaning)) if status.parse::<u8>().is_ok() => {
                roff.control("TP", []);
                roff.text([roman(status)]);
                roff.text([roman(meaning.trim())]);
            }
            _ => {
                roff.control("PP", []);
                roff.text([roman(line)]);
            }
        }
    }
    roff
}

/// A section of preformatted text.
fn block(title: &str, text: &str, page: &mut Vec<u8>) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    roff.control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.to_writer(page)
}
