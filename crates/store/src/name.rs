//! The name of a manifest.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use crate::error::StoreError;

/// The name of a manifest: any UTF-8 of at most 1,024 bytes without NUL, the empty name included.
///
/// It is never a path: `../x`, `/etc/passwd` and `chunks` are names like others, and every backend escapes
/// or hashes them before they touch anything outside.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ManifestName(String);

impl ManifestName {
    /// The longest name, in bytes.
    pub const MAX: usize = 1024;

    /// Takes a name.
    ///
    /// # Errors
    /// [`StoreError::Name`] if it is too long or contains a NUL.
    pub fn new(name: impl Into<String>) -> Result<Self, StoreError> {
        let name = name.into();
        let wrong = |why| Err(StoreError::Name { name: name.chars().take(64).collect(), why });
        if name.len() > Self::MAX {
            return wrong("it is longer than 1024 bytes");
        }
        if name.contains('\0') {
            return wrong("it contains a NUL byte");
        }
        Ok(Self(name))
    }

    /// Returns the name, unchanged.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ManifestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for ManifestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManifestName({:?})", self.0)
    }
}

impl Borrow<str> for ManifestName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for ManifestName {
    type Err = StoreError;

    fn from_str(name: &str) -> Result<Self, StoreError> {
        Self::new(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_any_text_and_no_nul() {
        for name in ["", "../x", "/", "chunks", "a\nb", "ключ", &"x".repeat(1024)] {
            assert_eq!(ManifestName::new(name).unwrap().as_str(), name);
        }
        for name in ["a\0b".to_owned(), "x".repeat(1025), "é".repeat(513)] {
            assert!(matches!(ManifestName::new(name), Err(StoreError::Name { .. })));
        }
    }
}
