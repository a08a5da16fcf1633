//! Sources without modules in other files: rustfmt looks for these files.

use std::ops::Range;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::project::source::tokens;

/// The text with `mod a {}` for `mod a;`; `None` if it has such empty modules of its own, which
/// could not be told apart.
pub(super) fn alone(text: &str) -> Option<String> {
    if !text.contains("mod ") {
        return Some(text.to_owned());
    }
    let Some(tokens) = tokens(text) else {
        // rustfmt tells, too.
        return Some(text.to_owned());
    };
    if !found(tokens.clone(), &is_empty).is_empty() {
        return None;
    }
    Some(replaced(text, &found(tokens, &is_elsewhere), " {}"))
}

/// Undoes [`alone`] in the formatted text.
pub(super) fn rejoined(text: &str) -> Option<String> {
    if !text.contains("mod ") {
        return Some(text.to_owned());
    }
    Some(replaced(text, &found(tokens(text)?, &is_empty), ";"))
}

fn replaced(text: &str, ranges: &[Range<usize>], with: &str) -> String {
    let mut out = String::with_capacity(text.len() + 3 * ranges.len());
    let mut from = 0;
    for range in ranges {
        out.push_str(&text[from..range.start]);
        out.push_str(with);
        from = range.end;
    }
    out + &text[from..]
}

fn is_elsewhere(end: &TokenTree) -> bool {
    matches!(end, TokenTree::Punct(punct) if punct.as_char() == ';')
}

fn is_empty(end: &TokenTree) -> bool {
    match end {
        TokenTree::Group(group) => {
            group.delimiter() == Delimiter::Brace && group.stream().is_empty()
        }
        _ => false,
    }
}

/// The ranges from the name of a module to its end, for modules with such an end.
fn found(tokens: TokenStream, is_end: &impl Fn(&TokenTree) -> bool) -> Vec<Range<usize>> {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut ranges = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if let TokenTree::Group(group) = token {
            ranges.extend(found(group.stream(), is_end));
        }
        if let [TokenTree::Ident(word), TokenTree::Ident(name), end, ..] = &tokens[at..]
            && *word == "mod"
            && is_end(end)
        {
            ranges.push(name.span().byte_range().end..end.span().byte_range().end);
        }
    }
    ranges.sort_by_key(|range| range.start);
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_of_other_files_are_empty_for_a_while() {
        let text = "// mod c;\npub mod a;\nmod b { #[cfg(test)] mod inner ; }\nconst S: &str = \"mod d;\";\n";
        let changed = alone(text).unwrap();
        assert_eq!(
            changed,
            text.replace("mod a;", "mod a {}")
                .replace("inner ;", "inner {}")
        );
        assert_eq!(
            rejoined(&changed).unwrap(),
            text.replace("inner ;", "inner;")
        );
        assert_eq!(alone("mod a {}\nmod b;\n"), None);
        assert_eq!(alone("mod ("), Some("mod (".to_owned()));
    }
}
