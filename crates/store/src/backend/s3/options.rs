//! `s3://bucket[/path...]`, and what else there is to choose.

use std::fmt;
use std::time::Duration;

use crate::uri::{StoreUri, UriError};

/// How to talk to a store. Credentials, region and endpoint come from the environment, as every S3 client
/// reads them, unless a program sets them by [`with_config`](Self::with_config).
#[derive(Clone, Debug)]
pub struct S3Options {
    /// Requests under way at a time. 64.
    pub concurrency: usize,
    /// How many bytes of chunks may wait for the store before `put_chunk` waits; a single larger chunk is
    /// taken too. 128 MiB.
    pub pending_bytes: usize,
    /// How many bytes of prefetched chunks are kept until they are read. 128 MiB.
    pub ahead_bytes: usize,
    /// Values longer than this are put and read in parts of this length. 16 MiB; S3 allows no less than 5 MiB.
    pub part_bytes: usize,
    /// How long one request may take, its transfer included, which is at most [`part_bytes`](Self::part_bytes).
    /// 60 s.
    pub timeout: Duration,
    /// For how long after its beginning a request that failed is tried again, at most ten times. Longer than
    /// [`timeout`](Self::timeout), or one that took too long would not be. 3 min; ten attempts at a server that
    /// refuses at once take about one. What is answered with 501 is not tried again.
    pub retry: Duration,
    /// A chunk that is found there is written anew if it is older than this, so that no collection takes it
    /// from under a save. Collections with a grace period below twice as much are refused. 20 min.
    pub refresh: Duration,
    /// Further settings of the client; [`with_config`](Self::with_config) adds to them.
    pub config: Config,
}

/// Keys that `AmazonS3ConfigKey` knows, and their values. The values may be secrets: `Debug` shows the keys alone.
#[derive(Clone, Default)]
pub struct Config(pub Vec<(String, String)>);

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(key, _)| key)).finish()
    }
}

impl S3Options {
    /// Sets what the environment would: `aws_endpoint_url`, `aws_allow_http`, and all other keys that
    /// `AmazonS3ConfigKey` knows.
    pub fn with_config(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.0.push((key.into(), value.into()));
        self
    }
}

impl Default for S3Options {
    fn default() -> Self {
        Self {
            concurrency: 64,
            pending_bytes: 128 << 20,
            ahead_bytes: 128 << 20,
            part_bytes: 16 << 20,
            timeout: Duration::from_secs(60),
            retry: Duration::from_secs(180),
            refresh: Duration::from_secs(20 * 60),
            config: Config::default(),
        }
    }
}

/// The longest path of a root, in bytes: S3 has 1,024 for a key, and names of ours take less than 600.
const MAX_PATH: usize = 400;

/// The bucket, and the segments of the path in it.
pub(super) fn parse(uri: &StoreUri) -> Result<(String, Vec<String>), UriError> {
    if uri.scheme() != "s3" {
        return Err(uri.wrong("its scheme is not s3"));
    }
    let rest = uri.rest();
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
    let letters = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if bucket.is_empty() || !bucket.chars().all(letters) {
        return Err(uri.wrong("it names no bucket, as in s3://bucket/path"));
    }
    if path.len() > MAX_PATH {
        return Err(uri.wrong(format!("its path is longer than {MAX_PATH} bytes")));
    }
    let segments: Vec<String> = match path {
        "" => Vec::new(),
        path => path.split('/').map(str::to_owned).collect(),
    };
    for segment in &segments {
        // What else there is would be written differently by different clients.
        if segment.is_empty()
            || segment.chars().all(|c| c == '.')
            || !segment.chars().all(|c| letters(c) || "=@+, ".contains(c))
        {
            return Err(uri.wrong(format!("`{segment}` cannot be a part of its path: letters, digits and -._=@+, can")));
        }
    }
    Ok((bucket.to_owned(), segments))
}

/// Whether a setting is on, written in any way that the crate for S3 takes.
pub(super) fn truth(setting: &str) -> bool {
    ["1", "true", "on", "yes", "y"].iter().any(|yes| setting.eq_ignore_ascii_case(yes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_is_written_in_many_ways() {
        assert!(["1", "true", "True", "ON", "yes", "Y"].into_iter().all(truth));
        assert!(!["", "0", "false", "off", "no", "2"].into_iter().any(truth));
    }

    #[test]
    fn takes_a_uri_apart() {
        let parse = |uri: &str| parse(&uri.parse().unwrap());
        for uri in ["s3://b", "s3://b/"] {
            assert_eq!(parse(uri).unwrap(), ("b".into(), vec![]));
        }
        let (bucket, path) = parse("s3://my-bucket.x/kv/slot=1/").unwrap();
        assert_eq!((bucket.as_str(), path), ("my-bucket.x", vec!["kv".into(), "slot=1".into()]));
        let long = format!("s3://b/{}", "x".repeat(401));
        for uri in ["s3://", "s3:///x", "s3://b//x", "s3://b/../x", "s3://b/x?y", "redis://b", &long] {
            assert!(parse(uri).is_err(), "{uri}");
        }
    }
}
