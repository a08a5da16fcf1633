//! The layout of files: what a formatter, an editor or a checkout changes without changing the
//! code. Merges look at the code, and keep the user's layout.

mod lines;
mod modules;
mod restyle;
mod rustfmt;

pub(super) use restyle::{Merging, restyle};

use std::borrow::Cow;

use lines::{aligned, in_layout_of};

use super::{
    markers::marker_length,
    merge::{Fate, Labels, merge_lines},
};

/// The mark with which some editors begin a file.
const BOM: char = '\u{feff}';

/// The parts of a layout that are one choice for the whole file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Choices {
    bom: bool,
    /// Whether most lines end with CRLF.
    crlf: bool,
    /// Whether the last line ends.
    closed: bool,
}

impl Choices {
    fn of(text: &str) -> Self {
        let crlf = text.matches("\r\n").count();
        Self {
            bom: text.starts_with(BOM),
            crlf: crlf * 2 > text.matches('\n').count(),
            closed: text.ends_with('\n') || text.trim_start_matches(BOM).is_empty(),
        }
    }

    /// The user's choices, and the template's where only the template changed them.
    fn merged([base, mine, new]: [Self; 3]) -> Self {
        let one = |choice: fn(&Self) -> bool| {
            let is_users = choice(&mine) != choice(&base);
            choice(if is_users { &mine } else { &new })
        };
        Self {
            bom: one(|it| it.bom),
            crlf: one(|it| it.crlf),
            closed: one(|it| it.closed),
        }
    }
}

/// The code of a text: without byte order mark, and with LF at the end of every line.
fn code_of(text: &str) -> String {
    let text = text.strip_prefix(BOM).unwrap_or(text);
    let mut code = text.replace("\r\n", "\n");
    if !code.is_empty() && !code.ends_with('\n') {
        code.push('\n');
    }
    code
}

/// A text as the user has it.
#[derive(Debug)]
struct Written {
    text: String,
    choices: Choices,
}

impl Written {
    /// The code in the layout of the file: lines that the user has keep their ends.
    fn of(&self, code: &str) -> String {
        let Choices { bom, crlf, closed } = self.choices;
        let ends = if self.is_mixed() {
            self.ends_of(code)
        } else {
            vec![crlf; code.matches('\n').count()]
        };
        let mut text = String::with_capacity(code.len() + code.len() / 16);
        text.extend(bom.then_some(BOM));
        for (line, crlf) in code.split_inclusive('\n').zip(ends) {
            text.push_str(line.trim_end_matches('\n'));
            text.push_str(if crlf { "\r\n" } else { "\n" });
        }
        if !closed {
            let end = text.strip_suffix("\r\n").or(text.strip_suffix('\n'));
            let end = end.unwrap_or(&text).len();
            text.truncate(end);
        }
        text
    }

    /// Whether the user's lines have different ends, which the result is to keep.
    fn is_mixed(&self) -> bool {
        let crlf = self.text.matches("\r\n").count();
        let is_crlf = Choices::of(&self.text).crlf;
        crlf > 0 && crlf != self.text.matches('\n').count() && is_crlf == self.choices.crlf
    }

    /// Whether each line of `code` ends with CRLF.
    fn ends_of(&self, code: &str) -> Vec<bool> {
        let own: Vec<&str> = self.text.split_inclusive('\n').collect();
        let had = code_of(&self.text);
        let (had, has): (Vec<_>, Vec<_>) = (had.lines().collect(), code.lines().collect());
        let mut ends = vec![self.choices.crlf; has.len()];
        for (mine, line) in aligned(&had, &has) {
            // Of the last line, the end may be missing.
            if own[mine].ends_with('\n') {
                ends[line] = own[mine].ends_with("\r\n");
            }
        }
        ends
    }
}

/// The three sides of a merge as code, and the layout of the result.
#[derive(Debug)]
pub(super) struct Texts {
    /// The merge base.
    base: String,
    /// The user's code.
    mine: String,
    /// The new template's.
    new: String,
    /// The length of conflict markers.
    marker: usize,
    layout: Written,
}

/// Merged code.
#[derive(Debug, Clone)]
pub(super) struct Merged {
    pub fate: Fate,
    code: String,
    /// Whether the user changed only the layout of the base.
    pub layout_only: bool,
}

impl Merged {
    fn conflicts(&self) -> usize {
        match self.fate {
            Fate::Conflict(count) => count,
            _ => 0,
        }
    }
}

impl Texts {
    /// The sides of a merge, of which `base` and `new` are of a template; `None` if one is binary.
    pub fn of(base: &[u8], mine: &[u8], new: &[u8]) -> Option<Self> {
        let [base, mine, new] = [base, mine, new].map(|bytes| {
            let text = str::from_utf8(bytes).ok()?;
            (!text.contains('\0')).then_some(text)
        });
        Some(Self::of_texts(base?, mine?, new?))
    }

    fn of_texts(base: &str, mine: &str, new: &str) -> Self {
        Self {
            base: code_of(base),
            mine: code_of(mine),
            new: code_of(new),
            marker: marker_length(&[base, mine, new]),
            layout: Written {
                text: mine.to_owned(),
                choices: Choices::merged([base, mine, new].map(Choices::of)),
            },
        }
    }

    /// Merges line by line, where lines are equal if they differ in their ends, in white space at
    /// their ends, or in tabs and spaces at their start.
    pub fn merge(&self, labels: Labels<'_>) -> Merged {
        let (base, new) = in_layout_of(&self.base, &self.mine, &self.new);
        self.merge_as(&base, &self.mine, &new, labels)
    }

