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
    name::Name,
    option::Answers,
    project::{self, Vcs, WriteOptions, Written},
    render::render_at,
    template::Template,
};

use super::{prompt, values};

/// Runs `kiln new`.
///
/// # Errors
/// The name, an option or the folder is wrong, or the file system, git or cargo fails.
pub(crate) fn run(args: &NewArgs) -> Result<ExitCode> {
    let name = Name::parse(&args.name)?;
    let template = Template::embedded()?;
    let path = args
        .path
        .clone()
        .unwrap_or_else(|| PathBuf::from(name.package()));
    let values = values::read(&template, args.values.as_deref(), &args.define)?;
    project::check_destination(&path, args.force)?;
    let answers = ask(&template, name, values, args.yes)?;

    let rendered = render_at(&template, &answers, &path)?;
    if let Some(manifest) = rendered.get("Cargo.toml") {
        let manifest = String::from_utf8_lossy(manifest);
        answers.name().check_dependencies(&manifest)?;
    }
    let options = WriteOptions {
        force: args.force,
        vcs: match args.vcs {
            Some(VcsArg::None) => Vcs::None,
            Some(VcsArg::Git) | None => Vcs::Git,
        },
        require_vcs: args.vcs == Some(VcsArg::Git),
    };
    let written = project::write(&rendered, &path, options)?;
    for warning in &written.warnings {
        eprintln!("warning: {warning}");
    }
    print!("{}", report(&answers, &path, &written, args.train));
    if args.train {
        return train(&path);
    }
    Ok(ExitCode::SUCCESS)
}

fn ask(
    template: &Template,
    name: Name,
    mut values: values::Values,
    defaults: bool,
) -> Result<Answers> {
    if !defaults && prompt::is_interactive() {
        prompt::fill(template, &mut values, &mut prompt::Terminal)?;
    }
    Answers::complete(template, name, values)
}

/// What was written, the options, and what to run next.
fn report(answers: &Answers, path: &Path, written: &Written, train: bool) -> String {
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
    let width = answers.values().map(|(key, _)| key.len()).max();
    for (key, value) in answers.values() {
        let _ = writeln!(text, "  {key:width$}  {value}", width = width.unwrap_or(0));
    }
    text.push('\n');
    text.push_str(&next_steps(path, train));
    text
}

fn next_steps(path: &Path, train: bool) -> String {
    let path = path.display().to_string();
    let quoted = if path.contains(|c: char| c.is_whitespace() || matches!(c, '\'' | '"' | '$')) {
        format!("'{}'", path.replace('\'', r"'\''"))
    } else {
        path
    };
    if train {
        return format!("Training it: cargo run --release, in {quoted}\n");
    }
    format!(
        "Next:\n  \
         cd {quoted}\n  \
         cargo run --release    # train, then test\n  \
         cargo test             # the contract tests\n  \
         kiln todos             # what to change for your task\n"
    )
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
