//! Interactive prompts, for terminals that can move their cursor.

use std::io::{self, Write};

use crossterm::{
    event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    style::{Color, ContentStyle, Stylize},
};

use super::{
    line::Line,
    screen::{Piece, Screen},
    wizard::{Ask, Reply, Turn},
};
use crate::{
    error::{Error, Result},
    template::option::{Choice, OptionKind, Value},
    wrapping::fill,
};

/// The most choices shown at once.
const SHOWN: usize = 10;
/// The indentation of what belongs to the choices.
const INDENT: &str = "  ";

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
        let ended = match turn.question.kind() {
            OptionKind::Text { .. } => run(turn, Typing::new(turn)),
            OptionKind::Choice(choices) => run(turn, Choosing::one(turn, choices)),
            OptionKind::Flag => run(turn, Choosing::one(turn, &flags())),
            OptionKind::List(choices) => run(turn, Choosing::any(turn, choices)),
        };
        match ended.map_err(failed)? {
            End::Answer(text) => Ok(Reply::Answer(turn.question.read(&text)?)),
            End::Back => Ok(Reply::Back),
            End::Cancel => Ok(Reply::Cancel),
        }
    }

    fn show(&mut self, text: &str) -> Result<()> {
        let text = fill(text, Screen::size().map_err(failed)?.0);
        let mut terminal = io::stderr().lock();
        terminal.write_all(text.as_bytes()).map_err(failed)
    }
}

/// Outcome of a prompt.
enum End {
    Answer(String),
    Back,
    Cancel,
}

/// The state of a prompt.
trait Prompt {
    /// The lines of the prompt.
    fn lines(&self) -> Vec<Vec<Piece>>;

    /// Handles a key other than those that end every prompt.
    fn press(&mut self, key: &KeyEvent);

    /// Handles pasted text.
    fn paste(&mut self, text: &str);

    /// Whether it is a text of which nothing is typed, where Ctrl-D is the end of the input.
    fn is_empty(&self) -> bool {
        false
    }

    /// The answer and how it is shown, if it is valid.
    fn answer(&mut self) -> Option<(String, String)>;
}

/// Shows a prompt until it is answered or left.
fn run(turn: Turn<'_>, mut prompt: impl Prompt) -> io::Result<End> {
    let mut screen = Screen::open()?;
    let question = turn.question.prompt();
    let (end, last) = loop {
        screen.draw(&prompt.lines())?;
        let key = match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => key,
            Event::Paste(text) => {
                prompt.paste(&text);
                continue;
            }
            _ => continue,
        };
        let is_control = key.modifiers == KeyModifiers::CONTROL;
        match key.code {
            KeyCode::Char(c) if is_control && (c == 'c' || (c == 'd' && prompt.is_empty())) => {
                break (End::Cancel, titled('?', question, "(cancelled)", dim()));
            }
            KeyCode::Esc => break (End::Back, titled('?', question, "(back)", dim())),
            KeyCode::Char('l') if is_control => screen.clear()?,
            _ if is_enter(&key) => {
                if let Some((answer, shown)) = prompt.answer() {
                    let style = color(Color::Cyan);
                    break (End::Answer(answer), titled('>', question, &shown, style));
                }
            }
            _ => prompt.press(&key),
        }
    };
    screen.finish(&[last])?;
    Ok(end)
}

/// Whether a key is Enter; Ctrl-J and Ctrl-M are too.
fn is_enter(key: &KeyEvent) -> bool {
    match key.code {
        KeyCode::Enter => true,
        KeyCode::Char('j' | 'm') => key.modifiers == KeyModifiers::CONTROL,
        _ => false,
    }
}

/// A text that is being typed.
struct Typing<'t> {
    turn: Turn<'t>,
    line: Line,
    default: Option<String>,
    /// Error in the text.
    wrong: Option<String>,
    /// Why the last Enter was refused.
    refused: Option<String>,
    hint: String,
}

impl<'t> Typing<'t> {
    fn new(turn: Turn<'t>) -> Self {
        let default = turn.question.default().map(ToString::to_string);
        let before = turn.before.map(ToString::to_string);
        let start = before.filter(|before| Some(before) != default.as_ref());
        let mut typing = Self {
            turn,
            line: Line::new(&start.unwrap_or_default()),
            default,
            wrong: None,
            refused: None,
            hint: hint(turn, "enter accepts"),
        };
        typing.check();
        typing
    }

