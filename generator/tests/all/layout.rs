//! `kiln update` of projects whose files were formatted or laid out in another way.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use proptest::{prelude::*, sample::Index};

use crate::versions::{commit, git, runs, text, tree};

/// The function that the new template has in every source, which is wider than 80 columns.
const ADDED: &str = "\n/// Added.\n#[allow(dead_code)]\nfn added_by_template(first: usize, second: usize, third: usize, fourth: usize) -> usize {\n    first + second + third + fourth\n}\n";

/// The folder of the project as `kiln new` makes it of the new version.
const FRESH: &str = "fresh/project";

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let place = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &place),
            false => drop(fs::copy(&path, &place).unwrap()),
        }
    }
}

/// Kiln's own template in two versions, and a committed project of the first.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = Self { folder };
        for version in ["old", "new"] {
            let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("template");
            copy(&template, &place.path(version));
        }
        let args = ["new", "project", "--yes", "--vcs=git", "--template=old"];
        runs(place.folder.path(), &args, 0);
        // Git need not warn of CRLF.
        git(
            &place.path("project"),
            &["config", "core.safecrlf", "false"],
        );
        commit(&place.path("project"));
        place
    }

    /// With changes in the new version: in every third source but two, which tests edit, and in other
    /// files.
    fn changed() -> Self {
        let place = Self::new();
        for (at, path) in place.sources("new").iter().enumerate() {
            let is_for_tests = ["src/loss.rs", "src/model.rs"]
                .iter()
                .any(|own| path.ends_with(own));
            if at % 3 == 0 && !is_for_tests {
                place.edit(path, changed);
            }
        }
        place.edit("new/launch/slurm.sh.liquid", |text| text + "# added\n");
        place.edit("new/Cargo.toml.liquid", |text| {
            text.replacen("\n[", "\n# added\n[", 1)
        });
        place.edit("new/README.md.liquid", |text| {
            text.replacen("\n\n", "\n\nAdded.\n\n", 1)
        });
        place.write("new/engine/src/added.rs", &ADDED[1..]);
        place.edit("new/engine/src/lib.rs", |text| {
            text.replacen("\nmod anomalies;", "\npub mod added;\nmod anomalies;", 1)
        });
        place
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.path(path), text).unwrap();
    }

    fn edit(&self, path: &str, edit: impl Fn(String) -> String) {
        self.write(path, &edit(self.read(path)));
    }

    /// The Rust sources in a folder.
    fn sources(&self, folder: &str) -> Vec<String> {
        let files = tree(&self.path(folder)).into_keys();
        files
            .filter(|path| path.extension().is_some_and(|it| it == "rs"))
            .map(|path| format!("{folder}/{}", path.display()))
            .collect()
    }

    fn style(&self, config: &str) {
        self.write("project/rustfmt.toml", config);
        self.format();
        commit(&self.path("project"));
    }

    fn format(&self) {
        let output = self.fmt(&[]);
        assert!(output.status.success(), "{}", text(&output));
    }

    fn fmt(&self, args: &[&str]) -> Output {
        let mut cargo = Command::new("cargo");
        cargo.args(["fmt", "--all"]).args(args);
        cargo.current_dir(self.path("project")).output().unwrap()
    }

    /// Asserts that the project is as its `rustfmt.toml` says.
    #[track_caller]
    fn is_formatted(&self) {
        let output = self.fmt(&["--check"]);
        assert!(output.status.success(), "{}", text(&output));
    }

    #[track_caller]
    fn update(&self, more: &[&str], status: i32) -> String {
        let args = ["update", "project", "--from", "old", "--template", "new"];
        runs(self.folder.path(), &[&args, more].concat(), status)
    }

    /// The project as `kiln new` makes it of the new version.
    fn fresh(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let args = ["new", "project", "--yes", "--vcs=none", "--template=../new"];
        fs::create_dir(self.path("fresh")).unwrap();
        runs(&self.path("fresh"), &args, 0);
        let name = |path: PathBuf| (path.clone(), fs::read(self.path(FRESH).join(path)).unwrap());
        tree(&self.path(FRESH)).into_keys().map(name).collect()
    }
}

