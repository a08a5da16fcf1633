//! Rendering of wrong Liquid as cargo-generate does it: an unknown variable is empty, and a text that
//! cannot be rendered stays as it is. A text that cannot be parsed is an error in both.

use std::collections::BTreeSet;

use super::{
    liquid::{Liquid, first_unknown, message_of, quoted_place, render_error},
    warning::Warning,
};
use crate::{
    error::{Result, nearest},
    quiet,
};

/// Advice on invalid Liquid.
const HELP: &str = "put text that is not Liquid between `{% raw %}` and `{% endraw %}`, or list its \
    file in `exclude` of `cargo-generate.toml`; `kiln new --strict` refuses such files";

impl Liquid {
    /// Renders a text that messages call `name`, as cargo-generate does: if a variable is unknown,
    /// it renders again with an empty variable, which the texts after this one then have too.
    pub(super) fn lenient_text(&self, name: &str, text: &str) -> Result<String> {
        let parsed = self.parse(name, text)?;
        self.variables.take_unknown();
        let mut unknown = BTreeSet::new();
        loop {
            let rendered = quiet::catch(|| parsed.render(&*self.variables))
                .map_err(|why| self.panic_error(name, text, &why))?;
            let requested_now = self.variables.take_unknown().into_iter();
            // An option that does not apply is empty by design.
            unknown.extend(requested_now.filter(|name| !self.variables.is_absent(name)));
            self.check_author(name, text, &unknown)?;
            let error = match rendered {
                Ok(rendered) => {
                    self.warn_of_unknown(name, text, &unknown);
                    return Ok(rendered);
                }
                Err(error) => error,
            };
            match requested(&error) {
                Some(variable) if self.variables.supply(&variable) => {}
                // cargo-generate would render again for ever.
                Some(_) => return Err(render_error(name, text, &error)),
                None => {
                    self.warn_of_copy(name, text, &unknown, &error);
                    return Ok(text.to_owned());
                }
            }
        }
    }

    fn warn_of_unknown(&self, name: &str, text: &str, unknown: &BTreeSet<String>) {
        let Some((word, span)) = first_unknown(text, unknown) else {
            return;
        };
        let value = match self.variables.is_supplied(word) {
            true => "it is empty",
            false => "it is false",
        };
        let near = nearest(word, self.variables.names());
        let near = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        let message = format!("there is no variable `{word}`, so {value}{near}");
        self.warn(Warning::new(name, message, HELP).at(text, span.start));
    }

    /// A warning about a text that is copied as it is.
    fn warn_of_copy(
        &self,
        name: &str,
        text: &str,
        unknown: &BTreeSet<String>,
        error: &liquid::Error,
    ) {
        let (why, at) = match first_unknown(text, unknown) {
            Some((word, span)) => (format!("there is no variable `{word}`"), span.start),
            None => (message_of(error).0, quoted_place(text, error).start),
        };
        let message = format!("{why}, so nothing in the file is rendered");
        self.warn(Warning::new(name, message, HELP).at(text, at));
    }
}

/// The unknown variable that an error is about.
fn requested(error: &liquid::Error) -> Option<String> {
    let message = error.to_string();
    let mut lines = message.lines();
    // The last on the line, as cargo-generate's regular expression is greedy.
    lines.find_map(|line| Some(line.rsplit_once("requested variable=")?.1.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::{
        name::Name,
        template::{
            CONFIG_FILE, Template, answers::Answers, embedded::Files, variables::Variables,
        },
    };

    const FILES: Files = &[(CONFIG_FILE, b"[template]\nfmt = false\n", false)];

    fn liquid() -> Liquid {
        let template = Template::from_files("t", FILES).unwrap();
        let answers = Answers::defaults(&template, Name::parse("a").unwrap()).unwrap();
        Liquid::new(Rc::new(Variables::new(&answers, "/a".into())), false, None)
    }

    #[test]
    fn mistakes_that_cargo_generate_renders() {
        for (text, expected, warning) in [
            (
                "os: ${{ matrix.os }}, {{crate_name}}",
                "os: ${{ matrix.os }}, {{crate_name}}",
                "f:1:9: there is no variable `matrix`, so nothing in the file is rendered",
            ),
            (
                "a\n {{ nope }}{{crate_name}}",
                "a\n a",
                "f:2:5: there is no variable `nope`, so it is empty",
            ),
            (
                "{% if nope %}A{% else %}B{% endif %}",
                "B",
                "f:1:7: there is no variable `nope`, so it is false",
            ),
            // The empty variable is true.
            (
                "{% if nope %}A{% endif %}{{ nope }}",
                "A",
                "f:1:7: there is no variable `nope`, so it is empty",
            ),
            (
                "é {{ 1 | divided_by: 0 }}{{crate_name}}",
                "é {{ 1 | divided_by: 0 }}{{crate_name}}",
                "f:1:3: Invalid argument; argument=operand; cause=Can't divide by zero; \
                 filter=divided_by : 0; input=1, so nothing in the file is rendered",
            ),
        ] {
            let liquid = liquid();
            assert_eq!(liquid.text("f", text).unwrap(), expected);
            let warnings: Vec<_> = liquid.take_warnings();
            let said: Vec<_> = warnings.iter().map(Warning::to_string).collect();
            assert_eq!(said, [warning], "{text}");
        }
    }

    #[test]
    fn an_empty_variable_stays() {
        let liquid = liquid();
        let tested = "{% if nope %}A{% else %}B{% endif %}";
        assert_eq!(liquid.text("f", tested).unwrap(), "B");
        assert_eq!(liquid.text("g", "{{ nope }}").unwrap(), "");
        assert_eq!(liquid.text("h", tested).unwrap(), "A");
        let files = liquid.take_warnings();
        let files: Vec<_> = files.iter().map(Warning::file).collect();
        assert_eq!(files, ["f", "g", "h"]);
        // One for each file.
        assert_eq!(liquid.text("i", "{{ other }}").unwrap(), "");
        assert_eq!(liquid.text("i", "{{ third }}").unwrap(), "");
        assert_eq!(liquid.take_warnings().len(), 1);
    }

    #[test]
    fn mistakes_that_stop_cargo_generate() {
        let liquid = liquid();
        for text in [
            "{{ a == b }}",
            "{{ 1 | nope }}",
            "{% nope %}",
            "{{",
            "{% if a %}",
        ] {
            assert!(liquid.text("f", text).is_err(), "{text}");
        }
    }
}
