//! Lines that are equal but for their layout.

use diffy::DiffOptions;

/// The pairs of equal lines of two texts, in order, from a shortest difference.
pub(super) fn aligned<'t>(one: &[&'t str], other: &[&'t str]) -> Vec<(usize, usize)> {
    let text = |lines: &[&str]| {
        lines
            .iter()
            .fold(String::new(), |text, line| text + *line + "\n")
    };
    let (old, new) = (text(one), text(other));
    let mut options = DiffOptions::new();
    options.set_context_len(0);
    let patch = options.create_patch(&old, &new);
    let mut pairs = Vec::new();
    let (mut at, mut to) = (0, 0);
    for hunk in patch.hunks() {
        // As in a patch, a range counts from 1, or is empty after this line.
        let old = hunk.old_range();
        let start = old.start() - usize::from(!old.is_empty());
        while at < start {
            pairs.push((at, to));
            (at, to) = (at + 1, to + 1);
        }
        (at, to) = (at + old.len(), to + hunk.new_range().len());
    }
    pairs.extend((at..one.len()).zip(to..other.len()));
    pairs
}

/// A line without its indentation.
fn split(line: &str) -> (&str, &str) {
    let rest = line.trim_start_matches([' ', '\t']);
    line.split_at(line.len() - rest.len())
}

/// Whether two lines with the same words differ only in layout: tabs take the place of spaces.
/// Another depth is an edit, which has a meaning in YAML and Markdown.
fn is_same(one: &str, other: &str) -> bool {
    let ((one, words), (other, _)) = (split(one), split(other));
    words.trim_end().is_empty() || one == other || one.contains('\t') != other.contains('\t')
}

/// The code of the base and of the new template in the user's layout, as far as lines correspond.
pub(super) fn in_layout_of(base: &str, mine: &str, new: &str) -> (String, String) {
    if base == mine {
        return (base.to_owned(), new.to_owned());
    }
    let [old, own, is] = [base, mine, new].map(|text| text.lines().collect::<Vec<_>>());
    let words = |lines: &[&'_ str]| -> Vec<String> {
        lines.iter().map(|line| line.trim().to_owned()).collect()
    };
    let (words_old, words_own) = (words(&old), words(&own));
    let [words_old, words_own] =
        [&words_old, &words_own].map(|lines| lines.iter().map(String::as_str).collect::<Vec<_>>());
    // The user's line for each line of the base.
    let mut laid: Vec<Option<&str>> = vec![None; old.len()];
    for (line, mine) in aligned(&words_old, &words_own) {
        laid[line] = Some(own[mine]).filter(|mine| is_same(old[line], mine));
    }
    if (0..old.len()).all(|at| laid[at].is_none_or(|line| line == old[at])) {
        return (base.to_owned(), new.to_owned());
    }
    let mut kept = vec![None; is.len()];
    for (line, to) in aligned(&old, &is) {
        kept[to] = Some(line);
    }
    // If the template changed only the layout of a line, too, the user's layout is kept.
    let words_is = words(&is);
    let words_is: Vec<&str> = words_is.iter().map(String::as_str).collect();
    for (line, to) in aligned(&words_old, &words_is) {
        if kept[to].is_none()
            && laid[line].is_some_and(|mine| mine != old[line] && is_same(is[to], mine))
        {
            kept[to] = Some(line);
        }
    }
    let mut next = 0;
    let lines = is.iter().enumerate().map(|(at, line)| match kept[at] {
        Some(from) => {
            next = from + 1;
            laid[from].unwrap_or(old[from]).to_owned()
        }
        None => indented(line, next, &old, &laid),
    });
    let new = join(lines);
    let base = join((0..old.len()).map(|at| laid[at].unwrap_or(old[at]).to_owned()));
    (base, new)
}

fn join(lines: impl Iterator<Item = String>) -> String {
    lines.fold(String::new(), |text, line| text + line.as_str() + "\n")
}

/// A new line, indented as the user indents the nearest line of the same depth.
fn indented(line: &str, next: usize, old: &[&str], laid: &[Option<&str>]) -> String {
    let (depth, rest) = split(line);
    let own = |at: &usize| {
        let (indent, words) = split(old[*at]);
        let mine = laid[*at].filter(|_| indent == depth && !words.is_empty())?;
        Some(split(mine).0)
    };
    let before = (0..next).rev().find_map(|at| own(&at));
    let indent = before.or_else(|| (next..old.len()).find_map(|at| own(&at)));
    let indent = indent.map_or_else(|| translated(depth, old, laid), str::to_owned);
    indent + rest
}

/// An indentation that the old template does not have: with tabs in the same ratio as elsewhere.
fn translated(depth: &str, old: &[&str], laid: &[Option<&str>]) -> String {
    let mut indents = old.iter().zip(laid).filter_map(|(old, mine)| {
        let (old, mine) = (split(old).0, split((*mine)?).0);
        (!mine.is_empty() && mine.chars().all(|c| c == '\t') && !old.contains('\t'))
            .then(|| old.len() / mine.len())
    });
    match indents.next() {
        Some(width) if width > 0 && !depth.contains('\t') => {
            "\t".repeat(depth.len() / width) + &*" ".repeat(depth.len() % width)
        }
        _ => depth.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_lines_are_paired() {
        let pairs = |one: &str, other: &str| {
            let lines = |text: &'static str| text.split(' ').collect::<Vec<_>>();
            let (one, other): (&'static str, &'static str) =
                (one.to_owned().leak(), other.to_owned().leak());
            aligned(&lines(one), &lines(other))
        };
        assert_eq!(pairs("a b c", "a b c"), [(0, 0), (1, 1), (2, 2)]);
        assert_eq!(pairs("a b c", "x a c"), [(0, 1), (2, 2)]);
        assert_eq!(pairs("a b", "b c"), [(1, 0)]);
        assert_eq!(pairs("a", "b"), []);
        assert_eq!(aligned(&[], &["a"]), []);
    }

    #[test]
    fn a_new_line_is_indented_as_its_neighbours() {
        let base = "a\n    b\nc\n";
        let new = "a\n    b\n    n\n        m\nc\n";
        let (_, new) = in_layout_of(base, "a\n\tb\nc\n", new);
        assert_eq!(new, "a\n\tb\n\tn\n\t\tm\nc\n");
    }
}
