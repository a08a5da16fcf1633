//! `kiln update`: merges a later version of the template into a project.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use super::{
    output::{Format, print},
    renew::{Project, RenewArgs, Source, renew},
};
use crate::{
    error::Result,
    project::{merge::Labels, record::Record},
    template::{answers::Answers, history::Release, values},
};

/// Arguments of `kiln update`.
#[derive(Debug, Args)]
pub struct UpdateArgs {
    /// Folder of the project.
    #[arg(default_value = ".")]
    pub path: PathBuf,
    /// Set an option that is new in the template.
    #[arg(short, long, value_name = "KEY=VALUE")]
    pub define: Vec<String>,
    /// Folder of your own template, as it was when the project was generated.
    #[arg(long, value_name = "FOLDER", requires = "template")]
    pub from: Option<PathBuf>,
    /// Folder of your own template, as it is now.
    #[arg(long, value_name = "FOLDER", requires = "from")]
    pub template: Option<PathBuf>,
    #[command(flatten)]
    pub renew: RenewArgs,
}

/// Runs `kiln update`.
///
/// # Errors
/// The folder has no Kiln project, or its template is unknown; an option is invalid; or an error of
/// [`renew`].
pub(crate) fn run(args: &UpdateArgs) -> Result<ExitCode> {
    let mut project = Project::open(&args.path, &args.renew)?;
    let record = Record::read(&args.path)?;
    let base = Source::of_record(&record, args.from.as_deref())?;
    let new = match &args.template {
        Some(folder) => Source::of_folder(folder)?,
        None => Source::of_release(Release::current())?,
    };
    let was = Answers::complete(
        &base.template,
        record.name.clone(),
        record.values(&base.template)?,
    )?;
    let (mut values, others) = record.values_that_fit(&new.template)?;
    values.extend(values::read(&new.template, None, &args.define)?);
    let is = Answers::complete(&new.template, record.name.clone(), values)?;
    if args.renew.format == Format::Text {
        let name = record.name.package();
        print(&format!(
            "Updating `{name}` from {} to {}\n",
            base.label, new.label
        ))?;
        for option in others {
            let why = "no longer exists or no longer has this value";
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
        &base.render(example, &was, &args.path)?,
        &new.render(example, &is, &args.path)?,
        labels,
        &args.renew,
    )
}
