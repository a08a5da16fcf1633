//! `kiln new`: makes a project.

use std::{
    env,
    ffi::OsStr,
    fmt::Write as _,
    io,
    path::{Path, PathBuf},
    process::{Command, ExitCode, ExitStatus},
};

use super::{
    folder,
    plain::Plain,
    prompt,
    summary::{self, quote},
    wizard::{self, Ask, Question},
};
use crate::{
    cli::{NewArgs, VcsArg},
    error::{Error, Result},
    example::{Example, render_example},
    name::Name,
    option::{Answers, TemplateOption, Value, Values},
    project::{self, Vcs, WriteOptions, Written},
    render::Rendered,
    template::Template,
    terminal,
    todo::SITES_FILE,
    transaction, tree, values,
};

/// What the question for the name is called. No option can be called so, as it is built in.
const NAME: &str = "project-name";
/// The name that is proposed where nothing else proposes one.
const PROPOSED: &str = "my-model";

/// Runs `kiln new`.
///
/// # Errors
/// The name, an option or the folder is wrong, or the file system, git or cargo fails.
pub(crate) fn run(args: &NewArgs) -> Result<ExitCode> {
    let name = args.name.as_deref().map(Name::parse).transpose()?;
    let template = folder::template(args.template.as_deref())?;
    let example = args.example.as_deref();
    let example = example
        .map(|name| Example::embedded(&template, name))
        .transpose()?;
    let order = Order {
        args,
        template: &template,
        example: example.as_ref(),
        given: values::read(&template, args.values.as_deref(), &args.define)?,
    };
    order.check(name.as_ref())?;
    let asks = !args.yes && !args.dry_run && terminal::is_interactive();
    let answers = match name {
        name if asks => ask(&order, name)?.ok_or_else(Error::cancelled)?,
        Some(name) => order.answers(name, Values::new())?,
        None => return Err(no_name()),
    };
    if args.dry_run {
        super::print(&summary::dry_run(&order, &answers)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    make(&order, &answers)
}

/// What somebody orders, before the questions.
pub(super) struct Order<'o> {
    pub args: &'o NewArgs,
    pub template: &'o Template,
    pub example: Option<&'o Example>,
    /// The options that the command line and the values file set.
    pub given: Values,
}

impl Order<'_> {
    /// Refuses, before anything is asked, what cannot be made.
    fn check(&self, name: Option<&Name>) -> Result<()> {
        if let Some(example) = self.example
            && example.is_template()
        {
            refuse_answers(example, &self.given, self.args.train)?;
        }
        match (&self.args.path, name) {
            (Some(path), _) => self.settle(path),
            (None, Some(name)) => self.settle(&self.folder(name)),
            (None, None) => Ok(()),
        }
    }

    /// Undoes what a killed process left half done in the folder that will be written, and checks it.
    fn settle(&self, folder: &Path) -> Result<()> {
        self.check_folder(folder)?;
        if self.args.dry_run || !transaction::is_unfinished(folder) {
            return Ok(());
        }
        transaction::recover(folder)?;
        self.check_folder(folder)
    }

    /// Changes nothing, as the folder may be that of a name that is still typed.
    fn check_folder(&self, folder: &Path) -> Result<()> {
        let checked = project::check_destination(folder, self.args.force);
        if checked.is_err() && !self.args.dry_run && transaction::is_unfinished(folder) {
            // What is left half done there goes before it is written.
            project::check_destination(folder, true)?;
        } else {
            checked?;
        }
        match &self.args.template {
            Some(template) => folder::check_apart(template, folder),
            None => Ok(()),
        }
    }

    /// Where the project will stand.
    pub fn folder(&self, name: &Name) -> PathBuf {
        let path = self.args.path.clone();
        path.unwrap_or_else(|| PathBuf::from(name.package()))
    }

    /// Whether it is a template that is made, which asks when it is rendered.
    pub fn is_template(&self) -> bool {
        self.example.is_some_and(Example::is_template)
    }

    /// The options that neither the command line nor the example sets.
    fn open(&self) -> impl Iterator<Item = &TemplateOption> {
        let set = self.example.map(Example::values);
        let is_set =
            move |key| self.given.contains_key(key) || set.is_some_and(|s| s.contains_key(key));
        let options = self.template.options().iter();
        options.filter(move |option| !self.is_template() && !is_set(&option.name))
    }

    /// All answers: those that were asked for, what the command line says, and then what the example
    /// says.
    pub fn answers(&self, name: Name, asked: Values) -> Result<Answers> {
        if self.is_template() {
            return Answers::defaults(self.template, name);
        }
        let mut values = self
            .example
            .map(Example::values)
            .cloned()
            .unwrap_or_default();
        values.extend(self.given.clone());
        values.extend(asked);
        Answers::complete(self.template, name, values)
    }

    /// The project in memory, whose name is none of its dependencies.
    pub fn render(&self, answers: &Answers) -> Result<Rendered<'_>> {
        let folder = self.folder(answers.name());
        let rendered = render_example(self.template, self.example, answers, &folder)?;
        if let Some(manifest) = rendered.get("Cargo.toml") {
            let manifest = String::from_utf8_lossy(manifest);
            answers.name().check_dependencies(&manifest)?;
        } else if self.args.train {
            return Err(Error::input(
                "the template makes no `Cargo.toml`, so there is nothing to train",
            )
            .help("leave `--train` out"));
        }
        Ok(rendered)
    }

    /// The manifest as far as it is known before the questions, whose dependencies cannot name the
    /// project. Nothing is known of it where an option has no default: then the summary finds it.
    fn manifest(&self) -> Result<String> {
        if self.open().any(|option| option.default.is_none()) {
            return Ok(String::new());
        }
        let any = self.answers(Name::parse(PROPOSED)?, Values::new())?;
        let rendered = self.render(&any)?;
        let manifest = rendered.get("Cargo.toml").unwrap_or_default();
        Ok(String::from_utf8_lossy(manifest).into_owned())
    }

    /// What writing it would do.
    pub fn plan(&self, rendered: &Rendered<'_>, answers: &Answers) -> Result<Written> {
        project::plan(rendered, &self.folder(answers.name()), self.write_options())
    }

    fn write_options(&self) -> WriteOptions {
        WriteOptions {
            force: self.args.force,
            vcs: match self.args.vcs {
                Some(VcsArg::None) => Vcs::None,
                Some(VcsArg::Git) => Vcs::Git,
                None => self.template.vcs().unwrap_or(Vcs::Git),
            },
            require_vcs: self.args.vcs == Some(VcsArg::Git),
        }
    }
}

