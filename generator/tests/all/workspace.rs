//! `kiln new` below a Cargo workspace: Cargo still reads that workspace, the project and its engine, and
//! the manifest above loses nothing.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use crate::common::Place;
use snapbox::str;

const PACKAGE: &str = "[package]\nname = \"NAME\"\nedition = \"2021\"\n";

/// A package without dependencies.
fn package(place: &Place, folder: &str) {
    let name = folder.rsplit('/').next().unwrap();
    place.put(
        &format!("{folder}/Cargo.toml"),
        &PACKAGE.replace("NAME", name),
    );
    place.put(&format!("{folder}/src/lib.rs"), "");
}

/// The names of the packages in the workspace of a folder, as Cargo reads it.
fn members(folder: &Path) -> Result<Vec<String>, String> {
    let args = [
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
    ];
    let output = Command::new(env!("CARGO"))
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(said);
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let mut names: Vec<_> = packages
        .map(|one| one["name"].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    Ok(names)
}

fn new(place: &Place, folder: &str, args: &str) -> Output {
    let command = place.kiln(&format!("new {args} --yes --vcs none"));
    command.current_dir(place.join(folder)).output().unwrap()
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The line of a report about the workspace.
fn said(output: &Output) -> String {
    let text = out(output);
    let line = text.lines().find(|line| line.contains("workspace"));
    line.unwrap_or_default().trim().to_owned()
}

const OWN: [&str; 3] = ["kiln-engine", "kiln-kernels", "m"];

/// Makes `crates/m` below a root with this manifest and the package `crates/a`; checks that Cargo reads
/// both, and returns the manifest after it.
fn made_beside(manifest: &str) -> String {
    let place = Place::new();
    package(&place, "crates/a");
    place.put("src/lib.rs", "");
    place.put("Cargo.toml", manifest);
    out(&new(&place, "crates", "m"));
    assert_eq!(members(&place.join("crates/m")).unwrap(), OWN, "{manifest}");
    assert_eq!(
        members(&place.join("crates/m/engine")).unwrap(),
        OWN,
        "{manifest}"
    );
    let others = members(place.path()).unwrap_or_else(|said| panic!("{manifest}\n{said}"));
    assert!(
        others.iter().all(|name| !OWN.contains(&&**name)),
        "{others:?}"
    );
    fs::read_to_string(place.join("Cargo.toml")).unwrap()
}

#[test]
fn a_glob_of_a_virtual_root_is_told_to_leave_the_project_out() {
    let place = Place::new();
    package(&place, "crates/a");
    place.put(
        "Cargo.toml",
        "# Ours.\n[workspace]\nresolver = \"3\"\nmembers   = [\"crates/*\"] # all\n",
    );
    let output = new(&place, "crates", "m");
    assert_eq!(
        said(&output),
        "adds \"crates/m\" to `exclude` of the workspace `../Cargo.toml`"
    );
    assert_eq!(
        fs::read_to_string(place.join("Cargo.toml")).unwrap(),
        "# Ours.\n[workspace]\nresolver = \"3\"\nmembers   = [\"crates/*\"] # all\nexclude = [\"crates/m\"]\n"
    );
    assert_eq!(members(place.path()).unwrap(), ["a"]);
    assert_eq!(members(&place.join("crates/m/engine")).unwrap(), OWN);

    // Another one beside it.
    out(&new(&place, "crates", "n"));
    let manifest = fs::read_to_string(place.join("Cargo.toml")).unwrap();
    assert!(
        manifest.ends_with("exclude = [\"crates/m\", \"crates/n\"]\n"),
        "{manifest}"
    );
    assert_eq!(members(place.path()).unwrap(), ["a"]);
}

#[test]
fn workspaces_of_every_layout_still_work() {
    let root = PACKAGE.replace("NAME", "root");
    let with = |line: &str, rest: &str| format!("{root}\n[workspace]\n{line}\n{rest}");
    let virtual_root = |lines: &str| format!("[workspace]\nresolver = \"3\"\n{lines}\n");
    for (manifest, exclude) in [
        (with("members = [\"crates/*\"]", ""), true),
        // `.` in `members` turns every `exclude` off.
        (with("members = [\".\", \"crates/*\"]", ""), true),
        (
            virtual_root("members = [\"cr*/[a-m]\"]\ndefault-members = [\"crates/*\"]"),
            true,
        ),
        (
            virtual_root("members = [\"./crates/../crates/*\"]\nexclude = [\n  \"old\", # gone\n]"),
            true,
        ),
        // Only the engine is matched.
        (
            virtual_root("members = [\"crates/a\", \"crates/*/engine\"]"),
            true,
        ),
        (
            with("", "[dependencies]\nm = { path = \"crates/m\" }"),
            true,
        ),
        (
            with(
                "[workspace.dependencies]\nm.path = \"crates/m\"",
                "[dependencies]\nm.workspace = true",
            ),
            true,
        ),
        // Nothing to do.
        (
            virtual_root("members = [\"crates/*\"]\nexclude = [\"crates/m\"]"),
            false,
        ),
        (
            virtual_root("members = [\"crates/a\"]\nexclude = [\"crates/x\"]"),
            false,
        ),
        (with("", ""), false),
        (root.clone(), false),
    ] {
        let after = made_beside(&manifest);
        assert_eq!(after != manifest, exclude, "{manifest}");
        assert_eq!(
            after.contains("\"crates/m\""),
            exclude || manifest.contains("\"crates/m\"")
        );
    }
}

#[test]
fn a_workspace_further_up_and_outside_the_repository() {
    let place = Place::new();
    package(&place, "code/crates/a");
    place.put(
        "Cargo.toml",
        "[workspace]\nresolver = \"3\"\nmembers = [\"code/crates/*\"]\n",
    );
    let init = Command::new("git")
        .args(["init", "--quiet"])
        .current_dir(place.join("code"))
        .status();
    assert!(init.unwrap().success());
    let output = new(&place, "code/crates", "m");
    assert_eq!(
        said(&output),
        "adds \"code/crates/m\" to `exclude` of the workspace `../../Cargo.toml`"
    );
    assert_eq!(members(place.path()).unwrap(), ["a"]);
    assert_eq!(members(&place.join("code/crates/m")).unwrap(), OWN);
}

#[test]
fn a_manifest_that_cannot_be_read_is_left_and_named() {
    let place = Place::new();
    let broken = "[workspace]\nmembers = [\"crates/*\"\n";
    place.put("Cargo.toml", broken);
    place.put("crates/.keep", "");
    let output = new(&place, "crates", "m");
    assert!(output.status.success());
    snapbox::assert_data_eq!(
        String::from_utf8(output.stderr).unwrap(),
        str![[r#"
warning: `../Cargo.toml` cannot be read, and was not changed (line [..] is not valid TOML: [..]); if it is the root of a workspace with this folder, add the folder to its `exclude`

"#]]
    );
    assert_eq!(
        fs::read_to_string(place.join("Cargo.toml")).unwrap(),
        broken
    );

    for (list, why) in [
        ("\"crates/*\"", "`members` is not a list of texts"),
        ("[\"a\", 1]", "`members` is not a list of texts"),
        (
            "[\"crates/[m\"]",
            "`crates/[m` in `members` is not a pattern",
        ),
    ] {
        place.put("Cargo.toml", &format!("[workspace]\nmembers = {list}\n"));
        let output = new(&place, "crates", "k --dry-run");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains(&format!("cannot be read, and was not changed ({why})")),
            "{said}"
        );
        assert!(members(place.path()).is_err(), "{list}");
    }
    place.put("Cargo.toml", broken);
    let refused = new(&place, "crates", "n --workspace member");
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("`../Cargo.toml` cannot be read"), "{said}");
}

#[test]
fn a_read_only_manifest_is_not_replaced() {
    let place = Place::new();
    let manifest = "[workspace]\nmembers = [\"*\"]\n";
    place.put("Cargo.toml", manifest);
    let path = place.join("Cargo.toml");
    let mut rights = fs::metadata(&path).unwrap().permissions();
    rights.set_readonly(true);
    fs::set_permissions(&path, rights).unwrap();
    let before = place.tree();
    for more in ["", " --dry-run"] {
        place
            .kiln(&format!("new m --yes{more}"))
            .assert()
            .code(2)
            .stderr_eq(str![[r#"
  × the workspace `Cargo.toml` would have the project as a member, and its manifest is read-only
  help: make the manifest writable or choose another folder; `--workspace keep` leaves it as it
        is, although Cargo then fails in that workspace

"#]]);
        assert_eq!(place.tree(), before);
    }
    let output = new(&place, ".", "m --workspace keep");
    assert!(output.status.success());
    snapbox::assert_data_eq!(
        String::from_utf8(output.stderr).unwrap(),
        str![[r#"
warning: the workspace `Cargo.toml` was not changed, and Cargo fails there or in the project until its `exclude` has "m"

"#]]
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), manifest);
}

#[test]
fn what_exclude_cannot_do_is_refused() {
    let place = Place::new();
    package(&place, "crates");
    place.put(
        "Cargo.toml",
        "[workspace]\nmembers = [\"crates\", \"crates/*\"]\n",
    );
    let before = place.tree();
    place
        .kiln("new crates/m --yes")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × the workspace `Cargo.toml` would have the project as a member, and `exclude` there cannot keep
  │ it out: `members` has "crates", which lies above it and comes first
  help: change the list, or choose another folder, `--workspace member` or `--workspace keep`;
        nothing was written

"#]]);
    assert_eq!(place.tree(), before);

    let place = Place::new();
    package(&place, "a");
    place.put(
        "Cargo.toml",
        "[workspace]\nmembers = [\"a\"]\ndefault-members = [\"*\"]\n",
    );
    let before = place.tree();
    place
        .kiln("new m --yes")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × the workspace `Cargo.toml` would have the project as a member, and `exclude` there cannot keep
  │ it out: `default-members` has "*", which matches it
  help: change the list, or choose another folder, `--workspace member` or `--workspace keep`;
        nothing was written

"#]]);
    assert_eq!(place.tree(), before);
}

/// At the root itself, `--force` would replace the manifest of the workspace.
#[test]
fn the_root_of_a_workspace_is_not_replaced() {
    let place = Place::new();
    package(&place, "a");
    place.put("Cargo.toml", "[workspace]\nmembers = [\"a\"]\n");
    let before = place.tree();
    place
        .kiln("new m --yes --path .")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × the folder `.` has a file of the template: `Cargo.toml`
  help: give another folder, or add `--force` to replace the files that the template has too; all
        other files are kept

"#]]);
    place
        .kiln("new m --yes --path . --force")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × `Cargo.toml` is the root of a workspace with the member "a", which would be lost
  help: create the project in a folder of its own; nothing was written

"#]]);
    assert_eq!(place.tree(), before);
}

#[test]
fn a_member_brings_its_profiles_to_the_root() {
    let place = Place::new();
    package(&place, "crates/a");
    let manifest = "[workspace]\nresolver = \"3\"\nmembers = [\n  \"crates/a\", # ours\n]\n\n[profile.dev]\n\
                    debug = 0 # ours\n\n[profile.dev.package.gemm-f32]\nopt-level = 2\n";
    place.put("Cargo.toml", manifest);
    let output = new(&place, "crates", "m --workspace member");
    let text = out(&output);
    assert!(
        text.contains("is the member \"crates/m\" of the workspace `../Cargo.toml`"),
        "{text}"
    );
    assert!(
        text.contains("settings of [profile.dev] and [profile.release] are left out"),
        "{text}"
    );
    for folder in [".", "crates/m", "crates/m/engine"] {
        assert_eq!(
            members(&place.join(folder)).unwrap(),
            ["a", "kiln-engine", "kiln-kernels", "m"],
            "{folder}"
        );
    }
    let after = fs::read_to_string(place.join("Cargo.toml")).unwrap();
    let start = manifest.replace("# ours\n]", "# ours\n  \"crates/m\",\n]");
    assert!(after.starts_with(&start), "{after}");
    let table: toml::Table = after.parse().unwrap();
    let packages = table["profile"]["dev"]["package"].as_table().unwrap();
    assert_eq!(packages["kiln-kernels"]["opt-level"].as_integer(), Some(3));
    assert_eq!(
        packages["gemm-f32"]["opt-level"].as_integer(),
        Some(2),
        "the user's own stays"
    );
    assert!(!packages.contains_key("*"));
    // Cargo warns of profiles of a member.
    let own: toml::Table = fs::read_to_string(place.join("crates/m/Cargo.toml"))
        .unwrap()
        .parse()
        .unwrap();
    assert!(!own.contains_key("workspace") && !own.contains_key("profile"));
    assert!(own.contains_key("dependencies") && own.contains_key("dev-dependencies"));

    // A second engine of this name cannot be a member.
    let before = place.tree();
    let refused = new(&place, "crates", "n --workspace member");
    snapbox::assert_data_eq!(
        String::from_utf8(refused.stderr).unwrap(),
        str![[r#"
  × the workspace `../Cargo.toml` has a package `kiln-engine` already, in `m/engine`, and the
  │ project has one of this name too
  help: choose another name, or `--workspace exclude`; two projects of Kiln cannot be members of
        one workspace, as each has an engine

"#]]
    );
    assert_eq!(place.tree(), before);
}

#[test]
fn a_listed_path_makes_a_member() {
    let place = Place::new();
    package(&place, "a");
    let manifest = "[workspace]\nresolver = \"3\"\nmembers = [\"a\", \"m\"]\n";
    place.put("Cargo.toml", manifest);
    out(&new(&place, ".", "m"));
    assert_eq!(
        members(place.path()).unwrap(),
        ["a", "kiln-engine", "kiln-kernels", "m"]
    );

    let place = Place::new();
    package(&place, "a");
    place.put("Cargo.toml", manifest);
    out(&new(&place, ".", "m --workspace exclude"));
    assert_eq!(members(place.path()).unwrap(), ["a"]);
    assert_eq!(members(&place.join("m")).unwrap(), OWN);
}

#[test]
fn there_has_to_be_a_workspace_to_be_a_member_of() {
    let place = Place::new();
    place
        .kiln("new m --yes --workspace member")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × there is no Cargo workspace above the project's folder to be a member of
  help: leave out `--workspace member`

"#]]);
    place.put("Cargo.toml", "[workspace]\nexclude = [\"m\"]\n");
    place
        .kiln("new m --yes --workspace member")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × the workspace `Cargo.toml` excludes the project's folder
  help: remove it from `exclude` there, or leave out `--workspace member`

"#]]);
    assert!(!place.join("m").exists());
}

#[test]
fn a_template_that_is_no_workspace_becomes_a_member() {
    for (members_of_root, after) in [
        ("[\"*\"]", "[\"*\"]"),
        ("[\"a\", \"z\"]", "[\"a\", \"m\", \"z\"]"),
    ] {
        let place = Place::new();
        place.put("team/cargo-generate.toml", "[template]\nfmt = false\n");
        place.put(
            "team/Cargo.toml",
            "[package]\nname = \"{{project-name}}\"\nedition = \"2021\"\n",
        );
        place.put("team/src/lib.rs", "");
        package(&place, "work/a");
        package(&place, "work/z");
        let root = format!("[workspace]\nresolver = \"3\"\nmembers = {members_of_root}\n");
        place.put("work/Cargo.toml", &root);
        out(&new(&place, "work", "m --template ../team"));
        assert_eq!(members(&place.join("work")).unwrap(), ["a", "m", "z"]);
        assert_eq!(members(&place.join("work/m")).unwrap(), ["a", "m", "z"]);
        let now = fs::read_to_string(place.join("work/Cargo.toml")).unwrap();
        assert_eq!(now, root.replace(members_of_root, after));
    }
}

#[test]
fn line_ends_mode_and_links_stay() {
    let place = Place::new();
    let manifest = "\u{feff}[workspace]\r\nmembers = [\r\n\t\"x/*\", # all\r\n]\r\n\r\n# The end.";
    place.put("elsewhere/root.toml", manifest);
    package(&place, "x/a");
    let path = place.join("elsewhere/root.toml");
    #[cfg(unix)]
    {
        use std::os::unix::fs::{PermissionsExt, symlink};
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("elsewhere/root.toml", place.join("Cargo.toml")).unwrap();
        out(&new(&place, ".", "x/m"));
        assert!(place.join("Cargo.toml").is_symlink());
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o640
        );
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            manifest.replace("]\r\n\r\n", "]\r\nexclude = [\"x/m\"]\r\n\r\n")
        );
        assert_eq!(members(place.path()).unwrap(), ["a"]);
    }
}

#[test]
fn a_dry_run_tells_and_a_failure_restores() {
    let place = Place::new();
    place.put("Cargo.toml", "[workspace]\nmembers = [\"x/*\"]\n");
    let before = place.tree();
    let output = place.kiln("new x/m --dry-run").output().unwrap();
    assert_eq!(
        said(&output),
        "adds \"x/m\" to `exclude` of the workspace `Cargo.toml`"
    );
    assert_eq!(place.tree(), before);

    // `git init` fails after the manifest was edited.
    let output = place
        .kiln("new x/m --yes --vcs git")
        .env("PATH", "")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(place.tree(), before);
}
