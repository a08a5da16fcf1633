//! Quoting of words for the platform's shells.

use std::borrow::Cow;

/// Quotes one word for the platform's shells.
pub(crate) fn quote(word: &str) -> Cow<'_, str> {
    if cfg!(windows) {
        windows_word(word)
    } else {
        shell_words::quote(word)
    }
}

/// Quotes one word for the shells of Windows, which do not all support single quotes.
fn windows_word(word: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_alphanumeric() || "-_=.,:/\\+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        Cow::Borrowed(word)
    } else {
        Cow::Owned(format!("\"{}\"", word.replace('"', "\\\"")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        #[cfg(not(windows))]
        fn a_quoted_word_is_one_word(word in "\\PC*") {
            prop_assert_eq!(shell_words::split(&quote(&word)).unwrap(), [word]);
        }
    }

    #[test]
    fn simple_words_stay() {
        for word in ["my-model", "one-device", "a_b", "1.5"] {
            assert_eq!(quote(word), word);
            assert_eq!(windows_word(word), word);
        }
    }

    #[test]
    fn words_of_windows() {
        for (word, quoted) in [
            ("", r#""""#),
            (r"C:\models\a", r"C:\models\a"),
            ("it's one", r#""it's one""#),
            (r#"say "ah""#, r#""say \"ah\"""#),
            ("a&b", r#""a&b""#),
        ] {
            assert_eq!(windows_word(word), quoted);
        }
    }
}