/// Asks for the name, if it is missing, and for the open options.
fn ask(order: &Order<'_>, name: Option<Name>) -> Result<Option<Answers>> {
    let mut questions: Vec<Question<'_>> = Vec::new();
    if name.is_none() {
        questions.push(name_question(order)?);
    }
    questions.extend(order.open().map(Question::of));
    let answers = |values: &[Value]| {
        let mut asked: Values = questions
            .iter()
            .map(|question| question.key().to_owned())
            .zip(values.iter().cloned())
            .collect();
        let name = match (&name, asked.shift_remove(NAME)) {
            (Some(name), _) => name.clone(),
            (None, Some(text)) => Name::parse(&text.to_string())?,
            (None, None) => return Err(no_name()),
        };
        order.answers(name, asked)
    };
    let mut plain;
    let asker: &mut dyn Ask = if terminal::is_dumb() {
        plain = Plain::new(io::stdin().lock(), io::stderr());
        &mut plain
    } else {
        &mut prompt::Terminal
    };
    let made = wizard::run(&questions, asker, |values| {
        let answers = answers(values)?;
        order.settle(&order.folder(answers.name()))?;
        summary::summary(order, &answers)
    })?;
    made.map(|values| answers(&values)).transpose()
}

/// Refuses, as it is typed, every name that could not be made in the end.
fn name_question<'o>(order: &'o Order<'o>) -> Result<Question<'o>> {
    let path = order.args.path.as_deref().and_then(Path::file_name);
    let path = path.and_then(OsStr::to_str);
    let proposed = path
        .or(order.example.map(Example::name))
        .unwrap_or(PROPOSED);
    let manifest = order.manifest()?;
    let check = move |text: &str| {
        let name = Name::parse(text)?;
        name.check_dependencies(&manifest)?;
        order.check_folder(&order.folder(&name))
    };
    let default = check(proposed).is_ok().then(|| proposed.to_owned());
    Ok(Question::text(
        NAME,
        "What is the project called?",
        default,
        check,
    ))
}

fn no_name() -> Error {
    Error::input("the project has no name")
        .help("write `kiln new NAME`; only on a terminal, and without `--yes`, is it asked")
}

fn make(order: &Order<'_>, answers: &Answers) -> Result<ExitCode> {
    let path = order.folder(answers.name());
    let rendered = order.render(answers)?;
    let written = project::write(&rendered, &path, order.write_options())?;
    for warning in &written.warnings {
        super::note(&format!("warning: {warning}"));
    }
    super::print(&report(answers, order.example, &path, &written))?;
    let train_now = order.args.train;
    super::print(&next_steps(order.example, &rendered, &path, train_now))?;
    if train_now {
        return train(&path);
    }
    Ok(ExitCode::SUCCESS)
}

