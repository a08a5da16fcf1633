//! The TOML types of options.

use std::{any::TypeId, ffi::OsString, path::PathBuf};

use clap::{Arg, ArgAction};

/// Type of the value of an option in a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A flag without a value on the command line: `true` or `false`.
    Flag,
    /// A flag that is counted.
    Count,
    /// `true` or `false`, which is a value on the command line.
    Boolean,
    /// An integer.
    Integer,
    /// An integer or a float.
    Float,
    /// A string.
    Text,
    /// A string or a number, of a type with a parser of its own.
    Other,
}

impl Kind {
    pub fn of(argument: &Arg) -> Self {
        match argument.get_action() {
            ArgAction::SetTrue | ArgAction::SetFalse => return Kind::Flag,
            ArgAction::Count => return Kind::Count,
            _ => {}
        }
        let id = argument.get_value_parser().type_id();
        let is_one_of = |types: &[TypeId]| types.iter().any(|one| id == *one);
        if is_one_of(&[TypeId::of::<bool>()]) {
            Kind::Boolean
        } else if is_one_of(&integers()) {
            Kind::Integer
        } else if is_one_of(&[TypeId::of::<f64>(), TypeId::of::<f32>()]) {
            Kind::Float
        } else if is_one_of(&texts()) || !argument.get_possible_values().is_empty() {
            Kind::Text
        } else {
            Kind::Other
        }
    }

    /// The kind as a noun with an article.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Flag | Kind::Boolean => "true or false",
            Kind::Count | Kind::Integer => "an integer",
            Kind::Float => "a number",
            Kind::Text => "a string",
            Kind::Other => "a string or a number",
        }
    }
}

fn integers() -> [TypeId; 12] {
    macro_rules! ids {
        ($($of:ty),*) => { [$(TypeId::of::<$of>()),*] };
    }
    ids![
        usize, u128, u64, u32, u16, u8, isize, i128, i64, i32, i16, i8
    ]
}

fn texts() -> [TypeId; 3] {
    [
        TypeId::of::<String>(),
        TypeId::of::<OsString>(),
        TypeId::of::<PathBuf>(),
    ]
}

/// Whether an option takes several values.
pub fn is_list(argument: &Arg) -> bool {
    let takes_several = argument
        .get_num_args()
        .is_some_and(|range| range.max_values() > 1);
    let is_repeated = matches!(argument.get_action(), ArgAction::Append);
    is_repeated || takes_several || argument.get_value_delimiter().is_some()
}
