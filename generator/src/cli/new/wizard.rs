//! The questions of `kiln new`, forward and back. Who asks them is another matter.

use crate::{
    error::{Error, Result},
    template::option::{Choice, OptionKind, TemplateOption, Value},
};

/// Something to ask.
pub(crate) struct Question<'q> {
    option: TemplateOption,
    check: Option<Check<'q>>,
}

type Check<'q> = Box<dyn Fn(&str) -> Result<()> + 'q>;

impl<'q> Question<'q> {
    /// Asks for an option of a template.
    pub fn of(option: &TemplateOption) -> Self {
        Self {
            option: option.clone(),
            check: None,
        }
    }

    /// Asks for a text.
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

    /// Asks for one of several values, each with what people see.
    fn choice(key: &str, prompt: &str, choices: Vec<Choice>) -> Self {
        let default = choices.first().map(|choice| choice.value.clone());
        Self {
            option: option(key, prompt, OptionKind::Choice(choices), default),
            check: None,
        }
    }

    /// What summaries call the answer.
    pub fn key(&self) -> &str {
        &self.option.name
    }

    /// What is asked.
    pub fn prompt(&self) -> &str {
        &self.option.prompt
    }

    /// What it takes.
    pub fn kind(&self) -> &OptionKind {
        &self.option.kind
    }

    /// What it is when nobody says.
    pub fn default(&self) -> Option<&Value> {
        self.option.default.as_ref()
    }

    /// Reads an answer as people type it.
    ///
    /// # Errors
    /// It is no answer to this question.
    pub fn read(&self, text: &str) -> Result<Value> {
        let text = text.trim();
        match &self.check {
            Some(check) => check(text)?,
            None if text.is_empty() => self.check_empty()?,
            None => {}
        }
        self.option.parse(text)
    }

    /// Somebody who only hurries on gives no text, where there is no default to take.
    fn check_empty(&self) -> Result<()> {
        let key = self.key();
        match (self.kind(), self.default()) {
            (OptionKind::Text { .. }, None) => {
                let error = Error::input(format!("the option `{key}` has no default"));
                Err(error.help(format!(
                    "type a text; only `--define {key}=` sets an empty one"
                )))
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
        default: default.map(Value::Text),
        span: 0..0,
        regex_span: None,
    }
}

/// A question that is asked now.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'t> {
    /// The question.
    pub question: &'t Question<'t>,
    /// What was answered before.
    pub before: Option<&'t Value>,
    /// Which of how many it is, from 1.
    pub step: Option<(usize, usize)>,
    /// Whether there is nothing to go back to.
    pub first: bool,
}

impl Turn<'_> {
    /// What is taken where nobody says: what was answered before, or the default.
    pub fn fallback(&self) -> Option<&Value> {
        self.before.or_else(|| self.question.default())
    }
}

/// What somebody does about a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Answers it.
    Answer(Value),
    /// Goes back to the one before.
    Back,
    /// Leaves.
    Cancel,
}

/// Whoever answers.
pub(crate) trait Ask {
    /// Asks a question; only answers that it takes come back.
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

/// Asks all questions in order, shows the summary of their answers, and lets it be made, changed or
/// cancelled. Nothing comes back where it was cancelled. Where there can be no summary, it says why, and
/// the answers stay, to be changed.
///
/// # Errors
/// The terminal fails, or `summarize` where nothing was asked.
pub(crate) fn run(
    questions: &[Question<'_>],
    asker: &mut dyn Ask,
    mut summarize: impl FnMut(&[Value]) -> Result<String>,
) -> Result<Option<Vec<Value>>> {
    let mut answers: Vec<Value> = Vec::new();
    let mut at = 0;
    loop {
        while let Some(question) = questions.get(at) {
            let turn = Turn {
                question,
                before: answers.get(at),
                step: Some((at + 1, questions.len())),
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
        }
        let decision = match summarize(&answers) {
            Ok(summary) => {
                asker.show(&summary)?;
                decide(questions, &mut answers, asker)?
            }
            Err(error) if questions.is_empty() => return Err(error),
            Err(error) => {
                asker.show(&format!("\n{}\n", error.draw(false)))?;
                mend(questions, &mut answers, asker)?
            }
        };
        match decision {
            Decision::Make => return Ok(Some(answers)),
            Decision::Again => {}
            Decision::Back => at -= 1,
            Decision::Cancel => return Ok(None),
        }
    }
}

fn set(answers: &mut Vec<Value>, at: usize, value: Value) {
    match answers.get_mut(at) {
        Some(old) => *old = value,
        None => answers.push(value),
    }
}

enum Decision {
    Make,
    /// Shows the summary again.
    Again,
    /// Goes back to the last question.
    Back,
    Cancel,
}

fn decide(
    questions: &[Question<'_>],
    answers: &mut [Value],
    asker: &mut dyn Ask,
) -> Result<Decision> {
    let mut choices = vec![choice(MAKE, "make it")];
    if !questions.is_empty() {
        choices.push(choice(CHANGE, "change an answer"));
    }
    choices.push(choice(CANCEL, "cancel, and write nothing"));
    let question = Question::choice("decision", "Make the project?", choices);
    let reply = asker.ask(aside(&question, None, questions.is_empty()))?;
    Ok(match reply {
        Reply::Answer(Value::Text(text)) if text == MAKE => Decision::Make,
        Reply::Answer(Value::Text(text)) if text == CHANGE => change(questions, answers, asker)?,
        Reply::Back if !questions.is_empty() => Decision::Back,
        Reply::Answer(_) | Reply::Back | Reply::Cancel => Decision::Cancel,
    })
}

/// Asks which answer to change, and for a new one.
fn change(
    questions: &[Question<'_>],
    answers: &mut [Value],
    asker: &mut dyn Ask,
) -> Result<Decision> {
    let keys = questions.iter().map(Question::key);
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
    let (question, answer) = found.ok_or_else(|| {
        Error::system(format!("`{key}` is none of the questions that were asked"))
    })?;
    ask_again(question, answer, asker)
}

/// Asks again for the answer that is no longer one, such as a name whose folder was made meanwhile;
/// where all are, asks which to change.
fn mend(
    questions: &[Question<'_>],
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

fn choice(value: &str, label: &str) -> Choice {
    Choice {
        value: value.to_owned(),
        label: label.to_owned(),
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

    /// Says what it is told to, and notes what it was asked.
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

    /// What is asked and shown where `2` is no answer in the end, and `b` knows it, or nothing does.
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

    /// The answers, and what was asked and shown.
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
