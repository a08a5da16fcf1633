//! Compiling, testing and training of projects, with a build folder shared by all.

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
    process::{Command, Output},
    time::SystemTime,
};

use serde_json::Value;

use crate::{
    error::{Error, Result},
    project::todo::files_of,
};

use super::project::{LOCK_FILE, Project, expect};

/// A file in the build folder that names the project built last; a build locks the file.
const OWNER: &str = "kiln-project";
/// The environment variable with the build folder.
const BUILD_DIR: &str = "KILN_BUILD_DIR";
/// The name of the contract tests.
const CONTRACTS: &str = "contract";
/// The log of a training, with a JSON object per line.
const LOG: &str = "metrics.jsonl";
/// Enough epochs for the loss to fall.
const SHORT: [&str; 2] = ["--epochs", "3"];

impl Project {
    /// Checks that the project [compiles](Self::assert_compiles), passes its [contract
    /// tests](Self::assert_contracts), and [trains](Self::assert_trains).
    ///
    /// # Panics
    /// One of the checks fails.
    #[track_caller]
    pub fn assert_works(&self) {
        self.assert_compiles();
        self.assert_contracts();
        self.assert_trains();
    }

    /// Checks that all targets of the project, including tests and examples, compile without warnings.
    ///
    /// # Panics
    /// A target does not compile or has warnings; the message has the compiler's output.
    #[track_caller]
    pub fn assert_compiles(&self) {
        let warnings = self.build().warnings;
        assert!(
            warnings.is_empty(),
            "the project compiles with warnings:\n{}",
            warnings.join("\n")
        );
    }

    /// Checks that the project's contract tests, in `tests/contract`, pass.
    ///
    /// # Panics
    /// A test fails, or there is none.
    #[track_caller]
    pub fn assert_contracts(&self) {
        let there = ["tests/contract/main.rs", "tests/contract.rs"];
        assert!(
            there.iter().any(|file| self.path.join(file).is_file()),
            "the project has no contract tests: `{}` is missing",
            there[0]
        );
        let printed = self.cargo(&["test", "--test", CONTRACTS]);
        assert!(
            !printed.contains("test result: ok. 0 passed"),
            "the project's contract tests are empty:\n{printed}"
        );
    }

    /// Checks that the loss falls in a short training with the project's defaults.
    ///
    /// # Panics
    /// The training fails, or the loss does not fall.
    #[track_caller]
    pub fn assert_trains(&self) {
        let log = self.train(&SHORT);
        let losses: Vec<_> = log
            .iter()
            .filter(|line| line["split"] == "train")
            .map(|line| line["loss"].as_f64().filter(|loss| loss.is_finite()))
            .collect();
        let falls = match (losses.first(), losses.last()) {
            (Some(Some(first)), Some(Some(last))) => last < first,
            _ => false,
        };
        assert!(
            falls && losses.iter().all(Option::is_some),
            "the loss does not fall in a training with `{}`; `{LOG}` has:\n{}",
            SHORT.join(" "),
            lines(&log)
        );
    }

    /// Trains with these options of the project's program; returns the lines of `metrics.jsonl`.
    ///
    /// # Panics
    /// The training fails or does not write the file; the message has its output.
    #[track_caller]
    pub fn train(&self, options: &[&str]) -> Vec<Value> {
        let program = expect(self.program());
        let runs = tempfile::tempdir_in(self.place.path());
        let runs = expect(runs.map_err(|cause| Error::io("write to", self.place.path(), cause)));
        let output = Command::new(&program)
            .args(options)
            .arg("--output-dir")
            .arg(runs.path())
            .current_dir(&self.path)
            .output();
        let output = expect(output.map_err(|cause| Error::io("run", &program, cause)));
        let said = text(&output);
        assert!(
            output.status.success(),
            "the training with {options:?} fails:\n{said}"
        );
        let log = fs::read_to_string(runs.path().join(LOG)).unwrap_or_else(|cause| {
            panic!("the training wrote no `{LOG}` into its --output-dir ({cause}):\n{said}")
        });
        let parse = |line| {
            let parsed = serde_json::from_str(line);
            parsed.unwrap_or_else(|cause| panic!("`{LOG}` is not JSON ({cause}): {line}"))
        };
        log.lines().map(parse).collect()
    }

    /// Runs cargo in the project, with the shared build folder; returns its output.
    ///
    /// # Panics
    /// Cargo fails; the message has its output.
    #[track_caller]
    pub fn cargo(&self, arguments: &[&str]) -> String {
        let output = expect(self.try_cargo(arguments));
        let said = text(&output);
        assert!(
            output.status.success(),
            "cargo {} fails:\n{}",
            arguments.join(" "),
            without_progress(&said)
        );
        said
    }

