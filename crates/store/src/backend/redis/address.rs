//! Addresses of the form `redis://[user@]host[:port][/db[/prefix...]]`, and options from the environment.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::uri::{StoreUri, UriError};

/// The environment variable with the password.
pub const PASSWORD: &str = "TRANSLOAD_REDIS_PASSWORD";

/// The environment variable with the path of a PEM file of certificate authorities for `rediss://`.
pub const CA_FILE: &str = "TRANSLOAD_REDIS_CA_FILE";

/// Options of a connection. [`Default`] reads no environment; [`from_env`](Self::from_env) does.
#[derive(Clone)]
pub struct RedisOptions {
    /// The password, if the server requires one. A user in the URI is logged in without one too, as servers allow for
    /// users with `nopass`.
    pub password: Option<String>,
    /// A PEM file of the certificate authorities for a `rediss://` server. Without it, the system's authorities are
    /// used.
    pub ca_file: Option<PathBuf>,
    /// The time limit for connecting, including the wait for a server that is still loading its data. The default is 5
    /// s.
    pub connect_timeout: Duration,
    /// The time limit for each wait: for the server to send the next bytes of a reply, or to take bytes that are sent.
    /// The default is 10 s.
    pub timeout: Duration,
    /// The number of unacknowledged bytes of chunks at which `put_chunk` waits. A single larger chunk is accepted too.
    /// A larger value hides longer round trips. The default is 32 MiB.
    pub pending_bytes: usize,
    /// The maximum bytes of prefetched chunks that wait to be read. The default is 64 MiB.
    pub ahead_bytes: usize,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            password: None,
            ca_file: None,
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(10),
            pending_bytes: 32 << 20,
            ahead_bytes: 64 << 20,
        }
    }
}

impl RedisOptions {
    /// Returns the defaults with the password of [`PASSWORD`] and the file of [`CA_FILE`].
    pub fn from_env() -> Self {
        Self {
            password: std::env::var(PASSWORD).ok().filter(|password| !password.is_empty()),
            ca_file: std::env::var_os(CA_FILE).filter(|file| !file.is_empty()).map(PathBuf::from),
            ..Self::default()
        }
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("password", &self.password.as_ref().map(|_| "(set)"))
            .field("ca_file", &self.ca_file)
            .field("connect_timeout", &self.connect_timeout)
            .field("timeout", &self.timeout)
            .field("pending_bytes", &self.pending_bytes)
            .field("ahead_bytes", &self.ahead_bytes)
            .finish()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) tls: bool,
    pub(super) user: Option<String>,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) database: u32,
    /// The prefix of manifest names: empty, or ending in `/`.
    pub(super) prefix: String,
}

impl Address {
    pub(super) fn parse(uri: &StoreUri) -> Result<Self, UriError> {
        let tls = match uri.scheme() {
            "redis" => false,
            "rediss" => true,
            _ => return Err(uri.wrong("its scheme is neither redis nor rediss")),
        };
        let rest = uri.rest();
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains(['?', '#']) {
            return Err(uri.wrong("it takes no options; they come from the environment"));
        }
        let (user, server) = match authority.rsplit_once('@') {
            Some((user, server)) => (Some(user).filter(|user| !user.is_empty()), server),
            None => (None, authority),
        };
        // An IPv6 address as in `[::1]:6379` contains colons.
        let (host, port) = match server.strip_prefix('[').and_then(|s| s.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or(port))),
            None => match server.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (server, None),
            },
        };
        if host.is_empty() {
            return Err(uri.wrong("it names no host, as in redis://127.0.0.1:6379/0"));
        }
        let port = match port {
            None => 6379,
            Some(port) => port
                .parse()
                .ok()
                .filter(|&port| port != 0)
                .ok_or_else(|| uri.wrong(format!("`{port}` is not a port")))?,
        };
        let path = path.strip_suffix('/').unwrap_or(path);
        let (database, prefix) = path.split_once('/').unwrap_or((path, ""));
        let database = match database {
            "" if prefix.is_empty() => 0,
            number => number.parse().map_err(|_| {
                uri.wrong(format!(
                    "`{number}` is not the number of a database; a prefix comes behind it, \
                     as in redis://host/0/prefix"
                ))
            })?,
        };
        Ok(Self {
            tls,
            user: user.map(str::to_owned),
            host: host.to_owned(),
            port,
            database,
            prefix: match prefix {
                "" => String::new(),
                prefix => format!("{prefix}/"),
            },
        })
    }
}

/// Formats `host:port/database`, for messages.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}/{}", self.host, self.port, self.database)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(uri: &str) -> Result<Address, UriError> {
        Address::parse(&uri.parse().unwrap())
    }

    #[test]
    fn takes_a_uri_apart() {
        let plain =
            Address { tls: false, user: None, host: "h".into(), port: 6379, database: 0, prefix: String::new() };
        for uri in ["redis://h", "redis://h/", "redis://h:6379/0", "redis://@h/0/"] {
            assert_eq!(parse(uri).unwrap(), plain, "{uri}");
        }
        assert_eq!(
            parse("rediss://kv@[::1]:7000/3/models/slot1/").unwrap(),
            Address {
                tls: true,
                user: Some("kv".into()),
                host: "::1".into(),
                port: 7000,
                database: 3,
                prefix: "models/slot1/".into(),
            }
        );
    }

    #[test]
    fn says_what_is_wrong() {
        for uri in [
            "redis://",
            "redis://:6379",
            "redis://h:0",
            "redis://h:x",
            "redis://h:70000",
            "redis://[::1]x:y",
            "redis://h/prefix",
            "redis://h/-1",
            "redis://h//prefix",
            "redis://h?db=1",
            "s3://h",
        ] {
            assert!(parse(uri).is_err(), "{uri}");
        }
    }

    #[test]
    fn a_password_is_not_printed() {
        let options = RedisOptions { password: Some("hunter2".into()), ..RedisOptions::default() };
        assert!(!format!("{options:?}").contains("hunter2"));
    }
}
