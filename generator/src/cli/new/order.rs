//! A request of `kiln new`, before and after the prompts.

use std::{
    cell::Cell,
    path::{Path, PathBuf},
};

use super::{
    NAME,
    args::{NewArgs, VcsArg, WorkspaceArg},
    place::last_component,
};
use crate::{
    cli::folder,
    error::{Error, Result},
    name::Name,
    project::{
        self, WriteOptions, Written,
        origin::{Origin, recorded},
        overlay::render_example,
        transaction, workspace,
    },
    render::Rendered,
    template::{
        Template, Vcs,
        answers::{Answers, Values},
        applicable::Applicable,
        example::Example,
        option::TemplateOption,
    },
};

/// The fallback for the default name.
pub(super) const PROPOSED: &str = "my-model";

/// A request, before the prompts.
pub(super) struct Order<'o> {
    pub args: &'o NewArgs,
    pub template: &'o Template,
    /// The folder of the template, if it is in one.
    pub template_folder: Option<&'o Path>,
    /// The commit of the template, if it is in a repository.
    pub origin: Option<&'o Origin>,
    pub example: Option<&'o Example>,
    /// The options set on the command line and in the values file.
    pub given: Values,
    /// The folder of the project, if it is not that of the name.
    pub folder: Option<PathBuf>,
    /// Membership in a Cargo workspace above; a prompt may set it.
    pub workspace: Cell<Option<WorkspaceArg>>,
}

