//! `kiln todos`: the sites that it finds, and its output.

use crate::common::Place;
use kiln::project::todo::{Scan, read_sites, scan, scan_text};
use snapbox::str;

const SITES: &str = r#"
[[site]]
id = "strategy.devices"
file = "src/strategy.rs"
what = "Choose the devices."
now = "the CPU"
test = ["devices_are_there"]

[[site]]
id = "model.architecture"
file = "src/model.rs"
what = "Replace with the model for your task."
now = "a small network"
test = ["model_shapes", "gradients_flow"]

[[site]]
id = "ci.schedule"
file = ".github/workflows/ci.yml"
what = "Choose when it runs."
now = "on every push"
test = []
"#;

fn project() -> Place {
    let place = Place::new();
    place.put("todos.toml", SITES);
    place.put(".gitignore", "/generated\n");
    place.put("generated/a.rs", "// TODO(ignored.by-git): no\n");
    place.put("target/a.rs", "// TODO(build.folder): no\n");
    place.put("runs/log.txt", "# TODO(run.folder): no\n");
    place.put(
        "src/model.rs",
        "    // TODO(model.architecture): Replace with the model\n    //   for your task.\n    \
         //   Now: a small convolutional\n    //   network: 10 classes.\n    //   Shapes: [batch, 1] in.\n    \
         // Another comment.\n    //   Now: not this\n// TODO: plain\nlet x = \"TODO(model.text)\";\n\
         let y = \"// TODO(model.string): no\"; let z = 1; // TODO(trailing.own)\n",
    );
    place.put(
        ".github/workflows/ci.yml",
        "on: # TODO(ci.schedule)\n  push:\n",
    );
    place.put(
        "README.md",
        "```rust\n// TODO(shown.only): in a text\n```\n<!-- TODO(readme.picture): Draw it.\n  Now: none. -->\n",
    );
    place.put(
        "src/wrong.rs",
        "// TODO(open: no end\n// TODO(): nothing\n// TODO(a b): space\n",
    );
    place
}

