//! Sets of global layer ids, written as `0-3,7`.

use std::fmt;

use crate::bounds::MAX_LAYERS;

/// Global layer ids, ascending and without duplicates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LayerSet(Vec<u32>);

impl LayerSet {
    /// Parses ranges and commas: `0-79`, `0,4,8-11`.
    ///
    /// # Errors
    /// A message about an empty or inverted range, a duplicate layer, or a layer beyond [`MAX_LAYERS`].
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut ids = Vec::new();
        for part in text.split(',') {
            let part = part.trim();
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |digits: &str| {
                let digits = digits.trim();
                let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
                if !plain {
                    return Err(format!("\"{part}\" is neither a layer nor a range of layers; write ids as 0-3,7"));
                }
                match digits.parse::<u64>() {
                    Ok(id) if id < MAX_LAYERS => Ok(id as u32),
                    _ => Err(format!("layer {digits} is beyond the last, {}", MAX_LAYERS - 1)),
                }
            };
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return Err(format!("the range {part} ends before it starts"));
            }
            ids.extend(first..=last);
            if ids.len() as u64 > MAX_LAYERS {
                return Err(format!("more than {MAX_LAYERS} layers are listed"));
            }
        }
        ids.sort_unstable();
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("layer {} is given twice", pair[0]));
        }
        Ok(Self(ids))
    }

    /// Returns the set of these ids, in any order and possibly repeated. Each must be below [`MAX_LAYERS`].
    pub(crate) fn from_ids(mut ids: Vec<u32>) -> Self {
        ids.sort_unstable();
        ids.dedup();
        Self(ids)
    }

    /// Returns the ids, in ascending order.
    pub fn ids(&self) -> &[u32] {
        &self.0
    }
}

impl fmt::Display for LayerSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, run) in self.0.chunk_by(|a, b| a + 1 == *b).enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            match run {
                [one] => write!(f, "{one}")?,
                [first, .., last] => write!(f, "{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_commas_come_back_as_written() {
        for text in ["0-79", "0,4,8-11", "7"] {
            assert_eq!(LayerSet::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(LayerSet::parse("3,1-2").unwrap().ids(), [1, 2, 3]);
    }

    #[test]
    fn mistakes_say_what_they_are() {
        for (text, part) in [
            ("", "neither a layer"),
            ("a-b", "neither a layer"),
            ("-1", "neither a layer"),
            ("5-3", "ends before"),
            ("0-3,2", "layer 2 is given twice"),
            ("999999999999", "beyond the last"),
        ] {
            let error = LayerSet::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
