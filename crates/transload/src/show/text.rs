//! Untrusted text on a terminal.

/// Escapes control characters, which could move the cursor or worse. Everything else, such as quotes and letters of any
/// script, is kept.
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