    /// Checks the text as it is typed. An empty text may not have been typed yet.
    fn check(&mut self) {
        let text = self.line.text();
        let error = (!text.is_empty()).then(|| self.turn.question.read(text).err());
        self.wrong = error.flatten().map(|error| refusal(&error));
    }

    fn changed(&mut self) {
        self.refused = None;
        self.check();
    }
}

impl Prompt for Typing<'_> {
    fn lines(&self) -> Vec<Vec<Piece>> {
        let red = color(Color::Red);
        let mut lines = Vec::new();
        if let Some(refused) = &self.refused {
            lines.push(vec![Piece::styled(&format!("# {refused}"), red)]);
        }
        let (before, after) = self.line.parts();
        let mut title = title('?', self.turn.question.prompt());
        title.push(Piece::Typed(before.to_owned()));
        title.push(Piece::Cursor);
        match &self.default {
            Some(default) if self.line.text().is_empty() => {
                title.push(Piece::styled(&format!("({default})"), dim()));
            }
            _ => title.push(Piece::Typed(after.to_owned())),
        }
        lines.push(title);
        if let Some(wrong) = &self.wrong {
            lines.push(vec![Piece::styled(&format!("✗ {wrong}"), red)]);
        } else if let Some(help) = self.turn.question.help() {
            lines.push(vec![Piece::plain(&format!("{INDENT}{help}"))]);
        }
        lines.push(vec![Piece::styled(&self.hint, dim())]);
        lines
    }

    fn press(&mut self, key: &KeyEvent) {
        let before = self.line.text().to_owned();
        self.line.press(key);
        if self.line.text() != before {
            self.changed();
        }
    }

    fn paste(&mut self, text: &str) {
        self.line.paste(text);
        self.changed();
    }

    fn is_empty(&self) -> bool {
        self.line.text().is_empty()
    }

    fn answer(&mut self) -> Option<(String, String)> {
        if self.wrong.is_some() {
            self.refused = Some("correct the text to continue".to_owned());
            return None;
        }
        let text = match &self.default {
            Some(default) if self.line.text().is_empty() => default,
            _ => self.line.text(),
        };
        match self.turn.question.read(text) {
            Ok(_) => Some((text.to_owned(), text.to_owned())),
            Err(error) => {
                self.refused = Some(refusal(&error));
                None
            }
        }
    }
}

/// A list of choices.
struct Choosing<'t> {
    turn: Turn<'t>,
    choices: Vec<Choice>,
    at: usize,
    /// Whether each choice is marked, if any number can be.
    marked: Option<Vec<bool>>,
    hint: String,
}

impl<'t> Choosing<'t> {
    /// A list of which one is chosen.
    fn one(turn: Turn<'t>, choices: &[Choice]) -> Self {
        let start = choices.iter().position(|one| is(turn.fallback(), one));
        Self {
            turn,
            choices: choices.to_vec(),
            at: start.unwrap_or(0),
            marked: None,
            hint: hint(turn, "↑↓ choose, enter accepts"),
        }
    }

    /// A list of which any number are chosen.
    fn any(turn: Turn<'t>, choices: &[Choice]) -> Self {
        let marked = |choice: &Choice| match turn.fallback() {
            Some(Value::List(list)) => list.contains(&choice.value),
            _ => false,
        };
        Self {
            turn,
            choices: choices.to_vec(),
            at: 0,
            marked: Some(choices.iter().map(marked).collect()),
            hint: hint(turn, "↑↓ move, space marks, enter accepts"),
        }
    }

    /// The first of the choices shown.
    fn first(&self) -> usize {
        let last = self.choices.len().saturating_sub(SHOWN);
        self.at.saturating_sub(SHOWN / 2).min(last)
    }