/// The fates of an update's files, counted.
fn fates(said: &str) -> BTreeMap<&str, usize> {
    let words = said.lines().filter_map(|line| line.strip_prefix("  "));
    let mut fates = BTreeMap::new();
    for word in words.filter_map(|line| line.split(' ').next()) {
        *fates.entry(word).or_insert(0) += 1;
    }
    fates
}

/// A source with a new function and, after wide lines, a copy of each.
fn changed(text: String) -> String {
    let mut out = String::new();
    for line in text.split_inclusive('\n') {
        out.push_str(line);
        let code = line.trim();
        let name = code.strip_prefix("let ").unwrap_or_default();
        let is_statement = name.starts_with(char::is_lowercase) && code.ends_with(';');
        if is_statement && line.len() > 80 {
            out.push_str(line);
        }
    }
    out + ADDED
}

/// Formats the fresh project as the user formatted theirs; all must be equal.
#[track_caller]
fn is_as_formatted(place: &Place) {
    place.fresh();
    fs::copy(
        place.path("project/rustfmt.toml"),
        place.path("fresh/project/rustfmt.toml"),
    )
    .unwrap();
    let mut cargo = Command::new("cargo");
    cargo.args(["fmt", "--all"]).current_dir(place.path(FRESH));
    assert!(cargo.status().unwrap().success());
    let (fresh, project) = (tree(&place.path(FRESH)), tree(&place.path("project")));
    assert_eq!(
        fresh.keys().collect::<Vec<_>>(),
        project.keys().collect::<Vec<_>>()
    );
    for (path, contents) in fresh {
        let (fresh, project) = (
            String::from_utf8_lossy(&contents),
            String::from_utf8_lossy(&project[&path]),
        );
        assert_eq!(fresh, project, "{}", path.display());
    }
}

#[test]
fn a_formatted_project_has_no_conflicts_and_stays_formatted() {
    for config in [
        "max_width = 80\n",
        "hard_tabs = true\nmax_width = 80\nuse_small_heuristics = \"Max\"\n",
    ] {
        let place = Place::changed();
        place.style(config);
        let before = tree(&place.path("project"));
        let dry = place.update(&["--dry-run"], 0);
        assert_eq!(tree(&place.path("project")), before);
        let said = place.update(&[], 0);
        let fates = fates(&said);
        assert_eq!(fates.get("conflict"), None, "{said}");
        assert!(fates["merged"] > 20, "{said}");
        assert!(
            said.contains("the template's changes in your layout"),
            "{said}"
        );
        assert!(!said.contains("your changes and"), "{said}");
        assert!(!said.contains("engine/ was edited"), "{said}");
        assert_eq!(dry.lines().next(), said.lines().next());
        place.is_formatted();
        is_as_formatted(&place);
        let args = ["update", "project", "--from", "new", "--template", "new"];
        let said = runs(place.folder.path(), &args, 0);
        assert!(said.contains("Nothing to change"), "{said}");
        // The record may be lost: all is there.
        let said = place.update(&[], 0);
        assert!(said.contains("Nothing to change"), "{said}");
    }
}