impl Order<'_> {
    /// Checks everything that is known before the prompts.
    pub fn check(&self, name: Option<&Name>) -> Result<()> {
        if let Some(example) = self.example
            && example.is_template()
        {
            refuse_answers(example, &self.given, self.args.train)?;
        }
        match (&self.folder, name) {
            (Some(path), _) => self.settle(path),
            (None, Some(name)) => self.settle(&self.folder(name)),
            (None, None) => Ok(()),
        }
    }

    /// Rolls back an interrupted transaction in the project's folder, and checks the folder.
    pub fn settle(&self, folder: &Path) -> Result<()> {
        self.check_folder(folder)?;
        if self.args.dry_run || !transaction::is_unfinished(folder) {
            return Ok(());
        }
        transaction::recover(folder)?;
        self.check_folder(folder)
    }

    /// Checks the folder without changing it, as the name may still be being typed.
    pub fn check_folder(&self, folder: &Path) -> Result<()> {
        project::check_destination(folder)?;
        // An interrupted transaction is rolled back before the project is written.
        let undone = !self.args.dry_run && transaction::is_unfinished(folder);
        if !self.args.force && !undone && has_entries(folder) {
            self.check_free(folder)?;
        }
        match self.template_folder {
            Some(template) => folder::check_apart(template, folder),
            None => Ok(()),
        }
    }

    /// Checks that the folder has no files of the template, as far as that is known before the prompts.
    fn check_free(&self, folder: &Path) -> Result<()> {
        match self.by_default()? {
            Some(rendered) => project::check_free(&rendered, folder),
            None => Ok(()),
        }
    }

    /// The name that the wizard proposes.
    pub fn proposed(&self) -> Result<String> {
        let of_folder = self.folder.as_deref().map(last_component).transpose()?;
        let of_example = || self.example.map(|example| example.name().to_owned());
        let name = of_folder.flatten().or_else(of_example);
        Ok(name.unwrap_or_else(|| PROPOSED.to_owned()))
    }

    /// The folder of the project.
    pub fn folder(&self, name: &Name) -> PathBuf {
        let path = self.folder.clone();
        path.unwrap_or_else(|| PathBuf::from(name.package()))
    }

    /// Whether the request is for a template, whose options are asked when it is rendered.
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

    /// The options of conditions that hold with the answers so far, and that are not set.
    pub fn follow_ups(&self, name: Option<&Name>, asked: &Values) -> Result<Vec<&TemplateOption>> {
        if self.template.conditional_options().next().is_none() {
            return Ok(Vec::new());
        }
        let name = match (name, asked.get(NAME)) {
            (Some(name), _) => name.clone(),
            (None, given) => Name::parse(&given.map_or(PROPOSED.to_owned(), ToString::to_string))?,
        };
        let mut values = self.given.clone();
        values.extend(asked.clone());
        let found = Applicable::of(self.template, &name, &values, false)?;
        let unconditional = self.template.options().iter();
        let unconditional: Vec<_> = unconditional.map(|option| &option.name).collect();
        let mut options = found.options;
        options.retain(|option| {
            !unconditional.contains(&&option.name) && !self.given.contains_key(&option.name)
        });
        Ok(options)
    }

    /// All answers. Prompts take precedence over the command line, and the command line over the example.
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

    /// Renders the project and checks that no dependency has its name.
    pub fn render(&self, answers: &Answers) -> Result<Rendered<'_>> {
        let folder = self.folder(answers.name());
        let mut rendered = render_example(self.template, self.example, answers, &folder)?;
        if let Some(origin) = self.origin {
            recorded::stamp(&mut rendered, answers, origin)?;
        }
        if let Some(manifest) = rendered.get("Cargo.toml") {
            let manifest = String::from_utf8_lossy(manifest);
            answers.name().check_dependencies(&manifest)?;
        } else if self.args.train {
            return Err(Error::input(
                "the template has no `Cargo.toml`, so there is nothing to train",
            )
            .help("remove `--train`"));
        }
        Ok(rendered)
    }

    /// The project with default answers; `None` if an option has no default.
    fn by_default(&self) -> Result<Option<Rendered<'_>>> {
        if self.open().any(|option| option.default.is_none()) {
            return Ok(None);
        }
        let any = match self.answers(Name::parse(PROPOSED)?, Values::new()) {
            // Other answers may call for other options.
            Err(_) if self.template.conditional_options().next().is_some() => return Ok(None),
            any => any?,
        };
        self.render(&any).map(Some)
    }

    /// The manifest with default answers, whose dependencies the name is checked against as it is
    /// typed. Empty if an option has no default; the summary then checks the name.
    pub fn manifest(&self) -> Result<String> {
        let rendered = self.by_default()?.unwrap_or_default();
        let manifest = rendered.get("Cargo.toml").unwrap_or_default();
        Ok(String::from_utf8_lossy(manifest).into_owned())
    }

    /// Edits of the Cargo workspaces above a project in `folder`.
    pub fn workspaces(&self, rendered: &Rendered<'_>, folder: &Path) -> Result<workspace::Plan> {
        let choice = self.workspace.get().map(WorkspaceArg::choice);
        workspace::plan(rendered, folder, choice)
    }

    /// Lines for the report: the commit of the template, and edits of the Cargo workspaces above.
    pub fn notes(&self, workspaces: &workspace::Plan) -> Vec<String> {
        let origin = self.origin.map(|origin| format!("from {}", origin.label()));
        origin.into_iter().chain(workspaces.notes.clone()).collect()
    }

    /// Whether a workspace above would have a project of the proposed name as a member.
    pub fn has_workspace(&self, name: Option<&Name>) -> Result<bool> {
        let Some(rendered) = self.by_default()? else {
            return Ok(false);
        };
        let proposed;
        let name = match name {
            Some(name) => name,
            None => {
                proposed = Name::parse(&self.proposed()?).or_else(|_| Name::parse(PROPOSED))?;
                &proposed
            }
        };
        let plan = workspace::plan(&rendered, &self.folder(name), None);
        // Errors are reported once the contents of the project are known.
        Ok(plan.is_ok_and(|plan| plan.matters()))
    }

    /// The files that writing the project would create, replace or leave unchanged.
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

fn has_entries(folder: &Path) -> bool {
    folder
        .read_dir()
        .is_ok_and(|mut entries| entries.next().is_some())
}

/// Refuses options for a template, which asks for them when it is rendered.
fn refuse_answers(example: &Example, given: &Values, train: bool) -> Result<()> {
    let option = given
        .keys()
        .next()
        .map(|option| format!("--define {option}"));
    match option.or_else(|| train.then(|| "--train".to_owned())) {
        None => Ok(()),
        Some(option) => Err(Error::input(format!(
            "the example `{}` is a template, not a project, and does not accept `{option}`",
            example.name()
        ))
        .help("remove it here; use it when you create projects from that template")),
    }
}
