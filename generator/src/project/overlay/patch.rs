//! Patches in examples: files of the template with changes, stored as unified diffs.

use diffy::{Hunk, Line, Patch};

use crate::error::{Error, Result};

/// The command that makes and renews patches, in Kiln's repository.
pub const RENEWAL: &str = "EXAMPLES=overwrite cargo test -p burn-kiln --test examples";

/// Begins a hunk.
const HEADER: &str = "@@ ";
/// Begins a line that says that the line before it has no end.
const REMARK: &str = "\\ ";

/// A patch of one file.
#[derive(Debug)]
pub struct FilePatch<'a> {
    /// The patch's file, for messages.
    name: &'a str,
    text: &'a str,
    patch: Patch<'a, str>,
    /// The line of the header of each hunk in `text`, from 0.
    headers: Vec<usize>,
}

impl<'a> FilePatch<'a> {
    /// Parses a patch from the file `name`.
    ///
    /// # Errors
    /// This is not a unified diff of one file in UTF-8, or has no change.
    pub fn parse(name: &'a str, bytes: &'a [u8]) -> Result<Self> {
        let text = str::from_utf8(bytes)
            .map_err(|_| renewable(Error::template(format!("`{name}` is not UTF-8"))))?;
        let patch = Patch::from_str(text).map_err(|error| malformed(name, text, &error))?;
        let headers = headers(name, text, &patch)?;
        if headers.is_empty() {
            let error = Error::template(format!("`{name}` changes nothing"));
            let error = error.at(name, text, 0..0, "no hunk (`@@ -.. +.. @@`) follows");
            return Err(renewable(error));
        }
        Ok(Self {
            name,
            text,
            patch,
            headers,
        })
    }

    /// Applies the patch to the template's file. Each hunk must have its lines where it says.
    ///
    /// # Errors
    /// A hunk does not fit.
    pub fn apply(&self, base: &str) -> Result<String> {
        self.apply_at(base, false)
    }

    /// Applies the patch to the template's file after a change of the template: hunks may have moved
    /// together or, where their lines occur once only, by themselves.
    ///
    /// # Errors
    /// A hunk does not fit, or fits several places.
    pub fn apply_moved(&self, base: &str) -> Result<String> {
        self.apply_at(base, true)
    }

    fn apply_at(&self, base: &str, moved: bool) -> Result<String> {
        let lines: Vec<&str> = base.split_inclusive('\n').collect();
        let mut text = String::with_capacity(base.len());
        let (mut end, mut shift) = (0, 0);
        for (number, hunk) in self.patch.hunks().iter().enumerate() {
            let old = old_lines(hunk);
            let fits =
                |at: usize| at >= end && lines.get(at..).is_some_and(|l| l.starts_with(&old));
            let stated = first_line(hunk).and_then(|line| line.checked_add_signed(shift));
            let mut at = stated.filter(|&at| fits(at));
            if at.is_none() && moved {
                let mut places = (end..lines.len()).filter(|&at| fits(at));
                at = places.next().filter(|_| places.next().is_none());
            }
            let Some(at) = at else {
                return Err(self.misfit(number, &lines, stated.unwrap_or_default()));
            };
            let stated = first_line(hunk).unwrap_or_default();
            shift = at.wrapping_sub(stated).cast_signed();
            text.extend(lines[end..at].iter().copied());
            text.extend(new_lines(hunk));
            end = at + old.len();
        }
        text.extend(lines[end..].iter().copied());
        Ok(text)
    }

    /// Lines of the patch, and lines of context among them.
    pub fn size(&self) -> (usize, usize) {
        let lines = self.patch.hunks().iter().flat_map(Hunk::lines);
        let context = lines.filter(|line| matches!(line, Line::Context(_)));
        (self.text.lines().count(), context.count())
    }

    /// The error that the hunk `number`, from 0, is not at the line `at` of the template's file.
    fn misfit(&self, number: usize, base: &[&str], at: usize) -> Error {
        let hunk = &self.patch.hunks()[number];
        let old = old_lines(hunk);
        let there = base.get(at..).unwrap_or_default();
        let differing = (0..old.len()).find(|&line| there.get(line) != old.get(line));
        let differing = differing.unwrap_or_default();
        let line = self.headers[number] + 1 + line_in_hunk(hunk, differing);
        let label = match there.get(differing) {
            Some(line) => format!("the template has `{}`", line.trim()),
            None => "the template's file ends before".to_owned(),
        };
        let message = format!(
            "`{}` does not fit the template: hunk {} is not at line {} of the template's file",
            self.name,
            number + 1,
            at.saturating_add(1)
        );
        let error = Error::template(message);
        error
            .at(self.name, self.text, span_of(self.text, line), &label)
            .help(format!(
                "`{RENEWAL}` moves hunks whose lines have moved; correct others by hand, or put the \
                 whole file beside the patch and run this command"
            ))
    }
}

