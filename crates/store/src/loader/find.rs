//! The search for a scheme's library.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::error::LoadError;

/// The environment variable with the folder of libraries. As an extension, several folders may be separated by `:`. The
/// system's loader is called last.
pub const SEARCH_PATH: &str = "KV_STORE_LIBRARY_PATH";

/// Returns the file name of a scheme's library: `libkv_store_foo.so`.
///
/// # Errors
/// [`LoadError::Scheme`] unless [`StoreUri::scheme`](crate::StoreUri::scheme) can return it: the scheme becomes part of
/// a path and must not contain one.
pub(super) fn file_name(scheme: &str) -> Result<String, LoadError> {
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_+-.".contains(c);
    if !scheme.starts_with(|c: char| c.is_ascii_lowercase()) || !scheme.chars().all(letters) {
        return Err(LoadError::Scheme { scheme: scheme.into() });
    }
    Ok(format!("{}kv_store_{scheme}{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX))
}

/// Returns the files to try, in order, before the system's loader is called.
pub(super) fn places(file: &str) -> Vec<PathBuf> {
    env::var_os(SEARCH_PATH).map(|path| places_in(&path, file)).unwrap_or_default()
}

fn places_in(path: &OsStr, file: &str) -> Vec<PathBuf> {
    env::split_paths(path)
        // Ignore an empty part. It is most likely a mistake and not meant as the current folder.
        .filter(|folder| folder != Path::new(""))
        .map(|folder| folder.join(file))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_is_never_a_path() {
        for scheme in ["", "../x", "a/b", "A", "/x", ".x", "a\0b", "é"] {
            let error = file_name(scheme).unwrap_err();
            assert!(matches!(error, LoadError::Scheme { .. }), "{scheme}");
        }
        assert!(file_name("foo").unwrap().starts_with("libkv_store_foo."));
    }

    #[test]
    fn looks_into_each_folder_in_order() {
        assert_eq!(places_in(OsStr::new("/a::/b/"), "x.so"), [PathBuf::from("/a/x.so"), PathBuf::from("/b/x.so")]);
        assert!(places_in(OsStr::new(""), "x.so").is_empty());
    }
}
