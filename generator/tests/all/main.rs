//! What the command and the library do. Tests that depend on the time of a run, or on a feature, are programs of their
//! own.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/patches.rs"]
mod patches;
#[cfg(unix)]
#[path = "../common/terminal.rs"]
mod terminal;
#[path = "../common/versions.rs"]
mod versions;

mod check;
mod completing;
mod diff;
mod doctor;
mod door;
mod dry_run;
mod errors;
mod examples;
mod explain;
mod folders;
mod help;
mod history;
mod later;
mod launch;
mod layout;
mod merging;
mod new;
mod options;
mod places;
mod prompts;
mod properties;
mod robust;
mod shell;
mod sources;
mod template;
mod todos;
mod transaction;
mod unresolved;
mod update;
mod wording;
mod workspace;
