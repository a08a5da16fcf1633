//! A rendered project on disk, which can be compiled and run.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

pub use kiln::snapshot::text;
use kiln::{
    name::Name,
    project::overlay::render_example,
    snapshot,
    template::{Template, answers::Answers, example::Example},
};
use tempfile::TempDir;

use crate::{
    Entry, NAME, combinations, mpi, read_tree, repository,
    running::{self, BUILD},
    shared_target, template_folder,
    without_llvm::AS_FOR_DOCUMENTATION,
    write,
};

/// The hardware options other than the CPU.
pub const HARDWARE: [&str; 5] = ["cuda", "rocm", "vulkan", "metal", "wgpu"];

/// Features of Burn that some release build of a benchmark needs. All builds enable them, so that
/// Burn is built once.
const SHARED_IN_RELEASE: &str = "burn/remote-server,burn/remote-websocket";

/// Features of Burn required by GPUs and `cpu-layers`; with one less, a check of a GPU compiles Burn again.
const SHARED_IN_CHECKS: &str = "burn/cubecl,burn/extension,burn/fusion,burn/persistence";

/// Settings of cargo that optimise the project's crate as in release, on the dependencies of debug builds.
pub const AS_IN_RELEASE: [&str; 3] = [
    "profile.dev.package.my-model.opt-level=3",
    "profile.dev.package.my-model.debug-assertions=false",
    "profile.dev.package.my-model.overflow-checks=false",
];

/// The programs of `tests/fixtures/examples`, which a project builds beside its own.
pub const EXAMPLES: [&str; 4] = ["early_stop", "hang", "overflow", "weights"];

/// Features of the engine that leave Burn as it is and are off by default, as far as this machine can build
/// them, separated by commas. The engine that projects share has them, so that it is built once.
pub fn shared_features() -> &'static str {
    if mpi::is_installed() {
        "download,image-folder,mlflow,mpi"
    } else {
        "download,image-folder,mlflow"
    }
}

/// A rendered project. Only one exists at a time: concurrent cargo processes would wait for each
/// other's build folder, and some projects share a folder of sources.
pub struct Project {
    path: PathBuf,
    /// `None` if tests share the project.
    folder: Option<TempDir>,
    /// Whether builds are in release, for benchmarks.
    optimised: bool,
    /// Further settings in cargo's configuration.
    settings: Vec<String>,
    /// Further environment variables of builds.
    variables: Vec<(&'static str, &'static str)>,
    _alone: File,
}

impl Project {
    /// Renders the default project, with the shared lock file. All tests that do not
    /// [`edit`](Self::edit) the project share it, so that it is compiled once.
    ///
    /// # Panics
    /// The template cannot be rendered.
    pub fn default_answers() -> Self {
        Self::unchanged("default", Self::to_edit)
    }

    /// Renders the default project in a separate folder.
    ///
    /// # Panics
    /// The template cannot be rendered.
    pub fn to_edit() -> Self {
        Self::with_answers(&[])
    }

    /// The result of `rendered` in the folder `name` of the shared builds. Unchanged files keep
    /// their modification time, from which cargo decides what to compile.
    ///
    /// Cargo identifies packages of a workspace by name, version and folder within it. Each project therefore has a
    /// version of its own, and so has its engine, so that cargo does not reuse another project's build.
    pub(crate) fn unchanged(name: &str, rendered: impl FnOnce() -> Self) -> Self {
        let project = rendered();
        for manifest in [
            "Cargo.toml",
            "engine/Cargo.toml",
            "engine/kernels/Cargo.toml",
        ] {
            let manifest = project.path.join(manifest);
            if manifest.exists() {
                set_build_metadata(&manifest, name);
            }
        }
        let path = shared_target().join("projects").join(name).join(NAME);
        synchronise(&project.path, &path).expect("a folder of sources");
        Self {
            path,
            folder: None,
            ..project
        }
    }