#[test]
fn edits_in_a_formatted_project_are_merged_and_conflicts_are_in_its_style() {
    let place = Place::changed();
    place.style("max_width = 60\nhard_tabs = true\n");
    let mine = "\nfn mine(first: usize, second: usize, third: usize, fourth: usize) -> usize {\n    first\n}\n";
    let sources = place.sources("project");
    let loss = sources
        .iter()
        .find(|path| path.ends_with("src/loss.rs"))
        .unwrap();
    place.edit("new/src/loss.rs", changed);
    place.edit(loss, |text| {
        let at = text.find("\n\n").unwrap() + 1;
        [&text[..at], mine, &text[at..]].concat()
    });
    // Both sides change the name of the same function.
    place.edit("old/src/model.rs", |text| text + ADDED);
    place.edit("new/src/model.rs", |text| {
        format!(
            "{text}{}",
            ADDED.replace("added_by_template", "of_the_template")
        )
    });
    place.edit("project/src/model.rs", |text| {
        format!(
            "{text}{}",
            ADDED.replace("added_by_template", "of_the_user")
        )
    });
    place.format();
    commit(&place.path("project"));
    let said = place.update(&[], 1);
    assert!(said.contains("merged    src/loss.rs"), "{said}");
    assert!(said.contains("conflict  src/model.rs"), "{said}");
    assert_eq!(fates(&said)["conflict"], 1, "{said}");
    let loss = place.read("project/src/loss.rs");
    assert!(loss.contains("\nfn mine(\n\tfirst: usize,\n"), "{loss}");
    assert!(
        loss.contains("\nfn added_by_template(\n\tfirst: usize,\n"),
        "{loss}"
    );
    let model = place.read("project/src/model.rs");
    let marked = "\n<<<<<<< yours\nfn of_the_user(\n||||||| old\nfn added_by_template(\n=======\nfn of_the_template(\n>>>>>>> new\n\tfirst: usize,\n";
    assert!(model.contains(marked), "{model}");
}

#[test]
fn a_file_that_rustfmt_would_change_keeps_its_layout() {
    let place = Place::changed();
    place.style("max_width = 80\n");
    // Not as rustfmt has it, at two places.
    place.edit("project/src/main.rs", |text| {
        let text = text.replacen(";\n", " ;\n", 1);
        text.replacen(" {\n", "  {\n", 1)
    });
    place.edit("new/src/main.rs", changed);
    commit(&place.path("project"));
    let said = place.update(&[], 0);
    let main = place.read("project/src/main.rs");
    assert_eq!(
        (main.matches(" ;\n").count(), main.matches("  {\n").count()),
        (1, 1),
        "{main}"
    );
    assert!(main.contains("fn added_by_template("), "{said}{main}");
}

/// Edits all text files of the project but those of Kiln and Git.
fn edit_all(place: &Place, edit: impl Fn(&str) -> String) {
    for (path, contents) in tree(&place.path("project")) {
        if let Ok(text) = String::from_utf8(contents) {
            let path = place.path("project").join(path);
            fs::write(path, edit(&text)).unwrap();
        }
    }
}

#[test]
fn line_ends_and_last_newlines_and_tabs_are_the_users() {
    type Layout = fn(&str) -> String;
    let layouts: [Layout; 3] = [
        |text| text.replace('\n', "\r\n"),
        |text| text.trim_end_matches('\n').to_owned(),
        |text| format!("{}{}", '\u{feff}', text.trim_start_matches('\u{feff}')),
    ];
    for (at, layout) in layouts.into_iter().enumerate() {
        let place = Place::changed();
        edit_all(&place, |text| {
            match text.starts_with("#!") && at == 2 || text.contains("kiln = ") {
                true => text.to_owned(),
                false => layout(text),
            }
        });
        commit(&place.path("project"));
        let todos = runs(&place.path("project"), &["todos"], 0);
        let said = place.update(&[], 0);
        assert_eq!(fates(&said).get("conflict"), None, "{said}");
        assert!(!said.contains("engine/ was edited"), "{said}");
        for (path, contents) in place.fresh() {
            let Ok(text) = String::from_utf8(contents) else {
                continue;
            };
            let is = place.read(&format!("project/{}", path.display()));
            let untouched = text.starts_with("#!") && at == 2 || text.contains("kiln = ");
            let added = path.ends_with("added.rs");
            if !untouched && !added {
                assert_eq!(is, layout(&text), "{at} {}", path.display());
            }
        }
        let now = runs(&place.path("project"), &["todos"], 0);
        assert_eq!(todos.lines().last(), now.lines().last());
    }
}

