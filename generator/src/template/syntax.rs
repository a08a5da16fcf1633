//! The syntax of conditions, so that all mistakes of a template are said at once.

use rhai::{Engine, Position};

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
        let (why, position) = match parsed {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => (format!("Syntax error: {error}"), error.position()),
            Err(panic) => (panic, Position::NONE),
        };
        Some(wrong(config, expression, position, &why))
    });
    wrong_ones.collect()
}
