//! Names that a user may have meant.

/// The name in `others` that resembles `name` most, with its similarity from 0 to 1, if one does.
///
/// Source: the normalised Levenshtein distance of `strsim`.
pub(crate) fn nearest<S: AsRef<str>>(
    name: &str,
    others: impl IntoIterator<Item = S>,
) -> Option<(f64, S)> {
    let similarity = |other: &S| strsim::normalized_levenshtein(name, other.as_ref());
    let others = others.into_iter().map(|other| (similarity(&other), other));
    let nearest = others.max_by(|(one, _), (other, _)| one.total_cmp(other));
    nearest.filter(|(similarity, _)| *similarity >= 0.5)
}