#[test]
fn a_line_with_another_end_and_modes_are_no_conflict() {
    let place = Place::changed();
    place.edit("new/src/main.rs", changed);
    edit_all(&place, |text| text.replace('\n', "\r\n"));
    place.edit("project/src/main.rs", |text| text.replacen("\r\n", "\n", 1));
    #[cfg(unix)]
    for path in place.sources("project") {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(place.path(&path), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::remove_file(place.path("new/src/loss.rs")).unwrap();
    commit(&place.path("project"));
    let said = place.update(&[], 0);
    assert_eq!(fates(&said).get("conflict"), None, "{said}");
    assert!(said.contains("removed   src/loss.rs"), "{said}");
    let main = place.read("project/src/main.rs");
    assert!(main.contains("added_by_template"));
    assert_eq!(main.matches('\n').count(), main.matches("\r\n").count() + 1);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let main = fs::metadata(place.path("project/src/main.rs")).unwrap();
        assert_eq!(main.permissions().mode() & 0o777, 0o755);
    }
}

/// Tabs are merged line by line; that the rest is not formatted is told.
#[test]
fn without_rustfmt_lines_are_compared() {
    let place = Place::changed();
    place.style("hard_tabs = true\n");
    let args = ["update", "project", "--from", "old", "--template", "new"];
    let output = Command::new(env!("CARGO_BIN_EXE_kiln"))
        .args(args)
        .env("RUSTFMT", place.path("missing"))
        .current_dir(place.folder.path())
        .output()
        .unwrap();
    let said = text(&output);
    assert!(said.contains("note: `rustfmt` cannot be run"), "{said}");
    assert!(
        said.contains("the template's changes in your layout"),
        "{said}"
    );
    let merged = fates(&said)["merged"];
    assert!(
        fates(&said).get("conflict").copied().unwrap_or(0) * 4 < merged,
        "{said}"
    );
}

/// A project without edits pays nothing for styles: rustfmt is not run, whatever the configuration.
#[test]
fn an_unedited_project_is_replaced_as_it_is() {
    let place = Place::changed();
    place.write("project/rustfmt.toml", "max_width = 60\n");
    let output = Command::new(env!("CARGO_BIN_EXE_kiln"))
        .args(["update", "project", "--from", "old", "--template", "new"])
        .env("RUSTFMT", place.path("missing"))
        .current_dir(place.folder.path())
        .output()
        .unwrap();
    let said = text(&output);
    assert!(
        output.status.success() && !said.contains("rustfmt"),
        "{said}"
    );
    for (path, contents) in place.fresh() {
        assert_eq!(
            fs::read(place.path("project").join(&path)).unwrap(),
            contents
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 20, ..ProptestConfig::default() })]

    /// Whatever the template changes and however the user formats: the result is the new template
    /// as the user formats it, and with an edit elsewhere it has that too.
    #[test]
    fn the_result_is_the_new_template_in_the_users_style(
        files in prop::collection::vec((any::<Index>(), any::<Index>(), any::<Index>()), 1..8),
        width in 50..130_usize,
        tabs in any::<bool>(),
        crlf in any::<bool>(),
        edit in any::<Index>(),
    ) {
        let place = small();
        for (file, from, count) in files {
            let sources = place.sources("new");
            place.edit(&sources[file.index(sources.len())], |text| duplicated(&text, from, count));
        }
        place.write("project/rustfmt.toml", &format!("max_width = {width}\nhard_tabs = {tabs}\n"));
        let sources = place.sources("project");
        format_files(&place, &sources);
        let edited = sources[edit.index(sources.len())].clone();
        place.edit(&edited, with_mine);
        if crlf {
            edit_all(&place, |text| text.replace('\n', "\r\n"));
        }
        commit(&place.path("project"));
        let said = place.update(&[], 0);
        prop_assert!(!said.contains("conflict"), "{}", said);
        place.fresh();
        fs::copy(place.path("project/rustfmt.toml"), place.path("fresh/project/rustfmt.toml")).unwrap();
        format_files(&place, &place.sources(FRESH));
        for path in place.sources(FRESH) {
            let mut fresh = place.read(&path);
            let path = path.replacen("fresh/", "", 1);
            if path == edited {
                fresh = with_mine(fresh);
            }
            prop_assert_eq!(place.read(&path).replace("\r\n", "\n"), fresh, "{}", path);
        }
    }
}

