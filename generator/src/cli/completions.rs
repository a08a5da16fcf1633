//! `kiln completions`: shell completion scripts.

use std::process::ExitCode;

use clap::{
    Args, Command,
    builder::{PossibleValue, PossibleValuesParser},
};
use clap_complete::{Shell, generate};

use super::{add::words, output::print};
use crate::{
    error::Result,
    project::explain::site_ids,
    template::{
        Template,
        example::{Example, names},
        option::{OptionKind, TemplateOption},
    },
};

const PLACES: &str = "\
Where to put the script:
  bash        kiln completions bash > ~/.local/share/bash-completion/completions/kiln
  zsh         kiln completions zsh > ~/.zfunc/_kiln
              with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc
  fish        kiln completions fish > ~/.config/fish/completions/kiln.fish
  powershell  kiln completions powershell | Out-String | Invoke-Expression
              in the file that $PROFILE names
  elvish      kiln completions elvish > ~/.config/elvish/lib/kiln.elv
              with `use kiln` in ~/.config/elvish/rc.elv";

/// Arguments of `kiln completions`.
#[derive(Debug, Args)]
#[command(after_help = PLACES)]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: Shell,
}

/// Runs `kiln completions` for a command line.
///
/// # Errors
/// The template or an example is invalid, or standard output cannot be written.
pub(crate) fn run(args: &CompletionsArgs, command: Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    generate(args.shell, &mut with_values(command)?, "kiln", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Adds possible values that Kiln parses itself, as its error messages say more than clap's.
fn with_values(command: Command) -> Result<Command> {
    let template = Template::embedded()?;
    let examples = examples(&template)?;
    let defines: Vec<_> = template.options().iter().flat_map(defines).collect();
    let ids = site_ids(&template)?.into_iter();
    let ids: Vec<_> = ids
        .map(|(id, what)| PossibleValue::new(id).help(what))
        .collect();
    let with = |command: Command, argument: &'static str, values: &[PossibleValue]| {
        let values = PossibleValuesParser::new(values.to_vec());
        command.mut_arg(argument, |arg| arg.value_parser(values))
    };
    let additions = additions(&template, &defines);
    let command = command
        .mut_subcommand("new", |new| {
            with(with(new, "example", &examples), "define", &defines)
        })
        .mut_subcommand("diff", |diff| {
            let diff = with(with(diff, "example", &examples), "define", &defines);
            with(diff, "against", &defines)
        })
        .mut_subcommand("explain", |explain| {
            with(with(explain, "id", &ids), "example", &examples)
        })
        .mut_subcommand("add", |add| with(add, "options", &additions))
        .mut_subcommand("update", |update| with(update, "define", &defines));
    Ok(command)
}

/// Arguments of `kiln add`: words that stand for one value of one option, and `KEY=VALUE` pairs.
fn additions(template: &Template, defines: &[PossibleValue]) -> Vec<PossibleValue> {
    let words = words(template).into_iter();
    let words = words.map(|(word, help)| PossibleValue::new(word).help(help));
    words.chain(defines.iter().cloned()).collect()
}

fn examples(template: &Template) -> Result<Vec<PossibleValue>> {
    let names = names().into_iter();
    names
        .map(|name| {
            let description = Example::embedded(template, name)?.description();
            Ok(PossibleValue::new(name).help(description))
        })
        .collect()
}

/// `KEY=VALUE` for each value of an option, or `KEY=` if the values cannot be listed.
fn defines(option: &TemplateOption) -> Vec<PossibleValue> {
    let define = |value: &str, help: &str| {
        PossibleValue::new(format!("{}={value}", option.name)).help(help.to_owned())
    };
    match &option.kind {
        OptionKind::Text { .. } => vec![define("", &option.prompt)],
        OptionKind::Flag => ["false", "true"]
            .map(|value| define(value, &option.prompt))
            .into(),
        OptionKind::Choice(choices) | OptionKind::List(choices) => choices
            .iter()
            .map(|choice| define(&choice.value, &choice.label))
            .collect(),
    }
}