    /// The same project, built in release, for benchmarks.
    pub fn fully_optimised(mut self) -> Self {
        self.optimised = true;
        self
    }

    /// The same project, built with `settings` in cargo's configuration.
    pub fn with_settings<S: Into<String>>(mut self, settings: impl IntoIterator<Item = S>) -> Self {
        self.settings.extend(settings.into_iter().map(S::into));
        self
    }

    /// The same project, built with these environment variables.
    pub(crate) fn with_variables(
        mut self,
        variables: impl IntoIterator<Item = (&'static str, &'static str)>,
    ) -> Self {
        self.variables.extend(variables);
        self
    }

    /// Renders a project with these answers.
    ///
    /// # Panics
    /// The template cannot be rendered, or an answer is invalid.
    pub fn with_answers(answers: &[(&str, &str)]) -> Self {
        Self::with_answers_and_engine(answers).sharing_engine()
    }

    /// Like [`with_answers`](Self::with_answers), with its own engine, to test the engine with these answers.
    ///
    /// # Panics
    /// As for `with_answers`.
    pub fn with_answers_and_engine(answers: &[(&str, &str)]) -> Self {
        let template = Template::embedded().expect("an embedded template");
        let default = combinations(&template, NAME).remove(0).answers;
        let answers = answers.iter().fold(default, |all, (option, value)| {
            all.with(&template, option, value).expect("a valid answer")
        });
        Self::render(&template, &answers, None)
    }

    /// Renders the project of a worked example, which tests share like the [default](Self::default_answers).
    ///
    /// # Panics
    /// The example does not exist or does not fit the template.
    pub fn example(name: &str) -> Self {
        Self::unchanged(name, || Self::example_to_edit(name))
    }

    /// Renders the project of a worked example in a separate folder.
    ///
    /// # Panics
    /// As for [`example`](Self::example).
    pub fn example_to_edit(name: &str) -> Self {
        let template = Template::embedded().expect("an embedded template");
        let example = Example::embedded(&template, name).expect("an example");
        let name = Name::parse(NAME).expect("a valid name");
        let answers = Answers::complete(&template, name, example.values().clone());
        let answers = answers.expect("valid answers");
        Self::render(&template, &answers, Some(&example)).sharing_engine()
    }

    /// Renders a project from the template in a folder, with its defaults.
    ///
    /// # Panics
    /// The template cannot be rendered.
    pub fn of_template(folder: &Path) -> Self {
        Self::with_own_engine(folder).sharing_engine()
    }

    /// Renders the default project with its own engine in its workspace, to test the engine.
    ///
    /// # Panics
    /// The template cannot be rendered.
    pub fn of_engine() -> Self {
        Self::unchanged("engine", || Self::with_own_engine(&template_folder()))
    }

    /// Like [`of_template`](Self::of_template), with the project's own engine, as users build it.
    ///
    /// # Panics
    /// The template cannot be rendered.
    pub fn with_own_engine(folder: &Path) -> Self {
        let template = Template::from_folder(folder).expect("a template");
        let name = Name::parse(NAME).expect("a valid name");
        let answers = Answers::defaults(&template, name).expect("defaults");
        Self::render(&template, &answers, None)
    }

    fn render(template: &Template, answers: &Answers, example: Option<&Example>) -> Self {
        let alone = alone().expect("a lock on the shared builds");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(NAME);
        let rendered = render_example(template, example, answers, &path);
        write(&rendered.expect("a rendered project"), &path).expect("a rendered project");
        let lock = repository().join("tests/fixtures/Cargo.lock");
        fs::copy(lock, path.join("Cargo.lock")).expect("a lock file");
        Project {
            path,
            folder: Some(folder),
            optimised: false,
            settings: Vec::new(),
            variables: Vec::new(),
            _alone: alone,
        }
    }