/// A template of a few sources.
fn small() -> Place {
    let folder = tempfile::tempdir().unwrap();
    let place = Place { folder };
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("template/engine/src");
    let mut sources: Vec<_> = fs::read_dir(template)
        .unwrap()
        .map(|it| it.unwrap().path())
        .collect();
    sources.retain(|path| path.is_file() && fs::metadata(path).unwrap().len() < 20_000);
    sources.sort();
    for version in ["old", "new"] {
        fs::create_dir_all(place.path(version)).unwrap();
        let record = "kiln = \"1\"\ntemplate = \"t\"\nname = \"{{project-name}}\"\n[options]\n";
        place.write(&format!("{version}/.kiln.toml.liquid"), record);
        place.write(
            &format!("{version}/cargo-generate.toml"),
            "[template]\nfmt = false\ninclude = [\".kiln.toml\"]\n",
        );
        for path in sources.iter().step_by(5).take(6) {
            let name = path.file_name().unwrap().to_str().unwrap();
            fs::copy(path, place.path(version).join(name)).unwrap();
        }
    }
    let args = ["new", "project", "--yes", "--vcs=git", "--template=old"];
    runs(place.folder.path(), &args, 0);
    place
}

fn format_files(place: &Place, files: &[String]) {
    // Its modules are in other files, which are not there.
    for file in files {
        let input = fs::File::open(place.path(file)).unwrap();
        let mut rustfmt = Command::new("rustfmt");
        rustfmt.args(["--edition", "2024"]).stdin(input);
        rustfmt.current_dir(place.path(file).parent().unwrap());
        let output = rustfmt.output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        fs::write(place.path(file), output.stdout).unwrap();
    }
}

/// A source with an item of the user's, after its documentation.
fn with_mine(text: String) -> String {
    text.replacen("\n\n", "\n\nconst MINE: () = ();\n\n", 1)
}

/// A source with some of its items twice, of which each is one or more paragraphs.
fn duplicated(text: &str, from: Index, count: Index) -> String {
    let paragraphs: Vec<&str> = text.split("\n\n").collect();
    let whole: Vec<usize> = (3..paragraphs.len())
        .filter(|at| is_item(paragraphs[*at]))
        .collect();
    if whole.is_empty() {
        return text.to_owned();
    }
    let start = from.index(whole.len());
    let chosen = &whole[start..(start + 1 + count.index(4)).min(whole.len())];
    let mut out = Vec::new();
    for (at, paragraph) in paragraphs.iter().enumerate() {
        // Some are doubled, some are gone.
        if chosen.contains(&at) && at % 2 == 0 {
            out.push((*paragraph).trim_end().to_owned());
        }
        if !chosen.contains(&at) || at % 3 > 0 {
            out.push((*paragraph).to_owned());
        }
    }
    let mut text = out.join("\n\n").trim_end().to_owned();
    text.push('\n');
    text
}

/// Whether a paragraph is a whole item.
fn is_item(paragraph: &str) -> bool {
    let starts = [
        "fn ",
        "pub fn ",
        "struct ",
        "pub struct ",
        "impl",
        "pub(crate) fn ",
        "#[",
    ];
    let last = paragraph.trim_end().lines().last();
    let first = paragraph.lines().find(|line| !line.starts_with("//"));
    first.is_some_and(|line| starts.iter().any(|start| line.starts_with(start)))
        && last == Some("}")
        && paragraph.matches('{').count() == paragraph.matches('}').count()
}
