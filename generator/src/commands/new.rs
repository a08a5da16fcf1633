//! `kiln new`: makes a project.

use std::{
    env,
    fmt::Write as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode, ExitStatus},
};

use crate::{
    cli::{NewArgs, VcsArg},
    error::{Error, Result},
    example::{Example, render_example},
    name::Name,
    option::{Answers, Values},
    project::{self, Vcs, WriteOptions, Written},
    render::Rendered,
    template::Template,
    todo::SITES_FILE,
    values,
};

use super::{folder, prompt};

/// Runs `kiln new`.
///
/// # Errors
/// The name, an option or the folder is wrong, or the file system, git or cargo fails.
pub(crate) fn run(args: &NewArgs) -> Result<ExitCode> {
    let name = Name::parse(&args.name)?;
    let template = folder::template(args.template.as_deref())?;
    let path = args
        .path
        .clone()
        .unwrap_or_else(|| PathBuf::from(name.package()));
    let example = args.example.as_deref();
    let example = example
        .map(|name| Example::embedded(&template, name))
        .transpose()?;
    let given = values::read(&template, args.values.as_deref(), &args.define)?;
    project::check_destination(&path, args.force)?;
    if let Some(template) = &args.template {
        folder::check_apart(template, &path)?;
    }
    let answers = match &example {
        Some(example) if example.is_template() => {
            refuse_answers(example, &given, args.train)?;
            Answers::defaults(&template, name)?
        }
        Some(example) => {
            // What is said here wins over the answers of the example.
            let mut values = example.values().clone();
            values.extend(given);
            ask(&template, name, values, args.yes)?
        }
        None => ask(&template, name, given, args.yes)?,
    };

    let rendered = render_example(&template, example.as_ref(), &answers, &path)?;
    if let Some(manifest) = rendered.get("Cargo.toml") {
        let manifest = String::from_utf8_lossy(manifest);
        answers.name().check_dependencies(&manifest)?;
    } else if args.train {
        return Err(Error::input(
            "the template makes no `Cargo.toml`, so there is nothing to train",
        )
        .help("leave `--train` out"));
    }
    let options = WriteOptions {
        force: args.force,
        vcs: match args.vcs {
            Some(VcsArg::None) => Vcs::None,
            Some(VcsArg::Git) => Vcs::Git,
            None => template.vcs().unwrap_or(Vcs::Git),
        },
        require_vcs: args.vcs == Some(VcsArg::Git),
    };
    let written = project::write(&rendered, &path, options)?;
    for warning in &written.warnings {
        eprintln!("warning: {warning}");
    }
    super::print(&report(&answers, example.as_ref(), &path, &written))?;
    super::print(&next_steps(example.as_ref(), &rendered, &path, args.train))?;
    if args.train {
        return train(&path);
    }
    Ok(ExitCode::SUCCESS)
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

fn ask(template: &Template, name: Name, mut values: Values, defaults: bool) -> Result<Answers> {
    if !defaults && prompt::is_interactive() {
        prompt::fill(template, &mut values, &mut prompt::Terminal)?;
    }
    Answers::complete(template, name, values)
}

/// What was written, and the options.
fn report(answers: &Answers, example: Option<&Example>, path: &Path, written: &Written) -> String {
    let mut text = String::new();
    let name = answers.name();
    if name.given() != name.package() {
        let _ = writeln!(
            text,
            "`{}` becomes `{}`, as packages are named.",
            name.given(),
            name.package()
        );
    }
    let _ = write!(
        text,
        "Made `{}` in {}: {} files",
        name.package(),
        path.display(),
        written.created.len()
    );
    if !written.unchanged.is_empty() {
        let _ = write!(text, ", {} unchanged", written.unchanged.len());
    }
    if !written.replaced.is_empty() {
        let _ = write!(text, ", {} replaced", written.replaced.len());
    }
    text.push_str(if written.repository {
        ", and a git repository.\n"
    } else {
        ".\n"
    });
    for file in &written.replaced {
        let _ = writeln!(text, "  replaced {}", file.display());
    }
    text.push('\n');
    if let Some(example) = example {
        let _ = writeln!(
            text,
            "The example `{}`: {}\n",
            example.name(),
            example.description()
        );
    }
    let width = answers.values().map(|(key, _)| key.len()).max();
    if width.is_some() && !example.is_some_and(Example::is_template) {
        for (key, value) in answers.values() {
            let _ = writeln!(text, "  {key:width$}  {value}", width = width.unwrap_or(0));
        }
        text.push('\n');
    }
    text
}

/// What to run next.
fn next_steps(
    example: Option<&Example>,
    rendered: &Rendered<'_>,
    path: &Path,
    train: bool,
) -> String {
    let path = path.display().to_string();
    let quoted = if path.contains(|c: char| c.is_whitespace() || matches!(c, '\'' | '"' | '$')) {
        format!("'{}'", path.replace('\'', r"'\''"))
    } else {
        path
    };
    if train {
        return format!("Training it: cargo run --release, in {quoted}\n");
    }
    let train_step = "cargo run --release    # train, then test";
    let steps = match example {
        None => steps_of(rendered),
        Some(example) if example.is_template() => vec![
            "less README.md         # what was changed in Kiln's template, and why",
            "cargo test             # the snapshots of what it renders",
        ],
        Some(_) => vec![
            "less README.md         # what was changed in the template, and why",
            train_step,
            "cargo test             # the contract tests, and those of the example",
        ],
    };
    let steps: String = steps.iter().map(|step| format!("  {step}\n")).collect();
    format!("Next:\n  cd {quoted}\n{steps}")
}

/// What can be run in a project, which a team's template may have made.
fn steps_of(rendered: &Rendered<'_>) -> Vec<&'static str> {
    let has = |path: &str| rendered.get(path).is_some();
    let (package, sites) = (has("Cargo.toml"), has(SITES_FILE));
    let mut steps = Vec::new();
    if package && has("src/main.rs") {
        steps.push(if sites {
            "cargo run --release    # train, then test"
        } else {
            "cargo run --release"
        });
    }
    if package {
        steps.push(if has("tests/contract/main.rs") {
            "cargo test             # the contract tests"
        } else {
            "cargo test"
        });
    }
    if sites {
        steps.push("kiln todos             # what to change for your task");
    }
    if steps.is_empty() && has("README.md") {
        steps.push("less README.md");
    }
    steps
}

/// Builds and runs the new crate; its exit status is ours.
fn train(path: &Path) -> Result<ExitCode> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(&cargo)
        .args(["run", "--release"])
        .current_dir(path)
        .status()
        .map_err(|cause| {
            Error::system(format!("cannot run `{}`: {cause}", cargo.to_string_lossy()))
                .help("install Rust, then run `cargo run --release` in the new folder")
        })?;
    Ok(ExitCode::from(exit_code(status)))
}

/// The status of a program, or 128 and its signal, as shells have it.
fn exit_code(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return 128 + u8::try_from(signal).unwrap_or(0);
    }
    status
        .code()
        .map_or(1, |code| u8::try_from(code).unwrap_or(1))
}
