//! The contents of a manifest, for display.

use std::fmt::Write;

use serde::Serialize;
use transload::store::ManifestName;

use super::{archive, objects};

/// The most bytes shown of a manifest that is not text: 16 lines.
const HEX_BYTES: usize = 256;

const TEXT_BYTES: usize = 4096;

/// The recognised contents of a manifest. Formats with magic bytes are tried before text.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Contents {
    Empty,
    Archive(archive::Shown),
    Object(objects::Shown),
    /// UTF-8 without control characters except line ends and tabs; the beginning if it is long.
    Text(String),
    /// The first bytes of anything else in hex.
    Hex(String),
}

impl Contents {
    pub(super) fn of(name: &ManifestName, manifest: &[u8]) -> Self {
        if manifest.is_empty() {
            return Self::Empty;
        }
        if let Some(record) = archive::Shown::of(name, manifest) {
            return Self::Archive(record);
        }
        if let Some(object) = objects::Shown::of(name, manifest) {
            return Self::Object(object);
        }
        let readable = |text: &&str| !text.chars().any(|c| c.is_control() && !"\n\r\t".contains(c));
        match std::str::from_utf8(manifest).ok().filter(readable) {
            Some(text) => Self::Text(text[..text.floor_char_boundary(TEXT_BYTES)].to_owned()),
            None => {
                let first = manifest.iter().take(HEX_BYTES);
                Self::Hex(first.map(|byte| format!("{byte:02x}")).collect())
            }
        }
    }

    /// Formats the contents for a terminal; `of` is the whole manifest.
    pub(super) fn lines(&self, of: &[u8]) -> String {
        let (mut lines, shown) = match self {
            Self::Empty => return " it is empty\n".to_owned(),
            Self::Archive(record) => return record.lines(),
            Self::Object(object) => return object.lines(),
            Self::Text(text) => {
                // A carriage return would move the cursor.
                let lines = text.lines().map(|line| format!(" {}\n", line.replace('\r', "\\r")));
                (lines.collect::<String>(), text.len())
            }
            Self::Hex(_) => {
                let shown = of.len().min(HEX_BYTES);
                (dump(&of[..shown]), shown)
            }
        };
        if shown < of.len() {
            let _ = writeln!(lines, " … {} bytes more", of.len() - shown);
        }
        lines
    }
}

/// Formats lines of an offset, 16 bytes in hex, and their printable characters.
fn dump(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (line, bytes) in bytes.chunks(16).enumerate() {
        let mut hex = String::new();
        for (at, byte) in bytes.iter().enumerate() {
            let gap = if at == 8 { " " } else { "" };
            let _ = write!(hex, "{gap}{byte:02x} ");
        }
        let printed = bytes.iter().map(|byte| match byte {
            b' '..=b'~' => char::from(*byte),
            _ => '.',
        });
        let printed: String = printed.collect();
        let _ = writeln!(text, " {:06x}  {hex:<50} {printed}", line * 16);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(manifest: &[u8]) -> Contents {
        Contents::of(&"slot0".parse().expect("a name"), manifest)
    }

    #[test]
    fn text_is_shown_as_text_and_the_rest_in_hex() {
        assert_eq!(of(b""), Contents::Empty);
        assert_eq!(of(b"{\"a\":\n1}").lines(b"{\"a\":\n1}"), " {\"a\":\n 1}\n");
        assert_eq!(of(b"a\rb\r\nc").lines(b"a\rb\r\nc"), " a\\rb\n c\n");
        let escapes = b"\x1b[2J";
        assert_eq!(of(escapes), Contents::Hex("1b5b324a".into()));
        assert_eq!(of(escapes).lines(escapes), format!(" 000000  {:<50} .[2J\n", "1b 5b 32 4a "));
    }

    #[test]
    fn what_is_long_is_cut_and_says_so() {
        let text = "é".repeat(3000);
        let lines = of(text.as_bytes()).lines(text.as_bytes());
        assert!(lines.ends_with("é\n … 1904 bytes more\n"), "{}", lines.len());
        let bytes = [0; 1000];
        let lines = of(&bytes).lines(&bytes);
        assert_eq!(lines.lines().count(), 17);
        assert!(lines.ends_with(" … 744 bytes more\n"));
    }
}
