//! Asking for the options that were not given.

use std::io::{self, IsTerminal};

use crate::{
    error::{Error, Result},
    option::{Choice, OptionKind, TemplateOption, Value},
    template::Template,
};

use crate::option::Values;

/// Whoever answers the questions.
pub(crate) trait Ask {
    /// Asks for the value of one option.
    fn ask(&mut self, option: &TemplateOption) -> Result<Value>;
}

/// Whether there is somebody to ask.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal()
}

/// Asks, in the order of the template, for every option without a value.
pub(crate) fn fill(template: &Template, values: &mut Values, asker: &mut impl Ask) -> Result<()> {
    for option in template.options() {
        if !values.contains_key(&option.name) {
            values.insert(option.name.clone(), asker.ask(option)?);
        }
    }
    Ok(())
}

/// Asks on the terminal.
pub(crate) struct Terminal;

impl Ask for Terminal {
    fn ask(&mut self, option: &TemplateOption) -> Result<Value> {
        match &option.kind {
            OptionKind::Text { .. } => ask_text(option),
            OptionKind::Choice(choices) => ask_choice(option, choices),
            OptionKind::Flag => ask_flag(option),
            OptionKind::List(choices) => ask_list(option, choices),
        }
    }
}

fn ask_text(option: &TemplateOption) -> Result<Value> {
    let rule = option.clone();
    let mut input = cliclack::input(&option.prompt)
        .required(false)
        .validate(move |text: &String| rule.parse(text).map(drop).map_err(|e| refusal(&e)));
    if let Some(default) = &option.default {
        input = input.default_input(&default.to_string());
    }
    let text: String = input.interact().map_err(failed)?;
    option.parse(&text)
}

/// What is wrong with an answer, with the way out.
fn refusal(error: &Error) -> String {
    match error.way_out() {
        Some(help) => format!("{error}: {help}"),
        None => error.to_string(),
    }
}

fn ask_choice(option: &TemplateOption, choices: &[Choice]) -> Result<Value> {
    let mut select = cliclack::select(&option.prompt);
    for choice in choices {
        select = select.item(choice.value.clone(), &choice.label, "");
    }
    if let Some(Value::Text(default)) = &option.default {
        select = select.initial_value(default.clone());
    }
    Ok(Value::Text(select.interact().map_err(failed)?))
}

fn ask_flag(option: &TemplateOption) -> Result<Value> {
    let initial = option.default == Some(Value::Flag(true));
    let answer = cliclack::confirm(&option.prompt)
        .initial_value(initial)
        .interact();
    Ok(Value::Flag(answer.map_err(failed)?))
}

fn ask_list(option: &TemplateOption, choices: &[Choice]) -> Result<Value> {
    let mut select = cliclack::multiselect(&option.prompt).required(false);
    for choice in choices {
        select = select.item(choice.value.clone(), &choice.label, "");
    }
    if let Some(Value::List(default)) = &option.default {
        select = select.initial_values(default.clone());
    }
    Ok(Value::List(select.interact().map_err(failed)?))
}

fn failed(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::Interrupted => Error::cancelled(),
        _ => Error::system(format!("cannot ask on the terminal: {error}"))
            .help("add `--yes` to take the defaults"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Script {
        asked: Vec<String>,
    }

    impl Ask for Script {
        fn ask(&mut self, option: &TemplateOption) -> Result<Value> {
            self.asked.push(option.name.clone());
            Ok(option.values().remove(0))
        }
    }

    #[test]
    fn asks_in_the_templates_order_for_what_was_not_given() {
        let template = Template::embedded().unwrap();
        let mut names: Vec<_> = template.options().iter().map(|o| o.name.clone()).collect();
        let given = names.remove(1);
        let mut values = Values::new();
        values.insert(
            given.clone(),
            template.option(&given).unwrap().values().remove(0),
        );
        let mut script = Script { asked: Vec::new() };
        fill(&template, &mut values, &mut script).unwrap();
        assert_eq!(script.asked, names);
        assert_eq!(values.len(), template.options().len());
    }
}
