//! Line-by-line prompts, for terminals that cannot move their cursor.

use std::io::{self, BufRead, Write};

use super::{
    prompt::refusal,
    wizard::{Ask, Reply, Turn},
};
use crate::{
    error::{Error, Result},
    template::option::{Choice, OptionKind, Value},
    wrapping::fill,
};

const EXPLAIN: &str = "?";
const BACK: &str = "<";

/// Line-by-line prompts.
pub(crate) struct Plain<R, W> {
    input: R,
    output: W,
    introduced: bool,
    /// The width of the terminal, if it is one.
    width: Option<usize>,
}

impl<R: BufRead, W: Write> Plain<R, W> {
    /// Prompts that read answers from `input` and write to `output`.
    pub fn new(input: R, output: W) -> Self {
        Self {
            input,
            output,
            introduced: false,
            width: None,
        }
    }

    /// The same prompts, in lines of at most `width` cells.
    pub fn within(mut self, width: usize) -> Self {
        self.width = Some(width);
        self
    }

    fn write(&mut self, text: &str) -> Result<()> {
        let text = match self.width {
            Some(width) => {
                // The answer is typed after a space.
                let bare = text.trim_end_matches(' ');
                fill(bare, width) + &text[bare.len()..]
            }
            None => text.to_owned(),
        };
        let written = self.output.write_all(text.as_bytes());
        written.and_then(|()| self.output.flush()).map_err(failed)
    }

    /// The next line without its line ending, or `None` at the end of the input.
    fn read(&mut self) -> Result<Option<String>> {
        let mut line = Vec::new();
        if self.input.read_until(b'\n', &mut line).map_err(failed)? == 0 {
            return Ok(None);
        }
        Ok(Some(String::from_utf8_lossy(&line).trim().to_owned()))
    }
}

impl<R: BufRead, W: Write> Ask for Plain<R, W> {
    fn ask(&mut self, turn: Turn<'_>) -> Result<Reply> {
        if !self.introduced {
            self.introduced = true;
            self.write(
                "An empty line accepts the value in brackets; `?` explains, `<` goes back, and the end \
                 of the input cancels.\n",
            )?;
        }
        loop {
            self.write(&question(turn))?;
            let Some(line) = self.read()? else {
                self.write("\n")?;
                return Ok(Reply::Cancel);
            };
            match (line.as_str(), turn.fallback()) {
                ("", Some(value)) => return Ok(Reply::Answer(value.clone())),
                (BACK, _) => return Ok(Reply::Back),
                (EXPLAIN, _) => self.write(&explanation(turn))?,
                (text, _) => match turn.question.read(&spelled_out(turn, text)) {
                    Ok(value) => return Ok(Reply::Answer(value)),
                    Err(error) => self.write(&format!("  {}\n", refusal(&error)))?,
                },
            }
        }
    }

    fn show(&mut self, text: &str) -> Result<()> {
        self.write(text)
    }
}

fn question(turn: Turn<'_>) -> String {
    let prompt = turn.question.prompt();
    match turn.fallback() {
        Some(value) => format!("{prompt} [{value}]: "),
        None => format!("{prompt} "),
    }
}

/// Accepts `yes` and `no` for flags.
fn spelled_out(turn: Turn<'_>, text: &str) -> String {
    let text = match (turn.question.kind(), text) {
        (OptionKind::Flag, "y" | "yes") => "true",
        (OptionKind::Flag, "n" | "no") => "false",
        (_, text) => text,
    };
    text.to_owned()
}

fn explanation(turn: Turn<'_>) -> String {
    let default = turn.question.default();
    let mut text = match turn.question.kind() {
        OptionKind::Text { regex: None } => "  any text\n".to_owned(),
        OptionKind::Text { regex: Some(regex) } => {
            format!("  {}\n", turn.question.form(regex))
        }
        OptionKind::Choice(choices) => list(choices, default),
        OptionKind::Flag => "  true, false\n".to_owned(),
        OptionKind::List(choices) => {
            format!(
                "{}  any of these, separated by commas\n",
                list(choices, None)
            )
        }
    };
    text.push_str(if turn.first {
        "  `<` cancels here\n"
    } else {
        "  `<` goes back\n"
    });
    text
}

fn list(choices: &[Choice], default: Option<&Value>) -> String {
    let line = |choice: &Choice| {
        let Choice { value, label, help } = choice;
        let label = if label == value {
            String::new()
        } else {
            format!(": {label}")
        };
        let help = help
            .as_deref()
            .map_or(String::new(), |help| format!(": {help}"));
        let is_default = default == Some(&Value::Text(value.clone()));
        let mark = if is_default { " (default)" } else { "" };
        format!("  {value}{label}{mark}{help}\n")
    };
    choices.iter().map(line).collect()
}

