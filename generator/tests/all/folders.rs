//! The modules of the library depend on each other in one direction, and so do those of the engine.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    iter::Peekable,
    path::{Path, PathBuf},
};

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree, token_stream::IntoIter};

/// Each module uses only those before it.
const ORDER: [&str; 4] = ["template", "render", "project", "cli"];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false => vec![path],
        })
        .collect()
}

#[test]
fn no_folder_uses_a_later_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (place, folder) in ORDER.iter().enumerate() {
        let sources = sources(&root.join(folder));
        assert!(!sources.is_empty(), "{folder} is empty");
        for source in sources {
            let text = fs::read_to_string(&source).unwrap();
            let (code, _unit_tests) = text.split_once("#[cfg(test)]").unwrap_or((&text, ""));
            // In `use crate::{..}`, names are written without `crate::`.
            let code: String = code.split_whitespace().collect();
            for later in &ORDER[place + 1..] {
                let grouped = code.split("usecrate::{").skip(1).any(|rest| {
                    let group = rest.split("};").next().unwrap_or_default();
                    group.starts_with(&format!("{later}::"))
                        || group.contains(&format!(",{later}::"))
                });
                let uses = code.contains(&format!("crate::{later}::")) || grouped;
                assert!(!uses, "{} uses `{later}`", source.display());
            }
        }
    }
}

#[test]
fn no_modules_of_the_engine_are_in_a_circle() {
    for root in ["template/engine/src", "template/engine/kernels/src"] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(root);
        let imports = Imports::of(&root);
        for entry in fs::read_dir(&root).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let module = name.strip_suffix(".rs").unwrap_or(&name);
            let is_module = imports.modules.contains(module);
            assert!(
                is_module || ["lib", "test_task"].contains(&module),
                "{module} is not read"
            );
        }
        let circles = imports.circles();
        assert!(circles.is_empty(), "{}", circles.join("\n"));
    }
}

#[test]
fn a_circle_is_told_by_its_modules_and_imports() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write(
        "lib.rs",
        "mod a;\nmod b;\nmod c;\n#[cfg(test)]\nmod d;\npub use c::Item;\n",
    );
    write("a/mod.rs", "mod inner;\n#[cfg(test)]\nmod tests;\n");
    write(
        "a/inner.rs",
        "use std::fmt;\nuse crate::{\n    b::{self, X},\n    a::Y,\n};\n",
    );
    write("a/tests.rs", "use crate::c::Item;\n");
    write(
        "b.rs",
        "//! Of crate::a::X.\n// crate::a\nconst X: &str = \"crate::a::X\";\nfn f() { crate::Item; }\n",
    );
    write(
        "c.rs",
        "#[cfg(test)]\nuse crate::a::{X, Y};\n#[cfg(test)]\nfn f<A, B>() { crate::a::g() }\n\
         #[cfg(test)]\nmod tests { use crate::a::X; }\n",
    );
    write("d.rs", "use crate::a;\n");
    assert_eq!(Imports::of(folder.path()).circles(), [""; 0]);
    for (text, place) in [
        ("mod inner { use super::super::a; }\n", "c.rs:1"),
        ("\nuse super::{a::X, b};\n", "c.rs:2"),
        (
            "#[cfg(not(test))]\nfn f() { if x { crate::a::g() } }\n",
            "c.rs:2",
        ),
    ] {
        write("c.rs", text);
        let circles = Imports::of(folder.path()).circles();
        let [circle] = &circles[..] else {
            panic!("{circles:?}");
        };
        for told in [
            "a, b, c",
            "a imports b: a/inner.rs:3",
            "b imports c: b.rs:4",
        ] {
            assert!(circle.contains(told), "{circle}");
        }
        assert!(
            circle.contains(&format!("c imports a: {place}")),
            "{circle}"
        );
    }
}

/// The imports between the modules at the root of a crate, outside of tests: by module and imported one, the
/// places in files, as `checkpoint/mod.rs:12`.
struct Imports {
    modules: BTreeSet<String>,
    places: BTreeMap<(String, String), Vec<String>>,
    /// The modules of the items that the root exports.
    exports: BTreeMap<String, String>,
}

impl Imports {
    /// Those of the crate whose `lib.rs` is in the folder `root`.
    fn of(root: &Path) -> Self {
        let file = root.join("lib.rs");
        let tokens = code(&file);
        let modules = files_of_modules(&file, &tokens);
        let mut imports = Imports {
            modules: modules.iter().map(|(name, _)| name.clone()).collect(),
            places: BTreeMap::new(),
            exports: exports(&tokens),
        };
        for (module, file) in modules {
            imports.read(root, &module, &file, 1);
        }
        imports
    }