/// The lines of the headers of the hunks, from 0. Every line below the first must be of a hunk; the
/// parser ignores others.
fn headers(name: &str, text: &str, patch: &Patch<'_, str>) -> Result<Vec<usize>> {
    let lines: Vec<&str> = text.lines().collect();
    let begins = |at: usize, with: &str| lines.get(at).is_some_and(|line| line.starts_with(with));
    let mut at = (0..lines.len()).find(|&at| begins(at, HEADER));
    let mut headers = Vec::new();
    for hunk in patch.hunks() {
        let header = at.unwrap_or_default();
        headers.push(header);
        let mut next = header + 1;
        for _ in hunk.lines() {
            next += 1;
            next += usize::from(begins(next, REMARK));
        }
        if next < lines.len() && !begins(next, HEADER) {
            let message = format!("`{name}` has a line that belongs to no hunk");
            let error = Error::template(message);
            let error = error.at(name, text, span_of(text, next), "after the end of a hunk");
            return Err(renewable(error));
        }
        at = Some(next);
    }
    Ok(headers)
}

/// The error of the parser, at its place.
fn malformed(name: &str, text: &str, error: &diffy::ParsePatchError) -> Error {
    // "error parsing patch at byte N: CAUSE"; some causes have no place.
    let told = error.to_string();
    let (place, cause) = told.split_once(": ").unwrap_or(("", &told));
    let byte = place.rsplit(' ').next().and_then(|byte| byte.parse().ok());
    let byte: usize = byte.unwrap_or_default();
    let before = text.get(..byte).unwrap_or(text);
    let line = before.matches('\n').count();
    let error = Error::template(format!("`{name}` is not a unified diff: {cause}"));
    renewable(error.at(name, text, span_of(text, line), "here"))
}

fn renewable(error: Error) -> Error {
    error.help(format!(
        "put the whole file in place of the patch, and run `{RENEWAL}`"
    ))
}

/// The bytes of a line, from 0.
fn span_of(text: &str, line: usize) -> std::ops::Range<usize> {
    let start = text.split_inclusive('\n').take(line).map(str::len).sum();
    let line: &str = text[start..].lines().next().unwrap_or_default();
    start..start + line.len()
}

/// The first line of the template's file in a hunk, from 0.
fn first_line(hunk: &Hunk<'_, str>) -> Option<usize> {
    let range = hunk.old_range();
    // Without lines, the range is after the line that it names.
    match range.is_empty() {
        true => Some(range.start()),
        false => range.start().checked_sub(1),
    }
}

/// The lines of the template's file in a hunk.
fn old_lines<'a>(hunk: &Hunk<'a, str>) -> Vec<&'a str> {
    let old = hunk.lines().iter().filter_map(|line| match line {
        Line::Context(text) | Line::Delete(text) => Some(*text),
        Line::Insert(_) => None,
    });
    old.collect()
}

/// The lines of the example's file in a hunk.
fn new_lines<'a>(hunk: &Hunk<'a, str>) -> impl Iterator<Item = &'a str> {
    hunk.lines().iter().filter_map(|line| match line {
        Line::Context(text) | Line::Insert(text) => Some(*text),
        Line::Delete(_) => None,
    })
}

