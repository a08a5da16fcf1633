//! Template variables: the answers and the built-in variables.

use std::{
    cell::{OnceCell, RefCell},
    collections::{BTreeMap, BTreeSet},
    env,
    path::{Path, PathBuf},
    process::Command,
};

use liquid::{
    ObjectView, ValueView,
    model::{DisplayCow, KStringCow, State, Value},
};

use super::{
    answers::Answers,
    option::{TemplateOption, Value as Answer},
};

/// The variables of one rendering. Variables that depend on the machine are resolved lazily.
#[derive(Debug)]
pub(crate) struct Variables {
    known: BTreeMap<String, Value>,
    destination: PathBuf,
    authors: OnceCell<Option<[Value; 2]>>,
    within: OnceCell<Value>,
    unknown: RefCell<BTreeSet<String>>,
    /// Unknown variables that are empty, as in cargo-generate.
    supplied: RefCell<BTreeSet<String>>,
    empty: Value,
    /// Options that do not apply.
    absent: BTreeSet<String>,
}

impl Variables {
    pub fn new(answers: &Answers, destination: PathBuf) -> Self {
        let name = answers.name();
        let text = |text: &str| Value::scalar(text.to_owned());
        let mut known = BTreeMap::from([
            ("project-name".to_owned(), text(name.package())),
            ("crate_name".to_owned(), text(&name.crate_name())),
            ("crate_type".to_owned(), text("bin")),
            ("os-arch".to_owned(), Value::scalar(os_arch())),
            ("is_init".to_owned(), Value::scalar(false)),
        ]);
        for (key, answer) in answers.values() {
            let value = match answer {
                Answer::Text(answer) => text(answer),
                Answer::Flag(flag) => Value::scalar(*flag),
                Answer::List(list) => Value::array(list.iter().map(|item| text(item))),
            };
            known.insert(key.to_owned(), value);
        }
        Self {
            known,
            destination,
            authors: OnceCell::new(),
            within: OnceCell::new(),
            unknown: RefCell::default(),
            supplied: RefCell::default(),
            empty: text(""),
            absent: BTreeSet::new(),
        }
    }

