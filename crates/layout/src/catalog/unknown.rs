//! Families that the catalog does not have.

use thiserror::Error;

use super::refused;
use crate::document::{Value, nearest};

/// The error for a family that is not in the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", self.text())]
pub struct UnknownFamily {
    /// The `model_type`.
    pub family: String,
    /// The known families with the most similar names, the nearest first.
    pub nearest: Vec<&'static str>,
    /// The data that no kind of spec describes, if that is the reason why the family is not in the catalog.
    pub why: Option<&'static str>,
}

impl UnknownFamily {
    const NEAREST: usize = 5;

    pub(super) fn of(family: &str, known: Vec<&'static str>) -> Self {
        // Prefer names with the same stem: a new release of a family usually differs in what follows its name.
        fn stem(name: &str) -> &str {
            let end = name.find(|letter: char| !letter.is_ascii_alphabetic());
            name.get(..end.unwrap_or(name.len())).unwrap_or(name)
        }
        let mut nearest: Vec<_> = nearest(family, &known).collect();
        nearest.sort_by_key(|known| stem(family).is_empty() || stem(known) != stem(family));
        nearest.truncate(Self::NEAREST);
        Self { family: family.to_owned(), nearest, why: refused::why(family) }
    }

    fn text(&self) -> String {
        let family = Value::Text(self.family.clone()).describe();
        match self.why {
            Some(why) => {
                format!("model_type: {family} is refused: {why}; no kind of spec says that")
            }
            None => {
                format!(
                    "model_type: {family} is not a model family of the catalog; the nearest are {}",
                    self.nearest.join(", ")
                )
            }
        }
    }
}
