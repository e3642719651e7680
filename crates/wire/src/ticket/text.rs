//! base64url without padding (RFC 4648, section 5). It is strict: every byte string has exactly one text.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Marks characters outside of the alphabet.
const NONE: u8 = 64;

const VALUES: [u8; 256] = {
    let mut values = [NONE; 256];
    let mut i = 0;
    while i < 64 {
        values[ALPHABET[i] as usize] = i as u8;
        i += 1;
    }
    values
};

/// The reason why a text is not base64url without padding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum TextError {
    /// A character is not in the alphabet.
    #[error("byte {at} of the ticket's body is not of base64url")]
    Character { at: usize },
    /// The number of characters is impossible, or the unused bits are not zero.
    #[error("the ticket's body was cut off")]
    CutOff,
}

pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte));
        let bits = bits << (8 * (3 - group.len()));
        for i in 0..=group.len() {
            let value = bits >> (18 - 6 * i) & 63;
            text.push(char::from(ALPHABET[value as usize]));
        }
    }
    text
}

pub(super) fn decode(text: &str) -> Result<Vec<u8>, TextError> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for (i, group) in text.as_bytes().chunks(4).enumerate() {
        let mut bits = 0u32;
        for (j, &character) in group.iter().enumerate() {
            let value = VALUES[usize::from(character)];
            if value == NONE {
                return Err(TextError::Character { at: i * 4 + j });
            }
            bits |= u32::from(value) << (18 - 6 * j);
        }
        let whole = match group.len() {
            4 => 3,
            3 => 2,
            2 => 1,
            _ => return Err(TextError::CutOff),
        };
        let [_, group @ ..] = bits.to_be_bytes();
        if group[whole..].iter().any(|&left_over| left_over != 0) {
            return Err(TextError::CutOff);
        }
        bytes.extend_from_slice(&group[..whole]);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn agrees_with_the_vectors_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg"),
            ("fo", "Zm8"),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg"),
            ("fooba", "Zm9vYmE"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Ok(bytes.as_bytes()));
        }
        assert_eq!(encode(&[0xfb, 0xff]), "-_8");
    }

    #[test]
    fn is_strict() {
        assert_eq!(decode("Zm9v="), Err(TextError::Character { at: 4 }));
        assert_eq!(decode("Zm+v"), Err(TextError::Character { at: 2 }));
        assert_eq!(decode("Zm9vY"), Err(TextError::CutOff));
        assert_eq!(decode("Zh"), Err(TextError::CutOff), "bits are left over");
        assert_eq!(decode("Zm9"), Err(TextError::CutOff), "bits are left over");
    }

    proptest! {
        #[test]
        fn comes_back(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(decode(&encode(&bytes)), Ok(bytes));
        }

        #[test]
        fn has_one_text_for_each_string(text in "[A-Za-z0-9_-]{0,40}") {
            if let Ok(bytes) = decode(&text) {
                prop_assert_eq!(encode(&bytes), text);
            }
        }
    }
}