    /// Uses an engine in a shared folder, which is the same for all projects and, with the same features,
    /// compiled once. The project's own copy is kept but removed from its workspace.
    fn sharing_engine(self) -> Self {
        let shared = shared_target().join("engine");
        synchronise(&self.path.join("engine"), &shared).expect("a shared engine");
        let path = format!("path = {:?}", shared.to_str().expect("a path in UTF-8"));
        self.with_manifest(|manifest| {
            // Not among the project's own features, which tests of `kiln add` change.
            let manifest = with_engine_features(manifest, shared_features());
            let manifest = replaced(&manifest, "path = \"engine\"", &path);
            replaced(
                &manifest,
                "members = [\"engine\"]",
                "exclude = [\"engine\"]",
            )
        })
    }

    /// The same project, whose engine always has these features, separated by commas.
    pub(crate) fn with_engine_features(self, features: &str) -> Self {
        self.with_manifest(|manifest| with_engine_features(manifest, features))
    }

    /// The same project with the manifest that `edit` makes of its own.
    fn with_manifest(self, edit: impl FnOnce(&str) -> String) -> Self {
        let path = self.path.join("Cargo.toml");
        let manifest = fs::read_to_string(&path).expect("a manifest");
        fs::write(&path, edit(&manifest)).expect("a manifest");
        self
    }

    /// The project's folder.
    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Checks that the project is formatted and compiles without warnings.
    ///
    /// # Panics
    /// The project is not formatted or has warnings.
    pub fn is_clean(&self) {
        self.cargo(&["fmt", "--check"]);
        let denied = ["--", "-D", "warnings"];
        self.check(&["clippy", "--all-targets"], "", &denied);
    }

    /// Compiles without linking. Burn is compiled with the features of all [`HARDWARE`] and all
    /// other features of the project, whichever this project has, so that it is compiled once for
    /// all checks.
    ///
    /// # Panics
    /// As for [`cargo`](Self::cargo).
    pub fn check(&self, command: &[&str], features: &str, rest: &[&str]) {
        let burn = HARDWARE.map(|kind| format!("burn/{kind}")).join(",");
        let features = format!("{features},{burn},{SHARED_IN_CHECKS}");
        let arguments = [command, &["--features", &features], rest].concat();
        // A dependency of Burn would download LLVM to link with.
        self.cargo_with(&arguments, &[AS_FOR_DOCUMENTATION]);
    }

    /// Builds the project; returns the path of a copy of its program, which is kept when another project is built.
    ///
    /// # Panics
    /// The build fails.
    pub fn build(&self) -> PathBuf {
        self.build_with(&[]).join("program")
    }

    /// Builds the project and these [examples](EXAMPLES); returns the folder with the copies: `program`, and each
    /// example by its name.
    ///
    /// # Panics
    /// The build fails.
    pub fn build_with(&self, examples: &[&str]) -> PathBuf {
        let programs = self.path().join("programs");
        self.build_into(&programs, examples);
        programs
    }

    /// Like [`build_with`](Self::build_with), with the copies in the folder `programs`.
    ///
    /// # Panics
    /// The build or a copy fails.
    pub(crate) fn build_into(&self, programs: &Path, examples: &[&str]) {
        let folder = self.path().join("examples");
        let mut build = vec!["build", "--bins"];
        build.extend(self.optimised.then_some("--release"));
        for name in examples {
            fs::create_dir_all(&folder).expect("a folder");
            let file = format!("{name}.rs");
            let fixture = repository().join("tests/fixtures/examples").join(&file);
            copy_with_time(&fixture, &folder.join(&file)).expect("an example");
            build.extend(["--example", name]);
        }
        self.cargo(&build);
        let built = self.build_folder();
        fs::create_dir_all(programs).expect("a folder");
        fs::copy(built.join(NAME), programs.join("program")).expect("a program");
        for name in examples {
            let example = built.join("examples").join(name);
            fs::copy(example, programs.join(name)).expect("an example");
        }
    }

