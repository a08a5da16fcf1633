//! `kiln new`: creates a project.

mod args;
mod choose;
mod line;
mod order;
mod place;
mod plain;
mod prompt;
mod quote;
mod report;
mod screen;
mod summary;
mod wizard;

use std::{
    cell::Cell,
    env, io,
    path::Path,
    process::{Command, ExitCode, ExitStatus},
};

use super::{
    llvm::Llvm,
    output::{note, print},
    source::choose,
    terminal,
    warnings::warn,
};
use crate::{
    error::{Error, Result},
    name::Name,
    project,
    template::{
        Reading,
        answers::{Answers, Values},
        example::Example,
        option::{Choice, Value},
    },
    wrapping::width_of,
};
use args::WorkspaceArg;
use clap::ValueEnum;
use order::Order;
use place::{Place, name_of};
use plain::Plain;
use report::{next_steps, report};
use wizard::{Ask, Question};

pub(crate) use args::NewArgs;

/// The key of the prompt for the workspace; names of options have no space.
const WORKSPACE: &str = "Cargo workspace";
/// The key of the prompt for the name. It is a built-in variable, so no option has this name.
const NAME: &str = "project-name";

/// Runs `kiln new`.
///
/// # Errors
/// The name, an option or the folder is invalid, or the file system, git or cargo fails.
pub(crate) fn run(args: &NewArgs) -> Result<ExitCode> {
    let Place { mut name, folder } = Place::of(args)?;
    let asks = !args.yes && !args.dry_run && terminal::is_interactive();
    if let (None, Some(folder), false) = (&name, &folder, asks) {
        name = Some(name_of(folder)?);
    }
    let sub_template = match &args.template {
        Some(folder) if asks && folder.is_dir() => Some(choose::choose(folder, &mut *asker())?),
        template => template.clone(),
    };
    let args = &NewArgs {
        template: sub_template,
        ..args.clone()
    };
    let reading = Reading {
        lenient: !args.strict,
        ..Reading::lenient(args.skip_hooks)
    };
    let chosen = choose(args.template.as_deref(), &args.version, reading)?;
    let template = &chosen.template;
    let example = args.example.as_deref();
    let example = example
        .map(|name| Example::embedded(template, name))
        .transpose()?;
    let order = Order {
        args,
        template,
        template_folder: chosen.folder.as_deref(),
        origin: chosen.origin.as_ref(),
        example: example.as_ref(),
        given: chosen.values(args.values.as_deref(), &args.define)?,
        folder,
        workspace: Cell::new(args.workspace),
    };
    order.check(name.as_ref())?;
    let answers = match name {
        name if asks => ask(&order, name)?.ok_or_else(Error::cancelled)?,
        Some(name) => order.answers(name, Values::new())?,
        None => return Err(no_name()),
    };
    if args.dry_run {
        print(&summary::dry_run(&order, &answers)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    make(&order, &answers)
}

/// Asks for the name, if missing, and for the open options.
fn ask(order: &Order<'_>, name: Option<Name>) -> Result<Option<Answers>> {
    let mut questions: Vec<Question<'_>> = Vec::new();
    if name.is_none() {
        questions.push(name_question(order)?);
    }
    questions.extend(order.open().map(Question::of));
    if order.args.workspace.is_none() && order.has_workspace(name.as_ref())? {
        questions.push(workspace_question());
    }
    let answers = |mut asked: Values| {
        if let Some(Value::Text(answer)) = asked.shift_remove(WORKSPACE) {
            order
                .workspace
                .set(WorkspaceArg::from_str(&answer, false).ok());
        }
        let name = match (&name, asked.shift_remove(NAME)) {
            (Some(name), _) => (*name).clone(),
            (None, Some(text)) => Name::parse(&text.to_string())?,
            (None, None) => return Err(no_name()),
        };
        order.answers(name, asked)
    };
    let name = name.as_ref();
    let made = wizard::run_with(
        &questions,
        &mut *asker(),
        |asked| order.follow_ups(name, asked),
        |asked| {
            let answers = answers(asked.clone())?;
            order.settle(&order.folder(answers.name()))?;
            summary::summary(order, &answers)
        },
    )?;
    made.map(answers).transpose()
}

/// The prompts that the terminal can show.
fn asker() -> Box<dyn Ask> {
    if terminal::is_dumb() {
        let plain = Plain::new(io::stdin().lock(), io::stderr());
        Box::new(plain.within(width_of(&io::stderr())))
    } else {
        Box::new(prompt::Terminal)
    }
}

/// The prompt for the name, which refuses an invalid name as it is typed.
fn name_question<'o>(order: &'o Order<'o>) -> Result<Question<'o>> {
    let proposed = order.proposed()?;
    let manifest = order.manifest()?;
    let check = move |text: &str| {
        let name = Name::parse(text)?;
        name.check_dependencies(&manifest)?;
        order.check_folder(&order.folder(&name))
    };
    let default = check(&proposed).is_ok().then_some(proposed);
    Ok(Question::text(
        NAME,
        "What is the project called?",
        default,
        check,
    ))
}

/// The prompt for what a Cargo workspace above does with the project.
fn workspace_question() -> Question<'static> {
    let choices = [
        (
            WorkspaceArg::Exclude,
            "exclude it there",
            "it is a workspace of its own",
        ),
        (
            WorkspaceArg::Member,
            "make it a member",
            "its profiles of packages move to the manifest there",
        ),
        (
            WorkspaceArg::Keep,
            "leave the manifest there as it is",
            "cargo refuses the project until you edit one of the two manifests",
        ),
    ];
    let choices = choices.map(|(arg, label, help)| Choice {
        help: Some(help.to_owned()),
        ..wizard::choice(arg.name(), label)
    });
    let prompt = "What shall the Cargo workspace around the project do with it?";
    Question::choice(WORKSPACE, prompt, choices.to_vec())
}

fn no_name() -> Error {
    Error::input("the project has no name").help(
        "write `kiln new NAME`; Kiln prompts for the name only on a terminal and without `--yes`",
    )
}

fn make(order: &Order<'_>, answers: &Answers) -> Result<ExitCode> {
    let path = order.folder(answers.name());
    let mut rendered = order.render(answers)?;
    let workspaces = order.workspaces(&rendered, &path)?;
    workspaces.adapt(&mut rendered);
    // The manifests above are edited first: an `exclude` of a folder that does not exist does no harm.
    let edited = workspaces.apply()?;
    let written = project::write(&rendered, &path, order.write_options())?;
    edited.keep();
    warn(&rendered.warnings);
    for warning in written.warnings.iter().chain(&workspaces.warnings) {
        note(&format!("warning: {warning}"));
    }
    let notes: Vec<_> = order.notes(&workspaces);
    print(&report(answers, order.example, &path, &written, &notes))?;
    let train_now = order.args.train;
    print(&next_steps(order.example, &rendered, &path, train_now))?;
    if train_now {
        let hardware = answers.get("hardware").map(ToString::to_string);
        return train(&path, hardware.as_deref().unwrap_or_default());
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds and runs the new crate for `hardware`; returns its exit status.
fn train(path: &Path, hardware: &str) -> Result<ExitCode> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(&cargo)
        .arg("run")
        .current_dir(path)
        .status()
        .map_err(|cause| {
            Error::system(format!("cannot run `{}`: {cause}", cargo.to_string_lossy()))
                .help("install Rust, then run `cargo run` in the new folder")
        })?;
    if !status.success()
        && let Some(explanation) = Llvm::here().explain(hardware)
    {
        note(&format!("note: {explanation}"));
    }
    Ok(ExitCode::from(exit_code(status)))
}

/// The exit status of a process, or 128 plus its signal, as in shells.
fn exit_code(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return 128 + u8::try_from(signal).unwrap_or(0);
    }
    status
        .code()
        .map_or(1, |code| u8::try_from(code).unwrap_or(1))
}
