//! The items of a Rust source by name, with their spans.
//!
//! Only tokens are read, so that a source that does not compile can be read too if its brackets match.

use std::ops::Range;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// Keywords of items.
const KEYWORDS: &[&str] = &[
    "fn",
    "struct",
    "enum",
    "union",
    "trait",
    "impl",
    "mod",
    "const",
    "static",
    "type",
    "use",
    "extern",
    "macro_rules",
];
/// Keywords of items that end with a `;`, even after braces.
const TO_SEMICOLON: &[&str] = &["const", "static", "type", "use"];
/// Keywords of items that contain other items.
const CONTAINERS: &[&str] = &["impl", "trait", "mod"];
/// Maximum nesting of brackets, as the reader is recursive.
const DEEPEST: usize = 500;
/// Macros whose message describes a failed check.
const CHECKS: &[&str] = &["ensure", "bail", "assert", "panic"];

/// The items of a file, a module or an `impl`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Items(pub Vec<Item>);

/// An item.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    /// The keyword, such as `fn`.
    pub keyword: &'static str,
    /// The name; of an `impl`, everything before its body, without spaces.
    pub name: String,
    /// The lines of documentation.
    pub doc: Vec<String>,
    /// The byte range, from the documentation or attributes to the end.
    pub span: Range<usize>,
    /// The items in an `impl`, trait or module.
    pub inner: Items,
    tokens: Vec<TokenTree>,
}

