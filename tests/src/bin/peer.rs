//! Renders a template with cargo-generate's own library, or with Kiln's. A process of its own, because
//! cargo-generate takes values from the environment and from its user's configuration.
//!
//! Arguments: `cargo-generate` or `kiln`, the template's folder, the folder to make the project in,
//! the project's name, and a `key=value` for every option.

use std::{error::Error, path::PathBuf};

use cargo_generate::{GenerateArgs, TemplatePath, Vcs};
use kiln::{
    name::Name,
    template::{Template, answers::Answers},
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
    cargo_generate::generate(GenerateArgs {
        template_path: TemplatePath {
            path: Some(template),
            ..TemplatePath::default()
        },
        destination: Some(destination),
        name: Some(name),
        define,
        // No questions: what has no value gets its default.
        silent: true,
        vcs: Some(Vcs::None),
        // As the command line has it, unlike the library.
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
    let template = Template::from_folder(&template)?;
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
