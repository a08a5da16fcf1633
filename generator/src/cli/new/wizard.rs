//! The sequence of prompts of `kiln new`, forward and back, independent of the terminal.

use std::io;

use crate::{
    error::{Error, Result},
    template::{
        answers::Values,
        option::{Choice, OptionKind, TemplateOption, Value},
    },
    wrapping::width_of,
};

/// A question of the wizard.
pub(crate) struct Question<'q> {
    option: TemplateOption,
    check: Option<Check<'q>>,
}

type Check<'q> = Box<dyn Fn(&str) -> Result<()> + 'q>;

impl<'q> Question<'q> {
    /// The question for an option of a template.
    pub fn of(option: &TemplateOption) -> Self {
        Self {
            option: option.clone(),
            check: None,
        }
    }

    /// A question for a text.
    pub fn text(
        key: &str,
        prompt: &str,
        default: Option<String>,
        check: impl Fn(&str) -> Result<()> + 'q,
    ) -> Self {
        let kind = OptionKind::Text { regex: None };
        Self {
            option: option(key, prompt, kind, default),
            check: Some(Box::new(check)),
        }
    }

    /// A question with several labelled choices.
    pub fn choice(key: &str, prompt: &str, choices: Vec<Choice>) -> Self {
        let default = choices.first().map(|choice| choice.value.clone());
        Self {
            option: option(key, prompt, OptionKind::Choice(choices), default),
            check: None,
        }
    }

    /// The key of the answer in summaries.
    pub fn key(&self) -> &str {
        &self.option.name
    }

    /// The text of the prompt.
    pub fn prompt(&self) -> &str {
        &self.option.prompt
    }

    /// The type of the answer.
    pub fn kind(&self) -> &OptionKind {
        &self.option.kind
    }

    /// In words, what a regular expression of the option requires.
    pub fn form(&self, regex: &str) -> String {
        self.option.form(regex)
    }

    /// A line that explains the option.
    pub fn help(&self) -> Option<&str> {
        self.option.help.as_deref()
    }

    /// The default answer.
    pub fn default(&self) -> Option<&Value> {
        self.option.default.as_ref()
    }

    /// Parses an answer.
    ///
    /// # Errors
    /// The answer is invalid.
    pub fn read(&self, text: &str) -> Result<Value> {
        let text = text.trim();
        match &self.check {
            Some(check) => check(text)?,
            None if text.is_empty() => self.check_empty()?,
            None => {}
        }
        self.option.parse(text)
    }

    /// Refuses an empty text if there is no default, as it is likely to be an accident.
    fn check_empty(&self) -> Result<()> {
        let key = self.key();
        match (self.kind(), self.default()) {
            (OptionKind::Text { .. }, None) => {
                let error = Error::input(format!("the option `{key}` has no default"));
                Err(error.help(format!("type a text; `--define {key}=` sets an empty one")))
            }
            _ => Ok(()),
        }
    }
}

fn option(key: &str, prompt: &str, kind: OptionKind, default: Option<String>) -> TemplateOption {
    TemplateOption {
        name: key.to_owned(),
        prompt: prompt.to_owned(),
        kind,
        help: None,
        default: default.map(Value::Text),
        span: 0..0,
        regex_span: None,
    }
}

/// A question in progress.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'t> {
    /// The question.
    pub question: &'t Question<'t>,
    /// The previous answer.
    pub before: Option<&'t Value>,
    /// The number of the question, from 1, and the number of questions.
    pub step: Option<(usize, usize)>,
    /// Whether there is no question to go back to.
    pub first: bool,
}

impl Turn<'_> {
    /// The default answer: the previous answer, or the default of the question.
    pub fn fallback(&self) -> Option<&Value> {
        self.before.or_else(|| self.question.default())
    }
}

/// A user's reply to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// An answer.
    Answer(Value),
    /// Back to the previous question.
    Back,
    /// Leave the wizard.
    Cancel,
}

