//! The grammar of physical orders, which nest the axes in memory.
//!
//! An order lists axes, outermost first.
//!
//! | text | meaning |
//! |---|---|
//! | `LBSHC` | any permutation of the five axes (`N` may stand for `S`, as vLLM writes it) |
//! | `NHD`, `HND` | `LBSHC` and `LBHSC` |
//! | `[0,1,3,2,4]` | the same as indices into `[L, B, S, H, C]`: `LBHSC` |
//! | `KLBSHD` | `C` written as key/value `K` and element `D`: a pool of keys, then one of values |
//! | `LBH[DS,SD]` | after shared outer axes, each component has its own order; they lie one after another |
//!
//! An axis that always has extent 1 (`H` of a latent cache, `S` of a recurrent one) may be left out.

use std::fmt;

use smallvec::SmallVec;
use thiserror::Error;

use crate::spec::Geometry;

/// A letter of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Letter {
    /// Layer slots.
    L,
    /// Blocks.
    B,
    /// States of a block.
    S,
    /// Heads.
    H,
    /// Content: all components of one state of one head, one after another.
    C,
    /// Key or value.
    K,
    /// Elements of a key, a value, or another component's content.
    D,
}

impl Letter {
    fn from_char(c: char) -> Option<Self> {
        Some(match c {
            'L' => Letter::L,
            'B' => Letter::B,
            'S' | 'N' => Letter::S,
            'H' => Letter::H,
            'C' => Letter::C,
            'K' => Letter::K,
            'D' => Letter::D,
            _ => return None,
        })
    }
}

impl fmt::Display for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Letters, outermost first.
pub type Letters = SmallVec<[Letter; 6]>;

/// A physical order that is well-formed. Whether it fits a spec is checked during placement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Order {
    /// The axes that all components share, outermost first.
    pub shared: Letters,
    /// The inner axes of each component, if the order has brackets.
    pub apart: Option<Vec<Letters>>,
}

/// Describes why a text is not an order, or not one for this spec.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OrderError {
    /// The text contains a character that is not an axis.
    #[error("'{found}' is not an axis: an order consists of L, B, S (or N), H and C, with C also as K and D")]
    UnknownLetter {
        /// The character.
        found: char,
    },
    /// An axis occurs twice.
    #[error("axis {letter} is given twice")]
    Repeated {
        /// The axis.
        letter: Letter,
    },
    /// An axis is missing.
    #[error("axis {letter} is missing: every order has L, B, S, H and C (or D)")]
    Missing {
        /// The axis.
        letter: Letter,
    },
    /// `C` occurs together with `K` or `D`, which are its parts.
    #[error("C cannot be combined with K or D, which are its parts")]
    ContentTwice,
    /// `K` occurs together with brackets, which already separate keys and values.
    #[error(
        "K has no place beside brackets, which give the key and the value an order each already, as \
         in L[BSHD,BSHD]"
    )]
    KeyValueTwice,
    /// `C` or `D` occurs outside of the brackets, where all components would share it.
    #[error("{letter} belongs inside of the brackets, into every order, as in LBSH[D,D]")]
    ContentShared {
        /// The axis.
        letter: Letter,
    },
    /// A bracket is empty, or has nothing between two commas.
    #[error("an order in the brackets is empty: each component has one, as in LBSH[D,D]")]
    EmptyPart,
    /// A bracket is not closed, or something follows it.
    #[error("a bracket must be closed and end the order, as in LBH[DS,SD]")]
    Bracket,
    /// An array is not a permutation of 0..5.
    #[error("a stride-order array is a permutation of [0, 1, 2, 3, 4], which are L, B, S, H, C")]
    Array,
    /// A bracket has more or fewer orders than the spec has components.
    #[error("the bracket gives {given} orders, but a spec of kind {kind} has {components} components")]
    ComponentCount {
        /// The number of orders in the bracket.
        given: usize,
        /// The kind of the spec.
        kind: &'static str,
        /// The number of the spec's components.
        components: usize,
    },
    /// `K` occurs, but the spec has no keys and values.
    #[error("K (key or value) is not an axis of a spec of kind {kind}")]
    NoKeyValue {
        /// The kind of the spec.
        kind: &'static str,
    },
    /// `K` is separated from `D`, but keys and values differ in width.
    #[error(
        "K outside D needs keys and values of one width, but head_dim is {head_dim} and v_head_dim \
         {v_head_dim}; give each component an order, as in L[BSHD,BSHD]"
    )]
    UnequalWidths {
        /// The elements of a key.
        head_dim: u64,
        /// The elements of a value.
        v_head_dim: u64,
    },
    /// A group of several specs has another order than pages.
    #[error(
        "a group of several specs is ordered by pages, which are laid out in one way only: write LB, or \
         nothing"
    )]
    NotPages,
}

impl Order {
    /// Returns `LBSHC`, also called NHD: the identity, and the default.
    pub fn nhd() -> Self {
        use Letter::{B, C, H, L, S};
        Self::flat(&[L, B, S, H, C])
    }

    fn flat(letters: &[Letter]) -> Self {
        Self { shared: letters.into(), apart: None }
    }

    /// Returns `LB`: pages of several specs, one for each layer and block.
    pub(crate) fn pages() -> Self {
        Self::flat(&[Letter::L, Letter::B])
    }

