//! `kiln update`: merges a later version of the template into a project.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use super::{
    merged,
    output::{Format, print},
    renew::{Project, RenewArgs, mark, renew},
    source::{VersionArgs, sides},
};
use crate::{
    display::{counted, files},
    error::{Error, Result},
    project::{merge::Labels, pending::Pending, record::Record},
    template::{
        Template,
        answers::{Answers, Values},
        values,
    },
};

/// The arguments that `--continue` and `--abort` do not go with.
const ALONE: [&str; 11] = [
    "define",
    "from",
    "template",
    "branch",
    "tag",
    "rev",
    "subfolder",
    "dry_run",
    "allow_dirty",
    "skip_hooks",
    "format",
];

/// Arguments of `kiln update`.
#[derive(Debug, Args)]
pub struct UpdateArgs {
    /// Folder of the project.
    #[arg(default_value = ".", value_parser = super::folder::PathParser)]
    pub path: PathBuf,
    /// Set an option that is new in the template.
    #[arg(short, long, value_name = "KEY=VALUE")]
    pub define: Vec<String>,
    /// Folder of your own template, as it was when the project was generated.
    #[arg(long, value_name = "FOLDER", value_parser = super::folder::PathParser)]
    pub from: Option<PathBuf>,
    /// Your own template, as it is now: a folder with `--from`, or a repository [default: the
    /// repository that the project records, or else Kiln's template].
    #[arg(long, value_name = "TEMPLATE", value_parser = super::folder::PathParser)]
    pub template: Option<PathBuf>,
    /// End an update or addition with conflicts, if no conflict markers are left, and mark them as
    /// resolved in Git.
    #[arg(long = "continue", conflicts_with_all = ALONE)]
    pub go_on: bool,
    /// Restore all files as they were before an update or addition with conflicts, with edits that
    /// were not committed; drops what was edited in these files since.
    #[arg(long, conflicts_with_all = ALONE, conflicts_with = "go_on")]
    pub abort: bool,
    #[command(flatten)]
    pub renew: RenewArgs,
    // Last, as its heading would apply to all options after it.
    #[command(flatten)]
    pub version: VersionArgs,
}

/// Runs `kiln update`.
///
/// # Errors
/// The folder has no Kiln project, or its template is unknown; an option is invalid; or an error of
/// [`renew`].
pub(crate) fn run(args: &UpdateArgs) -> Result<ExitCode> {
    if args.go_on || args.abort {
        return finish(args);
    }
    let mut project = Project::open(&args.path, &args.renew)?;
    let record = Record::read(&args.path)?;
    let (from, given) = (args.from.as_deref(), args.template.as_deref());
    let (base, new) = sides(&record, from, given, &args.version, args.renew.skip_hooks)?;
    let (was, _) = Answers::fitting(
        &base.template,
        record.name.clone(),
        values_of_base(&record, &base.template, &new.template)?,
    )?;
    let (mut values, mut others) = record.values_that_fit(&new.template)?;
    let defined = values::read(&new.template, None, &args.define)?;
    let recorded: Vec<String> = values.keys().cloned().collect();
    values.extend(defined.clone());
    let is = Answers::renewed(&new.template, record.name.clone(), values, &defined)?;
    others.extend(recorded.into_iter().filter(|key| is.get(key).is_none()));
    if args.renew.format == Format::Text {
        let name = record.name.package();
        print(&format!(
            "Updating `{name}` from {} to {}\n",
            base.label, new.label
        ))?;
        for option in others {
            let why = "no longer exists or applies, or no longer has this value";
            print(&format!("  the option `{option}` {why}\n"))?;
        }
    }
    let labels = Labels {
        mine: "yours",
        base: &base.label,
        new: &new.label,
    };
    let example = record.example.as_ref().map(|(name, _)| name.as_str());
    renew(
        &mut project,
        &record,
        (
            &base.render(example, &was, &args.path)?,
            &new.render(example, &is, &args.path)?,
        ),
        labels,
        "kiln update".to_owned(),
        &args.renew,
    )
}

/// The answers to the old template. After an update that was complete, as when its end was not
/// seen, the record has the options of the new one, which the old need not know.
fn values_of_base(record: &Record, base: &Template, new: &Template) -> Result<Values> {
    let (known, others) = record.values_that_fit(base)?;
    let (of_new, _) = record.values_that_fit(new)?;
    if others.is_empty() && record.check_complete(new).is_err() {
        record.check_complete(base)?;
    }
    if others.iter().all(|option| of_new.contains_key(option)) {
        return Ok(known);
    }
    record.values(base)
}

/// Ends or undoes an update with conflicts.
fn finish(args: &UpdateArgs) -> Result<ExitCode> {
    let project = Project::lock(&args.path, false)?;
    let (Some(pending), Some(transaction)) =
        (Pending::read(&args.path)?, project.into_transaction())
    else {
        let message = format!("`{}` has no update with conflicts", args.path.display());
        return Err(Error::input(message).help(
            "`--continue` and `--abort` end an update or addition that left conflicts; to undo \
             another, use Git",
        ));
    };
    let name = &pending.command;
    if args.abort {
        let count = files(pending.abort(&args.path, transaction)?);
        print(&format!("Undid `{name}`: restored {count}.\n"))?;
    } else {
        mark(&pending, &args.path);
        let count = counted(pending.end(&args.path, transaction)?, "file");
        print(&format!("Ended `{name}`: {count} resolved.\n"))?;
        let tests = merged::tests(&args.path);
        if !tests.is_empty() {
            print(&format!("\nNext:\n{tests}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
