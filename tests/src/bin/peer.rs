//! Renders a template with cargo-generate's own library. A process of its own, because
//! cargo-generate takes values from the environment and from its user's configuration.
//!
//! Arguments: the template's folder, the folder to make the project in, the project's name, and
//! any number of `key=value`.

use std::path::PathBuf;

use cargo_generate::{GenerateArgs, TemplatePath, Vcs, generate};

fn main() {
    let mut args = std::env::args().skip(1);
    let mut next = || {
        args.next()
            .expect("TEMPLATE DESTINATION NAME [KEY=VALUE]...")
    };
    let (template, destination, name) = (next(), next(), next());
    let result = generate(GenerateArgs {
        template_path: TemplatePath {
            path: Some(template),
            ..TemplatePath::default()
        },
        destination: Some(PathBuf::from(destination)),
        name: Some(name),
        define: args.collect(),
        // No questions: what has no value gets its default.
        silent: true,
        vcs: Some(Vcs::None),
        // As the command line has it, unlike the library.
        lib: false,
        ..GenerateArgs::default()
    });
    if let Err(error) = result {
        eprintln!("{error:#}");
        std::process::exit(1);
    }
}
