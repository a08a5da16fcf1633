//! Interactive prompts, for terminals that can move their cursor.

use std::{
    cell::RefCell,
    fmt,
    io::{self, Write},
    rc::Rc,
};

use inquire::{
    Autocomplete, CustomUserError, InquireError, MultiSelect, Select, Text,
    autocompletion::Replacement,
    ui::{Attributes, Color, RenderConfig, StyleSheet, Styled},
    validator::Validation,
};

use super::wizard::{Ask, Question, Reply, Turn};
use crate::{
    error::{Error, Result},
    template::option::{Choice, OptionKind, Value},
};

/// An error message with its help.
pub(crate) fn refusal(error: &Error) -> String {
    match miette::Diagnostic::help(error) {
        Some(help) => format!("{error}: {help}"),
        None => error.to_string(),
    }
}

/// Interactive prompts.
pub(crate) struct Terminal;

impl Ask for Terminal {
    fn ask(&mut self, turn: Turn<'_>) -> Result<Reply> {
        let answer = match turn.question.kind() {
            OptionKind::Text { .. } => ask_text(turn),
            OptionKind::Choice(choices) => ask_choice(turn, choices),
            OptionKind::Flag => ask_choice(turn, &flags()),
            OptionKind::List(choices) => ask_list(turn, choices),
        };
        match answer {
            Ok(text) => Ok(Reply::Answer(turn.question.read(&text)?)),
            Err(InquireError::OperationCanceled) => Ok(Reply::Back),
            Err(InquireError::OperationInterrupted) => Ok(Reply::Cancel),
            Err(error) => Err(failed(&error)),
        }
    }

    fn show(&mut self, text: &str) -> Result<()> {
        let mut terminal = io::stderr().lock();
        terminal
            .write_all(text.as_bytes())
            .map_err(|cause| failed(&InquireError::IO(cause)))
    }
}

fn ask_text(turn: Turn<'_>) -> std::result::Result<String, InquireError> {
    let live = Live {
        question: turn.question,
        default: turn.question.default().map(ToString::to_string),
        refusal: Rc::default(),
    };
    let validator = live.clone();
    let hint = hint(turn, "enter accepts");
    let default = turn.question.default().map(ToString::to_string);
    let placeholder = default.as_ref().map(|default| format!("({default})"));
    let before = turn.before.map(ToString::to_string);
    let formatter = |text: &str| live.answer(text).to_owned();
    let text = Text {
        placeholder: placeholder.as_deref(),
        initial_value: before.as_deref().filter(|_| before != default),
        ..Text::new(turn.question.prompt())
    };
    let text = text
        .with_help_message(&hint)
        .with_render_config(text_theme())
        .with_autocomplete(live.clone())
        .with_validator(move |text: &str| Ok(validator.validate(text)))
        .with_formatter(&formatter)
        .prompt()?;
    Ok(live.answer(&text).to_owned())
}

/// Validates a text as it is typed, and shows the error in place of suggestions.
#[derive(Clone)]
struct Live<'q> {
    question: &'q Question<'q>,
    default: Option<String>,
    refusal: Rc<RefCell<Option<String>>>,
}

impl Live<'_> {
    /// The answer that a text stands for: the default, if any, for an empty text.
    fn answer<'t>(&'t self, text: &'t str) -> &'t str {
        match &self.default {
            Some(default) if text.is_empty() => default,
            _ => text,
        }
    }

    fn validate(&self, text: &str) -> Validation {
        // The error below the text can be selected like a suggestion, but is not an answer.
        if self.refusal.borrow().is_some() {
            return Validation::Invalid("correct the text to continue".into());
        }
        match self.question.read(self.answer(text)) {
            Ok(_) => Validation::Valid,
            Err(error) => Validation::Invalid(refusal(&error).into()),
        }
    }
}

impl Autocomplete for Live<'_> {
    fn get_suggestions(&mut self, text: &str) -> std::result::Result<Vec<String>, CustomUserError> {
        // An empty text may not have been typed yet.
        let error = (!text.is_empty()).then(|| self.question.read(text).err());
        let shown = error.flatten().map(|error| refusal(&error));
        self.refusal.replace(shown.clone());
        Ok(shown.into_iter().collect())
    }

    fn get_completion(
        &mut self,
        _: &str,
        _: Option<String>,
    ) -> std::result::Result<Replacement, CustomUserError> {
        Ok(Replacement::None)
    }
}

/// An item in a list of choices.
struct Item<'c> {
    choice: &'c Choice,
    is_default: bool,
}

impl fmt::Display for Item<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.is_default { " (default)" } else { "" };
        write!(f, "{}{mark}", self.choice.label)
    }
}

fn flags() -> Vec<Choice> {
    [("true", "yes"), ("false", "no")]
        .map(|(value, label)| Choice {
            value: value.to_owned(),
            label: label.to_owned(),
        })
        .to_vec()
}

