//! Projects compile, pass their tests and train. In one program: while the programs of one project run, another one
//! compiles, which leaves a core idle for a third of its time. Tests whose time is limited are programs of their own.

mod abilities;
mod bad_input;
mod check;
mod configuration;
mod examples;
mod filled_in;
mod memory;
mod rendered;
mod sweep;
mod update;
mod weights;
mod wrong_edits;
