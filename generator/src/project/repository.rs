//! Git: whether a new project gets a repository, and what git says.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use super::{
    git::{git_command, git_for},
    place::resolved,
    writing::{WriteOptions, Written, parent},
};
use crate::{
    error::{Error, Result},
    template::Vcs,
};

/// Answer of a git command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Git {
    /// Its output.
    Output(String),
    /// The folder lies in no repository, or git cannot be run.
    NoRepository,
    /// Git refuses the repository that the folder lies in, with this message.
    Refused(String),
}

impl Git {
    /// The output, or else what there is instead.
    pub fn output(self) -> std::result::Result<String, Self> {
        match self {
            Git::Output(text) => Ok(text),
            other => Err(other),
        }
    }
}

/// The output of git for files in a folder.
pub(crate) fn ask_git(folder: &Path, args: &[&str], files: &[&Path]) -> Git {
    let mut git = git_for(folder, args, files);
    match git.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => {
            Git::Output(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        // Git's words depend on the language, so the repository is looked for.
        Ok(output) => match repository_of(folder) {
            Ok(Some(_)) => Git::Refused(in_words(&output.stderr)),
            _ => Git::NoRepository,
        },
        Err(_) => Git::NoRepository,
    }
}

/// Git's error message on one line, in sentences, with the commands that it suggests in backticks.
pub(super) fn in_words(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut said = String::new();
    for line in text.lines() {
        let bare = line.trim();
        let bare = bare.strip_prefix("fatal: ").unwrap_or(bare);
        if bare.is_empty() {
            continue;
        }
        if !said.is_empty() {
            let ends = said.ends_with(['.', ':', ',', ';', '!', '?']);
            let begins = bare.starts_with(char::is_uppercase);
            said.push_str(if begins && !ends { ". " } else { " " });
        }
        let is_command = line.starts_with('\t') && said.ends_with(": ");
        let quote = if is_command { "`" } else { "" };
        said.extend([quote, bare, quote]);
    }
    said
}

/// The folder of the repository that `folder` lies in.
fn repository_of(folder: &Path) -> Result<Option<PathBuf>> {
    let folder = resolved(folder)?;
    let mut folders = folder.ancestors();
    let found = folders.find(|folder| folder.join(".git").exists());
    Ok(found.map(Path::to_path_buf))
}

/// Whether a project gets a repository of its own: not in a folder that has one, and inside another
/// only if that ignores the folder or the user asks for it. Notes say why.
pub(super) fn wants_repository(
    destination: &Path,
    options: WriteOptions,
    written: &mut Written,
) -> Result<bool> {
    if options.vcs != Vcs::Git || destination.join(".git").exists() {
        return Ok(false);
    }
    let Some(outer) = repository_of(parent(&resolved(destination)?))? else {
        return Ok(true);
    };
    if options.require_vcs {
        written.notes.push(format!(
            "the repository lies inside that of `{}`: ignore its folder there, or make it a submodule",
            outer.display()
        ));
        return Ok(true);
    }
    match is_ignored(destination)? {
        Ok(false) => Ok(false),
        Ok(true) => {
            written.notes.push(format!(
                "the repository lies inside that of `{}`, which ignores its folder",
                outer.display()
            ));
            Ok(true)
        }
        Err(said) => {
            written.warnings.push(format!(
                "git cannot use the repository of `{}`, so the project is under no version control: {said}",
                outer.display()
            ));
            Ok(false)
        }
    }
}

/// True if the repository around a folder ignores it; the error is git's message.
fn is_ignored(destination: &Path) -> Result<std::result::Result<bool, String>> {
    let folder = resolved(destination)?;
    let there = folder.ancestors().skip(1).find(|folder| folder.is_dir());
    let mut git = git_command();
    // Of a folder that does not exist, git does not know that it is one; of one above a file, it does.
    git.args(["check-ignore", "--quiet", "--"])
        .arg(folder.join("any-file"));
    git.current_dir(there.unwrap_or(Path::new(".")))
        .stdin(Stdio::null());
    Ok(match git.output() {
        Ok(output) => match output.status.code() {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            _ => Err(in_words(&output.stderr)),
        },
        // Without git, nothing is ignored.
        Err(_) => Ok(false),
    })
}

/// Creates a repository in the folder of a project.
pub(super) fn make_repository(project: &Path, required: bool, written: &mut Written) -> Result<()> {
    let mut git = git_command();
    let output = git
        .args(["init", "--quiet"])
        .current_dir(project)
        .stdin(Stdio::null())
        .output();
    let problem = match output {
        Ok(output) if output.status.success() => {
            written.repository = true;
            return Ok(());
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(cause) => cause.to_string(),
    };
    let message = format!("`git init` failed: {problem}");
    if required {
        return Err(Error::system(message).help("use `--vcs none`; nothing was written"));
    }
    written.notes.clear();
    written.warnings.push(format!(
        "{message}; the project is under no version control"
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_git_suggests_can_be_copied() {
        let said =
            b"fatal: detected dubious ownership in repository at '/a b'\nTo add an exception \
            for this directory, call:\n\n\tgit config --global --add safe.directory '/a b'\n";
        assert_eq!(
            in_words(said),
            "detected dubious ownership in repository at '/a b'. To add an exception for this \
             directory, call: `git config --global --add safe.directory '/a b'`"
        );
        assert_eq!(
            in_words(b"fatal: not a repository: /x\n"),
            "not a repository: /x"
        );
    }
}