fn ask_choice(turn: Turn<'_>, choices: &[Choice]) -> std::result::Result<String, InquireError> {
    let is = |value: Option<&Value>, choice: &Choice| {
        value.is_some_and(|value| value.to_string() == choice.value)
    };
    let start = choices.iter().position(|c| is(turn.fallback(), c));
    let items = choices.iter().map(|choice| Item {
        choice,
        // A prompt that is not for an option has no default, only a first choice.
        is_default: turn.step.is_some() && is(turn.question.default(), choice),
    });
    let hint = hint(turn, "↑↓ choose, enter accepts");
    let chosen = Select::new(turn.question.prompt(), items.collect())
        .with_starting_cursor(start.unwrap_or(0))
        .with_vim_mode(true)
        .without_filtering()
        .with_formatter(&|item| item.value.choice.label.clone())
        .with_help_message(&hint)
        .with_render_config(theme())
        .prompt()?;
    Ok(chosen.choice.value.clone())
}

fn ask_list(turn: Turn<'_>, choices: &[Choice]) -> std::result::Result<String, InquireError> {
    let items = choices.iter().map(|choice| Item {
        choice,
        is_default: false,
    });
    let on = |choice: &Choice| match turn.fallback() {
        Some(Value::List(list)) => list.contains(&choice.value),
        _ => false,
    };
    let start: Vec<usize> = (0..choices.len()).filter(|at| on(&choices[*at])).collect();
    let hint = hint(turn, "↑↓ move, space marks, enter accepts");
    let chosen = MultiSelect::new(turn.question.prompt(), items.collect())
        .with_default(&start)
        .with_vim_mode(true)
        .without_filtering()
        .with_help_message(&hint)
        .with_render_config(theme())
        .prompt()?;
    let values: Vec<&str> = chosen.iter().map(|item| &*item.choice.value).collect();
    Ok(values.join(","))
}

/// The hint line: the step, and the keys.
fn hint(turn: Turn<'_>, keys: &str) -> String {
    let back = if turn.first { "" } else { "esc goes back, " };
    let cancel = if turn.first { "esc" } else { "ctrl-c" };
    let step = match turn.step {
        Some((at, of)) => format!("{at} of {of}: "),
        None => String::new(),
    };
    format!("{step}{keys}, {back}{cancel} cancels")
}

/// The colours, which crossterm omits if `NO_COLOR` is set.
fn theme() -> RenderConfig<'static> {
    let theme = RenderConfig::default_colored();
    let back = Styled::new("(back)").with_style_sheet(theme.placeholder);
    RenderConfig {
        prompt: theme.prompt.with_attr(Attributes::BOLD),
        help_message: theme.placeholder,
        ..theme.with_canceled_prompt_indicator(back)
    }
}

/// The same theme, with suggestions in the style of errors.
fn text_theme() -> RenderConfig<'static> {
    let style = StyleSheet::empty().with_fg(Color::LightRed);
    let prefix = Styled::new("✗").with_style_sheet(style);
    RenderConfig {
        highlighted_option_prefix: prefix,
        unhighlighted_option_prefix: prefix,
        option: style,
        selected_option: Some(style),
        ..theme()
    }
}

fn failed(error: &InquireError) -> Error {
    Error::system(format!("cannot ask on the terminal: {error}"))
        .help("add `--yes` to take the defaults")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live<'q>(question: &'q Question<'q>, default: Option<&str>) -> Live<'q> {
        Live {
            question,
            default: default.map(str::to_owned),
            refusal: Rc::default(),
        }
    }

    fn not_bad() -> Question<'static> {
        Question::text("key", "What?", None, |text| match text {
            "bad" => Err(Error::input("this is bad").help("say good")),
            _ => Ok(()),
        })
    }

    #[test]
    fn says_at_each_key_what_is_wrong() {
        let question = not_bad();
        let mut live = live(&question, None);
        assert_eq!(live.get_suggestions("ba").unwrap(), [""; 0]);
        assert_eq!(
            live.get_suggestions("bad").unwrap(),
            ["this is bad: say good"]
        );
        assert_eq!(live.get_suggestions("").unwrap(), [""; 0]);
    }

    #[test]
    fn what_is_wrong_can_be_no_answer() {
        let question = not_bad();
        let mut live = live(&question, None);
        let said = live.get_suggestions("bad").unwrap().remove(0);
        assert!(question.read(&said).is_ok(), "it would be one");
        assert!(matches!(live.validate(&said), Validation::Invalid(_)));
        assert_eq!(live.get_completion("bad", Some(said)).unwrap(), None);
        live.get_suggestions("good").unwrap();
        assert!(matches!(live.validate("good"), Validation::Valid));
    }

    #[test]
    fn an_empty_text_is_the_default() {
        let question = not_bad();
        assert_eq!(live(&question, Some("it")).answer(""), "it");
        assert_eq!(live(&question, Some("it")).answer("a"), "a");
        assert_eq!(live(&question, None).answer(""), "");
        let bad = live(&question, Some("bad"));
        assert!(matches!(bad.validate(""), Validation::Invalid(_)));
    }
}