    /// Adds the imports of `file`, a file of `module` that is `depth` modules below the root, and of the files of
    /// its modules.
    fn read(&mut self, root: &Path, module: &str, file: &Path, depth: usize) {
        let tokens = code(file);
        let name = file.strip_prefix(root).unwrap().display().to_string();
        let mut named = Vec::new();
        names_at_root(&tokens, depth, &mut named);
        for import in named {
            let line = import.span().start().line;
            let import = import.to_string();
            let import = self.exports.get(&import).unwrap_or(&import).clone();
            if import != module && self.modules.contains(&import) {
                let places = self.places.entry((module.to_owned(), import));
                places.or_default().push(format!("{name}:{line}"));
            }
        }
        for (_, file) in files_of_modules(file, &tokens) {
            self.read(root, module, &file, depth + 1);
        }
    }

    /// The modules that `module` imports, and those that they import.
    fn reached_from(&self, module: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut next = vec![module];
        while let Some(from) = next.pop() {
            for (of, to) in self.places.keys() {
                if of == from && reached.insert(to.as_str()) {
                    next.push(to);
                }
            }
        }
        reached
    }

    /// For each set of modules that reach each other, their names and the imports between them.
    fn circles(&self) -> Vec<String> {
        let reached: BTreeMap<&str, BTreeSet<&str>> = self
            .modules
            .iter()
            .map(|module| (module.as_str(), self.reached_from(module)))
            .collect();
        let circle = |module: &str| -> BTreeSet<&str> {
            let others = reached[module].iter().copied();
            others
                .filter(|other| reached[other].contains(module))
                .collect()
        };
        let circles: BTreeSet<BTreeSet<&str>> =
            reached.keys().map(|module| circle(module)).collect();
        let circles = circles.iter().filter(|circle| !circle.is_empty());
        let told = circles.map(|circle| {
            let names: Vec<&str> = circle.iter().copied().collect();
            let within = self.places.iter().filter(|((from, to), _)| {
                circle.contains(from.as_str()) && circle.contains(to.as_str())
            });
            let lines = within.map(|((from, to), places)| {
                format!("\n  {from} imports {to}: {}", places.join(", "))
            });
            format!(
                "modules in a circle: {}{}",
                names.join(", "),
                lines.collect::<String>()
            )
        });
        told.collect()
    }
}

/// The tokens of a source, without those for tests. Comments are no tokens.
fn code(file: &Path) -> Vec<TokenTree> {
    let text = fs::read_to_string(file).unwrap();
    let tokens: TokenStream = text
        .parse()
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    without_tests(tokens)
}

/// `tokens` without the items and fields that have the attribute `#[cfg(test)]` or `#[cfg(all(test, ..))]`, at any
/// depth.
fn without_tests(tokens: TokenStream) -> Vec<TokenTree> {
    let mut tokens = tokens.into_iter().peekable();
    let mut kept = Vec::new();
    while let Some(token) = tokens.next() {
        match (&token, tokens.peek()) {
            (TokenTree::Punct(mark), Some(TokenTree::Group(attribute)))
                if mark.as_char() == '#' && is_for_tests(attribute) =>
            {
                skip_item(&mut tokens);
            }
            (TokenTree::Group(group), _) => {
                let inner = without_tests(group.stream()).into_iter().collect();
                let mut without = Group::new(group.delimiter(), inner);
                without.set_span(group.span());
                kept.push(TokenTree::Group(without));
            }
            _ => kept.push(token),
        }
    }
    kept
}

/// Skips an item, which ends with its block or a semicolon, or both as a `use`; or a field, which ends with a comma.
fn skip_item(tokens: &mut Peekable<IntoIter>) {
    const ITEMS: [&str; 12] = [
        "const", "enum", "extern", "fn", "impl", "let", "mod", "static", "struct", "trait", "type",
        "use",
    ];
    let mut is_field = true;
    for token in tokens.by_ref() {
        match &token {
            TokenTree::Ident(word) => is_field &= !ITEMS.iter().any(|item| word == item),
            TokenTree::Group(block) if block.delimiter() == Delimiter::Brace => break,
            TokenTree::Punct(mark) if mark.as_char() == ';' => return,
            TokenTree::Punct(mark) if mark.as_char() == ',' && is_field => return,
            _ => {}
        }
    }
    tokens.next_if(|token| is_mark(Some(token), ';') || is_mark(Some(token), ',') && is_field);
}