    /// Merges other versions of the same code.
    fn merge_as(&self, base: &str, mine: &str, new: &str, labels: Labels<'_>) -> Merged {
        let (fate, code) = merge_lines([base, mine, new], self.marker, labels);
        Merged {
            fate,
            code,
            layout_only: base == mine,
        }
    }

    /// Merged code in the user's layout.
    pub fn written(&self, merged: &Merged) -> String {
        if merged.code == self.mine && self.layout.choices == Choices::of(&self.layout.text) {
            return self.layout.text.clone();
        }
        self.layout.of(&merged.code)
    }
}

/// Whether a file of the user is one of the template in another layout, as far as this can be told
/// without a formatter.
pub(super) fn is_layout_of(base: &[u8], mine: &[u8]) -> bool {
    Texts::of(base, mine, base).is_some_and(|texts| {
        let (base, _) = in_layout_of(&texts.base, &texts.mine, &texts.base);
        base == texts.mine
    })
}

/// A whole file of the template with the byte order mark, line ends and last newline that the user
/// has in its old version.
pub(super) fn in_ends_of<'n>(base: &[u8], mine: &[u8], new: &'n [u8]) -> Cow<'n, [u8]> {
    let Some(texts) = Texts::of(base, mine, new) else {
        return Cow::Borrowed(new);
    };
    Cow::Owned(texts.layout.of(&texts.new).into_bytes())
}

/// Merges texts.
pub(super) fn merge_texts(base: &str, mine: &str, new: &str, labels: Labels<'_>) -> (Fate, String) {
    let texts = Texts::of_texts(base, mine, new);
    let merged = texts.merge(labels);
    (merged.fate, texts.written(&merged))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABELS: Labels<'_> = Labels {
        mine: "yours",
        base: "1",
        new: "2",
    };

    fn merged(base: &str, mine: &str, new: &str) -> String {
        let (fate, text) = merge_texts(base, mine, new, LABELS);
        assert_eq!(fate, Fate::Merged, "{text}");
        text
    }

    const BASE: &str = "a\n    b\nc\nd\n        e\nf\n";
    const NEW: &str = "a\n    b\nC\n    new\nd\n        E\nf\n";

    #[test]
    fn the_layout_of_the_whole_file_is_the_users() {
        let crlf = |text: &str| text.replace('\n', "\r\n");
        let open = |text: &str| text.trim_end().to_owned();
        let marked = |text: &str| format!("{BOM}{text}");
        let tabs = |text: &str| text.replace("    ", "\t");
        let spaced = |text: &str| text.replace("a\n", "a  \n");
        let all = |text: &str| marked(&crlf(&open(&tabs(&spaced(text)))));
        let layouts: [&dyn Fn(&str) -> String; 6] = [&crlf, &open, &marked, &tabs, &spaced, &all];
        for (at, layout) in layouts.into_iter().enumerate() {
            assert_eq!(merged(BASE, &layout(BASE), NEW), layout(NEW), "{at}");
            assert!(
                is_layout_of(BASE.as_bytes(), layout(BASE).as_bytes()),
                "{at}"
            );
            // With an edit elsewhere.
            let edited = BASE.replace("f\n", "f\nmine\n");
            let both = NEW.replace("f\n", "f\nmine\n");
            assert_eq!(merged(BASE, &layout(&edited), NEW), layout(&both), "{at}");
            assert!(!is_layout_of(BASE.as_bytes(), layout(&edited).as_bytes()));
        }
    }

    #[test]
    fn a_line_with_another_end_keeps_it() {
        let mine = "a\r\n    b\nc\r\nd\r\n        e\r\nf\r\n";
        let text = "a\r\n    b\nC\r\n    new\r\nd\r\n        E\r\nf\r\n";
        assert_eq!(merged(BASE, mine, NEW), text);
    }

    #[test]
    fn a_layout_that_only_the_template_changed_is_taken() {
        let crlf = NEW.replace('\n', "\r\n");
        let edited = BASE.replace("a\n", "mine\n");
        let text = crlf.replace("a\r\n", "mine\r\n");
        assert_eq!(merged(BASE, &edited, &crlf), text);
        assert_eq!(
            merged(BASE, &edited, NEW.trim_end()),
            text.replace('\r', "").trim_end()
        );
    }

    #[test]
    fn another_depth_is_an_edit() {
        let mine = BASE.replace("    b", "  b");
        assert!(!is_layout_of(BASE.as_bytes(), mine.as_bytes()));
        let new = BASE.replace("    b", "    B");
        let (fate, _) = merge_texts(BASE, &mine, &new, LABELS);
        assert_eq!(fate, Fate::Conflict(1));
    }

    #[test]
    fn conflicts_are_in_the_users_layout() {
        let mine = BASE.replace("c\n", "mine\n").replace('\n', "\r\n");
        let (fate, text) = merge_texts(BASE, &mine, NEW, LABELS);
        assert_eq!(fate, Fate::Conflict(1));
        assert!(text.contains("<<<<<<< yours\r\nmine\r\n||||||| 1\r\nc\r\n=======\r\nC\r\n"));
        assert!(!text.replace("\r\n", "").contains('\n'));
    }

    #[test]
    fn empty_texts() {
        assert_eq!(merged("", "", "a\n"), "a\n");
        assert_eq!(merged("a\n", "a\r\n", ""), "");
        assert_eq!(merged("a", "a\n", "b"), "b\n");
    }
}