    fn line(&self, at: usize) -> Vec<Piece> {
        let choice = &self.choices[at];
        let cyan = color(Color::Cyan);
        let is_here = at == self.at;
        let first = self.first();
        let end = (first + SHOWN).min(self.choices.len());
        let sign = match at {
            _ if is_here => ">",
            at if at == first && first > 0 => "^",
            at if at + 1 == end && end < self.choices.len() => "v",
            _ => " ",
        };
        let mut line = vec![Piece::styled(sign, cyan), Piece::plain(" ")];
        if is_here {
            line.insert(0, Piece::Focus);
        }
        match self.marked.as_ref().map(|marked| marked[at]) {
            Some(true) => line.push(Piece::styled("[x] ", color(Color::Green))),
            Some(false) => line.push(Piece::plain("[ ] ")),
            None => {}
        }
        // A prompt that is not for an option has no default, only a first choice.
        let is_default = self.turn.step.is_some() && is(self.turn.question.default(), choice);
        let mark = if is_default { " (default)" } else { "" };
        let style = if is_here { cyan } else { ContentStyle::new() };
        line.push(Piece::styled(&format!("{}{mark}", choice.label), style));
        line
    }

    /// The line that explains a choice: the template's, or the value that a label stands for.
    fn explanation<'c>(&self, choice: &'c Choice) -> Option<&'c str> {
        let is_flag = *self.turn.question.kind() == OptionKind::Flag;
        let is_option = self.turn.step.is_some() && !is_flag;
        let value = (is_option && choice.label != choice.value).then_some(&*choice.value);
        choice.help.as_deref().or(value)
    }

    fn go(&mut self, by: isize) {
        let count = self.choices.len();
        let by = by.rem_euclid(count.max(1).cast_signed()).unsigned_abs();
        self.at = (self.at + by) % count.max(1);
    }
}

impl Prompt for Choosing<'_> {
    fn lines(&self) -> Vec<Vec<Piece>> {
        let mut lines = vec![title('?', self.turn.question.prompt())];
        let shown = (0..self.choices.len()).skip(self.first()).take(SHOWN);
        lines.extend(shown.map(|at| self.line(at)));
        let here = self.choices.get(self.at);
        let line = here.and_then(|choice| self.explanation(choice));
        if let Some(line) = line.or(self.turn.question.help()) {
            lines.push(vec![Piece::plain(&format!("{INDENT}{line}"))]);
        }
        lines.push(vec![Piece::styled(&self.hint, dim())]);
        lines
    }

    fn press(&mut self, key: &KeyEvent) {
        let page = SHOWN.cast_signed() - 1;
        let last = self.choices.len().saturating_sub(1);
        match (key.code, key.modifiers.contains(KeyModifiers::CONTROL)) {
            (KeyCode::Up, _) | (KeyCode::Char('k'), false) | (KeyCode::Char('p'), true) => {
                self.go(-1);
            }
            (KeyCode::Down, _) | (KeyCode::Char('j'), false) | (KeyCode::Char('n'), true) => {
                self.go(1);
            }
            (KeyCode::PageUp, _) => self.go(-page.min(self.at.cast_signed())),
            (KeyCode::PageDown, _) => self.go(page.min((last - self.at).cast_signed())),
            (KeyCode::Home, _) | (KeyCode::Char('a'), true) => self.at = 0,
            (KeyCode::End, _) | (KeyCode::Char('e'), true) => self.at = last,
            (KeyCode::Char(' '), false) => {
                if let Some(marked) = &mut self.marked {
                    marked[self.at] ^= true;
                }
            }
            (code @ (KeyCode::Right | KeyCode::Left), _) => {
                if let Some(marked) = &mut self.marked {
                    marked.fill(code == KeyCode::Right);
                }
            }
            _ => {}
        }
    }

    fn paste(&mut self, _: &str) {}

    fn answer(&mut self) -> Option<(String, String)> {
        let chosen: Vec<&Choice> = match &self.marked {
            None => self.choices.get(self.at).into_iter().collect(),
            Some(marked) => {
                let both = self.choices.iter().zip(marked);
                both.filter(|(_, is)| **is).map(|(one, _)| one).collect()
            }
        };
        let values: Vec<&str> = chosen.iter().map(|one| &*one.value).collect();
        let labels: Vec<&str> = chosen.iter().map(|one| &*one.label).collect();
        Some((values.join(","), labels.join(", ")))
    }
}

fn is(value: Option<&Value>, choice: &Choice) -> bool {
    value.is_some_and(|value| value.to_string() == choice.value)
}