/// Whether the brackets of an attribute hold `cfg(test)` or `cfg(all(test, ..))`.
fn is_for_tests(attribute: &Group) -> bool {
    let text: String = attribute.stream().to_string().split_whitespace().collect();
    text == "cfg(test)" || text.starts_with("cfg(all(test,")
}

fn is_ident(token: Option<&TokenTree>, name: &str) -> bool {
    matches!(token, Some(TokenTree::Ident(ident)) if ident == name)
}

fn is_mark(token: Option<&TokenTree>, mark: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == mark)
}

/// The names and files of the modules that `file` has in files of their own.
fn files_of_modules(file: &Path, tokens: &[TokenTree]) -> Vec<(String, PathBuf)> {
    let beside = file.parent().unwrap();
    let folder = match file.file_name().unwrap().to_str().unwrap() {
        "lib.rs" | "mod.rs" => beside.to_owned(),
        _ => file.with_extension(""),
    };
    let mut modules = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if is_ident(Some(token), "mod")
            && let Some(TokenTree::Ident(name)) = tokens.get(at + 1)
            && is_mark(tokens.get(at + 2), ';')
        {
            let name = name.to_string();
            let flat = folder.join(format!("{name}.rs"));
            let file = match path_of_module(&tokens[..at]) {
                Some(path) => beside.join(path),
                None if flat.is_file() => flat,
                None => folder.join(&name).join("mod.rs"),
            };
            modules.push((name, file));
        }
    }
    modules
}

/// The path in the attribute `#[path = ".."]` at the end of `before`.
fn path_of_module(before: &[TokenTree]) -> Option<String> {
    let Some(TokenTree::Group(attribute)) = before.last() else {
        return None;
    };
    let text = attribute.stream().to_string();
    let path = text.strip_prefix("path = ")?;
    Some(path.trim_matches('"').to_owned())
}

/// The items that the root of a crate exports by `pub use module::{..}`, with their modules.
fn exports(tokens: &[TokenTree]) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    for (at, token) in tokens.iter().enumerate() {
        if is_ident(Some(token), "use")
            && let Some(TokenTree::Ident(module)) = tokens.get(at + 1)
        {
            let path = tokens[at + 2..].iter();
            let path: TokenStream = path
                .take_while(|token| !is_mark(Some(token), ';'))
                .cloned()
                .collect();
            let text = path.to_string();
            let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            let words = words.filter(|word| !word.is_empty());
            exports.extend(words.map(|word| (word.to_owned(), module.to_string())));
        }
    }
    exports
}

/// Adds the names in paths such as `crate::name::Item` that are at the root of the crate, for tokens in a module that
/// is `depth` modules below it.
fn names_at_root(tokens: &[TokenTree], depth: usize, names: &mut Vec<Ident>) {
    let mut at = 0;
    while at < tokens.len() {
        let is_path = |at: usize| is_mark(tokens.get(at), ':') && is_mark(tokens.get(at + 1), ':');
        let mut ups = 0;
        let start = at;
        if is_ident(tokens.get(at), "crate") && is_path(at + 1) {
            (ups, at) = (depth, at + 3);
        }
        while is_ident(tokens.get(at), "super") && is_path(at + 1) {
            (ups, at) = (ups + 1, at + 3);
        }
        if ups >= depth && ups > 0 {
            match tokens.get(at) {
                Some(TokenTree::Ident(name)) => names.push(name.clone()),
                Some(TokenTree::Group(group)) => names.extend(first_names(group)),
                _ => {}
            }
        }
        if at > start {
            continue;
        }
        if let TokenTree::Group(group) = &tokens[at] {
            let is_module = at >= 2 && is_ident(tokens.get(at - 2), "mod");
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            names_at_root(&inner, depth + usize::from(is_module), names);
        }
        at += 1;
    }
}

/// The first name of each path in the braces of a `use`.
fn first_names(group: &Group) -> Vec<Ident> {
    let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
    let paths = tokens.split(|token| is_mark(Some(token), ','));
    let first = paths.filter_map(|path| match path.first() {
        Some(TokenTree::Ident(name)) => Some(name.clone()),
        _ => None,
    });
    first.collect()
}
