//! The choice between several templates in a folder, which comes before all other prompts.

use std::path::{Path, PathBuf};

use super::wizard::{self, Ask, Question, Reply, Turn};
use crate::{
    error::{Error, Result},
    template::Template,
};

/// The key of the prompt.
const TEMPLATE: &str = "template";

/// The folder of the chosen template, in or below `folder`.
///
/// # Errors
/// A folder cannot be read, the terminal fails, or the user cancels.
pub(super) fn choose(folder: &Path, asker: &mut dyn Ask) -> Result<PathBuf> {
    let mut folder = folder.to_path_buf();
    loop {
        let choices = Template::choices(&folder)?;
        if choices.is_empty() {
            return Ok(folder);
        }
        let choices = choices.iter().map(|one| wizard::choice(one, one));
        let question = Question::choice(TEMPLATE, "Which template?", choices.collect());
        let turn = Turn {
            question: &question,
            before: None,
            step: None,
            first: true,
        };
        match asker.ask(turn)? {
            Reply::Answer(chosen) => folder.push(chosen.to_string()),
            Reply::Back | Reply::Cancel => return Err(Error::cancelled()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{cli::new::plain::Plain, error::Kind};

    #[test]
    fn asks_until_there_is_one_template() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        for folder in ["a", "b/one", "b/two"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let listing = |names: &str| format!("[template]\nsub_templates = [{names}]\n");
        fs::write(root.join("cargo-generate.toml"), listing("\"a\", \"b\"")).unwrap();
        fs::write(
            root.join("b/cargo-generate.toml"),
            listing("\"one\", \"two\""),
        )
        .unwrap();
        let chosen = |input: &str| {
            let mut output = Vec::new();
            let folder = choose(root, &mut Plain::new(input.as_bytes(), &mut output));
            (folder, String::from_utf8(output).unwrap())
        };
        let (folder, said) = chosen("b\nthree\ntwo\n");
        assert_eq!(folder.unwrap(), root.join("b/two"));
        assert_eq!(said.matches("Which template?").count(), 3, "{said}");
        assert_eq!(chosen("\n").0.unwrap(), root.join("a"));
        assert_eq!(chosen("b\n").0.unwrap_err().kind(), Kind::Cancelled);
    }
}
