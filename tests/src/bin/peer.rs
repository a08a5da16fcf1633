//! Renders a template with the library of cargo-generate or of Kiln. It runs as a separate process,
//! as cargo-generate reads values from the environment and from the user's configuration.
//!
//! Arguments: `cargo-generate` or `kiln`, the template's folder (`FOLDER//SUB` for a sub-template), the
//! parent folder of the project, the project's name, and a `key=value` for every option.

use std::{error::Error, path::PathBuf};

use cargo_generate::{GenerateArgs, TemplatePath, Vcs};
use kiln::{
    name::Name,
    template::{Reading, Template, answers::Answers},
};

fn main() {
    let mut args = std::env::args().skip(1);
    let mut next = || {
        args.next()
            .expect("TOOL TEMPLATE DESTINATION NAME [KEY=VALUE]...")
    };
    let (tool, template, destination, name) = (next(), next(), next().into(), next());
    let defines = args.collect();
    let result = match tool.as_str() {
        "cargo-generate" => cargo_generate(template, destination, name, defines),
        "kiln" => kiln(template.into(), destination, &name, &defines),
        _ => panic!("no such tool"),
    };
    if let Err(error) = result {
        eprintln!("{error:#}");
        std::process::exit(1);
    }
}

fn cargo_generate(
    template: String,
    destination: PathBuf,
    name: String,
    define: Vec<String>,
) -> Result<(), Box<dyn Error>> {
    let (folder, sub) = match template.split_once("//") {
        Some((folder, sub)) => (folder.to_owned(), Some(sub.to_owned())),
        None => (template, None),
    };
    cargo_generate::generate(GenerateArgs {
        template_path: TemplatePath {
            path: Some(folder),
            auto_path: sub,
            ..TemplatePath::default()
        },
        destination: Some(destination),
        name: Some(name),
        define,
        // Without prompts, missing values get their defaults.
        silent: true,
        vcs: Some(Vcs::None),
        // As on the command line; the library's default differs.
        lib: false,
        ..GenerateArgs::default()
    })?;
    Ok(())
}

fn kiln(
    template: PathBuf,
    destination: PathBuf,
    name: &str,
    defines: &Vec<String>,
) -> Result<(), Box<dyn Error>> {
    let reading = Reading {
        lenient: true,
        skip_hooks: true,
        ..Reading::default()
    };
    let template = Template::read(&template, reading)?;
    let name = Name::parse(name)?;
    let folder = destination.join(name.package());
    let mut answers = Answers::defaults(&template, name)?;
    for define in defines {
        let (key, value) = define.split_once('=').ok_or("KEY=VALUE")?;
        answers = answers.with(&template, key, value)?;
    }
    kiln_tests::generate(&template, &answers, &folder)?;
    Ok(())
}