/// A user interface of the wizard.
pub(crate) trait Ask {
    /// Asks a question; returns only valid answers.
    ///
    /// # Errors
    /// The terminal fails.
    fn ask(&mut self, turn: Turn<'_>) -> Result<Reply>;

    /// Shows a text.
    ///
    /// # Errors
    /// The terminal fails.
    fn show(&mut self, text: &str) -> Result<()>;
}

const MAKE: &str = "make";
const CHANGE: &str = "change";
const CANCEL: &str = "cancel";

/// Asks the questions in order and those that follow from the answers, shows the summary, and offers
/// to create the project, to change an answer or to cancel. Returns `None` if cancelled. If the
/// summary fails, shows the error and lets the user change answers.
///
/// # Errors
/// The terminal fails, the further questions cannot be told, or `summarize` fails without any
/// question.
pub(crate) fn run_with<'o>(
    questions: &[Question<'_>],
    asker: &mut dyn Ask,
    follow_ups: impl Fn(&Values) -> Result<Vec<&'o TemplateOption>>,
    mut summarize: impl FnMut(&Values) -> Result<String>,
) -> Result<Option<Values>> {
    let mut further: Vec<Question<'static>> = Vec::new();
    let mut answers: Vec<Value> = Vec::new();
    let mut at = 0;
    loop {
        // A changed answer may call for other questions.
        if answers.len() >= questions.len() {
            let all: Vec<&Question<'_>> = questions.iter().chain(&further).collect();
            let options = follow_ups(&by_key(&all, &answers))?;
            let (now, kept) = renewed(questions.len(), &further, options);
            if let Some(now) = now {
                further = now;
                answers.truncate(kept);
                at = at.min(kept);
            }
        }
        let all: Vec<&Question<'_>> = questions.iter().chain(&further).collect();
        if let Some(question) = all.get(at) {
            let turn = Turn {
                question,
                before: answers.get(at),
                step: Some((at + 1, all.len())),
                first: at == 0,
            };
            match asker.ask(turn)? {
                Reply::Answer(value) => {
                    set(&mut answers, at, value);
                    at += 1;
                }
                Reply::Back if at > 0 => at -= 1,
                Reply::Back | Reply::Cancel => return Ok(None),
            }
            continue;
        }
        let asked = by_key(&all, &answers);
        let decision = match summarize(&asked) {
            Ok(summary) => {
                asker.show(&summary)?;
                decide(&all, &mut answers, asker)?
            }
            Err(error) if all.is_empty() => return Err(error),
            Err(error) => {
                let drawn = error.draw_within(width_of(&io::stderr()), false);
                asker.show(&format!("\n{drawn}\n"))?;
                mend(&all, &mut answers, asker)?
            }
        };
        match decision {
            Decision::Make => return Ok(Some(by_key(&all, &answers))),
            Decision::Again => {}
            Decision::Back => at -= 1,
            Decision::Cancel => return Ok(None),
        }
    }
}

/// The answers by the keys of their questions.
fn by_key(questions: &[&Question<'_>], answers: &[Value]) -> Values {
    let keys = questions.iter().map(|question| question.key().to_owned());
    keys.zip(answers.iter().cloned()).collect()
}

/// The further questions for these options, if they are not the same as before, and the number of
/// questions, of which `fixed` are not further ones, whose answers stay.
fn renewed(
    fixed: usize,
    before: &[Question<'static>],
    options: Vec<&TemplateOption>,
) -> (Option<Vec<Question<'static>>>, usize) {
    let pairs = before.iter().zip(&options);
    let same = pairs.take_while(|(question, option)| {
        question.key() == option.name && question.option.span == option.span
    });
    let same = same.count();
    let changed = same != before.len() || same != options.len();
    let further = || options.into_iter().map(Question::of).collect();
    (changed.then(further), fixed + same)
}

fn set(answers: &mut Vec<Value>, at: usize, value: Value) {
    match answers.get_mut(at) {
        Some(old) => *old = value,
        None => answers.push(value),
    }
}

enum Decision {
    Make,
    /// Show the summary again.
    Again,
    /// Back to the last question.
    Back,
    Cancel,
}

fn decide(
    questions: &[&Question<'_>],
    answers: &mut [Value],
    asker: &mut dyn Ask,
) -> Result<Decision> {
    let mut choices = vec![choice(MAKE, "create it")];
    if !questions.is_empty() {
        choices.push(choice(CHANGE, "change an answer"));
    }
    choices.push(choice(CANCEL, "cancel without writing"));
    let question = Question::choice("decision", "Create the project?", choices);
    let reply = asker.ask(aside(&question, None, questions.is_empty()))?;
    Ok(match reply {
        Reply::Answer(Value::Text(text)) if text == MAKE => Decision::Make,
        Reply::Answer(Value::Text(text)) if text == CHANGE => change(questions, answers, asker)?,
        Reply::Back if !questions.is_empty() => Decision::Back,
        Reply::Answer(_) | Reply::Back | Reply::Cancel => Decision::Cancel,
    })
}

/// Asks which answer to change, and for its new value.
fn change(
    questions: &[&Question<'_>],
    answers: &mut [Value],
    asker: &mut dyn Ask,
) -> Result<Decision> {
    let keys = questions.iter().map(|question| question.key());
    let width = keys.clone().map(str::len).max().unwrap_or(0);
    let choices = keys.zip(answers.iter());
    let choices = choices.map(|(key, answer)| choice(key, &format!("{key:width$}  {answer}")));
    let which = Question::choice("which", "Which answer?", choices.collect());
    let key = match asker.ask(aside(&which, None, false))? {
        Reply::Answer(key) => key.to_string(),
        Reply::Back => return Ok(Decision::Again),
        Reply::Cancel => return Ok(Decision::Cancel),
    };
    let found = questions.iter().zip(answers).find(|(q, _)| q.key() == key);
    let (question, answer) =
        found.ok_or_else(|| Error::system(format!("`{key}` is not a question of the wizard")))?;
    ask_again(question, answer, asker)
}

/// Asks again for an answer that has become invalid, such as a name whose folder now exists; if all
/// are valid, asks which to change.
fn mend(
    questions: &[&Question<'_>],
    answers: &mut [Value],
    asker: &mut dyn Ask,
) -> Result<Decision> {
    let mut both = questions.iter().zip(answers.iter_mut());
    match both.find(|(question, answer)| question.read(&answer.to_string()).is_err()) {
        Some((question, answer)) => ask_again(question, answer, asker),
        None => change(questions, answers, asker),
    }
}

fn ask_again(question: &Question<'_>, answer: &mut Value, asker: &mut dyn Ask) -> Result<Decision> {
    match asker.ask(aside(question, Some(answer), false))? {
        Reply::Answer(value) => *answer = value,
        Reply::Back => {}
        Reply::Cancel => return Ok(Decision::Cancel),
    }
    Ok(Decision::Again)
}

/// A choice with its label.
pub(super) fn choice(value: &str, label: &str) -> Choice {
    Choice {
        value: value.to_owned(),
        label: label.to_owned(),
        help: None,
    }
}

fn aside<'t>(question: &'t Question<'t>, before: Option<&'t Value>, first: bool) -> Turn<'t> {
    Turn {
        question,
        before,
        step: None,
        first,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the wizard without further questions, with answers by position.
    fn run(
        questions: &[Question<'_>],
        asker: &mut dyn Ask,
        mut summarize: impl FnMut(&[Value]) -> Result<String>,
    ) -> Result<Option<Vec<Value>>> {
        let values = |asked: &Values| asked.values().cloned().collect::<Vec<_>>();
        let made = run_with(
            questions,
            asker,
            |_| Ok(Vec::new()),
            |asked| summarize(&values(asked)),
        )?;
        Ok(made.as_ref().map(values))
    }

    /// `d` is asked if `b` is 2, and `e` if `d` is 4.
    fn play_further(replies: &[&'static str]) -> (Option<String>, String) {
        let further =
            ["d", "e"].map(|key| option(key, key, OptionKind::Text { regex: None }, None));
        let is = |asked: &Values, key: &str, value: &str| {
            asked.get(key) == Some(&Value::Text(value.to_owned()))
        };
        let text = |asked: &Values| {
            let all = asked.iter().map(|(key, value)| format!("{key}{value}"));
            all.collect::<Vec<_>>().join(" ")
        };
        let mut script = Script {
            replies: replies.to_vec(),
            seen: Vec::new(),
        };
        let made = run_with(
            &questions(),
            &mut script,
            |asked| {
                let [d, e] = &further;
                let mut options = Vec::new();
                if is(asked, "b", "2") {
                    options.push(d);
                    options.extend(is(asked, "d", "4").then_some(e));
                }
                Ok(options)
            },
            |asked| Ok(text(asked)),
        );
        assert!(script.replies.is_empty(), "all replies are used");
        (made.unwrap().as_ref().map(text), script.seen.join(", "))
    }

    #[test]
    fn further_questions_follow_from_the_answers() {
        let (made, seen) = play_further(&["1", "2", "3", "4", "5", "make"]);
        assert_eq!(made.unwrap(), "a1 b2 c3 d4 e5");
        assert_eq!(seen, "a, b, c, d, e, (a1 b2 c3 d4 e5), decision");
        let (made, seen) = play_further(&["1", "9", "3", "change", "b", "2", "6", "make"]);
        assert_eq!(made.unwrap(), "a1 b2 c3 d6");
        assert!(seen.ends_with("b=9, d, (a1 b2 c3 d6), decision"), "{seen}");
        let (made, seen) = play_further(&["1", "2", "3", "4", "<", "<", "<", "7", "3", "make"]);
        assert_eq!(made.unwrap(), "a1 b7 c3");
        assert!(
            seen.ends_with("e, d=4, c=3, b=2, c=3, (a1 b7 c3), decision"),
            "{seen}"
        );
    }

    /// A scripted user that records the questions.
    struct Script {
        replies: Vec<&'static str>,
        seen: Vec<String>,
    }

    impl Ask for Script {
        fn ask(&mut self, turn: Turn<'_>) -> Result<Reply> {
            let before = turn.before.map(|before| format!("={before}"));
            let key = turn.question.key();
            self.seen
                .push(format!("{key}{}", before.unwrap_or_default()));
            Ok(match self.replies.remove(0) {
                "<" => Reply::Back,
                "^C" => Reply::Cancel,
                text => Reply::Answer(turn.question.read(text)?),
            })
        }

        fn show(&mut self, text: &str) -> Result<()> {
            self.seen.push(format!("({text})"));
            Ok(())
        }
    }

    fn questions() -> Vec<Question<'static>> {
        ["a", "b", "c"]
            .iter()
            .map(|key| Question::text(key, "?", None, |_| Ok(())))
            .collect()
    }

    /// The questions and texts shown if the answer `2` turns out to be invalid; `known` says
    /// whether question `b` detects it.
    fn refused(known: bool, replies: &[&'static str]) -> (Option<String>, Vec<String>) {
        let late = std::cell::Cell::new(false);
        let check = |text: &str| match text {
            "2" if known && late.get() => Err(Error::input("taken")),
            _ => Ok(()),
        };
        let questions = [
            Question::text("a", "?", None, |_| Ok(())),
            Question::text("b", "?", None, check),
        ];
        let mut script = Script {
            replies: replies.to_vec(),
            seen: Vec::new(),
        };
        let text = |answers: &[Value]| {
            let answers: Vec<_> = answers.iter().map(ToString::to_string).collect();
            answers.join(" ")
        };
        let made = run(&questions, &mut script, |now| {
            late.set(true);
            match &now[1] {
                two if *two == Value::Text("2".to_owned()) => Err(Error::input("taken")),
                _ => Ok(text(now)),
            }
        });
        assert!(script.replies.is_empty(), "all replies are used");
        (made.unwrap().as_deref().map(text), script.seen)
    }

    #[test]
    fn what_cannot_be_made_keeps_the_answers() {
        let said = "(\n  × taken\n\n)";
        let (made, seen) = refused(true, &["1", "2", "<", "4", "make"]);
        assert_eq!(made.unwrap(), "1 4");
        let asked = ["a", "b", said, "b=2", said, "b=2", "(1 4)", "decision"];
        assert_eq!(seen, asked);
        let (made, seen) = refused(false, &["1", "2", "b", "4", "make"]);
        assert_eq!(made.unwrap(), "1 4");
        let asked = ["a", "b", said, "which", "b=2", "(1 4)", "decision"];
        assert_eq!(seen, asked);
        assert_eq!(refused(true, &["1", "2", "^C"]).0, None);
        assert_eq!(refused(false, &["1", "2", "^C"]).0, None);
        let mut script = Script {
            replies: Vec::new(),
            seen: Vec::new(),
        };
        assert!(run(&[], &mut script, |_| Err(Error::input("taken"))).is_err());
    }

    /// The answers, and the questions and texts shown.
    fn play(
        questions: &[Question<'_>],
        replies: &[&'static str],
    ) -> (Option<Vec<String>>, Vec<String>) {
        let mut script = Script {
            replies: replies.to_vec(),
            seen: Vec::new(),
        };
        let text = |answers: &[Value]| answers.iter().map(ToString::to_string).collect::<Vec<_>>();
        let answers = run(questions, &mut script, |now| Ok(text(now).join(" "))).unwrap();
        assert!(script.replies.is_empty(), "all replies are used");
        (answers.as_deref().map(text), script.seen)
    }

    fn made(replies: &[&'static str]) -> (String, String) {
        let (answers, seen) = play(&questions(), replies);
        (answers.unwrap().join(" "), seen.join(", "))
    }

    #[test]
    fn forward() {
        let (answers, seen) = made(&["1", "2", "3", "make"]);
        assert_eq!(answers, "1 2 3");
        assert_eq!(seen, "a, b, c, (1 2 3), decision");
    }

    #[test]
    fn back_keeps_the_answers_given() {
        let (answers, seen) = made(&["1", "2", "<", "<", "4", "5", "3", "make"]);
        assert_eq!(answers, "4 5 3");
        assert_eq!(seen, "a, b, c, b=2, a=1, b=2, c, (4 5 3), decision");
    }

    #[test]
    fn back_from_the_summary() {
        let (answers, seen) = made(&["1", "2", "3", "<", "4", "make"]);
        assert_eq!(answers, "1 2 4");
        assert_eq!(seen, "a, b, c, (1 2 3), decision, c=3, (1 2 4), decision");
    }

    #[test]
    fn changes_one_answer() {
        let (answers, seen) = made(&["1", "2", "3", "change", "b", "4", "make"]);
        assert_eq!(answers, "1 4 3");
        assert_eq!(
            seen,
            "a, b, c, (1 2 3), decision, which, b=2, (1 4 3), decision"
        );
    }

    #[test]
    fn changes_nothing_after_all() {
        let replies = ["1", "2", "3", "change", "<", "change", "b", "<", "make"];
        assert_eq!(made(&replies).0, "1 2 3");
    }

    #[test]
    fn cancels_everywhere() {
        let ways: &[&[&str]] = &[
            &["<"],
            &["^C"],
            &["1", "^C"],
            &["1", "<", "<"],
            &["1", "2", "3", "^C"],
            &["1", "2", "3", "cancel"],
            &["1", "2", "3", "change", "^C"],
            &["1", "2", "3", "change", "b", "^C"],
        ];
        for way in ways {
            assert_eq!(play(&questions(), way).0, None, "{way:?}");
        }
    }

    #[test]
    fn without_questions_there_is_nothing_to_change_or_go_back_to() {
        assert_eq!(play(&[], &["make"]).0, Some(Vec::new()));
        assert_eq!(play(&[], &["<"]).0, None);
        let mut script = Script {
            replies: vec!["change"],
            seen: Vec::new(),
        };
        assert!(run(&[], &mut script, |_| Ok(String::new())).is_err());
    }

    #[test]
    fn says_which_question_it_is() {
        struct Steps(Vec<(Option<(usize, usize)>, bool)>);
        impl Ask for Steps {
            fn ask(&mut self, turn: Turn<'_>) -> Result<Reply> {
                self.0.push((turn.step, turn.first));
                Ok(match turn.step {
                    Some(_) => Reply::Answer(Value::Text(String::new())),
                    None => Reply::Cancel,
                })
            }
            fn show(&mut self, _: &str) -> Result<()> {
                Ok(())
            }
        }
        let mut steps = Steps(Vec::new());
        run(&questions(), &mut steps, |_| Ok(String::new())).unwrap();
        let step = |at| (Some((at, 3)), at == 1);
        assert_eq!(steps.0, [step(1), step(2), step(3), (None, false)]);
    }
}