    /// Runs cargo in the project; returns its output and exit status.
    ///
    /// # Errors
    /// Cargo cannot be started.
    pub fn try_cargo(&self, arguments: &[&str]) -> Result<Output> {
        let shared = build_folder()?;
        let _alone = self.alone_in(&shared)?;
        self.run_cargo(arguments, &shared)
    }

    /// Locks the build folder and makes this project its owner.
    ///
    /// Cargo identifies projects by name, wherever they lie: it would reuse the build of another
    /// project of this name if that is newer than the files of this one.
    fn alone_in(&self, shared: &Path) -> Result<File> {
        let path = shared.join(OWNER);
        let failed = |cause| Error::io("write", &path, cause);
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut owner = options.open(&path).map_err(failed)?;
        owner.lock().map_err(failed)?;
        let mut last = Vec::new();
        owner.read_to_end(&mut last).map_err(failed)?;
        let this = self.path.as_os_str().as_encoded_bytes();
        if last != this {
            self.touch()?;
            owner.set_len(0).map_err(failed)?;
            owner.rewind().map_err(failed)?;
            owner.write_all(this).map_err(failed)?;
        }
        Ok(owner)
    }

    /// Sets the modification time of all files to now.
    fn touch(&self) -> Result<()> {
        let now = SystemTime::now();
        for (file, _) in files_of(&self.path)? {
            open_attributes(&file)
                .and_then(|opened| opened.set_modified(now))
                .map_err(|cause| Error::io("touch", &file, cause))?;
        }
        Ok(())
    }

    fn run_cargo(&self, arguments: &[&str], shared: &Path) -> Result<Output> {
        let lock = self.path.join(LOCK_FILE);
        let shared_lock = shared.join(LOCK_FILE);
        if !self.locked && !lock.exists() && shared_lock.exists() {
            fs::copy(&shared_lock, &lock)
                .map_err(|cause| Error::io("copy", &shared_lock, cause))?;
        }
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(&cargo)
            .args(arguments)
            .current_dir(&self.path)
            .env("CARGO_TARGET_DIR", shared)
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_TERM_COLOR", "never")
            .output()
            .map_err(|cause| Error::io("run", Path::new(&cargo), cause))?;
        let more = !self.locked && packages(&lock) > packages(&shared_lock);
        if output.status.success() && more {
            share(&lock, &shared_lock).map_err(|cause| Error::io("write", &shared_lock, cause))?;
        }
        Ok(output)
    }

    /// Builds all targets, including Burn with the features of the tests, once for all checks.
    #[track_caller]
    fn build(&self) -> Built {
        let shared = expect(build_folder());
        let _alone = expect(self.alone_in(&shared));
        let arguments = ["build", "--all-targets", "--message-format", "json"];
        let output = expect(self.run_cargo(&arguments, &shared));
        let mut built = Built::default();
        let stdout = String::from_utf8_lossy(&output.stdout);
        for line in stdout.lines() {
            if let Ok(message) = serde_json::from_str(line) {
                built.add(&message);
            }
        }
        assert!(
            output.status.success(),
            "the project does not compile:\n{}{}",
            built.errors.join("\n"),
            without_progress(&String::from_utf8_lossy(&output.stderr))
        );
        for program in built.programs.values_mut() {
            *program = expect(self.keep(program));
        }
        built
    }

    /// Copies a program out of the build folder, where the next project's build replaces it.
    fn keep(&self, program: &Path) -> Result<PathBuf> {
        let kept = self.place.path().join("programs");
        let copy = kept.join(program.file_name().unwrap_or(program.as_os_str()));
        fs::create_dir_all(&kept)
            .and_then(|()| fs::copy(program, &copy))
            .map_err(|cause| Error::io("copy", program, cause))?;
        Ok(copy)
    }

    /// The built program of the project.
    #[track_caller]
    fn program(&self) -> Result<PathBuf> {
        let mut programs = self.build().programs;
        let path = self.path.join("Cargo.toml");
        let text = fs::read_to_string(&path).map_err(|cause| Error::io("read", &path, cause))?;
        let manifest: toml::Table = text.parse().map_err(|error| {
            Error::input(format!("`{}` is not valid TOML: {error}", path.display()))
        })?;
        let of_package = |key| Some(manifest.get("package")?.get(key)?.as_str()?.to_owned());
        let name = of_package("default-run").or_else(|| of_package("name"));
        if let Some(program) = name.and_then(|name| programs.remove(&name)) {
            return Ok(program);
        }
        let names = programs.keys().cloned().collect::<Vec<_>>().join(", ");
        match programs.into_values().collect::<Vec<_>>().as_slice() {
            [program] => Ok(program.clone()),
            [] => Err(Error::input(
                "the project has no binary target to train with",
            )),
            _ => Err(Error::input("the project has several binary targets")
                .help(format!("set `default-run` to one of them: {names}"))),
        }
    }
}

