//! What Kiln says about itself, and about arguments that it does not know.

mod common;

use common::Place;
use snapbox::str;

#[test]
fn help() {
    Place::new()
        .kiln("--help")
        .assert()
        .success()
        .stdout_eq(str![[r#"
Generates training crates for Burn that train, on several replicas, from the first command

Usage: kiln <COMMAND>

Commands:
  new          Make a project
  examples     List the worked examples that `new --example` makes
  options      List the options, their values and what each changes
  diff         Show what options change in a project, before it is made
  todos        List what is left to change in a project for your own task
  explain      Tell all about a site to change, with a worked answer
  check        Check that a project builds, keeps its contracts, trains and resumes
  add          Bring into a project what was not chosen when it was made
  update       Bring later improvements of the template into a project; your changes stay
  doctor       Say what this machine has for building and training, and what is missing
  completions  Write a script that completes the command line in a shell
  man          Write the manual, as pages for `man`
  help         Print this message or the help of the given subcommand(s)

Options:
  -h, --help     Print help
  -V, --version  Print version

Exit status:
  0    done
  1    `todos --deny`: something is left to do; `check`: a check failed; `update`, `add`: a conflict
       is left; `doctor`: the default strategy cannot be used here
  2    wrong input: an argument, a name, an option, a values file or a folder
  3    the file system or another program failed; nothing half-written is left
  4    the template is wrong
  130  cancelled at a prompt, or stopped by Ctrl-C
  `new --train` passes on the exit status of the training

"#]]);
}

#[test]
fn help_of_new() {
    Place::new()
        .kiln("new --help")
        .assert()
        .success()
        .stdout_eq(str![[r#"
Make a project

Usage: kiln new [OPTIONS] [NAME]

Arguments:
  [NAME]
          The name of the project; capitals become kebab-case. Asked on a terminal if it is missing

Options:
      --path <FOLDER>
          The folder to make [default: the name]

      --example <EXAMPLE>
          Make the project of a worked example; `kiln examples` lists them

      --template <FOLDER>
          Render the template in a folder, such as your team's, instead of Kiln's own

  -d, --define <KEY=VALUE>
          Set an option; wins over --example, --values and prompts

      --values <FILE>
          Set options from a TOML file, at its top or under [values]

      --force
          Write into a folder that is not empty; only files that the template has too are replaced

      --vcs <VCS>
          The version control [default: git, unless the project stands in a repository]

          Possible values:
          - git:  A git repository
          - none: None

  -y, --yes
          Ask nothing and take the defaults

      --dry-run
          List what would be written, ask nothing and write nothing

      --train
          Build the project and train it at once

  -h, --help
          Print help (see a summary with '-h')

"#]]);
}

#[test]
fn help_of_options() {
    Place::new()
        .kiln("options --help")
        .assert()
        .success()
        .stdout_eq(str![[r#"
List the options, their values and what each changes

Usage: kiln options [OPTIONS]

Options:
      --template <FOLDER>  List those of the template in a folder, such as your team's, instead of
                           Kiln's own
  -h, --help               Print help

"#]]);
}

#[test]
fn help_of_todos() {
    Place::new()
        .kiln("todos --help")
        .assert()
        .success()
        .stdout_eq(str![[r#"
List what is left to change in a project for your own task

Usage: kiln todos [OPTIONS] [PATH]

Arguments:
  [PATH]
          The project's folder
          
          [default: .]

Options:
      --format <FORMAT>
          How to write the list

          Possible values:
          - text: For people
          - json: For programs
          
          [default: text]

      --deny
          Exit with status 1 if anything is left

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
Generates training crates for Burn that train, on several replicas, from the first command

Usage: kiln <COMMAND>

Commands:
  new          Make a project
  examples     List the worked examples that `new --example` makes
  options      List the options, their values and what each changes
  diff         Show what options change in a project, before it is made
  todos        List what is left to change in a project for your own task
  explain      Tell all about a site to change, with a worked answer
  check        Check that a project builds, keeps its contracts, trains and resumes
  add          Bring into a project what was not chosen when it was made
  update       Bring later improvements of the template into a project; your changes stay
  doctor       Say what this machine has for building and training, and what is missing
  completions  Write a script that completes the command line in a shell
  man          Write the manual, as pages for `man`
  help         Print this message or the help of the given subcommand(s)

Options:
  -h, --help     Print help
  -V, --version  Print version

Exit status:
  0    done
  1    `todos --deny`: something is left to do; `check`: a check failed; `update`, `add`: a conflict
       is left; `doctor`: the default strategy cannot be used here
  2    wrong input: an argument, a name, an option, a values file or a folder
  3    the file system or another program failed; nothing half-written is left
  4    the template is wrong
  130  cancelled at a prompt, or stopped by Ctrl-C
  `new --train` passes on the exit status of the training

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
  help: write `kiln new NAME`; only on a terminal, and without `--yes`, is it asked

"#]]);
}

#[test]
fn help_of_diff() {
    Place::new()
        .kiln("diff --help")
        .assert()
        .success()
        .stdout_eq(str![[r#"
Show what options change in a project, before it is made

Usage: kiln diff [OPTIONS] <--define <KEY=VALUE>|--against <KEY=VALUE>> [FILE]...

Arguments:
  [FILE]...
          Only these files, or what is in these folders of the project

Options:
  -d, --define <KEY=VALUE>
          Set an option on the side of the lines with `+`; the others have their defaults

  -a, --against <KEY=VALUE>
          Set an option on the side of the lines with `-`; the others have their defaults

      --example <EXAMPLE>
          Start, on both sides, from the answers and files of a worked example

      --format <FORMAT>
          How to write the differences

          Possible values:
          - text: For people
          - json: For programs
          
          [default: text]

  -h, --help
          Print help (see a summary with '-h')

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
