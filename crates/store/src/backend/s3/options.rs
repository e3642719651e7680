//! Addresses of the form `s3://bucket[/path...]`, and options.

use std::fmt;
use std::time::Duration;

use crate::uri::{StoreUri, UriError};

/// Options of a connection to an S3 store. Credentials, region and endpoint come from the environment, as for other S3
/// clients, unless a program sets them with [`with_config`](Self::with_config).
#[derive(Clone, Debug)]
pub struct S3Options {
    /// The maximum number of concurrent requests. The default is 64.
    pub concurrency: usize,
    /// The number of unacknowledged bytes of chunks at which `put_chunk` waits. A single larger chunk is accepted too.
    /// The default is 128 MiB.
    pub pending_bytes: usize,
    /// The maximum bytes of prefetched chunks that wait to be read. The default is 128 MiB.
    pub ahead_bytes: usize,
    /// The length of a part. Longer values are put and read in parts. The default is 16 MiB; S3 allows no less than 5
    /// MiB.
    pub part_bytes: usize,
    /// The time limit of one request, including its transfer, which is at most [`part_bytes`](Self::part_bytes). The
    /// default is 60 s.
    pub timeout: Duration,
    /// The time after the start of a request during which it is retried, at most ten times. It should be longer than
    /// [`timeout`](Self::timeout), since otherwise a request that timed out is not retried. The default is 3 min; ten
    /// attempts at a server that refuses at once take about one. A 501 is not retried.
    pub retry: Duration,
    /// The age from which a put of an existing chunk writes it again, so that no collection removes it during the save.
    /// Collections with a grace period below twice this age are refused. The default is 20 min.
    pub refresh: Duration,
    /// Further settings of the client; [`with_config`](Self::with_config) adds to them.
    pub config: Config,
}

/// Settings as keys and values. The values may be secrets.
#[derive(Clone, Default)]
pub struct Config(pub Vec<(String, String)>);

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(key, _)| key)).finish()
    }
}

impl S3Options {
    /// Sets an option in place of the environment: `aws_endpoint_url`, `aws_allow_http`, and all other keys that
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

/// The maximum length of a root's path in bytes. S3 keys have 1,024 at most, and the names below a root under 600.
const MAX_PATH: usize = 400;

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
        // Different clients would encode other characters differently.
        if segment.is_empty()
            || segment.chars().all(|c| c == '.')
            || !segment.chars().all(|c| letters(c) || "=@+, ".contains(c))
        {
            return Err(uri.wrong(format!("`{segment}` cannot be a part of its path: letters, digits and -._=@+, can")));
        }
    }
    Ok((bucket.to_owned(), segments))
}

/// Tells whether a boolean setting is on, in any spelling that `object_store` accepts.
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
