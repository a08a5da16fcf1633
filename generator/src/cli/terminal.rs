//! Properties of the terminal.

use std::{
    env,
    ffi::OsStr,
    io::{self, IsTerminal},
};

/// Whether a user can answer prompts.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal()
}

/// True if the terminal cannot move its cursor. As in git, `TERM` is then `dumb` or, where
/// terminals set it, missing.
pub(crate) fn is_dumb() -> bool {
    is_dumb_term(env::var_os("TERM").as_deref())
}

fn is_dumb_term(term: Option<&OsStr>) -> bool {
    match term {
        Some(term) if !term.is_empty() => term == "dumb",
        // Windows does not set `TERM`.
        _ => cfg!(unix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_dumb_that_says_so_or_nothing() {
        assert!(is_dumb_term(Some(OsStr::new("dumb"))));
        assert!(!is_dumb_term(Some(OsStr::new("xterm-256color"))));
        assert_eq!(is_dumb_term(None), cfg!(unix));
        assert_eq!(is_dumb_term(Some(OsStr::new(""))), cfg!(unix));
    }
}