/// The index in a hunk of its line `number` of the template's file.
fn line_in_hunk(hunk: &Hunk<'_, str>, number: usize) -> usize {
    let lines = hunk.lines().iter().enumerate();
    let mut old = lines.filter(|(_, line)| !matches!(line, Line::Insert(_)));
    old.nth(number).map_or(0, |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n";
    const PATCH: &str = "--- a/f\n+++ b/f\n@@ -2,3 +2,3 @@\n two\n-three\n+3\n four\n@@ -9,2 +9,3 @@\n nine\n+9.5\n ten\n";

    fn applied(patch: &str, base: &str) -> Result<String> {
        FilePatch::parse("f.patch", patch.as_bytes())?.apply(base)
    }

    /// The message, the line in the patch, and the drawing.
    fn refused(patch: &str, base: &str) -> (String, usize, String) {
        let error = applied(patch, base).unwrap_err();
        let line = error.place().unwrap().1;
        (error.to_string(), line, error.draw(false))
    }

    #[test]
    fn a_patch_makes_the_file_that_it_was_made_from() {
        let new = BASE.replace("three", "3").replace("ten", "9.5\nten");
        assert_eq!(applied(PATCH, BASE).unwrap(), new);
        for context in [0, 1, 3] {
            for (base, new) in [
                (BASE, new.as_str()),
                (BASE, BASE.trim_end()),
                (BASE.trim_end(), BASE),
                (BASE, &BASE.replace("ten", "TEN")),
                (BASE, &format!("zero\n\n{BASE}\neleven")),
                ("", BASE),
                (BASE, ""),
            ] {
                let mut options = diffy::DiffOptions::new();
                let patch = options.set_context_len(context).create_patch(base, new);
                let patch = patch.to_string();
                assert_eq!(applied(&patch, base).unwrap(), new, "{patch}");
            }
        }
    }

    #[test]
    fn a_hunk_that_does_not_fit_is_told_with_its_line() {
        let changed = BASE.replace("three", "THREE");
        let (message, line, drawn) = refused(PATCH, &changed);
        assert_eq!(
            message,
            "`f.patch` does not fit the template: hunk 1 is not at line 2 of the template's file"
        );
        assert_eq!(line, 5);
        assert!(drawn.contains("the template has `THREE`"), "{drawn}");
        assert!(drawn.contains(RENEWAL), "{drawn}");
        let (message, line, drawn) = refused(PATCH, BASE.trim_end_matches("ten\n"));
        assert!(message.contains("hunk 2 is not at line 9"), "{message}");
        assert_eq!(line, 11);
        assert!(drawn.contains("the template's file ends before"), "{drawn}");
    }

    /// GNU patch and `diffy::apply` would look for the lines elsewhere.
    #[test]
    fn a_hunk_is_not_applied_elsewhere() {
        for base in [format!("zero\n{BASE}"), BASE.replace("one\n", "")] {
            let (message, ..) = refused(PATCH, &base);
            assert!(message.contains("hunk 1 is not at line 2"), "{message}");
            let new = base.replace("three", "3").replace("ten", "9.5\nten");
            let patch = FilePatch::parse("f.patch", PATCH.as_bytes()).unwrap();
            assert_eq!(patch.apply_moved(&base).unwrap(), new);
        }
        let shifted = PATCH.replace("-9,2 +9,3", "-8,2 +8,3");
        let (message, line, _) = refused(&shifted, BASE);
        assert!(message.contains("hunk 2 is not at line 8"), "{message}");
        assert_eq!(line, 9);
    }

    #[test]
    fn a_hunk_that_could_have_moved_to_several_places_is_not_moved() {
        let patch = FilePatch::parse("f.patch", PATCH.as_bytes()).unwrap();
        let twice = format!("zero\n{BASE}{BASE}");
        let error = patch.apply_moved(&twice).unwrap_err();
        assert!(error.to_string().contains("hunk 1 is not"), "{error}");
        // It moves with the hunk before it.
        let last = format!("zero\n{BASE}nine\nten\n");
        let new = patch.apply_moved(&last).unwrap();
        assert!(new.ends_with("nine\n9.5\nten\nnine\nten\n"), "{new}");
    }

    #[test]
    fn a_malformed_patch_is_told_with_its_place() {
        let cases = [
            ("", "changes nothing", 1),
            ("--- a/f\n+++ b/f\n", "changes nothing", 1),
            (&PATCH.replace("-2,3", "-2,x"), "can't parse range", 3),
            (&PATCH.replace("-2,3", "-2,4"), "does not match hunk", 3),
            (&PATCH.replace("-three", "*three"), "unexpected line", 5),
            (&PATCH.replace("-9,2", "-3,2"), "not in order", 12),
            (&PATCH.replace("@@ -9", "@ -9"), "belongs to no hunk", 8),
            (&format!("{PATCH}\n"), "belongs to no hunk", 12),
            (&format!("{PATCH}+more\n"), "belongs to no hunk", 12),
        ];
        for (patch, told, at) in cases {
            let (message, line, drawn) = refused(patch, BASE);
            assert!(message.contains(told), "{message}");
            assert_eq!(line, at, "{message}");
            assert!(drawn.contains(RENEWAL), "{drawn}");
        }
        // Numbers that are not those of lines.
        for range in ["-0,3", "-99999,3", "-18446744073709551612,3"] {
            let (message, ..) = refused(&PATCH.replace("-2,3", range), BASE);
            assert!(message.contains("`f.patch`"), "{message}");
        }
        let error = FilePatch::parse("f.patch", b"\xff").unwrap_err();
        assert_eq!(error.to_string(), "`f.patch` is not UTF-8");
    }
}