    /// The same variables, knowing which of these conditional options do not apply: they are no
    /// unknown variables.
    pub fn without<'o>(mut self, options: impl Iterator<Item = &'o TemplateOption>) -> Self {
        let names = options.map(|option| option.name.clone());
        self.absent = names
            .filter(|name| !self.known.contains_key(name))
            .collect();
        self
    }

    /// Whether `name` is an option that does not apply.
    pub fn is_absent(&self, name: &str) -> bool {
        self.absent.contains(name)
    }

    /// The same variables with a fixed author: name with address, and name.
    #[cfg(feature = "snapshot")]
    pub fn by(mut self, author: [&str; 2]) -> Self {
        let author = author.map(|text| Value::scalar(text.to_owned()));
        self.authors = OnceCell::from(Some(author));
        self
    }

    /// The value of a variable.
    pub fn value(&self, name: &str) -> Option<&Value> {
        match name {
            "authors" => self.authors().map(|[author, _]| author),
            "username" => self.authors().map(|[_, user]| user),
            "within_cargo_project" => Some(self.within.get_or_init(|| {
                let mut folders = self.destination.ancestors();
                Value::scalar(folders.any(|folder| folder.join("Cargo.toml").exists()))
            })),
            _ => self.known.get(name),
        }
    }

    /// The output of `{{ name }}`, if the variable is a string or flag that needs no lookup.
    pub fn output(&self, name: &str) -> Option<String> {
        let value = self.known.get(name)?.as_scalar()?;
        Some(value.render().to_string())
    }

    /// The names of all variables.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        let late = ["authors", "username", "within_cargo_project"];
        self.known.keys().map(String::as_str).chain(late)
    }

    /// Whether the text of a resolved variable contains `c`.
    pub fn contain(&self, c: char) -> bool {
        let authors = self.authors.get().and_then(Option::as_ref);
        let mut all = self.known.values().chain(authors.into_iter().flatten());
        all.any(|value| value.to_kstr().contains(c))
    }

    /// The names of unknown variables that were requested since the last call.
    pub fn take_unknown(&self) -> BTreeSet<String> {
        self.unknown.take()
    }

    /// Makes an unknown variable an empty text from now on. False if it is one already.
    pub fn supply(&self, name: &str) -> bool {
        self.supplied.borrow_mut().insert(name.to_owned())
    }

    /// Whether a variable is one of those that are empty because they are unknown.
    pub fn is_supplied(&self, name: &str) -> bool {
        self.supplied.borrow().contains(name)
    }

    /// The folder of the project.
    pub fn destination(&self) -> &Path {
        &self.destination
    }

    fn authors(&self) -> Option<&[Value; 2]> {
        self.authors
            .get_or_init(|| {
                let user = first(&["CARGO_NAME", "GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"])
                    .or_else(|| git_config("user.name"))
                    .or_else(|| first(&["USER", "USERNAME", "NAME"]))?;
                let email = first(&["CARGO_EMAIL", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"])
                    .or_else(|| git_config("user.email"))
                    .or_else(|| first(&["EMAIL"]));
                let user = user.trim().to_owned();
                let author = match email {
                    Some(email) => format!("{user} <{}>", without_brackets(email.trim())),
                    None => user.clone(),
                };
                Some([Value::scalar(author), Value::scalar(user)])
            })
            .as_ref()
    }
}

fn os_arch() -> String {
    format!("{}-{}", env::consts::OS, env::consts::ARCH)
}

fn first(variables: &[&str]) -> Option<String> {
    variables.iter().find_map(|name| env::var(name).ok())
}

fn without_brackets(email: &str) -> &str {
    email
        .strip_prefix('<')
        .and_then(|inner| inner.strip_suffix('>'))
        .unwrap_or(email)
}

fn git_config(key: &str) -> Option<String> {
    let output = Command::new("git").args(["config", "--get", key]).output();
    let output = output.ok().filter(|output| output.status.success())?;
    let value = String::from_utf8(output.stdout).ok()?;
    Some(value.trim_end_matches('\n').to_owned())
}

// Liquid sees the variables as an object, which records requests for unknown names.

impl ValueView for Variables {
    fn as_debug(&self) -> &dyn std::fmt::Debug {
        self
    }

    fn render(&self) -> DisplayCow<'_> {
        DisplayCow::Owned(Box::new(""))
    }

    fn source(&self) -> DisplayCow<'_> {
        DisplayCow::Owned(Box::new(""))
    }

    fn type_name(&self) -> &'static str {
        "object"
    }

    fn query_state(&self, state: State) -> bool {
        state == State::Truthy
    }

    fn to_kstr(&self) -> KStringCow<'_> {
        KStringCow::from_static("")
    }

    fn to_value(&self) -> Value {
        Value::Object(
            self.iter()
                .map(|(key, value)| (key.into_owned(), value.to_value()))
                .collect(),
        )
    }

    fn as_object(&self) -> Option<&dyn ObjectView> {
        Some(self)
    }
}

impl ObjectView for Variables {
    fn as_value(&self) -> &dyn ValueView {
        self
    }

    fn size(&self) -> i64 {
        self.names().count() as i64
    }

    fn keys<'k>(&'k self) -> Box<dyn Iterator<Item = KStringCow<'k>> + 'k> {
        Box::new(self.names().map(KStringCow::from_ref))
    }

    fn values<'k>(&'k self) -> Box<dyn Iterator<Item = &'k dyn ValueView> + 'k> {
        Box::new(self.iter().map(|(_, value)| value))
    }

    fn iter<'k>(&'k self) -> Box<dyn Iterator<Item = (KStringCow<'k>, &'k dyn ValueView)> + 'k> {
        Box::new(self.names().filter_map(|name| {
            let value = self.value(name)?;
            Some((KStringCow::from_ref(name), value as &dyn ValueView))
        }))
    }

    fn contains_key(&self, name: &str) -> bool {
        let known = self.value(name).is_some();
        if !known && !self.is_absent(name) {
            self.unknown.borrow_mut().insert(name.to_owned());
        }
        known || self.is_supplied(name)
    }

    fn get<'s>(&'s self, name: &str) -> Option<&'s dyn ValueView> {
        let supplied = || self.is_supplied(name).then_some(&self.empty);
        let value = self.value(name).or_else(supplied);
        value.map(|value| value as &dyn ValueView)
    }
}
