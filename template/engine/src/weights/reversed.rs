//! Renames read backwards, for exports with the names of another program.

use std::collections::HashSet;

use anyhow::{Result, bail, ensure};
use burn_store::burn_pack::Tensor;

use super::{WeightNames, names::remapper};

/// Gives `tensors` the names from which `names` make theirs.
///
/// # Errors
/// A pattern cannot be read backwards, or `names` would make other names; the message names the site.
pub fn reversed(tensors: Vec<Tensor>, names: WeightNames) -> Result<Vec<Tensor>> {
    if names.is_empty() {
        return Ok(tensors);
    }
    let mut backwards = Vec::new();
    for (pattern, replacement) in names.iter().rev() {
        match inverse(pattern, replacement) {
            Some(inverse) => backwards.push(inverse),
            None => bail!(
                "TODO(model.weights): WEIGHT_NAMES cannot be read backwards: {pattern:?} is not made of text, ^, $ and \
                 groups that {replacement:?} has once each"
            ),
        }
    }
    let of_model = tensors.clone();
    let backwards = backwards.iter().map(|(from, to)| (&**from, &**to));
    let (tensors, _) = remapper(backwards)?.remap(tensors);
    let (again, _) = remapper(names.iter().copied())?.remap(tensors.clone());
    let mut seen = HashSet::new();
    for ((tensor, again), of_model) in tensors.iter().zip(again).zip(of_model) {
        ensure!(
            again.name == of_model.name && seen.insert(&tensor.name),
            "TODO(model.weights): WEIGHT_NAMES cannot be read backwards: `{}` would be `{}` in the file, which they \
             read as `{}`",
            of_model.name,
            tensor.name,
            again.name
        );
    }
    Ok(tensors)
}

/// A pattern and a replacement that undo those of a rename; `None` if there are none.
fn inverse(pattern: &str, replacement: &str) -> Option<(String, String)> {
    let Pattern {
        start,
        parts,
        groups,
        end,
    } = Pattern::parse(pattern)?;
    let mut from = if start { "^".to_owned() } else { String::new() };
    // The groups of the pattern, in the order of the replacement.
    let mut order = Vec::new();
    for part in replacement_parts(replacement, &groups)? {
        match part {
            Part::Text(text) => from += &regex::escape(&text),
            Part::Group(group) => {
                from += &format!("({})", groups[group].expression);
                order.push(group);
            }
        }
    }
    from += if end { "$" } else { "" };
    let mut to = String::new();
    for part in parts {
        match part {
            Part::Text(text) => to += &text.replace('$', "$$"),
            Part::Group(group) => {
                let number = order.iter().position(|other| *other == group)?;
                to += &format!("${{{}}}", number + 1);
            }
        }
    }
    (order.len() == groups.len()).then_some((from, to))
}

/// A part of a pattern or a replacement.
enum Part {
    Text(String),
    /// The number of a group, from 0.
    Group(usize),
}

/// A group in a pattern.
struct Group {
    name: Option<String>,
    expression: String,
}

/// A pattern of text and groups, which may be anchored.
#[derive(Default)]
struct Pattern {
    start: bool,
    parts: Vec<Part>,
    groups: Vec<Group>,
    end: bool,
}

impl Pattern {
    /// `None` for patterns with other operators outside of groups, or groups in groups.
    fn parse(pattern: &str) -> Option<Self> {
        let mut parsed = Pattern::default();
        let mut rest = pattern;
        if let Some(anchored) = rest.strip_prefix('^') {
            (parsed.start, rest) = (true, anchored);
        }
        let mut text = String::new();
        while let Some(first) = rest.chars().next() {
            rest = &rest[first.len_utf8()..];
            match first {
                '\\' => {
                    let escaped = rest.chars().next()?;
                    if escaped.is_alphanumeric() {
                        return None;
                    }
                    text.push(escaped);
                    rest = &rest[escaped.len_utf8()..];
                }
                '(' => {
                    let len = end_of_group(rest)?;
                    parsed.add_text(&mut text);
                    parsed.parts.push(Part::Group(parsed.groups.len()));
                    parsed.groups.push(Group::parse(&rest[..len])?);
                    rest = &rest[len + 1..];
                }
                '$' if rest.is_empty() => parsed.end = true,
                '*' | '+' | '?' | '|' | '[' | ']' | '{' | '}' | ')' | '^' | '$' => return None,
                // Also `.`, which stands between the parts of a name.
                other => text.push(other),
            }
        }
        parsed.add_text(&mut text);
        Some(parsed)
    }

    fn add_text(&mut self, text: &mut String) {
        if !text.is_empty() {
            self.parts.push(Part::Text(std::mem::take(text)));
        }
    }
}

impl Group {
    fn parse(text: &str) -> Option<Self> {
        let (name, expression) = match text.strip_prefix("?P<").or(text.strip_prefix("?<")) {
            Some(named) => {
                let (name, expression) = named.split_once('>')?;
                (Some(name.to_owned()), expression)
            }
            // Flags, or a group that is not counted.
            None if text.starts_with('?') => return None,
            None => (None, text),
        };
        Some(Group {
            name,
            expression: expression.to_owned(),
        })
    }