/// The artifacts and messages of a build.
#[derive(Debug, Default)]
struct Built {
    /// Programs by name.
    programs: BTreeMap<String, PathBuf>,
    warnings: Vec<String>,
    errors: Vec<String>,
}

impl Built {
    /// Adds a message of cargo.
    fn add(&mut self, message: &Value) {
        match message["reason"].as_str() {
            Some("compiler-message") => {
                let rendered = message["message"]["rendered"].as_str().unwrap_or_default();
                match message["message"]["level"].as_str() {
                    Some("warning") => self.warnings.push(rendered.to_owned()),
                    _ => self.errors.push(rendered.to_owned()),
                }
            }
            Some("compiler-artifact") => self.add_program(message),
            _ => {}
        }
    }

    fn add_program(&mut self, artifact: &Value) {
        let of_kind = |kind: &str| {
            let kinds = artifact["target"]["kind"].as_array();
            kinds.is_some_and(|kinds| kinds.iter().any(|one| one == kind))
        };
        let (name, program) = (&artifact["target"]["name"], &artifact["executable"]);
        if let (true, Some(name), Some(program)) = (
            of_kind("bin") && artifact["profile"]["test"] == false,
            name.as_str(),
            program.as_str(),
        ) {
            self.programs.insert(name.to_owned(), program.into());
        }
    }
}

/// The build folder: that of the environment variable, or `rendered` in the folder that cargo built
/// this process in.
fn build_folder() -> Result<PathBuf> {
    let folder = match env::var_os(BUILD_DIR) {
        Some(folder) => PathBuf::from(folder),
        None => own_build_folder()
            .ok_or_else(|| {
                Error::input("the build folder is unknown, as cargo does not run this test").help(
                    format!("set the environment variable `{BUILD_DIR}` to a folder"),
                )
            })?
            .join("rendered"),
    };
    fs::create_dir_all(&folder).map_err(|cause| Error::io("create the folder", &folder, cause))?;
    std::path::absolute(&folder).map_err(|cause| Error::io("find the folder", &folder, cause))
}

fn own_build_folder() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    let mut folders = program.ancestors().skip(1);
    // Cargo puts this tag into its build folders.
    let marked = folders.find(|folder| folder.join("CACHEDIR.TAG").is_file());
    let of_tests = || Some(PathBuf::from(env::var_os("CARGO_MANIFEST_DIR")?).join("target"));
    marked.map(Path::to_path_buf).or_else(of_tests)
}

/// Opens a file so that its times can be set, even if it is read-only.
#[cfg(not(windows))]
fn open_attributes(path: &Path) -> io::Result<File> {
    File::open(path)
}

#[cfg(windows)]
fn open_attributes(path: &Path) -> io::Result<File> {
    use std::os::windows::fs::OpenOptionsExt;
    const FILE_WRITE_ATTRIBUTES: u32 = 0x100;
    let mut options = File::options();
    options.access_mode(FILE_WRITE_ATTRIBUTES).open(path)
}

/// The number of packages in a lock file. A project without dependencies must not share its lock file.
fn packages(lock: &Path) -> usize {
    let text = fs::read_to_string(lock).unwrap_or_default();
    text.matches("[[package]]").count()
}

/// Copies a file atomically.
fn share(from: &Path, to: &Path) -> io::Result<()> {
    let folder = to.parent().unwrap_or(to);
    let staged = tempfile::NamedTempFile::new_in(folder)?;
    fs::copy(from, staged.path())?;
    staged.persist(to)?;
    Ok(())
}

/// The output of a program: standard output and standard error.
pub fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

/// Cargo's output without its progress lines, so that errors come first.
pub fn without_progress(text: &str) -> String {
    let progress = ["Compiling", "Checking", "Downloaded", "Downloading"];
    let says_more = |line: &&str| {
        let word = line.split_whitespace().next();
        !progress.iter().any(|&each| Some(each) == word)
    };
    text.lines()
        .filter(says_more)
        .collect::<Vec<_>>()
        .join("\n")
}

fn lines(log: &[Value]) -> String {
    let lines: Vec<_> = log.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