fn failed(cause: io::Error) -> Error {
    Error::system(format!("cannot ask on the terminal: {cause}"))
        .help("add `--yes` to take the defaults")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cli::new::wizard::Question, error::Kind, template::option::TemplateOption};

    fn option(kind: OptionKind, default: Option<Value>) -> TemplateOption {
        TemplateOption {
            name: "key".to_owned(),
            prompt: "What?".to_owned(),
            kind,
            help: None,
            default,
            span: 0..0,
            regex_span: None,
        }
    }

    fn choices() -> Vec<Choice> {
        [("red", "red"), ("blue", "like the sky")]
            .map(|(value, label)| Choice {
                value: value.to_owned(),
                label: label.to_owned(),
                help: None,
            })
            .to_vec()
    }

    fn asked(option: &TemplateOption, input: &[u8]) -> (Result<Reply>, String) {
        let mut output = Vec::new();
        let question = Question::of(option);
        let turn = Turn {
            question: &question,
            before: None,
            step: None,
            first: false,
        };
        let reply = Plain::new(input, &mut output).ask(turn);
        let output = String::from_utf8(output).unwrap();
        let rest = output.split_once("cancels.\n").unwrap().1.to_owned();
        (reply, rest)
    }

    fn text(value: &str) -> Value {
        Value::Text(value.to_owned())
    }

    #[test]
    fn an_empty_line_takes_the_default() {
        let option = option(OptionKind::Choice(choices()), Some(text("blue")));
        let (reply, said) = asked(&option, b"\n");
        assert_eq!(reply.unwrap(), Reply::Answer(text("blue")));
        assert_eq!(said, "What? [blue]: ");
    }

    #[test]
    fn explains_and_refuses_until_the_answer_is_right() {
        let option = option(OptionKind::Choice(choices()), Some(text("blue")));
        let (reply, said) = asked(&option, b"?\r\nblu\n\xff\nred\n");
        assert_eq!(reply.unwrap(), Reply::Answer(text("red")));
        assert_eq!(
            said,
            "What? [blue]:   red\n  blue: like the sky (default)\n  `<` goes back\n\
             What? [blue]:   \"blu\" is not a value of the option `key`: did you mean `blue`? its \
             values are `red`, `blue`\n\
             What? [blue]:   \"\u{fffd}\" is not a value of the option `key`: its values are \
             `red`, `blue`\n\
             What? [blue]: "
        );
    }

    #[test]
    fn goes_back_and_ends() {
        let option = option(OptionKind::Text { regex: None }, Some(text("x")));
        assert_eq!(asked(&option, b" < \n").0.unwrap(), Reply::Back);
        assert_eq!(asked(&option, b"").0.unwrap(), Reply::Cancel);
        assert_eq!(asked(&option, b"?\n").0.unwrap(), Reply::Cancel);
    }

    #[test]
    fn the_last_line_needs_no_end() {
        let option = option(OptionKind::Text { regex: None }, None);
        let (reply, said) = asked(&option, b"a b");
        assert_eq!(reply.unwrap(), Reply::Answer(text("a b")));
        assert_eq!(said, "What? ");
    }

    #[test]
    fn flags_and_lists() {
        let flag = option(OptionKind::Flag, Some(Value::Flag(false)));
        for yes in ["y\n", "yes\n", "true\n"] {
            let reply = asked(&flag, yes.as_bytes()).0.unwrap();
            assert_eq!(reply, Reply::Answer(Value::Flag(true)));
        }
        let list = option(OptionKind::List(choices()), Some(Value::List(Vec::new())));
        let both = vec!["red".to_owned(), "blue".to_owned()];
        let (reply, said) = asked(&list, b"?\nred,blue\n");
        assert_eq!(reply.unwrap(), Reply::Answer(Value::List(both)));
        assert!(said.contains("any of these, separated by commas"), "{said}");
    }

    #[test]
    fn a_failing_terminal_is_an_error() {
        struct Broken;
        impl io::Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("gone"))
            }
        }
        let option = option(OptionKind::Text { regex: None }, None);
        let question = Question::of(&option);
        let turn = Turn {
            question: &question,
            before: None,
            step: None,
            first: true,
        };
        let error = Plain::new(io::BufReader::new(Broken), Vec::new()).ask(turn);
        assert_eq!(error.unwrap_err().kind(), Kind::System);
    }
}