/// A template asks when it is rendered, and not when it is made.
fn refuse_answers(example: &Example, given: &Values, train: bool) -> Result<()> {
    let option = given
        .keys()
        .next()
        .map(|option| format!("--define {option}"));
    match option.or_else(|| train.then(|| "--train".to_owned())) {
        None => Ok(()),
        Some(option) => Err(Error::input(format!(
            "the example `{}` is a template and no project, and takes no `{option}`",
            example.name()
        ))
        .help("leave it out here, and give it when you make projects of that template")),
    }
}

/// What was written, and the options.
fn report(answers: &Answers, example: Option<&Example>, path: &Path, written: &Written) -> String {
    let mut text = String::new();
    let name = answers.name();
    if name.given() != name.package() {
        let _ = writeln!(
            text,
            "`{}` becomes `{}`, as packages are named.",
            name.given(),
            name.package()
        );
    }
    let _ = write!(
        text,
        "Made `{}` in {}: {}",
        name.package(),
        path.display(),
        tree::files(written.created.len())
    );
    if !written.unchanged.is_empty() {
        let _ = write!(text, ", {} unchanged", written.unchanged.len());
    }
    if !written.replaced.is_empty() {
        let _ = write!(text, ", {} replaced", written.replaced.len());
    }
    text.push_str(if written.repository {
        ", and a git repository.\n"
    } else {
        ".\n"
    });
    for file in &written.replaced {
        let _ = writeln!(text, "  replaced {}", tree::slashed(file));
    }
    text.push('\n');
    if let Some(example) = example {
        let _ = writeln!(
            text,
            "The example `{}`: {}\n",
            example.name(),
            example.description()
        );
    }
    let options = options_table(answers, example);
    if !options.is_empty() {
        let _ = writeln!(text, "{options}");
    }
    text
}

/// A line for each option; none where a template is made.
pub(super) fn options_table(answers: &Answers, example: Option<&Example>) -> String {
    let mut text = String::new();
    if !example.is_some_and(Example::is_template) {
        let width = answers.values().map(|(key, _)| key.len()).max();
        for (key, value) in answers.values() {
            let _ = writeln!(text, "  {key:width$}  {value}", width = width.unwrap_or(0));
        }
    }
    text
}

/// What to run next.
pub(super) fn next_steps(
    example: Option<&Example>,
    rendered: &Rendered<'_>,
    path: &Path,
    train: bool,
) -> String {
    let path = path.display().to_string();
    let quoted = quote(&path);
    if train {
        return format!("Training it: cargo run --release, in {quoted}\n");
    }
    let train_step = "cargo run --release    # train, then test";
    let steps = match example {
        None => steps_of(rendered),
        Some(example) if example.is_template() => vec![
            "less README.md         # what was changed in Kiln's template, and why",
            "cargo test             # the snapshots of what it renders",
        ],
        Some(_) => vec![
            "less README.md         # what was changed in the template, and why",
            train_step,
            "cargo test             # the contract tests, and those of the example",
        ],
    };
    let steps: String = steps.iter().map(|step| format!("  {step}\n")).collect();
    format!("Next:\n  cd {quoted}\n{steps}")
}

/// What can be run in a project, which a team's template may have made.
fn steps_of(rendered: &Rendered<'_>) -> Vec<&'static str> {
    let has = |path: &str| rendered.get(path).is_some();
    let (package, sites) = (has("Cargo.toml"), has(SITES_FILE));
    let mut steps = Vec::new();
    if package && has("src/main.rs") {
        steps.push(if sites {
            "cargo run --release    # train, then test"
        } else {
            "cargo run --release"
        });
    }
    if package {
        steps.push(if has("tests/contract/main.rs") {
            "cargo test             # the contract tests"
        } else {
            "cargo test"
        });
    }
    if sites {
        steps.push("kiln todos             # what to change for your task");
    }
    if steps.is_empty() && has("README.md") {
        steps.push("less README.md");
    }
    steps
}

/// Builds and runs the new crate; its exit status is ours.
fn train(path: &Path) -> Result<ExitCode> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(&cargo)
        .args(["run", "--release"])
        .current_dir(path)
        .status()
        .map_err(|cause| {
            Error::system(format!("cannot run `{}`: {cause}", cargo.to_string_lossy()))
                .help("install Rust, then run `cargo run --release` in the new folder")
        })?;
    Ok(ExitCode::from(exit_code(status)))
}

/// The status of a program, or 128 and its signal, as shells have it.
fn exit_code(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return 128 + u8::try_from(signal).unwrap_or(0);
    }
    status
        .code()
        .map_or(1, |code| u8::try_from(code).unwrap_or(1))
}
