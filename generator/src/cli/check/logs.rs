//! Log files of child processes, and the line of a log that explains a failure.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use crate::{
    cli::{
        llvm::{self, Llvm},
        process::Running,
    },
    error::{Error, Result},
};

/// Creates the folder of the logs and removes old logs.
///
/// # Errors
/// A folder cannot be created or read, or a file cannot be removed.
pub(super) fn prepare(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|cause| Error::io("create the folder", folder, cause))?;
    let entries =
        fs::read_dir(folder).map_err(|cause| Error::io("read the folder", folder, cause))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_some_and(|ending| ending == "log") {
            fs::remove_file(&path).map_err(|cause| Error::io("remove", &path, cause))?;
        }
    }
    Ok(())
}

/// The text of a file, with invalid UTF-8 replaced.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read(path: &Path) -> Result<String> {
    let bytes = fs::read(path).map_err(|cause| Error::io("read", path, cause))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The log file of a check.
pub(super) struct Log(PathBuf);

impl Log {
    pub(super) fn new(folder: &Path, check: &str) -> Self {
        Self(folder.join(format!("{}.log", check.replace(' ', "-"))))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Starts a program whose output goes to the log.
    ///
    /// # Errors
    /// The program cannot be started, or the log cannot be written.
    pub(super) fn start(&self, command: Command, limit: Option<Duration>) -> Result<Running> {
        let output = self.open(&command)?;
        self.spawn(command, output, limit)
    }

    /// Like [`start`](Self::start), with standard output in a separate file.
    ///
    /// # Errors
    /// As for `start`.
    pub(super) fn start_with(
        &self,
        command: Command,
        output: &Path,
        limit: Option<Duration>,
    ) -> Result<Running> {
        let file = File::create(output).map_err(|cause| Error::io("write", output, cause))?;
        self.spawn(command, file, limit)
    }

    fn spawn(
        &self,
        mut command: Command,
        output: File,
        limit: Option<Duration>,
    ) -> Result<Running> {
        let errors = self.open(&command)?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let program = command.get_program().to_string_lossy().into_owned();
        Running::start(command, limit).map_err(|cause| {
            Error::system(format!("cannot run `{program}`: {cause}"))
                .help("`kiln doctor` lists the requirements of a project")
        })
    }

    /// Opens the log for appending, and writes the command line if it is new.
    fn open(&self, command: &Command) -> Result<File> {
        let line = command_line(command);
        self.append(&line)
            .map_err(|cause| Error::io("write", &self.0, cause))
    }

    fn append(&self, line: &str) -> io::Result<File> {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0)?;
        let text = fs::read(&self.0)?;
        if !text.ends_with(line.as_bytes()) {
            file.write_all(line.as_bytes())?;
        }
        Ok(file)
    }
}

fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    format!("$ {}\n", words.join(" "))
}

/// The first error of a compiler, with its location. Where a build script cannot fetch LLVM, or the linker
/// misses a library, with what to do.
pub(super) fn of_build(text: &str) -> Option<String> {
    if let Some(failure) = llvm::failure(text) {
        return Some(format!("{failure}; {}", Llvm::here().hint()));
    }
    let mut lines = text.lines();
    let error = lines.find(|line| line.starts_with("error"))?;
    if let Some(library) = missing_library(text) {
        return Some(format!(
            "{error}: {library}; install it, or the package with its headers: `kiln doctor` lists what is missing"
        ));
    }
    let place = lines
        .take_while(|line| !line.trim().is_empty())
        .find_map(|line| line.trim_start().strip_prefix("--> "));
    Some(match place {
        Some(place) => format!("{error} ({place})"),
        None => error.to_owned(),
    })
}

/// The linker's line on a library that it does not find, as of GNU ld, LLVM's and Apple's.
fn missing_library(text: &str) -> Option<&str> {
    const MESSAGES: [&str; 3] = [
        "cannot find -l",
        "unable to find library -l",
        "library not found for -l",
    ];
    text.lines().find_map(|line| {
        let start = MESSAGES.iter().find_map(|message| line.find(message))?;
        Some(line[start..].trim_end())
    })
}

/// The number of failed tests, and the name and message of the first.
pub(super) fn of_tests(text: &str) -> Option<String> {
    let failed: Vec<&str> = text.lines().filter_map(failed_test).collect();
    let Some(first) = failed.first() else {
        return of_build(text);
    };
    let said = said_by(first, text).unwrap_or("it failed without a message");
    let count = match failed.len() {
        1 => String::new(),
        count => format!("{count} tests failed, the first: "),
    };
    Some(format!("{count}{first}: {said}"))
}

fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// The panic message of a test.
fn said_by<'t>(test: &str, text: &'t str) -> Option<&'t str> {
    let heading = format!("---- {test} stdout ----");
    let mut lines = text.lines().skip_while(|line| *line != heading).skip(1);
    let mut section = lines.by_ref().take_while(|line| !line.starts_with("---- "));
    section.find(|line| line.contains(" panicked at "))?;
    section.next()
}

/// The last line in which a program explains its failure.
pub(super) fn of_program(text: &str) -> Option<String> {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let error = lines.iter().rev().find(|line| line.starts_with("error: "));
    let panic = || {
        let at = lines
            .iter()
            .rposition(|line| line.contains(" panicked at "))?;
        lines.get(at + 1).or(lines.get(at))
    };
    let last = || lines.last().filter(|line| !line.starts_with("$ "));
    error.or_else(panic).or_else(last).map(ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_of_a_build_comes_with_its_place() {
        let text = "$ cargo\n   Compiling a v0.1.0\nwarning: unused\n --> src/a.rs:1:1\n\n\
                    error[E0425]: cannot find `x`\n   --> src/loss.rs:40:5\n    |\n\nerror: could not compile\n";
        assert_eq!(
            of_build(text).unwrap(),
            "error[E0425]: cannot find `x` (src/loss.rs:40:5)"
        );
        let text = "error: no test target named `contract`\n\n  --> elsewhere\n";
        assert_eq!(
            of_build(text).unwrap(),
            "error: no test target named `contract`"
        );
        assert_eq!(of_build("warning: x\n"), None);
    }

    /// As Cargo prints it where the network cannot be reached.
    #[test]
    fn a_build_script_that_fetches_llvm_comes_with_what_to_do() {
        let text = "$ cargo test\n   Compiling tracel-llvm-bundler v23.1.0-4\n\
                    error: failed to run custom build command for `tracel-llvm-bundler v23.1.0-4`\n\n\
                    Caused by:\n  process didn't exit successfully: `/t/build-script-build` (exit status: \
                    101)\n  --- stderr\n\n  thread 'main' (1) panicked at /c/build.rs:66:37:\n  called \
                    `Result::unwrap()` on an `Err` value: Timeout(Connect)\n";
        let error = of_build(text).unwrap();
        assert!(
            error.starts_with("error: failed to run custom build command"),
            "{error}"
        );
        assert!(error.contains("Timeout(Connect); a build with"), "{error}");
        assert!(error.contains("as `kiln doctor` tells"), "{error}");
        let other = text.replace("tracel-llvm-bundler", "other-sys");
        assert!(!of_build(&other).unwrap().contains("LLVM"));
    }

    #[test]
    fn a_library_that_the_linker_misses_is_named() {
        let text = "error: linking with `cc` failed: exit status: 1\n  |\n  = note:  \"cc\" \"-lstdc++\"\n  \
                    = note: /usr/bin/ld: cannot find -lstdc++: No such file or directory\n          \
                    collect2: error: ld returned 1 exit status\n\nerror: could not compile\n";
        let error = of_build(text).unwrap();
        assert!(
            error.starts_with(
                "error: linking with `cc` failed: exit status: 1: cannot find -lstdc++: No such file or \
                 directory; install it"
            ),
            "{error}"
        );
        let lld = text.replace(
            "cannot find -lstdc++: No such",
            "unable to find library -lz; no",
        );
        assert!(
            of_build(&lld)
                .unwrap()
                .contains("unable to find library -lz")
        );
    }

    #[test]
    fn a_failed_test_comes_with_what_it_said() {
        let text = "test a::b ... FAILED\ntest a::c ... ok\ntest a::d ... FAILED\n\n\
                    ---- a::b stdout ----\n\nthread 'a::b' (7) panicked at tests/a.rs:1:2:\n\
                    TODO(loss.compute): the parts differ\nnote: run with\n\n---- a::d stdout ----\n";
        assert_eq!(
            of_tests(text).unwrap(),
            "2 tests failed, the first: a::b: TODO(loss.compute): the parts differ"
        );
        let text = "test a ... FAILED\n\n---- a stdout ----\nError: no\n\n---- b stdout ----\n\
                    thread 'b' panicked at x:\nother\n";
        assert_eq!(of_tests(text).unwrap(), "a: it failed without a message");
    }

    #[test]
    fn a_program_is_quoted_with_its_last_error() {
        let text = "$ program\nepoch 1\nerror: first\nerror: the second\nbye\n\n";
        assert_eq!(of_program(text).unwrap(), "error: the second");
        let text =
            "epoch 1\nthread 'main' (1) panicked at src/main.rs:2:1:\nout of range\nnote: x\n";
        assert_eq!(of_program(text).unwrap(), "out of range");
        assert_eq!(of_program("epoch 1\n\n").unwrap(), "epoch 1");
        assert_eq!(of_program("$ program\n"), None);
    }
}