    fn is_called(&self, number: usize, reference: &str) -> bool {
        self.name.as_deref() == Some(reference) || reference == (number + 1).to_string()
    }
}

/// The length of the group at the start of `text`, up to its parenthesis; `None` if it has none or other groups.
fn end_of_group(text: &str) -> Option<usize> {
    let (mut is_escaped, mut is_class) = (false, false);
    for (place, letter) in text.char_indices() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '[' => is_class = true,
            ']' => is_class = false,
            '(' if !is_class => return None,
            ')' if !is_class => return Some(place),
            _ => {}
        }
    }
    None
}

/// The parts of a replacement; `None` if it has a group that the pattern lacks, or one twice.
///
/// Source: the documentation of `regex::Regex::replace`.
fn replacement_parts(replacement: &str, groups: &[Group]) -> Option<Vec<Part>> {
    let (mut parts, mut seen) = (Vec::new(), HashSet::new());
    let mut rest = replacement;
    while let Some(place) = rest.find('$') {
        parts.push(Part::Text(rest[..place].to_owned()));
        rest = &rest[place + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            parts.push(Part::Text("$".to_owned()));
            rest = after;
            continue;
        }
        let is_end = |letter: char| !(letter.is_ascii_alphanumeric() || letter == '_');
        let (reference, after) = match rest.strip_prefix('{') {
            Some(braced) => braced.split_once('}')?,
            None => rest.split_at(rest.find(is_end).unwrap_or(rest.len())),
        };
        let mut all = groups.iter().enumerate();
        let (group, _) = all.find(|(number, group)| group.is_called(*number, reference))?;
        if !seen.insert(group) {
            return None;
        }
        parts.push(Part::Group(group));
        rest = after;
    }
    parts.push(Part::Text(rest.to_owned()));
    Some(parts)
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;
    use burn_store::bridge;

    use super::*;

    fn named(names: &[&str]) -> Vec<Tensor> {
        let tensor =
            |name: &&str| bridge::from_data(TensorData::from([1.0f32]), (*name).to_owned(), None);
        names.iter().map(tensor).collect()
    }

    /// The names in a file, or the message.
    fn in_file(of_model: &[&str], names: WeightNames) -> Result<Vec<String>, String> {
        let tensors = reversed(named(of_model), names).map_err(|error| error.to_string())?;
        Ok(tensors.into_iter().map(|tensor| tensor.name).collect())
    }

    #[test]
    fn renames_are_read_backwards() {
        let cases: [(WeightNames, &str, &str); 8] = [
            (&[], "conv1.weight", "conv1.weight"),
            (
                &[(r"^features\.0\.", "conv1."), (r"^fc\.", "output.")],
                "conv1.weight",
                "features.0.weight",
            ),
            (&[("^net.0.", "conv1.")], "conv1.weight", "net.0.weight"),
            (&[("^inner.", "")], "conv1.weight", "inner.conv1.weight"),
            (&[(r"\.w$", ".weight")], "conv1.weight", "conv1.w"),
            (
                &[(r"^h\.(\d+)\.mlp\.c_proj\.", "blocks.$1.output.")],
                "blocks.12.output.weight",
                "h.12.mlp.c_proj.weight",
            ),
            (
                &[(r"^(?P<side>[lr(]+)-(\d)\.", "at.${2}.${side}.")],
                "at.3.l.bias",
                "l-3.bias",
            ),
            // The second rename is of what the first one makes.
            (
                &[("^transformer.", "t."), (r"^t\.wte\.", "tokens.")],
                "tokens.weight",
                "transformer.wte.weight",
            ),
        ];
        for (names, of_model, expected) in cases {
            assert_eq!(
                in_file(&[of_model], names).unwrap(),
                [expected],
                "{names:?}"
            );
        }
        let names: WeightNames = &[(r"^a\$", "conv1")];
        assert_eq!(in_file(&["conv1.weight"], names).unwrap(), ["a$.weight"]);
        assert_eq!(in_file(&["norm.gamma"], names).unwrap(), ["norm.gamma"]);
    }

    #[test]
    fn renames_without_a_way_back_are_named() {
        for names in [
            &[(r"^(features|net)\.0\.", "conv1.")] as WeightNames,
            &[(r"^layer\d\.", "conv1.")],
            &[("^a|b", "conv1.")],
            &[("^(a(b))", "$1$2")],
            &[("^(a)", "$1$1")],
            &[("^(?:a)", "conv1")],
            &[("^a*", "conv1.")],
            &[("^(a", "$1")],
        ] {
            let error = in_file(&["conv1.weight"], names).unwrap_err();
            assert!(error.starts_with("TODO(model.weights): "), "{error}");
            assert!(error.contains(&format!("{:?}", names[0].0)), "{error}");
        }
        // Another name of the model is renamed on its way in.
        let error = in_file(&["conv2.weight"], &[("^conv2", "conv1")]).unwrap_err();
        assert!(
            error.contains("which they read as `conv1.weight`"),
            "{error}"
        );
        // Both would have one name.
        let names: WeightNames = &[("a", "b")];
        assert!(in_file(&["b", "a"], names).is_err());
    }
}
