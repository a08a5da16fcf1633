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
  todos        List what is left to change in a project for your own task
  update       Bring later improvements of the template into a project; your changes stay
  add          Bring into a project what was not chosen when it was made
  explain      Tell all about a site to change, with a worked answer
  completions  Write a script that completes the command line in a shell
  man          Write the manual, as pages for `man`
  help         Print this message or the help of the given subcommand(s)

Options:
  -h, --help     Print help
  -V, --version  Print version

Exit status:
  0    done
  1    `todos --deny`: something is left to do; `update`, `add`: a conflict is left
  2    wrong input: an argument, a name, an option, a values file or a folder
  3    the file system or another program failed; nothing half-written is left
  4    the template is wrong
  130  cancelled at a prompt
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

Usage: kiln new [OPTIONS] <NAME>

Arguments:
  <NAME>
          The name of the project; capitals become kebab-case

Options:
      --path <FOLDER>
          The folder to make [default: the name]

      --example <EXAMPLE>
          Make the project of a worked example; `kiln examples` lists them

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

Usage: kiln options

Options:
  -h, --help  Print help

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
fn help_of_explain() {
    Place::new()
        .kiln("explain --help")
        .assert()
        .success()
        .stdout_eq(str![[r#"
Tell all about a site to change, with a worked answer

Usage: kiln explain [OPTIONS] [TODO-ID]

Arguments:
  [TODO-ID]
          The site, such as `model.architecture`; without one, all are listed

Options:
      --path <PROJECT>
          The project's folder [default: this one, where it is a project; else the template]

      --example <EXAMPLE>
          Show the answer of this example [default: the one that tells most]

      --format <FORMAT>
          How to write it

          Possible values:
          - text: For people
          - json: For programs
          
          [default: text]

  -h, --help
          Print help (see a summary with '-h')

"#]]);
}

#[test]
fn help_of_completions() {
    Place::new()
        .kiln("completions --help")
        .assert()
        .success()
        .stdout_eq(str![[r#"
Write a script that completes the command line in a shell

Usage: kiln completions <SHELL>

Arguments:
  <SHELL>  The shell to write it for [possible values: bash, elvish, fish, powershell, zsh]

Options:
  -h, --help  Print help

Where to put the script:
  bash        kiln completions bash > ~/.local/share/bash-completion/completions/kiln
  zsh         kiln completions zsh > ~/.zfunc/_kiln
              with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc
  fish        kiln completions fish > ~/.config/fish/completions/kiln.fish
  powershell  kiln completions powershell | Out-String | Invoke-Expression
              in the file that $PROFILE names
  elvish      kiln completions elvish > ~/.config/elvish/lib/kiln.elv
              with `use kiln` in ~/.config/elvish/rc.elv

"#]]);
}

#[test]
fn help_of_man() {
    Place::new()
        .kiln("man --help")
        .assert()
        .success()
        .stdout_eq(str![[r#"
Write the manual, as pages for `man`

Usage: kiln man [FOLDER]

Arguments:
  [FOLDER]  The folder to write kiln.1 and a page for each subcommand into [default: kiln.1 is
            printed]

Options:
  -h, --help  Print help

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
  todos        List what is left to change in a project for your own task
  update       Bring later improvements of the template into a project; your changes stay
  add          Bring into a project what was not chosen when it was made
  explain      Tell all about a site to change, with a worked answer
  completions  Write a script that completes the command line in a shell
  man          Write the manual, as pages for `man`
  help         Print this message or the help of the given subcommand(s)

Options:
  -h, --help     Print help
  -V, --version  Print version

Exit status:
  0    done
  1    `todos --deny`: something is left to do; `update`, `add`: a conflict is left
  2    wrong input: an argument, a name, an option, a values file or a folder
  3    the file system or another program failed; nothing half-written is left
  4    the template is wrong
  130  cancelled at a prompt
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
  × the following required arguments were not provided: <NAME>
   ╭─[command line:1:10]
 1 │ kiln new  
   ·          ▲
   ·          ╰── here
   ╰────
  help: usage: kiln new <NAME>
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
