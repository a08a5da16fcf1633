//! The syntax of conditions, so that all mistakes of a template are said at once.

use rhai::Engine;

use super::{conditions::wrong, config::Config};
use crate::{error::Error, quiet};

/// The conditions that are not expressions, whatever the options are.
pub(super) fn wrong_conditions(config: &Config) -> Vec<Error> {
    if config.conditionals.is_empty() {
        return Vec::new();
    }
    let engine = Engine::new();
    let conditions = config.conditionals.iter().map(|one| &one.expression);
    let wrong_ones = conditions.filter_map(|expression| {
        let parsed = quiet::catch(|| engine.compile_expression(expression.get_ref()).map(drop));
        let (why, column) = match parsed {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => (
                format!("Syntax error: {error}"),
                error.position().position().unwrap_or(1) - 1,
            ),
            Err(panic) => (panic, 0),
        };
        Some(wrong(config, expression, column, &why))
    });
    wrong_ones.collect()
}