    /// Cargo's folder for the builds of this project.
    fn build_folder(&self) -> PathBuf {
        let profile = if self.optimised { "release" } else { "debug" };
        shared_target().join(profile)
    }

    /// Environment variables with which programs that run cargo in the project build as tests do. No build is
    /// incremental: cargo would build the shared engine once more for those that are.
    pub fn build_environment(&self) -> Vec<(&'static str, OsString)> {
        let mut variables = vec![
            ("CARGO_TARGET_DIR", shared_target().into()),
            ("CARGO_INCREMENTAL", "0".into()),
            ("CARGO_PROFILE_DEV_DEBUG", "0".into()),
        ];
        let further = self.variables.iter().copied();
        variables.extend(further.map(|(name, value)| (name, value.into())));
        variables
    }

    /// Runs cargo in the project; returns its output.
    ///
    /// # Panics
    /// Cargo fails or prints a warning.
    pub fn cargo(&self, arguments: &[&str]) -> String {
        self.cargo_with(arguments, &[])
    }

    /// Like [`cargo`](Self::cargo), with environment variables.
    ///
    /// # Panics
    /// As for `cargo`.
    pub fn cargo_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let output = self.try_cargo_with(arguments, variables);
        let text = text(&output);
        assert!(
            output.status.success(),
            "cargo {arguments:?} failed:\n{}",
            snapshot::without_progress(&text)
        );
        // The standard error of tests follows the compiler's output.
        let of_compiler = match arguments.first() {
            Some(&"test") => text.split("     Running ").next(),
            _ => Some(&*text),
        };
        assert!(
            !of_compiler.is_some_and(|text| text.contains("warning:")),
            "cargo {arguments:?} warns:\n{text}"
        );
        text
    }

    /// Replaces `from`, which must exist, by `to` in a source file.
    ///
    /// # Panics
    /// The file cannot be edited, or tests share the project.
    pub fn edit(&self, file: &str, from: &str, to: &str) {
        assert!(self.folder.is_some(), "other tests have this project, too");
        replace_in(&self.path.join("src").join(file), from, to);
    }

    /// Gives up the lock on the shared builds, so that other tests build beside the programs of this project; returns
    /// the folder that it lies in.
    ///
    /// # Panics
    /// Tests share the project.
    pub fn unlock(self) -> TempDir {
        self.folder.expect("a folder of its own")
    }

    /// Builds the project and these [examples](EXAMPLES) into `programs` of a folder, as
    /// [`build_with`](Self::build_with), beside a copy of `data`, and gives up the lock on the shared builds, so that
    /// other tests build beside the programs.
    ///
    /// # Panics
    /// The build or a copy fails.
    pub fn apart(self, examples: &[&str]) -> TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        self.build_into(&folder.path().join("programs"), examples);
        synchronise(&self.path().join("data"), &folder.path().join("data")).expect("a copy");
        folder
    }

    /// Runs cargo in the project.
    ///
    /// # Panics
    /// Cargo cannot be started.
    pub fn try_cargo(&self, arguments: &[&str]) -> Output {
        self.try_cargo_with(arguments, &[])
    }

    fn try_cargo_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut arguments = arguments.to_vec();
        if arguments.contains(&"--release") {
            arguments.splice(1..1, ["--features", SHARED_IN_RELEASE]);
        }
        let settings = self.settings.iter();
        let settings = settings.flat_map(|setting| ["--config", setting.as_str()]);
        arguments.splice(1..1, settings);
        let start = Instant::now();
        let mut cargo = Command::new("cargo");
        cargo
            .args(&arguments)
            .current_dir(self.path())
            .envs(self.build_environment())
            .envs(variables.iter().copied());
        let output = running::output(&mut cargo, BUILD);
        note_time(start.elapsed(), &arguments, &text(&output));
        output
    }
}

