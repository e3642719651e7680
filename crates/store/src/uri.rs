//! The URI of a store: `scheme://rest`.

use std::fmt;
use std::str::FromStr;

/// The URI of a store. The scheme chooses the backend, and the backend parses the rest.
///
/// It must not contain secrets, since URIs end up in logs and process lists: user information with a password
/// (`redis://:secret@host`) is refused for all schemes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoreUri {
    text: String,
    scheme: usize,
}

/// Says why a text is not the URI of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UriError {
    /// There is no scheme.
    #[error("`{uri}` is not a store's URI: it begins with a scheme, as in file:///var/kv")]
    NoScheme {
        /// The text that was passed.
        uri: String,
    },
    /// The URI contains a password. The error does not repeat the URI.
    #[error("a store's URI must not contain a password: take it out, and set it in the environment")]
    Secret,
    /// The rest of the URI does not fit the scheme.
    #[error("`{uri}` is not a store's URI: {why}")]
    Wrong {
        /// The text that was passed.
        uri: String,
        /// The form of a valid URI.
        why: String,
    },
}

impl StoreUri {
    /// Returns the scheme: `file`, `redis`, `s3`, or the name in a plugin's `libkv_store_<scheme>.so`. It begins with a
    /// lower-case letter and consists of lower-case letters, digits, `_`, `+`, `-` and `.`, so it is never a path.
    pub fn scheme(&self) -> &str {
        &self.text[..self.scheme]
    }

    /// Returns the part after `scheme://`.
    pub fn rest(&self) -> &str {
        &self.text[self.scheme + 3..]
    }

    /// Returns the URI, unchanged.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns an error about this URI.
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
        // Search for passwords before any error could repeat the URI. A tier's URI contains those of other stores, so
        // search them too.
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