    /// Returns the default order of a kind of spec: `LBSHC`, or `LB[SD,SD]` if its components lie apart in every block.
    pub(crate) fn of_kind(geometry: &Geometry) -> Self {
        if !geometry.components_apart {
            return Self::nhd();
        }
        let own: Letters = [Letter::S, Letter::D].as_slice().into();
        Self { apart: Some(vec![own; geometry.components.len()]), ..Self::pages() }
    }

    /// Parses the text of an order.
    ///
    /// # Errors
    /// Returns an error if a letter is unknown or repeated, or a bracket is not closed or has an empty part.
    ///
    /// ```
    /// use transload_layout::order::Order;
    /// assert_eq!(Order::parse("HND"), Order::parse("LBHNC"));
    /// assert_eq!(Order::parse("LBHSC").unwrap().to_string(), "LBHSC");
    /// assert!(Order::parse("LBSHH").is_err());
    /// ```
    pub fn parse(text: &str) -> Result<Self, OrderError> {
        match text {
            "NHD" => return Ok(Self::nhd()),
            "HND" => return Self::parse("LBHSC"),
            _ => {}
        }
        let Some((shared, rest)) = text.split_once('[') else {
            let shared = letters(text)?;
            unrepeated(&shared)?;
            return Ok(Self { shared, apart: None });
        };
        let shared = letters(shared)?;
        let inside = rest.strip_suffix(']').ok_or(OrderError::Bracket)?;
        if inside.contains(['[', ']']) {
            return Err(OrderError::Bracket);
        }
        let mut apart = Vec::new();
        for own in inside.split(',') {
            let own = letters(own.trim())?;
            if own.is_empty() {
                return Err(OrderError::EmptyPart);
            }
            unrepeated(&shared.iter().chain(&own).copied().collect())?;
            apart.push(own);
        }
        Ok(Self { shared, apart: Some(apart) })
    }

    /// Converts a stride-order array: indices into `[L, B, S, H, C]`, outermost first.
    ///
    /// # Errors
    /// Returns an error unless it is a permutation of 0..5.
    pub fn from_stride_order(array: &[u64]) -> Result<Self, OrderError> {
        use Letter::{B, C, H, L, S};
        let mut shared = Letters::new();
        for index in array {
            let letter =
                usize::try_from(*index).ok().and_then(|i| [L, B, S, H, C].get(i).copied()).ok_or(OrderError::Array)?;
            shared.push(letter);
        }
        if array.len() != 5 || unrepeated(&shared).is_err() {
            return Err(OrderError::Array);
        }
        Ok(Self { shared, apart: None })
    }
}

fn letters(text: &str) -> Result<Letters, OrderError> {
    text.chars().map(|found| Letter::from_char(found).ok_or(OrderError::UnknownLetter { found })).collect()
}

fn unrepeated(letters: &Letters) -> Result<(), OrderError> {
    for (i, letter) in letters.iter().enumerate() {
        if letters[..i].contains(letter) {
            return Err(OrderError::Repeated { letter: *letter });
        }
    }
    let content = letters.contains(&Letter::C);
    if content && (letters.contains(&Letter::K) || letters.contains(&Letter::D)) {
        return Err(OrderError::ContentTwice);
    }
    Ok(())
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.iter().try_for_each(|l| write!(f, "{l}"))?;
        if let Some(apart) = &self.apart {
            for (i, own) in apart.iter().enumerate() {
                f.write_str(if i == 0 { "[" } else { "," })?;
                own.iter().try_for_each(|l| write!(f, "{l}"))?;
            }
            f.write_str("]")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_names_and_arrays_agree() {
        let hnd = Order::parse("LBHSC").unwrap();
        assert_eq!(Order::parse("HND"), Ok(hnd.clone()));
        assert_eq!(Order::parse("LBHNC"), Ok(hnd.clone()));
        assert_eq!(Order::from_stride_order(&[0, 1, 3, 2, 4]), Ok(hnd));
        assert_eq!(Order::parse("NHD").unwrap().to_string(), "LBSHC");
    }

    #[test]
    fn brackets_keep_their_components() {
        let order = Order::parse("LBH[DS, SD]").unwrap();
        assert_eq!(order.to_string(), "LBH[DS,SD]");
        assert_eq!(order.apart.unwrap().len(), 2);
    }

    #[test]
    fn each_mistake_has_its_own_error() {
        use OrderError as E;
        let cases = [
            ("LBSHX", E::UnknownLetter { found: 'X' }),
            ("LBSSC", E::Repeated { letter: Letter::S }),
            ("LBSNC", E::Repeated { letter: Letter::S }),
            ("LBSHCD", E::ContentTwice),
            ("LBH[DS,SD", E::Bracket),
            ("LBH[DS,SD]C", E::Bracket),
            ("LBH[DS,[SD]]", E::Bracket),
            ("LBH[DB,SD]", E::Repeated { letter: Letter::B }),
            ("LBSH[]", E::EmptyPart),
            ("LBSH[D,]", E::EmptyPart),
            ("LBSH[D, ,D]", E::EmptyPart),
        ];
        for (text, error) in cases {
            assert_eq!(Order::parse(text), Err(error), "{text}");
        }
        assert_eq!(Order::from_stride_order(&[0, 1, 1, 2, 4]), Err(E::Array));
        assert_eq!(Order::from_stride_order(&[0, 1, 2, 3]), Err(E::Array));
        assert_eq!(Order::from_stride_order(&[0, 1, 2, 3, 9]), Err(E::Array));
    }
}
