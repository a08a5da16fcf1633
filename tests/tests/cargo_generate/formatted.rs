//! Kinds of template repositories in the wild, rendered by cargo-generate and by Kiln with the same
//! bytes, or refused for a reason. Templates format their Rust files, as is cargo-generate's default.

use std::{env, fs, path::Path};

use kiln::{
    error::Result,
    name::Name,
    render::render,
    template::{Reading, Template, answers::Answers},
};
use kiln_tests::{Entry, NAME, Tree, diff};
use tempfile::TempDir;

use crate::peer::{Peer, Tool};

/// Expected outcome for a kind.
enum End {
    /// Both tools render the same files; Kiln's warnings.
    Same(Vec<&'static str>),
    /// Neither renders; how Kiln's error starts.
    Neither(&'static str),
    /// Kiln refuses what cargo-generate would spoil; how the error starts.
    Refused(&'static str),
}

/// A small template of a kind.
struct Kind {
    name: &'static str,
    config: &'static str,
    /// Paths and contents. A path starts with `+` for an executable, with `@` for a symbolic link.
    files: Vec<(&'static str, &'static [u8])>,
    end: End,
}

impl Kind {
    fn warns(mut self, warnings: &[&'static str]) -> Self {
        self.end = End::Same(warnings.to_vec());
        self
    }

    fn neither(mut self, error: &'static str) -> Self {
        self.end = End::Neither(error);
        self
    }

    fn refused(mut self, error: &'static str) -> Self {
        self.end = End::Refused(error);
        self
    }

    /// Writes the template.
    fn write(&self) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::write(root.join("cargo-generate.toml"), self.config).unwrap();
        for (path, contents) in &self.files {
            put(root, path, contents);
        }
        folder
    }
}

fn put(root: &Path, marked: &str, contents: &[u8]) {
    let path = root.join(marked.trim_start_matches(['+', '@']));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    #[cfg(unix)]
    if marked.starts_with('@') {
        let target = str::from_utf8(contents).unwrap();
        return std::os::unix::fs::symlink(target, path).unwrap();
    }
    fs::write(&path, contents).unwrap();
    #[cfg(unix)]
    if marked.starts_with('+') {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&path, mode).unwrap();
    }
}

fn kind(name: &'static str, config: &'static str, files: &[(&'static str, &'static [u8])]) -> Kind {
    Kind {
        name,
        config,
        files: files.to_vec(),
        end: End::Same(Vec::new()),
    }
}

const MANIFEST: (&str, &[u8]) = (
    "Cargo.toml",
    b"[package]\nname = \"{{project-name}}\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
);
const MAIN: (&str, &[u8]) = (
    "src/main.rs",
    b"fn main( ) { println!(\"{}\",   \"{{crate_name}}\") }\n",
);
const WORKFLOW: &str = ".github/workflows/ci.yml";

/// Kinds for what the repositories are about.
fn purposes() -> Vec<Kind> {
    vec![
        kind("a binary", "", &[MANIFEST, MAIN]),
        kind("a library", "", &[
            MANIFEST,
            ("src/lib.rs", b"#![doc = \"{{project-name}}\"]\npub fn f()->u8{ 1 }\n#[cfg(test)] mod tests { #[test] fn f() { assert_eq!(super::f(),1) } }\n"),
        ]),
        kind(
            "a microcontroller",
            "[placeholders]\nchip = { prompt = \"?\", choices = [\"rp2040\", \"nrf52\"], default = \"nrf52\" }\n\
             [conditional.'chip == \"nrf52\"']\nignore = [\"rp2040.x\"]\n",
            &[
                MANIFEST,
                (".cargo/config.toml", b"[build]\ntarget = \"{% case chip %}{% when 'nrf52' %}thumbv7em-none-eabihf{% else %}thumbv6m-none-eabi{% endcase %}\"\n"),
                ("memory.x", b"MEMORY { FLASH : ORIGIN = 0x0, LENGTH = 256K }\n"),
                ("rp2040.x", b"MEMORY {}\n"),
                ("build.rs", b"fn main(){println!(\"cargo:rerun-if-changed=memory.x\");}\n"),
                ("src/main.rs", b"#![no_std]\n#![no_main]\nuse {{chip}}_hal as hal;use   panic_halt as _;\n#[hal::entry] fn main()->!{ loop{} }\n"),
            ],
        ),
        kind("a page of WebAssembly", "", &[
            MANIFEST,
            ("src/lib.rs", b"use wasm_bindgen::prelude::*;\n#[wasm_bindgen] extern \"C\" {fn alert(s:&str);}\n#[wasm_bindgen] pub fn greet() {alert(\"{{project-name}}\");}\n"),
            ("www/index.js", b"import * as wasm from '{{project-name}}';\nconst f = x => `${x} }`;\n"),
            ("www/index.html", b"<!DOCTYPE html>\n<title>{{project-name}}</title>\n<style>a { color: red }</style>\n"),
            ("tests/web.rs", b"#![cfg(target_arch=\"wasm32\")]\nextern crate wasm_bindgen_test;use wasm_bindgen_test::*;\n"),
        ]),
        kind("a front end of macros", "", &[
            MANIFEST,
            ("Trunk.toml", b"[build]\ntarget = \"index.html\"\n"),
            ("src/main.rs", b"use yew::prelude::*;\n#[function_component] fn App()->Html{ html!{ <p>{ \"{{project-name}}\" }</p> } }\nfn main(){yew::Renderer::<App>::new().render();}\n"),
        ]),
        kind("a procedural macro", "", &[
            ("Cargo.toml", b"[package]\nname = \"{{project-name}}\"\nedition = \"2021\"\n[lib]\nproc-macro = true\n"),
            ("src/lib.rs", b"use proc_macro::TokenStream;\n#[proc_macro_derive({{crate_name | upper_camel_case}})] pub fn derive(input:TokenStream)->TokenStream{quote::quote!{ impl X for #name{} }.into()}\n"),
        ]),
        kind("a workspace with editions of its members", "", &[
            ("Cargo.toml", b"[workspace]\nmembers = [\"crates/*\"]\n[workspace.package]\nedition = \"2024\"\n"),
            ("crates/{{project-name}}-core/Cargo.toml", b"[package]\nname = \"{{project-name}}-core\"\nedition.workspace = true\n"),
            ("crates/{{project-name}}-core/src/lib.rs", b"use a::{x9,x10};\npub fn f ( ) {}\n"),
            ("crates/old/Cargo.toml", b"[package]\nname = \"old\"\n"),
            ("crates/old/src/lib.rs", b"use a::{x9,x10};\nfn f(){ let async=1; }\n"),
            ("crates/new/Cargo.toml", b"[package]\nname = \"new\"\nedition = \"2021\"\n"),
            ("crates/new/src/lib.rs", b"use a::{x9,x10};\nasync  fn f(){}\n"),
            ("xtask.rs", b"fn  main(){}\n"),
        ]),
        kind("a workspace without an edition", "", &[
            ("Cargo.toml", b"[workspace]\nmembers = []\n"),
            ("loose.rs", b"fn  main(){}\n"),
        ]),
        kind("a root package that inherits from itself", "", &[
            ("Cargo.toml", b"[workspace]\npackage.edition = \"2021\"\n[package]\nname = \"a\"\nedition.workspace = true\n"),
            MAIN,
        ]),
        kind("all folders of cargo", "", &[
            MANIFEST,
            MAIN,
            ("build.rs", b"fn main ( ) {}\n"),
            ("examples/a.rs", b"fn main ( ) {}\n"),
            ("benches/a.rs", b"fn main ( ) {}\n"),
            ("tests/a.rs", b"mod common;\n#[test] fn f(){common::g()}\n"),
            ("tests/common/mod.rs", b"pub fn g ( ) {}\n"),
            ("Cargo.lock", b"# This file is automatically @generated by Cargo.\nversion = 4\n\n[[package]]\nname = \"{{project-name}}\"\nversion = \"0.1.0\"\n"),
        ]),
        kind("no Rust at all", "", &[
            ("README.md", b"# {{project-name}}\n"),
            ("scripts/a.py", b"print(f\"{1}\")\n"),
        ]),
        kind("Rust without a package", "", &[
            ("day01/main.rs", b"fn  main(){}\n"),
            ("README.md", b"{{crate_name}}\n"),
        ]),
        kind("a licence to choose", "[placeholders]\nlicense = { prompt = \"?\", choices = [\"MIT\", \"Apache-2.0\"], default = \"MIT\" }\n\
             [conditional.'license == \"MIT\"']\nignore = [\"LICENSE-APACHE\"]\n[conditional.'license == \"Apache-2.0\"']\nignore = [\"LICENSE-MIT\"]\n", &[
            ("Cargo.toml", b"[package]\nname = \"{{project-name}}\"\nlicense = \"{{license}}\"\nauthors = [\"{{authors}}\"]\n"),
            ("LICENSE-MIT", b"Copyright {{authors}}\n"),
            ("LICENSE-APACHE", b"Apache\n"),
        ]),
        kind("features by yes and no", "[placeholders]\nserde = { type = \"bool\", prompt = \"?\", default = true }\n", &[
            ("Cargo.toml", b"[package]\nname = \"{{project-name}}\"\nedition = \"2021\"\n\n[dependencies]\n{%- if serde %}\nserde = \"1\"\n{%- endif %}\n"),
            ("src/main.rs", b"{%- if serde -%}\nuse serde::Serialize;\n{%- endif %}\nfn main(){}\n"),
        ]),
        kind("a binary or a library", "[conditional.'crate_type == \"bin\"']\nignore = [\"src/lib.rs\"]\n[conditional.'crate_type == \"lib\"']\nignore = [\"src/main.rs\"]\n", &[
            MANIFEST, MAIN, ("src/lib.rs", b"pub  fn f(){}\n"),
        ]),
        kind("an edition to choose", "[placeholders]\nedition = { prompt = \"?\", choices = [\"2021\", \"2024\"], default = \"2024\" }\n", &[
            ("Cargo.toml", b"[package]\nname = \"{{project-name}}\"\nedition = \"{{edition}}\"\n"),
            ("src/main.rs", b"use a::{x9,x10,B,a};\nfn main(){let x=1;}\n"),
        ]),
    ]
}

/// Kinds for text that looks like Liquid and is not.
fn foreign_text() -> Vec<Kind> {
    vec![
        kind("a workflow with a matrix", "", &[
            MANIFEST,
            (WORKFLOW, b"name: {{project-name}}\njobs:\n  test:\n    runs-on: ${{ matrix.os }}\n    env:\n      TOKEN: ${{ secrets.TOKEN }}\n"),
        ])
        .warns(&[".github/workflows/ci.yml:4:18: there is no variable `matrix`, so nothing in the file is rendered"]),
        kind("a workflow with an expression", "", &[
            (WORKFLOW, b"if: ${{ github.event_name == 'push' }}\n"),
        ])
        .neither(".github/workflows/ci.yml:1:"),
        kind("a workflow with a function", "", &[
            (WORKFLOW, b"key: a\nhash: ${{ hashFiles('**/Cargo.lock') }}\n"),
        ])
        .neither(".github/workflows/ci.yml:2:"),
        kind("a workflow between raw and endraw", "", &[
            (WORKFLOW, b"name: {{project-name}}\n{% raw %}os: ${{ matrix.os == 'x' }}{% endraw %}\n"),
        ]),
        kind("a workflow that is excluded", "[template]\nexclude = [\".github\"]\n", &[
            MANIFEST, MAIN, (WORKFLOW, b"os: ${{ matrix.os == 'x' }}\n"),
        ]),
        kind("a variable that one file empties for the next", "", &[
            ("a/z.txt", b"{% if matrix %}yes{% else %}no{% endif %}\n"),
            ("a.txt", b"os: ${{ matrix.os }}\n"),
            ("b.txt", b"{% if matrix %}yes{% else %}no{% endif %}\n"),
            ("c-{{matrix}}.txt", b"[{{ matrix }}]\n"),
        ])
        .warns(&[
            "a/z.txt:1:7: there is no variable `matrix`, so it is false",
            "a.txt:1:9: there is no variable `matrix`, so nothing in the file is rendered",
            "b.txt:1:7: there is no variable `matrix`, so it is empty",
            "c-{{matrix}}.txt:1:5: there is no variable `matrix`, so it is empty",
        ]),
        kind("a page of Jinja", "", &[
            MANIFEST,
            ("templates/a.html", b"<p>{{ user.name }}</p>\n{% for x in items %}<i>{{ x }}</i>{% endfor %}\n"),
        ])
        .warns(&["templates/a.html:1:7: there is no variable `user`, so nothing in the file is rendered"]),
        kind("a page of Tera", "", &[
            ("templates/a.html", b"{% extends \"base.html\" %}{% block x %}{% endblock %}\n"),
        ])
        .neither("templates/a.html:1:"),
        kind("a page of Askama that is excluded", "[template]\nexclude = [\"templates/**\"]\n", &[
            MANIFEST, MAIN,
            ("templates/a.html", b"{% extends \"base.html\" %}{% block x %}{{ y|safe }}{% endblock %}\n"),
        ]),
        kind("a page of Handlebars", "", &[
            ("a.hbs", b"{{#each items}}{{this}}{{/each}}\n"),
        ])
        .neither("a.hbs:1:"),
        kind("a book", "", &[("book/a.md", b"{{#include ../src/main.rs}}\n")]).neither("book/a.md:1:"),
        kind("a book that is excluded", "[template]\nexclude = [\"book\"]\n", &[
            MANIFEST, ("book/a.md", b"{{#include ../src/main.rs}}\n"),
        ]),
        kind("a chart of Helm", "", &[
            ("chart/a.yaml", b"image: {{ .Values.image }}\n"),
        ])
        .neither("chart/a.yaml:1:"),
        kind("a justfile", "", &[
            ("justfile", b"run target:\n    cargo run --bin {{target}}\n"),
        ])
        .warns(&["justfile:2:23: there is no variable `target`, so it is empty"]),
        kind("a Dockerfile, a Makefile and a flake", "", &[
            ("Dockerfile", b"ARG A=1\nRUN echo ${A} $(B) {}\nCOPY target/release/{{project-name}} /\n"),
            ("Makefile", b"A := ${B}\nall:\n\techo $(A) {{crate_name}}\n"),
            ("flake.nix", b"{ outputs = { self }: { x = \"${self}\"; y = ''${z}''; }; }\n"),
        ]),
        kind("a macro with two braces", "", &[
            MANIFEST, ("src/lib.rs", b"macro_rules! m { () => {{ 1 + 1 }} }\n"),
        ])
        .neither("src/lib.rs:1:"),
        kind("a macro with braces and a name", "", &[
            MANIFEST, ("src/lib.rs", b"macro_rules! m { ($x:expr) => {{ x }}; }\n"),
        ])
        .warns(&["src/lib.rs:1:34: there is no variable `x`, so it is empty"]),
        kind("escaped braces", "", &[
            MANIFEST, ("src/lib.rs", b"fn f() -> String { format!(\"{{}}\") }\n"),
        ])
        .neither("src/lib.rs:1:"),
        kind("escaped braces around a name and a number", "", &[
            MANIFEST,
            ("src/lib.rs", b"fn f( ) -> String { format!(\"{{name}} {{0}}\") }\n"),
        ])
        .warns(&["src/lib.rs:1:32: there is no variable `name`, so it is empty"]),
        kind("braces as Liquid's text", "", &[
            MANIFEST,
            ("src/lib.rs", b"fn f( ) -> String { format!(\"{{ '{{' }}{{ '}}' }}\") }\n{% raw %}macro_rules! m { () => {{ 1 }} }{% endraw %}\n"),
        ]),
        kind("an unknown filter", "", &[("a.txt", b"{{ crate_name | shout }}\n")])
            .neither("a.txt:1:"),
        kind("an unknown tag", "", &[("a.txt", b"{% nope %}\n")]).neither("a.txt:1:"),
        kind("an include", "", &[("a.txt", b"{{crate_name}}{% include 'x' %}\n")])
            .warns(&["a.txt:1:1: Partial does not exist; name=x, so nothing in the file is rendered"]),
        kind("a block that is not closed", "", &[("a.txt", b"{% if crate_name %}\n")])
            .neither("a.txt:1:"),
        kind("an unknown variable in a condition", "", &[
            ("a.txt", b"{% if ci == 'github' %}a{% else %}b{% endif %}\n"),
        ])
        .warns(&["a.txt:1:7: there is no variable `ci`, so it is empty"]),
        kind("an unknown variable in a loop", "", &[
            ("a.txt", b"{% for x in things %}{{x}}{% endfor %}{{crate_name}}\n"),
        ])
        .warns(&["a.txt:1:13: there is no variable `things`, so nothing in the file is rendered"]),
        kind("an index that is not there", "", &[
            ("a.txt", b"{{ crate_name.first.second }} {{project-name}}\n"),
        ])
        .warns(&["a.txt:1:1: Unknown index; variable=crate_name; requested index=first, so nothing in the file is rendered"]),
        kind("a division by zero", "", &[
            ("a.txt", b"{{project-name}}\n{{ 1 | divided_by: 0 }}\n"),
        ])
        .warns(&["a.txt:2:1: Invalid argument; argument=operand; cause=Can't divide by zero; filter=divided_by : 0; input=1, so nothing in the file is rendered"]),
        kind("an unknown variable in a path", "", &[
            ("src/a-{{nope}}.txt", b"x\n"),
        ])
        .warns(&["src/a-{{nope}}.txt:1:5: there is no variable `nope`, so it is empty"]),
    ]
}

/// Kinds for the form of files.
fn forms() -> Vec<Kind> {
    vec![
        kind("CRLF", "", &[
            MANIFEST,
            ("src/main.rs", b"fn main( ) {\r\n  let x=1;\r\n}\r\n"),
            ("README.md", b"# {{project-name}}\r\n{% if true %}\r\nx\r\n{% endif %}\r\n"),
        ]),
        kind("byte order marks", "", &[
            MANIFEST,
            ("src/main.rs", b"\xef\xbb\xbffn main( ) {}\n"),
            ("README.md", b"\xef\xbb\xbf# {{project-name}}\n"),
        ]),
        kind("an image that is excluded", "[template]\nexclude = [\"*.png\"]\n", &[
            MANIFEST, MAIN, ("a.png", b"\x89PNG\r\n\x1a\n\x00{{"),
        ]),
        kind("an image that is rendered", "", &[("a.png", b"\x89PNG\r\n\x1a\n\x00")])
            .neither("a.png:1:1: `a.png` is not UTF-8"),
        kind("a text in Latin-1", "", &[("a.txt", b"na\xefve {{crate_name}}\n")])
            .neither("a.txt:1:3: `a.txt` is not UTF-8"),
        kind("a Rust file in Latin-1 that is excluded", "[template]\nexclude = [\"src/old.rs\"]\n", &[
            MANIFEST, ("src/old.rs", b"fn  f(){} // na\xefve\n"),
        ]),
        kind("empty files and files without a last newline", "", &[
            MANIFEST,
            ("src/lib.rs", b""),
            ("src/a.rs", b"fn f ( ) {}"),
            ("src/b.rs", b"\n\n\n"),
            ("a.txt", b"{{crate_name}}"),
            (".gitkeep", b""),
        ]),
        kind("letters of other scripts", "", &[
            MANIFEST,
            ("src/main.rs", "// 数字 {{crate_name}}\nfn main( ) { println!(\"naïve ✓\") }\n".as_bytes()),
            ("docs/Über.md", "{{project-name}} ✓\n".as_bytes()),
        ]),
        kind("executable scripts", "", &[
            ("+run.sh", b"#!/bin/sh\necho {{crate_name}} ${HOME}\n"),
            ("+src/bin.rs", b"fn main ( ) {}\n"),
            ("+{{project-name}}.sh", b"#!/bin/sh\n"),
            MANIFEST,
        ]),
        #[cfg(unix)]
        kind("symbolic links", "", &[MANIFEST, MAIN, ("@LINK.md", b"README.md"), ("README.md", b"x\n")])
            .warns(&["LINK.md: neither a file nor a folder, so projects do not have it"]),
        kind("hidden files", "", &[
            (".gitignore", b"/target\n{{project-name}}.log\n"),
            (".gitattributes", b"* text=auto\n"),
            (".gitmodules", b"[submodule \"a\"]\n\tpath = a\n\turl = https://example.org/{{project-name}}\n"),
            (".vscode/settings.json", b"{ \"a\": { \"b\": \"${workspaceFolder}\" } }\n"),
            (".devcontainer/devcontainer.json", b"{\"name\": \"{{project-name}}\"}\n"),
            (".editorconfig", b"[*]\nindent_size = 2\n"),
        ]),
        kind("build folders and repositories", "", &[
            MANIFEST, MAIN,
            ("target/CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55\n"),
            ("target/debug/a.rs", b"{{ not liquid"),
            ("sub/.git/config", b"{{ not liquid"),
        ]),
        kind("a manifest with the suffix .liquid", "", &[
            ("Cargo.toml.liquid", b"[package]\nname = \"{{project-name}}\"\nedition = \"2021\"\n"),
            ("src/main.rs.liquid", b"fn main ( ) {}\n"),
            ("Cargo.toml", b"[package]\nname = \"placeholder\"\n"),
        ]),
        kind("names in paths", "", &[
            MANIFEST,
            ("src/{{crate_name}}/mod.rs", b"pub fn f ( ) {}\n"),
            ("src/{{crate_name}}/{{crate_name | shouty_snake_case}}.rs", b"const  X:u8=1;\n"),
            ("{{project-name}}.service", b"[Unit]\n"),
            ("{% if crate_type == 'bin' %}app{% else %}lib{% endif %}.txt", b""),
        ]),
        kind("filters of case", "", &[("a.txt", b"{{project-name|snake_case}} {{crate_name|kebab_case}} {{'a b'|pascal_case}} {{'a b'|title_case}} {{'a b'|shouty_kebab_case}} {{'aB c'|lower_camel_case}} {{'a b'|upper_camel_case}} {{'a b'|shouty_snake_case}}\n")]),
        kind("built-in variables", "", &[("a.txt", b"{{authors}}|{{username}}|{{os-arch}}|{{crate_type}}|{{is_init}}|{{within_cargo_project}}|{{project-name}}|{{crate_name}}\n")]),
        kind("two files of one name", "", &[("{{crate_name}}.txt", b"a"), ("my_model.txt", b"b")])
            .refused("`my_model.txt` and `{{crate_name}}.txt` render to the same path"),
        kind("a name that renders to nothing", "", &[("a/{{ '' }}/b.txt", b"a")])
            .refused("a/{{ '' }}/b.txt:1:3: the part `{{ '' }}`"),
        kind("a name that Windows does not have", "", &[("src/aux.rs", b"")]).refused(""),
        kind("names that differ only in case", "", &[("README.md", b"a"), ("readme.md", b"b")])
            .refused(""),
    ]
}

/// Kinds for the rules of `cargo-generate.toml`, and for rustfmt.
fn rules() -> Vec<Kind> {
    vec![
        kind("a list of what is rendered", "[template]\ninclude = [\"Cargo.toml\", \"src/\"]\n", &[
            MANIFEST, MAIN, ("assets/a.js", b"{{#x}}\n"), ("build.rs", b"fn  main(){}\n"),
        ]),
        kind("a copied file with a variable", "[template]\nexclude = [\"a.txt\"]\n", &[
            MANIFEST, ("a.txt", b"x\n  {{project-name}}\n"),
        ])
        .warns(&["a.txt:2:3: a variable that is copied, as the file is never rendered"]),
        kind("a README about the template", "[template]\nignore = [\"README.md\", \".github\"]\n", &[
            MANIFEST, MAIN, ("README.md", b"{{ how to use me"), (WORKFLOW, b"{{ own"),
        ]),
        kind("no repository", "[template]\nvcs = \"None\"\ninit = false\n", &[MANIFEST, MAIN]),
        kind("no formatting", "[template]\nfmt = false\n", &[MANIFEST, MAIN]),
        kind("formatting by choice", "[template]\nfmt = true\n", &[MANIFEST, MAIN]),
        kind("an empty configuration", "[placeholders]\n", &[MANIFEST, MAIN]),
        kind("a version of cargo-generate", "[template]\ncargo_generate_version = \">=0.10\"\n", &[MANIFEST]),
        kind("the edition 2015", "", &[
            ("Cargo.toml", b"[package]\nname = \"a\"\nedition = \"2015\"\n"),
            ("src/lib.rs", b"extern crate  a;\nfn async ( ) { let dyn=1;}\nuse a::{x9,x10,B,b};\n"),
        ]),
        kind("the edition 2018", "", &[
            ("Cargo.toml", b"[package]\nname = \"a\"\nedition = \"2018\"\n"),
            ("src/lib.rs", b"async  fn f ( ) { }\nuse a::{x9,x10,B,b};\nfn gen(){}\n"),
        ]),
        kind("the edition 2024", "", &[
            ("Cargo.toml", b"[package]\nname = \"a\"\nedition = \"2024\"\n"),
            ("src/lib.rs", b"use a::{x9,x10,B,b};\nfn f(){ if let Some(x)=y && z {} }\n"),
        ]),
        kind("an edition that rustfmt does not know", "", &[
            ("Cargo.toml", b"[package]\nname = \"a\"\nedition = \"2099\"\n"), MAIN,
        ])
        .warns(&["rustfmt: Invalid value for `--edition`"]),
        kind("options of rustfmt", "[placeholders]\nwidth = { prompt = \"?\", default = \"40\" }\n", &[
            MANIFEST,
            ("rustfmt.toml", b"max_width = {{width}}\n"),
            ("src/lib.rs", b"fn f(){ let x = some_function(with_an_argument, and_another); }\n"),
            ("sub/.rustfmt.toml", b"hard_tabs = true\n"),
            ("sub/rustfmt.toml", b"tab_spaces = 2\n"),
            ("sub/a.rs", b"fn f(){ let x = some_function(with_an_argument, and_another); }\n"),
        ]),
        kind("options that only a nightly rustfmt has", "", &[
            MANIFEST, ("rustfmt.toml", b"imports_granularity = \"Crate\"\nunknown = 1\n"), MAIN,
        ]),
        kind("options that are not TOML", "", &[
            MANIFEST, ("rustfmt.toml", b"max_width = wide\n"), MAIN,
        ])
        .warns(&["rustfmt: Could not parse TOML: TOML parse error at line 1, column 13"]),
        kind("files that rustfmt cannot parse", "", &[
            MANIFEST, MAIN,
            ("src/a.rs", b"fn f( { \n"),
            ("src/b.rs", b"fn  g(){}\n"),
            ("src/snippet.rs", b"let x=1;\n x  +  1\n"),
        ])
        .warns(&[
            "src/a.rs:1:10: rustfmt: this file contains an unclosed delimiter",
            "src/snippet.rs:1:1: rustfmt: expected item, found keyword `let`",
        ]),
        kind("modules that are missing or elsewhere", "", &[
            MANIFEST,
            ("src/lib.rs", b"mod  missing;\n#[path=\"other.inc\"] mod other;\nmod   here;\n"),
            ("src/other.inc", b"fn  f(){}\n"),
            ("src/here.rs", b"fn  f(){}\n"),
        ]),
        kind("code that is not to be formatted", "", &[
            MANIFEST,
            ("src/lib.rs", b"#![allow(x)]\n#[rustfmt::skip]\nconst  A:[u8;2]=[1,  2];\nconst  B:u8=1;\n"),
            ("src/a.rs", b"#![rustfmt::skip]\nconst  B:u8=1;\n"),
        ]),
        kind("Rust files that are copied", "[template]\nexclude = [\"templates\"]\n", &[
            MANIFEST, ("templates/a.rs", b"fn  f(){ format!(\"{{}}\"); }\n"),
        ]),
        kind("a Rust file that is not rendered", "", &[
            MANIFEST, ("src/lib.rs", b"fn  f(){ format!(\"{{a.b}}\"); }\n"),
        ])
        .warns(&["src/lib.rs:1:21: there is no variable `a`, so nothing in the file is rendered"]),
        kind("lines that cannot be broken", "", &[
            MANIFEST,
            ("src/lib.rs", b"fn f(){ let x = \"a long text that is a single literal and so cannot be broken into lines by rustfmt at all, whatever it does\";  }\n// trailing   \n/* trailing   \n  x */\n"),
        ]),
    ]
}

/// A template's errors and warnings, with its folder as `t`.
fn ours(source: &Path) -> std::result::Result<Vec<String>, String> {
    let warnings = || -> Result<Vec<String>> {
        let template = Template::read(
            source,
            Reading {
                lenient: true,
                ..Reading::default()
            },
        )?;
        template.check()?;
        let answers = Answers::defaults(&template, Name::parse(NAME)?)?;
        let rendered = render(&template, &answers)?;
        Ok(rendered.warnings.iter().map(ToString::to_string).collect())
    };
    let root = source.display().to_string();
    let plain = |text: String| text.replace(&format!("{root}/"), "").replace(&root, "t");
    match warnings() {
        Ok(warnings) => Ok(warnings.into_iter().map(plain).collect()),
        Err(error) => {
            let place = error.place();
            let place = place.map(|(file, line, column)| format!("{file}:{line}:{column}: "));
            Err(plain(format!("{}{error}", place.unwrap_or_default())))
        }
    }
}

/// The environment of both tools; rustup's `rustfmt` looks for its toolchains in the home folder.
fn peer() -> Peer {
    let rustup = env::var("RUSTUP_HOME").ok();
    let home = env::home_dir().map(|home| home.join(".rustup").display().to_string());
    Peer::new().with_env("RUSTUP_HOME", &rustup.or(home).unwrap_or_default())
}

/// Error of a kind, if any.
fn wrong(kind: &Kind, peer: &Peer) -> Option<String> {
    let source = kind.write();
    let made = |tool| peer.generate(tool, source.path(), NAME, &[]);
    let (theirs, said) = (made(Tool::CargoGenerate), ours(source.path()));
    let starts = |error: &str| said.as_ref().is_err_and(|said| said.starts_with(error));
    let problem = match (&kind.end, &theirs) {
        (End::Same(warnings), Ok(theirs)) => match made(Tool::Kiln) {
            Ok(ours) if ours != *theirs => Some(diff(theirs, &ours)),
            Ok(_) if said.as_ref().is_ok_and(|said| said == warnings) => None,
            Ok(_) => Some(format!("Kiln says {said:#?}")),
            Err(error) => Some(format!("only Kiln refuses it: {error}")),
        },
        (End::Neither(error), Err(_)) | (End::Refused(error), _) if starts(error) => None,
        (_, Ok(_)) => Some(format!("cargo-generate renders it; Kiln says {said:#?}")),
        (_, Err(why)) => Some(format!(
            "cargo-generate refuses it: {why}; Kiln says {said:#?}"
        )),
    };
    problem.map(|problem| format!("{}: {problem}", kind.name))
}

fn assert_all(kinds: &[Kind]) {
    let peer = peer();
    let wrong: Vec<_> = kinds.iter().filter_map(|kind| wrong(kind, &peer)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn kinds_by_purpose() {
    assert_all(&purposes());
}

#[test]
fn kinds_of_foreign_text() {
    assert_all(&foreign_text());
}

#[test]
fn kinds_of_files() {
    assert_all(&forms());
}

#[test]
fn kinds_of_rules() {
    assert_all(&rules());
}

/// Most kinds render.
#[test]
fn at_least_forty_kinds_render() {
    let kinds = [purposes(), foreign_text(), forms(), rules()];
    let kinds: Vec<_> = kinds.into_iter().flatten().collect();
    let count = |wanted: fn(&End) -> bool| kinds.iter().filter(|kind| wanted(&kind.end)).count();
    let same = count(|end| matches!(end, End::Same(_)));
    let neither = count(|end| matches!(end, End::Neither(_)));
    let refused = count(|end| matches!(end, End::Refused(_)));
    println!("{same} render, {neither} stop both tools, {refused} only Kiln");
    assert!(same >= 40 && refused <= 4, "{same} {neither} {refused}");
}

/// rustfmt runs: the comparison of the kinds would hold without it, too.
#[test]
fn rust_files_are_formatted() {
    let source = kind("", "", &[MANIFEST, MAIN]).write();
    for tool in [Tool::CargoGenerate, Tool::Kiln] {
        let made = peer().generate(tool, source.path(), NAME, &[]).unwrap();
        let expected = "fn main() {\n    println!(\"{}\", \"my_model\")\n}\n";
        assert_eq!(made["src/main.rs"].text(), expected, "{tool:?}");
    }
}

/// Without rustfmt, files stay as they are.
#[test]
fn rustfmt_is_missing() {
    let source = kind("", "", &[MANIFEST, MAIN]).write();
    let bare = peer().with_env("PATH", "");
    let made = |tool| bare.generate(tool, source.path(), NAME, &[]).unwrap();
    let (theirs, ours): (Tree, Tree) = (made(Tool::CargoGenerate), made(Tool::Kiln));
    assert!(theirs == ours, "{}", diff(&theirs, &ours));
    assert!(
        matches!(&ours["src/main.rs"], Entry::File { contents, .. } if contents.starts_with(b"fn main( )"))
    );
}

/// The folders above the project decide, too.
#[test]
fn configurations_above_the_project() {
    let source = kind("", "", &[
        ("Cargo.toml", b"[package]\nname = \"a\"\nedition.workspace = true\n"),
        ("src/lib.rs", b"use a::{x9,x10};\nfn f(){ let x = some_function(with_an_argument, and_another); }\n"),
    ])
    .write();
    let made = |tool| {
        let above = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| fs::write(above.path().join(path), text).unwrap();
        put(
            "Cargo.toml",
            "[workspace]\nexclude = [\"my-model\"]\npackage.edition = \"2024\"\n",
        );
        put("rustfmt.toml", "max_width = 40\n");
        let tree = peer()
            .generate_in(tool, source.path(), above.path(), NAME, &[])
            .unwrap();
        tree["my-model/src/lib.rs"].text()
    };
    let theirs = made(Tool::CargoGenerate);
    assert_eq!(theirs, made(Tool::Kiln));
    assert!(
        theirs.starts_with("use a::{x9, x10};\n") && theirs.contains("(\n"),
        "{theirs}"
    );
}