#[test]
fn lists_as_text() {
    project()
        .kiln("todos")
        .assert()
        .success()
        .stdout_eq(str![[r#"
model.architecture  src/model.rs:1
  Replace with the model for your task.
  Now: a small convolutional network: 10 classes.
  Shapes: [batch, 1] in.
  Guarded by: model_shapes, gradients_flow

ci.schedule  .github/workflows/ci.yml:1
  Choose when it runs.
  Now: on every push

readme.picture  README.md:4  (not in the template)
  Draw it.
  Now: none.

trailing.own  src/model.rs:10  (not in the template)

warning: src/wrong.rs:1: `TODO(` without `)` on the same line
warning: src/wrong.rs:2: `TODO()` has no id
warning: src/wrong.rs:3: the id `a b` contains ' '
2 of 3 sites open in `.`, and 2 that the template does not define.

"#]])
        .stderr_eq("");
}

#[test]
fn lists_as_json() {
    project()
        .kiln("todos --format json")
        .assert()
        .success()
        .stdout_eq(str![[r#"
{
  "sites": 3,
  "todos": [
    {
      "id": "model.architecture",
      "file": "src/model.rs",
      "line": 1,
      "what": "Replace with the model for your task.",
      "now": "a small convolutional network: 10 classes.",
      "notes": {
        "Shapes": "[batch, 1] in."
      },
      "tests": [
        "model_shapes",
        "gradients_flow"
      ],
      "custom": false
    },
    {
      "id": "ci.schedule",
      "file": ".github/workflows/ci.yml",
      "line": 1,
      "what": "Choose when it runs.",
      "now": "on every push",
      "notes": {},
      "tests": [],
      "custom": false
    },
    {
      "id": "readme.picture",
      "file": "README.md",
      "line": 4,
      "what": "Draw it.",
      "now": "none.",
      "notes": {},
      "tests": [],
      "custom": true
    },
    {
      "id": "trailing.own",
      "file": "src/model.rs",
      "line": 10,
      "what": "",
      "now": null,
      "notes": {},
      "tests": [],
      "custom": true
    }
  ],
  "warnings": [
    {
      "file": "src/wrong.rs",
      "line": 1,
      "message": "`TODO(` without `)` on the same line"
    },
    {
      "file": "src/wrong.rs",
      "line": 2,
      "message": "`TODO()` has no id"
    },
    {
      "file": "src/wrong.rs",
      "line": 3,
      "message": "the id `a b` contains ' '"
    }
  ]
}

"#]]);
}

#[test]
fn denies_what_is_left() {
    let place = project();
    place.kiln("todos --deny").assert().code(1);
    for file in ["src/model.rs", ".github/workflows/ci.yml", "README.md"] {
        place.put(file, "");
    }
    // A marker with a problem counts as open too.
    place.kiln("todos --deny").assert().code(1);
    place.put("src/wrong.rs", "");
    place
        .kiln("todos --deny")
        .assert()
        .success()
        .stdout_eq("0 of 3 sites open in `.`.\n");
}

#[test]
fn warns_of_a_site_in_two_places() {
    let place = Place::new();
    place.put("todos.toml", SITES);
    place.put(
        "a.rs",
        "// TODO(model.architecture): one\n\n// TODO(model.architecture): two\n",
    );
    place
        .kiln("todos --deny")
        .assert()
        .code(1)
        .stdout_eq(str![[r#"
model.architecture  a.rs:1
  one
  Now: a small network
  Guarded by: model_shapes, gradients_flow

model.architecture  a.rs:3
  two
  Now: a small network
  Guarded by: model_shapes, gradients_flow

warning: a.rs:3: duplicate marker `model.architecture`, also at a.rs:1
1 of 3 sites open in `.`.

"#]]);
}

#[test]
fn refuses_what_is_no_project() {
    let place = Place::new();
    place.kiln("todos").assert().code(2).stderr_eq(str![[r#"
  × `.` is not a Kiln project: it has no `todos.toml`
  help: give the folder of a project that `kiln new` created

"#]]);
    place
        .kiln("todos absent")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × `absent` is not a Kiln project: it has no `todos.toml`
  help: give the folder of a project that `kiln new` created

"#]]);
    place.put("file", "");
    place
        .kiln("todos file")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × `file` is not a Kiln project: it has no `todos.toml`
  help: give the folder of a project that `kiln new` created

"#]]);
}

#[test]
fn refuses_a_wrong_list_of_sites() {
    let lists = [
        "[[site]]\nid = \"a\"\n",
        "[[site]\n",
        "[[sites]]\nid = \"a\"\n",
        "site = 3\n",
        "[[site]]\nid = 3\nfile = \"\"\nwhat = \"\"\nnow = \"\"\ntest = []\n",
        "[[site]]\nid = \"a\"\nfile = \"\"\nwhat = \"\"\nnow = \"\"\ntest = \"t\"\n",
        "[[site]]\nid = \"a\"\nfile = \"\"\nwhat = \"\"\nnow = \"\"\ntests = []\n",
    ];
    let place = Place::new();
    let mut said = String::new();
    for list in lists {
        place.put("todos.toml", list);
        let output = place.kiln("todos").output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{list}");
        said.push_str(&format!(
            "{list:?}\n{}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    snapbox::assert_data_eq!(
        said,
        str![[r#"
"[[site]]/nid = /"a/"/n"
  × a site has no `file`
   ╭─[./todos.toml:1:1]
 1 │ [[site]]
   · ────┬───
   ·     ╰── this site
 2 │ id = "a"
   ╰────
  help: a site has `id`, `file`, `what`, `now`, `test`
"[[site]/n"
  × `./todos.toml` is not valid TOML: unclosed array table, expected `]`
   ╭─[./todos.toml:1:8]
 1 │ [[site]
   ·        ▲
   ·        ╰── here
   ╰────
  help: lines of TOML are `key = "text"`, `[table]` or `# comment`
"[[sites]]/nid = /"a/"/n"
  × unknown key `sites` in `./todos.toml`
   ╭─[./todos.toml:1:3]
 1 │ [[sites]]
   ·   ──┬──
   ·     ╰── unknown key
 2 │ id = "a"
   ╰────
  help: did you mean `site`? the keys are `site`
"site = 3/n"
  × `site` should be an array of tables
   ╭─[./todos.toml:1:8]
 1 │ site = 3
   ·        ┬
   ·        ╰── this is an integer
   ╰────
  help: write `[[site]]` above each table
"[[site]]/nid = 3/nfile = /"/"/nwhat = /"/"/nnow = /"/"/ntest = []/n"
  × `id` should be a string
   ╭─[./todos.toml:2:6]
 1 │ [[site]]
 2 │ id = 3
   ·      ┬
   ·      ╰── this is an integer
 3 │ file = ""
   ╰────
  help: write `id = "text"`
"[[site]]/nid = /"a/"/nfile = /"/"/nwhat = /"/"/nnow = /"/"/ntest = /"t/"/n"
  × `test` should be an array of strings
   ╭─[./todos.toml:6:8]
 5 │ now = ""
 6 │ test = "t"
   ·        ─┬─
   ·         ╰── this is a string
   ╰────
  help: write `test = ["one", "two"]`
"[[site]]/nid = /"a/"/nfile = /"/"/nwhat = /"/"/nnow = /"/"/ntests = []/n"
  × unknown key `tests` in `./todos.toml`
   ╭─[./todos.toml:6:1]
 5 │ now = ""
 6 │ tests = []
   · ──┬──
   ·   ╰── unknown key
   ╰────
  help: did you mean `test`? the keys are `id`, `file`, `what`, `now`, `test`

"#]]
    );
}

#[test]
fn reads_files_that_are_not_utf8() {
    let place = Place::new();
    place.put("todos.toml", SITES);
    std::fs::write(
        place.join("latin.rs"),
        b"// na\xefve\n// TODO(own.site): x\n",
    )
    .unwrap();
    std::fs::write(place.join("image.rs"), b"\0\n// TODO(binary.site): x\n").unwrap();
    let found = scan(place.path()).unwrap();
    let ids: Vec<_> = found.todos.iter().map(|todo| &todo.id).collect();
    assert_eq!(ids, ["own.site"]);
    assert!(found.todos[0].custom);
}

#[test]
fn markers_start_a_comment() {
    let cases = [
        ("a.rs", "// TODO(x)", true),
        ("a.rs", "/// TODO(x)", true),
        ("a.rs", "//! TODO(x)", true),
        ("a.rs", "//TODO(x)", false),
        ("a.rs", "# TODO(x)", false),
        ("a.rs", "// see TODO(x)", false),
        ("a.rs", "http:// TODO(x)", false),
        ("a.rs", "f(\"a\"); // TODO(x)", true),
        ("a.rs", "f(\"a\\\"\"); // TODO(x)", true),
        ("a.rs", "f(\"see // TODO(x)\");", false),
        ("a.toml", "a = 1 # TODO(x)", true),
        ("a.toml", "// TODO(x)", false),
        ("Makefile", "# TODO(x)", true),
        ("a.sql", "-- TODO(x)", true),
        ("a.md", "<!-- TODO(x) -->", true),
        ("a.md", "// TODO(x)", false),
        ("a.unknown", "; TODO(x)", true),
    ];
    for (file, line, expected) in cases {
        let mut found = Scan::default();
        scan_text(file, line, &mut found);
        assert_eq!(found.todos.len(), usize::from(expected), "{file}: {line}");
        assert!(found.warnings.is_empty());
    }
}

/// A new project's list of sites and its markers have the same order.
#[test]
fn the_template_has_a_marker_for_every_site() {
    let place = Place::new();
    place.kiln("new a --yes --vcs none").assert().success();
    let root = place.join("a");
    let sites = read_sites(&root).unwrap();
    assert!(!sites.is_empty());
    let found = scan(&root).unwrap();
    assert_eq!(found.warnings, []);
    let expected: Vec<_> = sites.iter().map(|site| (&site.id, &site.file)).collect();
    let markers: Vec<_> = found
        .todos
        .iter()
        .map(|todo| (&todo.id, &todo.file))
        .collect();
    assert_eq!(markers, expected);
    for (todo, site) in found.todos.iter().zip(&sites) {
        assert_eq!(todo.now.as_ref(), Some(&site.now), "{}", todo.id);
        assert_eq!(todo.what, site.what, "{}", todo.id);
    }
}

#[test]
fn one_site_is_not_several() {
    let place = Place::new();
    let (one, _) = SITES.split_once("\n\n").unwrap();
    place.put("todos.toml", one);
    let told = place.kiln("todos").assert().success();
    told.stdout_eq("0 of 1 site open in `.`.\n");
}
