//! Where a store is: `scheme://rest`.

use std::fmt;
use std::str::FromStr;

/// A store's URI, taken apart no further than every store needs: the scheme chooses the backend, and the
/// backend reads the rest.
///
/// Secrets have no place in it, since URIs end up in logs and process lists: user information with a
/// password (`redis://:secret@host`) is refused here for all schemes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoreUri {
    text: String,
    scheme: usize,
}

/// Why a text is not the URI of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UriError {
    /// There is no scheme.
    #[error("`{uri}` is not a store's URI: it begins with a scheme, as in file:///var/kv")]
    NoScheme {
        /// What was given.
        uri: String,
    },
    /// There is a password in it. The URI is not repeated.
    #[error("a store's URI must not contain a password: take it out, and set it in the environment")]
    Secret,
    /// The rest does not fit the scheme.
    #[error("`{uri}` is not a store's URI: {why}")]
    Wrong {
        /// What was given.
        uri: String,
        /// What would be right.
        why: String,
    },
}

impl StoreUri {
    /// The scheme: `file`, `redis`, `s3`, or the name in somebody's `libkv_store_<scheme>.so`. Lower-case
    /// letters, digits, `_`, `+`, `-` and `.`, a letter first; so it is never a path.
    pub fn scheme(&self) -> &str {
        &self.text[..self.scheme]
    }

    /// What follows `scheme://`.
    pub fn rest(&self) -> &str {
        &self.text[self.scheme + 3..]
    }

    /// The URI as it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// An error about this URI.
    pub fn wrong(&self, why: impl Into<String>) -> UriError {
        UriError::Wrong { uri: self.text.clone(), why: why.into() }
    }
}

impl fmt::Display for StoreUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl FromStr for StoreUri {
    type Err = UriError;

    fn from_str(uri: &str) -> Result<Self, UriError> {
        let (scheme, rest) = uri.split_once("://").unwrap_or(("", uri));
        // Before any message could repeat it, and in every URI that stands in this one.
        let secret = |rest: &str| {
            let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
            let user = authority.rsplit_once('@').map(|(user, _)| user);
            user.is_some_and(|user| user.contains(':'))
        };
        if secret(rest) || rest.split("://").skip(1).any(secret) {
            return Err(UriError::Secret);
        }
        let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_+-.".contains(c);
        if !scheme.starts_with(|c: char| c.is_ascii_lowercase()) || !scheme.chars().all(letters) {
            return Err(UriError::NoScheme { uri: uri.into() });
        }
        if uri.contains('\0') {
            return Err(UriError::Wrong { uri: uri.replace('\0', "\\0"), why: "it contains a NUL byte".into() });
        }
        Ok(Self { text: uri.into(), scheme: scheme.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_scheme_and_a_rest() {
        let uri: StoreUri = "file:///var/kv".parse().unwrap();
        assert_eq!((uri.scheme(), uri.rest()), ("file", "/var/kv"));
        let uri: StoreUri = "s3://bucket/a://b".parse().unwrap();
        assert_eq!((uri.scheme(), uri.rest()), ("s3", "bucket/a://b"));
        assert_eq!("redis://user@host:1/0".parse::<StoreUri>().unwrap().rest(), "user@host:1/0");
    }

    #[test]
    fn refuses_what_is_none_and_never_repeats_a_password() {
        for uri in ["", "/var/kv", "://x", "../x://y", "Fi le://x", "9p://x"] {
            let error = uri.parse::<StoreUri>().unwrap_err();
            assert!(matches!(error, UriError::NoScheme { .. }), "{uri}: {error}");
        }
        for uri in ["redis://:hunter2@host", "../redis://me:hunter2@host/0", "me:hunter2@host"] {
            let error = uri.parse::<StoreUri>().unwrap_err();
            assert_eq!(error, UriError::Secret);
            assert!(!error.to_string().contains("hunter2"));
        }
        assert!("file:///a\0b".parse::<StoreUri>().is_err());
    }
}
