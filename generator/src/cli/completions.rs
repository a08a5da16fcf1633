//! `kiln completions`: shell completion scripts.

use std::{fmt::Write as _, process::ExitCode};

use clap::{
    Args, Command,
    builder::{PossibleValue, PossibleValuesParser},
};
use clap_complete::{Shell, generate};

use super::{add::words, output::print};
use crate::{
    error::Result,
    project::explain::{ability_ids, site_ids},
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

/// Bash splits words at `=`, which the generated function does not expect.
const JOINED: &str = r#"
# Completes KEY=VALUE and --OPTION=VALUE, which Bash splits into words at `=`.
_kiln_joined() {
    if [[ "${COMP_WORDBREAKS}" != *=* ]]; then
        _kiln "$@"
        return
    fi
    local word last=-1 glue= index=-1 at
    local -a joined=()
    for ((at = 0; at <= COMP_CWORD; at++)); do
        word="${COMP_WORDS[at]}"
        if [[ "${word}" == "=" && last -ge 0 ]]; then
            if [[ "${joined[last]}" == --* ]]; then
                glue=next
            else
                joined[last]+="="
                glue=same
            fi
        elif [[ "${glue}" == same ]]; then
            joined[last]+="${word}"
            glue=
        else
            last=$((last + 1))
            joined[last]="${word}"
            glue=
        fi
    done
    if [[ "${glue}" == next ]]; then
        last=$((last + 1))
        joined[last]=
    fi
    local -a COMP_WORDS=("${joined[@]}")
    local COMP_CWORD="${last}"
    local current="${joined[last]}"
    _kiln kiln "${current}" "${joined[last-1]}"
    if [[ "${#COMPREPLY[@]}" -eq 1 && "${COMPREPLY[0]}" == *= ]]; then
        compopt -o nospace 2>/dev/null
    fi
    # Bash has the part up to the last `=` already.
    if [[ "${current}" == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${current%"${current##*=}"}"}")
    fi
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _kiln_joined -o nosort -o bashdefault -o default kiln
fi
"#;

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
    let mut command = with_values(command)?;
    generate(args.shell, &mut command, "kiln", &mut script);
    let more = match args.shell {
        Shell::Bash => JOINED.to_owned(),
        Shell::Fish => positionals(&command),
        _ => String::new(),
    };
    let script = String::from_utf8_lossy(&script);
    let script = match args.shell {
        Shell::Fish => helped(&script),
        _ => script.into_owned(),
    };
    print(&(script + more.as_str()))?;
    Ok(ExitCode::SUCCESS)
}

/// Adds possible values that Kiln parses itself, as its error messages say more than clap's.
fn with_values(command: Command) -> Result<Command> {
    let template = Template::embedded()?;
    let examples = examples(&template)?;
    let defines: Vec<_> = template.options().iter().flat_map(defines).collect();
    let ids = site_ids(&template)?
        .into_iter()
        .chain(ability_ids(&template)?);
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

/// Fish's completions of the values of positional arguments, which the generated script lacks.
fn positionals(command: &Command) -> String {
    let mut script = String::from("\n# The values of arguments without an option.\n");
    for subcommand in command.get_subcommands() {
        let arguments = subcommand.get_positionals();
        let values = arguments.filter_map(|argument| argument.get_value_parser().possible_values());
        for value in values.flatten() {
            let help = value.get_help().map(ToString::to_string);
            let _ = writeln!(
                script,
                "complete -c kiln -n \"__fish_kiln_using_subcommand {}\" -f -a {} -d {}",
                subcommand.get_name(),
                in_fish(value.get_name()),
                in_fish(&help.unwrap_or_default()),
            );
        }
    }
    script
}

/// Fish's script, with subcommands after `kiln help`: the generated one offers them unless the line has
/// the word `help`, which it does.
fn helped(script: &str) -> String {
    const HELP: &str = "complete -c kiln -n \"__fish_kiln_using_subcommand help; and not ";
    let lines = script
        .split_inclusive('\n')
        .map(|line| match line.starts_with(HELP) {
            true => line.replacen(" help\" -f", "\" -f", 1),
            false => line.to_owned(),
        });
    lines.collect()
}

/// A text in quotes of fish.
fn in_fish(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
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
            .map(|choice| define(&choice.value, choice.help.as_ref().unwrap_or(&choice.label)))
            .collect(),
    }
}
