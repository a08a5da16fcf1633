//! What somebody orders with `kiln new`, before the questions and after them.

use std::path::{Path, PathBuf};

use super::args::{NewArgs, VcsArg};
use crate::{
    cli::folder,
    error::{Error, Result},
    name::Name,
    project::{self, WriteOptions, Written, overlay::render_example, transaction},
    render::Rendered,
    template::{
        Template, Vcs,
        answers::{Answers, Values},
        example::Example,
        option::TemplateOption,
    },
};

/// The name that is proposed where nothing else proposes one.
pub(super) const PROPOSED: &str = "my-model";

/// What somebody orders, before the questions.
pub(super) struct Order<'o> {
    pub args: &'o NewArgs,
    pub template: &'o Template,
    pub example: Option<&'o Example>,
    /// The options that the command line and the values file set.
    pub given: Values,
}

impl Order<'_> {
    /// Refuses, before anything is asked, what cannot be made.
    pub fn check(&self, name: Option<&Name>) -> Result<()> {
        if let Some(example) = self.example
            && example.is_template()
        {
            refuse_answers(example, &self.given, self.args.train)?;
        }
        match (&self.args.path, name) {
            (Some(path), _) => self.settle(path),
            (None, Some(name)) => self.settle(&self.folder(name)),
            (None, None) => Ok(()),
        }
    }

    /// Undoes what a killed process left half done in the folder that will be written, and checks it.
    pub fn settle(&self, folder: &Path) -> Result<()> {
        self.check_folder(folder)?;
        if self.args.dry_run || !transaction::is_unfinished(folder) {
            return Ok(());
        }
        transaction::recover(folder)?;
        self.check_folder(folder)
    }

    /// Changes nothing, as the folder may be that of a name that is still typed.
    pub fn check_folder(&self, folder: &Path) -> Result<()> {
        let checked = project::check_destination(folder, self.args.force);
        if checked.is_err() && !self.args.dry_run && transaction::is_unfinished(folder) {
            // What is left half done there goes before it is written.
            project::check_destination(folder, true)?;
        } else {
            checked?;
        }
        match &self.args.template {
            Some(template) => folder::check_apart(template, folder),
            None => Ok(()),
        }
    }

    /// Where the project will stand.
    pub fn folder(&self, name: &Name) -> PathBuf {
        let path = self.args.path.clone();
        path.unwrap_or_else(|| PathBuf::from(name.package()))
    }

    /// Whether it is a template that is made, which asks when it is rendered.
    pub fn is_template(&self) -> bool {
        self.example.is_some_and(Example::is_template)
    }

    /// The options that neither the command line nor the example sets.
    pub fn open(&self) -> impl Iterator<Item = &TemplateOption> {
        let set = self.example.map(Example::values);
        let is_set =
            move |key| self.given.contains_key(key) || set.is_some_and(|s| s.contains_key(key));
        let options = self.template.options().iter();
        options.filter(move |option| !self.is_template() && !is_set(&option.name))
    }

    /// All answers: those that were asked for, what the command line says, and then what the example
    /// says.
    pub fn answers(&self, name: Name, asked: Values) -> Result<Answers> {
        if self.is_template() {
            return Answers::defaults(self.template, name);
        }
        let mut values = self
            .example
            .map(Example::values)
            .cloned()
            .unwrap_or_default();
        values.extend(self.given.clone());
        values.extend(asked);
        Answers::complete(self.template, name, values)
    }

    /// The project in memory, whose name is none of its dependencies.
    pub fn render(&self, answers: &Answers) -> Result<Rendered<'_>> {
        let folder = self.folder(answers.name());
        let rendered = render_example(self.template, self.example, answers, &folder)?;
        if let Some(manifest) = rendered.get("Cargo.toml") {
            let manifest = String::from_utf8_lossy(manifest);
            answers.name().check_dependencies(&manifest)?;
        } else if self.args.train {
            return Err(Error::input(
                "the template makes no `Cargo.toml`, so there is nothing to train",
            )
            .help("leave `--train` out"));
        }
        Ok(rendered)
    }

    /// The manifest as far as it is known before the questions, whose dependencies cannot name the
    /// project. Nothing is known of it where an option has no default: then the summary finds it.
    pub fn manifest(&self) -> Result<String> {
        if self.open().any(|option| option.default.is_none()) {
            return Ok(String::new());
        }
        let any = self.answers(Name::parse(PROPOSED)?, Values::new())?;
        let rendered = self.render(&any)?;
        let manifest = rendered.get("Cargo.toml").unwrap_or_default();
        Ok(String::from_utf8_lossy(manifest).into_owned())
    }

    /// What writing it would do.
    pub fn plan(&self, rendered: &Rendered<'_>, answers: &Answers) -> Result<Written> {
        project::plan(rendered, &self.folder(answers.name()), self.write_options())
    }

    pub fn write_options(&self) -> WriteOptions {
        WriteOptions {
            force: self.args.force,
            vcs: match self.args.vcs {
                Some(VcsArg::None) => Vcs::None,
                Some(VcsArg::Git) => Vcs::Git,
                None => self.template.vcs().unwrap_or(Vcs::Git),
            },
            require_vcs: self.args.vcs == Some(VcsArg::Git),
        }
    }
}

/// A template asks when it is rendered, and not when it is made.
fn refuse_answers(example: &Example, given: &Values, train: bool) -> Result<()> {
    let option = given
        .keys()
        .next()
        .map(|option| format!("--define {option}"));
    match option.or_else(|| train.then(|| "--train".to_owned())) {
        None => Ok(()),
        Some(option) => Err(Error::input(format!(
            "the example `{}` is a template and no project, and takes no `{option}`",
            example.name()
        ))
        .help("leave it out here, and give it when you make projects of that template")),
    }
}