/// Logs the time of a cargo command and what it compiled to `times.log` of the shared builds, to find slow
/// tests, and builds of the engine and of Burn that are not shared.
fn note_time(elapsed: Duration, arguments: &[&str], printed: &str) {
    let log = shared_target().join("times.log");
    let log = File::options().append(true).create(true).open(log);
    let compiled = compiled(printed);
    let command = arguments.join(" ");
    let line = format!("{:4} s: cargo {command}{compiled}\n", elapsed.as_secs());
    let written = log.and_then(|mut log| log.write_all(line.as_bytes()));
    written.expect("a log");
}

/// Number of crates that cargo compiled, and those that take long.
fn compiled(printed: &str) -> String {
    let mut crates = Vec::new();
    for line in printed.lines().map(str::trim_start) {
        let name = line.strip_prefix("Compiling ");
        let name = name.or_else(|| line.strip_prefix("Checking "));
        crates.extend(name.and_then(|rest| rest.split(' ').next()));
    }
    let slow = ["burn-flex", "cubecl-core", "iroh", "kiln-engine"];
    let slow = slow.into_iter().filter(|name| crates.contains(name));
    let slow: Vec<&str> = slow.collect();
    format!(" [{} crates compiled: {}]", crates.len(), slow.join(" "))
}

/// Waits for the lock that allows only one project at a time.
fn alone() -> io::Result<File> {
    fs::create_dir_all(shared_target())?;
    let file = File::create(shared_target().join("tests.lock"))?;
    file.lock()?;
    Ok(file)
}

/// Makes `to` equal to `from`, without touching unchanged files.
fn synchronise(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    // Trainings of other tests leave links, which must not be followed.
    match fs::remove_dir_all(to.join("runs")) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let wanted = read_tree(from)?;
    let there = read_tree(to)?;
    // A folder is listed before its contents.
    for (path, entry) in there.iter().rev() {
        match entry {
            _ if wanted.contains_key(path) => {}
            Entry::Folder => fs::remove_dir(to.join(path))?,
            _ => fs::remove_file(to.join(path))?,
        }
    }
    for (path, entry) in &wanted {
        match entry {
            _ if there.get(path) == Some(entry) => {}
            Entry::Folder => fs::create_dir_all(to.join(path))?,
            _ => fs::copy(from.join(path), to.join(path)).map(drop)?,
        }
    }
    Ok(())
}

/// Copies a file with its modification time.
fn copy_with_time(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to)?;
    let time = fs::metadata(from)?.modified()?;
    File::options().write(true).open(to)?.set_modified(time)
}

/// Adds `+metadata` to the version of the package of a manifest.
fn set_build_metadata(manifest: &Path, metadata: &str) {
    let text = fs::read_to_string(manifest).expect("a manifest");
    let mut lines = text.lines();
    let version = lines.find(|line| line.starts_with("version = "));
    let version = version.expect("a version").trim_end_matches('"');
    replace_in(manifest, version, &format!("{version}+{metadata}"));
}

/// Replaces the first `from` in a file by `to`.
///
/// # Panics
/// `from` is missing, or the file cannot be written.
pub fn replace_in(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).expect("a text");
    assert!(text.contains(from), "{} has no `{from}`", file.display());
    fs::write(file, text.replacen(from, to, 1)).expect("a text");
}

/// `text` with `to` in place of `from`, which must be there.
fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "there is no `{from}` in:\n{text}");
    text.replacen(from, to, 1)
}

/// A project's manifest, whose engine always has these features, separated by commas.
fn with_engine_features(manifest: &str, features: &str) -> String {
    let mut lines = manifest.lines();
    let dependency = lines.find(|line| line.starts_with("kiln-engine = {"));
    let dependency = dependency.expect("the engine");
    let features = format!(", features = [\"{}\"] }}", features.replace(',', "\", \""));
    replaced(manifest, dependency, &replaced(dependency, " }", &features))
}