fn flags() -> Vec<Choice> {
    [("true", "yes"), ("false", "no")]
        .map(|(value, label)| Choice {
            value: value.to_owned(),
            label: label.to_owned(),
            help: None,
        })
        .to_vec()
}

/// The start of a prompt's first line.
fn title(sign: char, question: &str) -> Vec<Piece> {
    vec![
        Piece::styled(&sign.to_string(), color(Color::Green)),
        Piece::plain(" "),
        Piece::styled(question, ContentStyle::new().bold()),
        Piece::plain(" "),
    ]
}

/// The line of a prompt that has ended.
fn titled(sign: char, question: &str, said: &str, style: ContentStyle) -> Vec<Piece> {
    let mut line = title(sign, question);
    line.push(Piece::styled(said, style));
    line
}

/// The hint line: the step, and the keys.
fn hint(turn: Turn<'_>, keys: &str) -> String {
    let back = if turn.first { "" } else { "esc goes back, " };
    let cancel = if turn.first { "esc" } else { "ctrl-c" };
    let step = match turn.step {
        Some((at, of)) => format!("{at} of {of}: "),
        None => String::new(),
    };
    format!("[{step}{keys}, {back}{cancel} cancels]")
}

fn dim() -> ContentStyle {
    color(Color::DarkGrey)
}

/// Crossterm omits colours if `NO_COLOR` is set.
fn color(color: Color) -> ContentStyle {
    ContentStyle::new().with(color)
}

fn failed(cause: io::Error) -> Error {
    Error::system(format!("cannot ask on the terminal: {cause}"))
        .help("add `--yes` to take the defaults")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::new::wizard::Question;

    fn not_bad(default: Option<&str>) -> Question<'static> {
        Question::text(
            "key",
            "What?",
            default.map(str::to_owned),
            |text| match text {
                "bad" => Err(Error::input("this is bad").help("say good")),
                _ => Ok(()),
            },
        )
    }

    fn turn<'t>(question: &'t Question<'t>) -> Turn<'t> {
        Turn {
            question,
            before: None,
            step: None,
            first: true,
        }
    }

    fn key(c: char) -> KeyEvent {
        KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE)
    }

    #[test]
    fn says_at_each_key_what_is_wrong() {
        let question = not_bad(None);
        let mut typing = Typing::new(turn(&question));
        typing.paste("ba");
        assert_eq!(typing.wrong, None);
        typing.press(&key('d'));
        assert_eq!(typing.wrong.as_deref(), Some("this is bad: say good"));
        assert!(typing.answer().is_none() && typing.refused.is_some());
        typing.press(&key('!'));
        assert!(typing.wrong.is_none() && typing.refused.is_none());
        assert_eq!(typing.answer().unwrap().0, "bad!");
    }

    #[test]
    fn an_empty_text_is_the_default() {
        let answer = |default, typed: &str| {
            let question = not_bad(default);
            let mut typing = Typing::new(turn(&question));
            typing.paste(typed);
            typing.answer().map(|(answer, _)| answer)
        };
        assert_eq!(answer(Some("it"), "").as_deref(), Some("it"));
        assert_eq!(answer(Some("it"), "a").as_deref(), Some("a"));
        assert_eq!(answer(None, "").as_deref(), Some(""));
        assert_eq!(answer(Some("bad"), ""), None);
    }

    #[test]
    fn a_long_list_is_shown_in_part_and_goes_round() {
        let choices: Vec<_> = (0..30)
            .map(|at| super::super::wizard::choice(&at.to_string(), &at.to_string()))
            .collect();
        let question = Question::choice("key", "Which?", choices.clone());
        let mut choosing = Choosing::one(turn(&question), &choices);
        let press = |choosing: &mut Choosing<'_>, code| {
            choosing.press(&KeyEvent::new(code, KeyModifiers::NONE));
            (choosing.at, choosing.first())
        };
        assert_eq!(press(&mut choosing, KeyCode::Up), (29, 20));
        assert_eq!(press(&mut choosing, KeyCode::PageDown), (29, 20));
        assert_eq!(press(&mut choosing, KeyCode::Down), (0, 0));
        assert_eq!(press(&mut choosing, KeyCode::PageDown), (9, 4));
        assert_eq!(choosing.lines().len(), SHOWN + 2);
    }
}
