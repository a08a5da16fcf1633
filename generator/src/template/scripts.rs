//! A scanner of Rhai scripts for the functions that they call.
//!
//! Only comments, texts and names are read, so that a script that does not compile can be read too.

/// Maximum length of the arguments that are shown.
const LONGEST_ARGUMENTS: usize = 60;

/// A call in a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    /// The function with its module, such as `file::rename`, a variable of a module, or `import`.
    pub name: String,
    /// The call as it is written, shortened, on one line.
    pub text: String,
    /// The line, from 1.
    pub line: usize,
}

/// The calls in a script, and its uses of modules, in order.
pub(crate) fn calls(script: &str) -> Vec<Call> {
    let mut scanner = Scanner {
        text: script,
        at: 0,
        calls: Vec::new(),
    };
    while scanner.at < script.len() {
        scanner.code();
        // An unmatched brace.
        scanner.at += 1;
    }
    scanner.calls
}

struct Scanner<'s> {
    text: &'s str,
    at: usize,
    calls: Vec<Call>,
}

impl Scanner<'_> {
    fn rest(&self) -> &[u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    /// Reads code up to the brace that closes it, or to the end.
    fn code(&mut self) {
        let mut depth = 0_usize;
        while let Some(byte) = self.rest().first().copied() {
            match byte {
                b'/' if self.rest().starts_with(b"//") => self.skip_line(),
                b'/' if self.rest().starts_with(b"/*") => self.skip_comment(),
                b'"' | b'\'' => self.skip_quoted(byte),
                b'`' => self.interpolated(),
                b'{' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' if depth == 0 => return,
                b'}' => {
                    depth -= 1;
                    self.at += 1;
                }
                byte if is_start(byte) => self.name(),
                byte if byte.is_ascii_digit() => self.skip_word(),
                _ => self.at += 1,
            }
        }
    }

    fn skip_line(&mut self) {
        let end = memchr::memchr(b'\n', self.rest());
        self.at += end.unwrap_or(self.rest().len());
    }

    /// Skips a comment, which may contain others.
    fn skip_comment(&mut self) {
        let mut depth = 0_usize;
        while !self.rest().is_empty() {
            if self.rest().starts_with(b"/*") {
                depth += 1;
                self.at += 2;
            } else if self.rest().starts_with(b"*/") {
                depth -= 1;
                self.at += 2;
                if depth == 0 {
                    return;
                }
            } else {
                self.at += 1;
            }
        }
    }

    fn skip_quoted(&mut self, quote: u8) {
        self.at += 1;
        while let Some(byte) = self.rest().first().copied() {
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == quote {
                return;
            }
        }
    }

    /// Reads a text in backticks, and the code in `${..}` in it.
    fn interpolated(&mut self) {
        self.at += 1;
        while let Some(byte) = self.rest().first().copied() {
            if self.rest().starts_with(b"${") {
                self.at += 2;
                self.code();
            }
            self.at += 1;
            if byte == b'`' {
                return;
            }
        }
    }

    fn skip_word(&mut self) {
        let length = self.rest().iter().take_while(|byte| is_part(**byte));
        self.at += length.count();
    }

    /// Reads a name, with its modules, and keeps it if it is called.
    fn name(&mut self) {
        let start = self.at;
        let is_method = start > 0 && self.text.as_bytes()[start - 1] == b'.';
        self.skip_word();
        while self.rest().starts_with(b"::") && self.rest().get(2).copied().is_some_and(is_start) {
            self.at += 2;
            self.skip_word();
        }
        let name = &self.text[start..self.at];
        let spaces = self.rest().iter().take_while(|byte| **byte == b' ').count();
        let open = self.at + spaces;
        let is_call = self.text.as_bytes().get(open) == Some(&b'(');
        if is_method || !(is_call || name.contains("::") || name == "import") {
            return;
        }
        let text = match is_call {
            true => format!("{name}({})", self.arguments(open + 1)),
            false => name.to_owned(),
        };
        self.calls.push(Call {
            name: name.to_owned(),
            text,
            line: 1 + memchr::memchr_iter(b'\n', &self.text.as_bytes()[..start]).count(),
        });
    }

    /// The arguments from `start` to their closing bracket, on one line and shortened.
    fn arguments(&self, start: usize) -> String {
        let (mut depth, mut quote) = (0_usize, None);
        let mut end = self.text.len();
        for (at, c) in self.text[start..].char_indices() {
            match (quote, c) {
                (Some(open), c) if c == open => quote = None,
                (Some(_), _) => {}
                (None, '"' | '`' | '\'') => quote = Some(c),
                (None, '(' | '[' | '{') => depth += 1,
                (None, ')' | ']' | '}') if depth == 0 => {
                    end = start + at;
                    break;
                }
                (None, ')' | ']' | '}') => depth -= 1,
                _ => {}
            }
        }
        let words: Vec<_> = self.text[start..end].split_whitespace().collect();
        let line = words.join(" ");
        if line.chars().count() <= LONGEST_ARGUMENTS {
            return line;
        }
        let short: String = line.chars().take(LONGEST_ARGUMENTS).collect();
        format!("{short}…")
    }
}

fn is_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

fn is_part(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(script: &str) -> Vec<String> {
        let calls = calls(script).into_iter();
        calls
            .map(|call| format!("{}: {}", call.line, call.text))
            .collect()
    }

    #[test]
    fn finds_calls_but_not_in_comments_and_texts() {
        let script = r#"// file::delete("a")
/* file::delete("b") /* file::delete("c") */ file::delete("d") */
let x = "file::delete(\"e\")"; let y = 'f';
if variable::get("lang") == "c" {
    file::rename("src/a.rs",
                 `src/${to_snake_case(variable::get("x"))}.rs`);
}
import "other" as other; other::act(x.len(), env::working_directory);
print("é"); }} 3.abort(); abort ("no")
"#;
        let expected = [
            "4: variable::get(\"lang\")",
            "5: file::rename(\"src/a.rs\", `src/${to_snake_case(variable::get(\"x\"))}.rs`)",
            "6: to_snake_case(variable::get(\"x\"))",
            "6: variable::get(\"x\")",
            "8: import",
            "8: other::act(x.len(), env::working_directory)",
            "8: env::working_directory",
            "9: print(\"é\")",
            "9: abort(\"no\")",
        ];
        assert_eq!(found(script), expected);
        let long = format!("f({})", "a ".repeat(90));
        assert!(found(&long)[0].ends_with("…)"));
    }

    proptest! {
        #[test]
        fn reads_anything(script in "[a:(){}`$\"'/*\\\\ é\n.]{0,60}") {
            calls(&script);
        }
    }
}
