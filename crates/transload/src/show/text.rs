//! Text of others, on a terminal.

/// The text with its control characters escaped, which would move the cursor or worse. Nothing else changes:
/// quotes, marks and letters of any script are what they are.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() {
            true => printable.extend(letter.escape_default()),
            false => printable.push(letter),
        }
    }
    printable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_control_characters_are_escaped() {
        for (text, shown) in [
            ("slot1/m \\ \"quoted\" 'so'", "slot1/m \\ \"quoted\" 'so'"),
            ("ключ, e\u{301}, \u{301}x", "ключ, e\u{301}, \u{301}x"),
            ("a\nb\u{1b}[2J\u{9b}\u{7f}", "a\\nb\\u{1b}[2J\\u{9b}\\u{7f}"),
        ] {
            assert_eq!(printable(text), shown);
        }
    }
}
