//! Numbers in JSON.

use serde_json::{Value, json};

/// Non-finite numbers, which JSON lacks, become `"NaN"`, `"inf"` or `"-inf"`; null means unknown.
pub fn json_number(number: f64) -> Value {
    match number.is_finite() {
        true => json!(number),
        false => json!(number.to_string()),
    }
}
