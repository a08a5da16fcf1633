//! Lines of fields, such as `loss 0.1234`, that fit the width of a terminal, and their numbers.

/// Between fields.
const GAP: &str = "  ";

/// Between groups of fields in one line.
const BETWEEN_GROUPS: &str = "  |  ";

/// A line of those of `fields` that fit `width` columns, in their order. Each has its rank, of which the lowest is the
/// most important.
pub fn fit<R: Ord>(fields: &[(R, String)], width: usize) -> String {
    let mut kept: Vec<usize> = (0..fields.len()).collect();
    kept.sort_by_key(|index| &fields[*index].0); // stable
    let mut left = width + GAP.len();
    kept.retain(|index| {
        let rest = left.checked_sub(columns(&fields[*index].1) + GAP.len());
        left = rest.unwrap_or(left);
        rest.is_some()
    });
    kept.sort_unstable();
    let texts: Vec<&str> = kept.iter().map(|index| fields[*index].1.as_str()).collect();
    texts.join(GAP)
}

/// `head` and all fields: in one line if it has at most `width` columns, or without a `width`, as for files; otherwise
/// in lines that break between groups, and where necessary between fields.
pub fn wrap(head: &str, groups: &[Vec<String>], width: Option<usize>) -> String {
    let texts: Vec<String> = groups.iter().map(|group| group.join(GAP)).collect();
    let line = [head, &texts.join(BETWEEN_GROUPS)].join(GAP);
    let Some(width) = width.filter(|width| columns(&line) > *width) else {
        return line;
    };
    // Below the first group, unless a field is too long for that.
    let longest = groups.iter().flatten().map(|field| columns(field)).max();
    let below = columns(head) + GAP.len();
    let indent = match below + longest.unwrap_or(0) <= width {
        true => " ".repeat(below),
        false => GAP.to_owned(),
    };
    let mut lines = vec![head.to_owned()];
    for (number, group) in groups.iter().enumerate() {
        for (place, field) in group.iter().enumerate() {
            let begins_line = number > 0 && place == 0;
            match lines.last_mut() {
                Some(line)
                    if !begins_line && columns(line) + GAP.len() + columns(field) <= width =>
                {
                    *line += GAP;
                    *line += field;
                }
                _ => lines.push(format!("{indent}{field}")),
            }
        }
    }
    lines.join("\n")
}

/// Formats a number with thousands separators.
pub fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn columns(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line of an epoch with `--throughput`.
    fn epoch(width: Option<usize>) -> String {
        let fields = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let train = [
            "train",
            "loss 1.2076",
            "accuracy 0.6585",
            "0.21 s",
            "26,112 tokens/s",
            "52.3 GFLOP/s (35% of peak)",
        ];
        let validation = ["validation", "loss 0.5256", "accuracy 0.8200"];
        wrap("epoch  1/20", &[fields(&train), fields(&validation)], width)
    }

    #[test]
    fn a_line_breaks_between_fields_and_keeps_them_all() {
        let whole = "epoch  1/20  train  loss 1.2076  accuracy 0.6585  0.21 s  26,112 tokens/s  \
                     52.3 GFLOP/s (35% of peak)  |  validation  loss 0.5256  accuracy 0.8200";
        assert_eq!(epoch(None), whole);
        assert_eq!(epoch(Some(columns(whole))), whole);
        let expected = "\
epoch  1/20  train  loss 1.2076  accuracy 0.6585  0.21 s  26,112 tokens/s  52.3 GFLOP/s (35% of peak)
             validation  loss 0.5256  accuracy 0.8200";
        assert_eq!(epoch(Some(120)), expected);
        let expected = "\
epoch  1/20  train  loss 1.2076  accuracy 0.6585  0.21 s  26,112 tokens/s
             52.3 GFLOP/s (35% of peak)
             validation  loss 0.5256  accuracy 0.8200";
        assert_eq!(epoch(Some(80)), expected);
        let expected = "\
epoch  1/20  train  loss 1.2076  accuracy 0.6585  0.21 s
             26,112 tokens/s  52.3 GFLOP/s (35% of peak)
             validation  loss 0.5256  accuracy 0.8200";
        assert_eq!(epoch(Some(60)), expected);
        let expected = "\
epoch  1/20  train  loss 1.2076
             accuracy 0.6585  0.21 s
             26,112 tokens/s
             52.3 GFLOP/s (35% of peak)
             validation  loss 0.5256
             accuracy 0.8200";
        assert_eq!(epoch(Some(40)), expected);
        // A field that is too long stays whole.
        let narrow = epoch(Some(20));
        assert!(
            narrow.contains("\n  52.3 GFLOP/s (35% of peak)\n"),
            "{narrow}"
        );
    }

    #[test]
    fn fields_leave_by_rank() {
        let fields = [(1, "b"), (0, "aaaa"), (2, "cc"), (1, "d")];
        let fields = fields.map(|(rank, text)| (rank, text.to_owned()));
        let lines = [16, 15, 10, 6, 4, 3].map(|width| fit(&fields, width));
        let expected = [
            "b  aaaa  cc  d",
            "b  aaaa  cc  d",
            "b  aaaa  d",
            "aaaa",
            "aaaa",
            "b",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn numbers_have_commas() {
        let numbers = [0, 999, 1_000, 123_456, 1_234_567].map(thousands);
        assert_eq!(numbers, ["0", "999", "1,000", "123,456", "1,234,567"]);
    }
}
