//! Conflict markers: their length, their labels, and those that are left in a text.

use super::merge::Labels;

/// Default length of conflict markers.
const MARKER: usize = 7;

/// A length of conflict markers with which no line of the texts starts.
pub(crate) fn marker_length(texts: &[&str]) -> usize {
    let lines = texts.iter().flat_map(|text| text.lines());
    let longest = lines.filter_map(|line| {
        let first = line.chars().next().filter(|c| "<|=>".contains(*c))?;
        Some(line.chars().take_while(|c| *c == first).count())
    });
    longest
        .filter(|length| *length >= MARKER)
        .max()
        .map_or(MARKER, |longest| longest + 1)
}

/// Counts the conflicts in a text and puts the labels into its markers.
pub(crate) fn label(marked: &str, length: usize, labels: Labels<'_>) -> (usize, String) {
    let mut text = String::with_capacity(marked.len());
    let mut count = 0;
    for line in marked.split_inclusive('\n') {
        let first = line.chars().next().filter(|c| "<|>".contains(*c));
        let run = first.map_or(0, |first| line.chars().take_while(|c| *c == first).count());
        let label = match first {
            _ if run != length => None,
            Some('<') => Some(labels.mine),
            Some('|') => Some(labels.base),
            Some('>') => Some(labels.new),
            _ => None,
        };
        match label {
            None => text.push_str(line),
            Some(label) => {
                count += usize::from(line.starts_with('<'));
                text.push_str(&line[..length]);
                text.push(' ');
                text.push_str(label);
                text.push_str(&line[line.trim_end_matches(['\r', '\n']).len()..]);
            }
        }
    }
    (count, text)
}

/// The lines, from 1, with conflict markers of this length.
pub(crate) fn marked_lines(text: &str, length: usize) -> Vec<usize> {
    let lines = (1..).zip(text.lines());
    lines
        .filter(|(_, line)| "<|=>".chars().any(|mark| is_marker(line, mark, length)))
        .map(|(at, _)| at)
        .collect()
}

/// The lines, from 1, at which whole conflicts begin: three markers of equal length in sequence, of
/// this length if given.
pub(crate) fn conflicts(text: &str, only: Option<usize>) -> Vec<usize> {
    let mut found = Vec::new();
    if !text.contains(&"<".repeat(MARKER)) {
        return found;
    }
    // The line and length of the first marker, and whether the middle one was seen.
    let mut open: Option<(usize, usize, bool)> = None;
    for (at, line) in (1..).zip(text.lines()) {
        let length = line.chars().take_while(|c| *c == '<').count();
        let counts = length >= MARKER && only.is_none_or(|only| only == length);
        if counts && is_marker(line, '<', length) {
            open = Some((at, length, false));
        } else if let Some((start, length, middle)) = open {
            if is_marker(line, '=', length) {
                open = Some((start, length, true));
            } else if middle && is_marker(line, '>', length) {
                found.push(start);
                open = None;
            }
        }
    }
    found
}

/// Whether a line is a conflict marker: so many of these characters, and a label if any.
fn is_marker(line: &str, mark: char, length: usize) -> bool {
    let rest = line.trim_start_matches(mark);
    line.len() - rest.len() == length && (rest.is_empty() || rest.starts_with(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_found_with_their_lines() {
        let marked = "x\n<<<<<<< yours\nmine\n||||||| old\nb\n=======\nnew\n>>>>>>> new\ny\n";
        assert_eq!(conflicts(marked, None), [2]);
        // The text has markers of its own.
        assert!(conflicts(marked, Some(8)).is_empty());
        assert_eq!(marked_lines(marked, MARKER), [2, 4, 6, 8]);
        // One that was forgotten.
        assert_eq!(marked_lines("x\nmine\n>>>>>>> new\ny\n", MARKER), [3]);
        let no_conflict = "Title\n=======\n<<<<<<<< longer\n=======\n>>>>>>> c\n";
        assert!(conflicts(no_conflict, None).is_empty());
        assert!(marked_lines(no_conflict, 9).is_empty());
    }
}