/// The path of an item: its keyword and name, after those of the items that contain it.
pub(crate) type Path = Vec<(&'static str, String)>;

impl Items {
    /// Parses the items of a source; `None` if it does not consist of Rust tokens or is nested too deeply.
    pub fn parse(text: &str) -> Option<Self> {
        // Spans of tokens do not count a byte order mark.
        let mark = text.len() - text.trim_start_matches('\u{feff}').len();
        let mut items = items(tokens(&text[mark..])?);
        items.move_by(mark);
        Some(items)
    }

    fn move_by(&mut self, bytes: usize) {
        for item in &mut self.0 {
            item.span = item.span.start + bytes..item.span.end + bytes;
            item.inner.move_by(bytes);
        }
    }

    /// The item that a comment at byte `at` belongs to: the enclosing or else the next item.
    pub fn about(&self, at: usize) -> Option<Path> {
        let around = self.0.iter().find(|item| item.span.contains(&at));
        match around {
            Some(item) if CONTAINERS.contains(&item.keyword) => {
                let mut path = vec![item.key()];
                path.extend(item.inner.about(at).unwrap_or_default());
                Some(path)
            }
            Some(item) => Some(vec![item.key()]),
            None => {
                let next = self.0.iter().find(|item| item.span.start > at)?;
                Some(vec![next.key()])
            }
        }
    }

    /// The item at `path`.
    pub fn get(&self, path: &[(&'static str, String)]) -> Option<&Item> {
        let (first, rest) = path.split_first()?;
        let item = self.0.iter().find(|item| item.key() == *first)?;
        match rest {
            [] => Some(item),
            rest => item.inner.get(rest),
        }
    }

    /// The function called `name`, at any level.
    pub fn function(&self, name: &str) -> Option<&Item> {
        self.0.iter().find_map(|item| {
            if item.keyword == "fn" && item.name == name {
                Some(item)
            } else {
                item.inner.function(name)
            }
        })
    }

    /// The failure messages of the checks in the function `name` and in the functions of this
    /// source that it calls.
    pub fn messages(&self, name: &str) -> Vec<String> {
        let mut messages = Vec::new();
        self.collect_messages(name, &mut Vec::new(), &mut messages);
        messages
    }

    fn collect_messages(&self, name: &str, seen: &mut Vec<String>, messages: &mut Vec<String>) {
        if seen.iter().any(|one| one == name) {
            return;
        }
        seen.push(name.to_owned());
        let Some(function) = self.function(name) else {
            return;
        };
        let mut words = Vec::new();
        read_checks(&function.tokens, messages, &mut words);
        for word in words {
            self.collect_messages(&word, seen, messages);
        }
    }
}

impl Item {
    fn key(&self) -> (&'static str, String) {
        (self.keyword, self.name.clone())
    }

    /// Whether this is an `impl` of the type `name`.
    pub fn implements(&self, name: &str) -> bool {
        let header = self.name.rsplit("for ").next().unwrap_or(&self.name);
        let words = header.split(|c: char| !c.is_alphanumeric() && c != '_');
        self.keyword == "impl" && words.filter(|word| !word.is_empty()).any(|w| w == name)
    }
}

/// The tokens of a source; `None` if it does not consist of Rust tokens or is nested too deeply.
pub(crate) fn tokens(text: &str) -> Option<TokenStream> {
    if depth(text) > DEEPEST {
        return None;
    }
    text.parse().ok()
}

/// A lower bound of the nesting of brackets, including those in strings and comments.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

fn items(stream: TokenStream) -> Items {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut items = Vec::new();
    let mut rest = &tokens[..];
    while !rest.is_empty() {
        if is_inner_attribute(rest) {
            rest = &rest[3..];
            continue;
        }
        let (item, length) = item(rest);
        items.extend(item);
        rest = &rest[length..];
    }
    Items(items)
}

/// Whether the tokens start with `#![..]`, as which `//!` is read too.
fn is_inner_attribute(tokens: &[TokenTree]) -> bool {
    tokens.len() >= 3
        && is_punct(&tokens[0], '#')
        && is_punct(&tokens[1], '!')
        && group_of(&tokens[2], Delimiter::Bracket).is_some()
}

/// The item that starts here, if it has a name, and its number of tokens.
fn item(tokens: &[TokenTree]) -> (Option<Item>, usize) {
    let mut at = 0;
    let mut doc = Vec::new();
    while at + 1 < tokens.len() && is_punct(&tokens[at], '#') {
        if let Some(group) = group_of(&tokens[at + 1], Delimiter::Bracket) {
            doc.extend(doc_line(group));
        }
        at += 2;
    }
    let keyword = keyword(tokens, at);
    let from = keyword.map_or(at, |(at, _)| at);
    let to_semicolon = keyword.is_some_and(|(_, word)| TO_SEMICOLON.contains(&word));
    let end = end_of(tokens, from, to_semicolon);
    let item = keyword.map(|(start, keyword)| {
        let tokens = &tokens[..end];
        let body = tokens[end - 1..].iter();
        let body = body
            .filter_map(|token| group_of(token, Delimiter::Brace))
            .next();
        Item {
            keyword,
            name: name(keyword, &tokens[start + 1..]),
            doc,
            span: tokens[0].span().byte_range().start..tokens[end - 1].span().byte_range().end,
            inner: body
                .filter(|_| CONTAINERS.contains(&keyword))
                .map(|body| items(body.stream()))
                .unwrap_or_default(),
            tokens: tokens.to_vec(),
        }
    });
    (item, end)
}

/// The keyword of an item, after its visibility and modifiers.
fn keyword(tokens: &[TokenTree], start: usize) -> Option<(usize, &'static str)> {
    let word = |at: usize| match tokens.get(at) {
        Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
        _ => None,
    };
    let mut at = start;
    loop {
        let before = word(at);
        match before.as_deref() {
            Some("pub") => {
                at += 1;
                let restricted = tokens.get(at).map(|t| group_of(t, Delimiter::Parenthesis));
                at += usize::from(restricted.flatten().is_some());
            }
            Some("async" | "unsafe" | "default") => at += 1,
            Some("const") if matches!(word(at + 1).as_deref(), Some("fn" | "unsafe" | "async")) => {
                at += 1;
            }
            Some("extern")
                if word(at + 1).as_deref() == Some("fn")
                    || word(at + 2).as_deref() == Some("fn") =>
            {
                let named = matches!(tokens.get(at + 1), Some(TokenTree::Literal(_)));
                at += 1 + usize::from(named);
            }
            Some(word) => {
                let keyword = KEYWORDS.iter().find(|keyword| **keyword == word)?;
                return Some((at, keyword));
            }
            None => return None,
        }
    }
}

/// The position after the `;` or body that ends an item.
fn end_of(tokens: &[TokenTree], from: usize, to_semicolon: bool) -> usize {
    for at in from..tokens.len() {
        let in_generics = at > 0
            && ['<', ',', '=']
                .iter()
                .any(|c| is_punct(&tokens[at - 1], *c));
        let body = group_of(&tokens[at], Delimiter::Brace).is_some() && !in_generics;
        if is_punct(&tokens[at], ';') || (body && !to_semicolon) {
            return at + 1;
        }
    }
    tokens.len()
}

/// The name of an item, from the tokens after its keyword.
fn name(keyword: &str, tokens: &[TokenTree]) -> String {
    if keyword != "impl" {
        let name = tokens.iter().find_map(|token| match token {
            TokenTree::Ident(ident) => Some(ident.to_string()).filter(|word| word != "mut"),
            _ => None,
        });
        return name.unwrap_or_default();
    }
    let header = tokens
        .iter()
        .take_while(|token| group_of(token, Delimiter::Brace).is_none());
    let mut name = String::new();
    for token in header {
        name.push_str(&token.to_string());
        if matches!(token, TokenTree::Ident(word) if *word == "for" || *word == "dyn") {
            name.push(' ');
        }
    }
    name
}

/// A line of documentation, from `[doc = "…"]`.
fn doc_line(attribute: &Group) -> Option<String> {
    let tokens: Vec<_> = attribute.stream().into_iter().collect();
    match &tokens[..] {
        [TokenTree::Ident(doc), _, TokenTree::Literal(text)] if *doc == "doc" => {
            let text = string(&text.to_string())?;
            Some(text.strip_prefix(' ').unwrap_or(&text).to_owned())
        }
        _ => None,
    }
}

/// Collects the messages of the checks in a body, and all words in it.
fn read_checks(tokens: &[TokenTree], messages: &mut Vec<String>, words: &mut Vec<String>) {
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Ident(word) => words.push(word.to_string()),
            TokenTree::Group(group) => {
                let inner: Vec<_> = group.stream().into_iter().collect();
                if is_check(&tokens[..at]) {
                    messages.extend(message(&inner));
                }
                read_checks(&inner, messages, words);
            }
            _ => {}
        }
    }
}

/// Whether the tokens end with the macro of a check.
fn is_check(before: &[TokenTree]) -> bool {
    match before {
        [.., TokenTree::Ident(name), mark] => {
            is_punct(mark, '!') && CHECKS.iter().any(|check| name == check)
        }
        _ => false,
    }
}

/// The message of a check: the first string after its condition, or its first argument.
fn message(arguments: &[TokenTree]) -> Option<String> {
    let mut arguments = arguments.split(|token| is_punct(token, ','));
    arguments.find_map(|argument| match argument {
        [TokenTree::Literal(text)] => string(&text.to_string()),
        _ => None,
    })
}

/// The value of a string literal.
fn string(literal: &str) -> Option<String> {
    if let Some(raw) = literal.strip_prefix('r') {
        let raw = raw.trim_matches('#');
        return Some(raw.strip_prefix('"')?.strip_suffix('"')?.to_owned());
    }
    let quoted = literal.strip_prefix('"')?.strip_suffix('"')?;
    let mut value = String::with_capacity(quoted.len());
    rustc_literal_escaper::unescape_str(quoted, |_, c| value.extend(c));
    Some(value)
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

fn group_of(token: &TokenTree, delimiter: Delimiter) -> Option<&Group> {
    match token {
        TokenTree::Group(group) if group.delimiter() == delimiter => Some(group),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;

    const PARTS: &[&str] = &[
        "fn",
        "impl",
        "pub",
        "const",
        "extern",
        "\"a\"",
        "r#\"b\"#",
        "'a",
        "'b'",
        "//c\n",
        "/*d*/",
        "#",
        "!",
        "[doc = \"e\"]",
        "{",
        "}",
        "(",
        ")",
        "<",
        ">",
        ";",
        ",",
        "=",
        "for",
        "mod",
        "x",
        "ensure",
        "é",
        "\n",
        "struct",
        "///f\n",
        "//!g\n",
        "macro_rules",
        "async",
        "unsafe",
        "in",
    ];

    const SOURCE: &str = r##"//! About the file.
#![allow(dead_code)]
use std::{fmt, io};

/// A model, "quoted { in a comment".
/// Second line.
#[derive(Debug)]
pub struct Model { one: &'static str }

impl<T: Into<[u8; { 1 + 2 }]>> Make<T> for Model {
    // about make
    fn make(self) -> char { // in make
        const fn inner() {}
        '{'
    }
}

impl Model { pub(crate) const unsafe fn new() -> Array<{ 3 }> { r#"} fn no() {"# } }

// ünïcode before
pub const STAGES: &[Stage] = &[Stage { layers: 1 }];
pub struct Unit;
macro_rules! nothing { () => {} }
thread_local! { static X: u8 = 0; }
#[test]
fn last() -> u8 { ensure!(a == b, "a is not {}: \
      \"b\"", b); helper(|| bail!("no batch")) }
fn helper() { helper(); assert!(true, "helped") }
"##;

    fn text<'t>(path: &[(&'static str, &str)]) -> &'t str {
        let path: Path = path.iter().map(|(k, n)| (*k, (*n).to_owned())).collect();
        let items = Items::parse(SOURCE).unwrap();
        let item = items.get(&path).unwrap_or_else(|| panic!("{path:?}"));
        &SOURCE[item.span.clone()]
    }

    #[test]
    fn items_are_found_with_all_that_belongs_to_them() {
        let items = Items::parse(SOURCE).unwrap();
        let names: Vec<_> = items.0.iter().map(|item| &*item.name).collect();
        let all = [
            "std",
            "Model",
            "<T:Into<[u8;{ 1 + 2 }]>>Make<T>for Model",
            "Model",
            "STAGES",
            "Unit",
            "nothing",
            "last",
            "helper",
        ];
        assert_eq!(names.len(), all.len(), "{names:?}");
        for (name, expected) in names.iter().zip(all) {
            assert!(expected.starts_with("<T") || *name == expected, "{names:?}");
        }
        let model = text(&[("struct", "Model")]);
        assert!(model.starts_with("/// A model") && model.ends_with("one: &'static str }"));
        assert!(text(&[("const", "STAGES")]).ends_with("}];"));
        assert!(text(&[("impl", "Model"), ("fn", "new")]).ends_with("\"# }"));
        assert_eq!(items.0[1].doc[1], "Second line.");
        assert!(items.0[2].implements("Model") && items.0[3].implements("Model"));
    }

    #[test]
    fn a_comment_is_about_what_is_around_it_or_behind_it() {
        let items = Items::parse(SOURCE).unwrap();
        let about = |comment: &str| {
            let path = items.about(SOURCE.find(comment).unwrap()).unwrap();
            path.last().unwrap().1.clone()
        };
        assert_eq!(about("// about make"), "make");
        assert_eq!(about("// in make"), "make");
        assert_eq!(about("// ünïcode before"), "STAGES");
        assert!(items.about(SOURCE.len()).is_none());
    }

    #[test]
    fn what_checks_say_is_found_through_the_functions_that_are_called() {
        let items = Items::parse(SOURCE).unwrap();
        let said = items.messages("last");
        assert_eq!(said, ["a is not {}: \"b\"", "no batch", "helped"]);
    }

    #[test]
    fn a_mark_at_the_start_moves_nothing() {
        let marked = format!("\u{feff}{SOURCE}");
        let items = Items::parse(&marked).unwrap();
        let span = items.0[4].span.clone();
        assert!(marked[span].starts_with("pub const STAGES"));
    }

    /// Nesting that would overflow any stack.
    #[test]
    fn a_source_that_is_nested_too_deep_has_no_items() {
        let nested = |depth| {
            format!(
                "fn a() {} {{}}",
                "(".repeat(depth) + ")".repeat(depth).as_str()
            )
        };
        assert!(Items::parse(&nested(100)).is_some());
        assert!(Items::parse(&nested(1_000_000)).is_none());
    }

    proptest! {
        #[test]
        fn any_source(parts in vec(select(PARTS), 0..40), noise in "\\PC{0,20}") {
            for text in [parts.concat(), parts.join(" "), noise] {
                let Some(items) = Items::parse(&text) else {
                    continue;
                };
                for item in &items.0 {
                    prop_assert!(text.get(item.span.clone()).is_some());
                    items.messages(&item.name);
                }
                for at in 0..=text.len() {
                    let path = items.about(at);
                    prop_assert!(path.is_none_or(|path| items.get(&path).is_some()));
                }
            }
        }
    }

    #[test]
    fn a_source_whose_brackets_do_not_match_has_no_items() {
        assert!(Items::parse("fn a() { (").is_none());
    }
}
