//! Help texts, and errors for unknown arguments.

use crate::common::Place;
use snapbox::str;

#[test]
fn help() {
    Place::new()
        .kiln("--help")
        .assert()
        .success()
        .stdout_eq(str![[r#"
Generates Burn training crates that train on several replicas without edits

Usage: kiln <COMMAND>

Commands:
  new          Create a project
  examples     List the worked examples for `new --example`
  templates    List your favourite templates for `new --template`
  options      List the options, their values and the effect of each
  diff         Show how options change a new project
  todos        List the open TODO sites of a project
  explain      Explain a TODO site, with a worked answer, or an ability, with its options
  check        Check that a project builds, passes its contract tests, trains and resumes
  add          Merge further options into a project
  update       Merge later versions of the template into a project; keeps your changes
  doctor       Report the devices, tools and libraries of this machine
  completions  Print a shell completion script
  man          Print or write the manual pages
  help         Print this message or the help of the given subcommand(s)

Options:
  -h, --help     Print help
  -V, --version  Print version

Exit status:
  0    success
  1    `todos --deny`: a TODO site is open; `check`: a check failed; `update`, `add`: a conflict
       or a patch remains; `doctor`: the default strategy cannot be used here
  2    invalid input: an argument, a name, an option, a values file or a folder
  3    the file system or another program failed; no partial changes remain
  4    the template is invalid
  130  cancelled at a prompt, or stopped by Ctrl-C
  `new --train` exits with the status of the training

"#]]);
}

#[test]
fn help_of_new() {
    Place::new()
        .kiln("new --help")
        .assert()
        .success()
        .stdout_eq(str![[r#"
Create a project

Usage: kiln new [OPTIONS] [NAME]

Arguments:
  [NAME]
          Name of the project, converted to kebab-case if it has capitals, or the path of its
          folder, whose last part is the name; `.` is the current folder. If missing, a prompt asks
          for it

Options:
      --name <NAME>
          Name of the project, if it is not that of the folder NAME

      --path <FOLDER>
          Folder of the project [default: the name]

      --example <EXAMPLE>
          Create the project of a worked example; `kiln examples` lists them

      --template <TEMPLATE>
          Render another template, such as your team's, instead of Kiln's own: a folder, the URL of
          a Git repository, OWNER/NAME on GitHub, or a favourite of `kiln templates`

      --strict
          Refuse mistakes in the template that cargo-generate renders, such as unknown variables;
          without it, they are warnings

      --skip-hooks
          Render the template without its hooks: the scripts that cargo-generate would run

  -d, --define <KEY=VALUE>
          Set an option; takes precedence over --example, --values and prompts

      --values <FILE>
          Set options from a TOML file, at its top level or under [values], or from the `.kiln.toml`
          of another project

      --force
          Replace files in the folder that the template has too. Without it, an existing README.md
          is kept, .gitignore gets the lines that it lacks, and any other file of the template is an
          error

      --vcs <VCS>
          Version control [default: git, unless the project lies in a repository that does not
          ignore it]

          Possible values:
          - git:  A git repository, also inside another one
          - none: No version control

      --workspace <WORKSPACE>
          Membership in a Cargo workspace above [default: exclude if it would have the project as a
          member, but member if it lists its path, or if the template is no workspace]

          Possible values:
          - exclude: The project is a workspace of its own: its path is added to the other's
            `exclude`
          - member:  The project is a member: its path is added to `members`, its profiles to the
            root's
          - keep:    The manifests above stay as they are

  -y, --yes
          Skip all prompts and use the defaults

      --dry-run
          List the files without prompting or writing

      --train
          Build and train the project

  -h, --help
          Print help (see a summary with '-h')

Template in Git:
      --branch <BRANCH>
          Branch of the template's repository [default: its default branch]

      --tag <TAG>
          Tag of the template's repository

      --rev <COMMIT>
          Commit of the template's repository

      --subfolder <FOLDER>
          Folder of the template in its repository or folder

"#]]);
}

#[test]
fn help_of_options() {
    Place::new()
        .kiln("options --help")
        .assert()
        .success()
        .stdout_eq(str![[r#"
List the options, their values and the effect of each

Usage: kiln options [OPTIONS]

Options:
      --template <TEMPLATE>  List the options of this template instead of Kiln's own: a folder, a
                             URL, or a favourite
      --skip-hooks           Leave out the hooks of the template: the scripts that cargo-generate
                             would run
  -h, --help                 Print help

Template in Git:
      --branch <BRANCH>     Branch of the template's repository [default: its default branch]
      --tag <TAG>           Tag of the template's repository
      --rev <COMMIT>        Commit of the template's repository
      --subfolder <FOLDER>  Folder of the template in its repository or folder

"#]]);
}

#[test]
fn help_of_todos() {
    Place::new()
        .kiln("todos --help")
        .assert()
        .success()
        .stdout_eq(str![[r#"
List the open TODO sites of a project

Usage: kiln todos [OPTIONS] [PATH]

Arguments:
  [PATH]
          Folder of the project
          
          [default: .]

Options:
      --format <FORMAT>
          Output format

          Possible values:
          - text: Human-readable text
          - json: JSON
          
          [default: text]

      --deny
          Exit with status 1 if a site is open

  -h, --help
          Print help (see a summary with '-h')

"#]]);
}

#[test]
fn nothing() {
    Place::new()
        .kiln("")
        .assert()
        .code(2)
        .stdout_eq("")
        .stderr_eq(str![[r#"
Generates Burn training crates that train on several replicas without edits

Usage: kiln <COMMAND>

Commands:
  new          Create a project
  examples     List the worked examples for `new --example`
  templates    List your favourite templates for `new --template`
  options      List the options, their values and the effect of each
  diff         Show how options change a new project
  todos        List the open TODO sites of a project
  explain      Explain a TODO site, with a worked answer, or an ability, with its options
  check        Check that a project builds, passes its contract tests, trains and resumes
  add          Merge further options into a project
  update       Merge later versions of the template into a project; keeps your changes
  doctor       Report the devices, tools and libraries of this machine
  completions  Print a shell completion script
  man          Print or write the manual pages
  help         Print this message or the help of the given subcommand(s)

Options:
  -h, --help     Print help
  -V, --version  Print version

Exit status:
  0    success
  1    `todos --deny`: a TODO site is open; `check`: a check failed; `update`, `add`: a conflict
       or a patch remains; `doctor`: the default strategy cannot be used here
  2    invalid input: an argument, a name, an option, a values file or a folder
  3    the file system or another program failed; no partial changes remain
  4    the template is invalid
  130  cancelled at a prompt, or stopped by Ctrl-C
  `new --train` exits with the status of the training

"#]]);
}

#[test]
fn unknown_subcommand() {
    Place::new()
        .kiln("nwe x")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × unrecognized subcommand `nwe`
   ╭─[command line:1:6]
 1 │ kiln nwe x
   ·      ─┬─
   ·       ╰── here
   ╰────
  help: a similar subcommand exists: `new`
        usage: kiln <COMMAND>
        for more information, try `--help`.

"#]]);
}

#[test]
fn unknown_argument() {
    Place::new()
        .kiln("new x --forse")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × unexpected argument `--forse` found
   ╭─[command line:1:12]
 1 │ kiln new x --forse
   ·            ───┬───
   ·               ╰── here
   ╰────
  help: a similar argument exists: `--force`
        usage: kiln new --force <NAME>
        for more information, try `--help`.

"#]]);
}

#[test]
fn unknown_vcs() {
    Place::new()
        .kiln("new x --vcs gitt")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × invalid value `gitt` for `--vcs <VCS>`
   ╭─[command line:1:18]
 1 │ kiln new x --vcs gitt
   ·                  ──┬─
   ·                    ╰── here
   ╰────
  help: possible values: git, none
        a similar value exists: `git`
        for more information, try `--help`.

"#]]);
}

#[test]
fn no_name() {
    Place::new()
        .kiln("new")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × the project has no name
  help: write `kiln new NAME`; Kiln prompts for the name only on a terminal and without `--yes`

"#]]);
}

#[test]
fn help_of_diff() {
    Place::new()
        .kiln("diff --help")
        .assert()
        .success()
        .stdout_eq(str![[r#"
Show how options change a new project

Usage: kiln diff [OPTIONS] <--define <KEY=VALUE>|--against <KEY=VALUE>> [FILE]...

Arguments:
  [FILE]...
          Compare only these files, or the files in these folders of the project

Options:
  -d, --define <KEY=VALUE>
          Set an option on the side of the `+` lines; other options have their defaults

  -a, --against <KEY=VALUE>
          Set an option on the side of the `-` lines; other options have their defaults

      --example <EXAMPLE>
          Use the answers and files of a worked example on both sides

      --template <TEMPLATE>
          Compare projects of this template instead of Kiln's own: a folder, a URL, or a favourite

      --format <FORMAT>
          Output format

          Possible values:
          - text: Human-readable text
          - json: JSON
          
          [default: text]

  -h, --help
          Print help (see a summary with '-h')

Template in Git:
      --branch <BRANCH>
          Branch of the template's repository [default: its default branch]

      --tag <TAG>
          Tag of the template's repository

      --rev <COMMIT>
          Commit of the template's repository

      --subfolder <FOLDER>
          Folder of the template in its repository or folder

"#]]);
}

#[test]
fn nothing_to_compare() {
    Place::new()
        .kiln("diff")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × the following required arguments were not provided: <--define <KEY=VALUE>|--against
  │ <KEY=VALUE>>
   ╭─[command line:1:11]
 1 │ kiln diff  
   ·           ▲
   ·           ╰── here
   ╰────
  help: usage: kiln diff <--define <KEY=VALUE>|--against <KEY=VALUE>> [FILE]...
        for more information, try `--help`.

"#]]);
}

#[test]
fn unknown_format() {
    Place::new()
        .kiln("todos --format jsn")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × invalid value `jsn` for `--format <FORMAT>`
   ╭─[command line:1:21]
 1 │ kiln todos --format jsn
   ·                     ─┬─
   ·                      ╰── here
   ╰────
  help: possible values: text, json
        a similar value exists: `json`
        for more information, try `--help`.

"#]]);
}

/// Clap knows no `help --help`.
#[test]
fn help_of_help() {
    let place = Place::new();
    for (args, says) in [
        ("help --help", "Usage: kiln help [COMMAND]"),
        ("help -h", "Usage: kiln help [COMMAND]"),
        ("help update --help", "Usage: kiln update"),
    ] {
        let assert = place.kiln(args).assert().success();
        let said = String::from_utf8_lossy(&assert.get_output().stdout).into_owned();
        assert!(said.contains(says), "{args}: {said}");
    }
}

#[test]
fn a_site_is_found_by_a_part_of_its_id() {
    let place = Place::new();
    for (given, near) in [
        ("architectre", "model.architecture"),
        ("augment", "dataset.augment"),
        ("modle.architecture", "model.architecture"),
    ] {
        let assert = place.kiln(&format!("explain {given}")).assert().code(2);
        let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        let why = format!("did you mean `{near}`?");
        assert!(said.contains(&why), "{said}");
    }
    let assert = place.kiln("new a --yes").assert().success();
    drop(assert);
    let assert = place.kiln("add nonee --path a").assert().code(2);
    let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert_eq!(
        said.matches("`none`").count(),
        2,
        "once as a proposal: {said}"
    );
}
