//! Servers that have announced themselves at an etcd: read once, then watched.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

use super::{Found, MOST_SERVERS};
use crate::Role;
use crate::etcd::{Change, Client, Cluster, EtcdError, LEASE, Pair, WatchAnswer};
use crate::target::{ServerUrl, ServerUrlError};

/// How long a watch may be silent before everything is read anew. A connection that nobody serves any more is silent, too.
const SILENCE: Duration = Duration::from_secs(10);

/// The most keys, of servers of both roles.
const MOST_KEYS: usize = 2 * MOST_SERVERS;

/// The bytes of a key and of its value.
const LONGEST_KEY: usize = 1 << 10;
const LONGEST_VALUE: usize = 4 << 10;

const DOING: &str = "look for servers";

/// Follows what is said at an etcd.
pub(super) async fn follow(mut client: Client, mut found: Found) {
    let mut keys = Keys::new(client.cluster().clone());
    let mut revision = 0;
    loop {
        match read_and_watch(&client, &mut keys, &mut found, &mut revision).await {
            Ok(()) => client.succeeded(DOING),
            Err(error) => {
                let wait = client.failed(DOING, &error);
                tokio::time::sleep(wait).await;
            }
        }
    }
}

/// Reads everything and then follows changes, until there are none for a while.
async fn read_and_watch(
    client: &Client,
    keys: &mut Keys,
    found: &mut Found,
    revision: &mut i64,
) -> Result<(), EtcdError> {
    let range = client.range(MOST_KEYS).await?;
    let before = std::mem::replace(revision, range.header.revision);
    if *revision < before {
        // Servers that are well announce themselves again before their leases would have ended.
        tracing::warn!(etcd = %client.endpoint(), "etcd has lost what it knew; servers found before stay for {LEASE:?}");
        tokio::time::sleep(LEASE).await;
        return Ok(());
    }
    keys.replace(range.kvs, range.more);
    found.tell(keys.servers(Role::Prefill), keys.servers(Role::Decode));
    let mut watch = client.watch(*revision + 1).await?;
    while let Ok(answer) = tokio::time::timeout(SILENCE, watch.next()).await {
        let answer = answer?;
        if answer.compact_revision > 0 {
            // What has changed between the two is not kept any more.
            return Ok(());
        }
        *revision = answer.header.revision.max(*revision);
        if keys.change(answer) {
            found.tell(keys.servers(Role::Prefill), keys.servers(Role::Decode));
        }
    }
    Ok(())
}

/// The keys of an etcd, and what they say.
#[derive(Debug)]
pub(super) struct Keys {
    cluster: Cluster,
    known: BTreeMap<Vec<u8>, Known>,
    /// That there are too many was logged.
    full: bool,
}

/// What a key says, since a revision of etcd.
#[derive(Debug)]
struct Known {
    since: i64,
    /// `None` is nothing that is of use.
    server: Option<(Role, ServerUrl)>,
}

#[derive(Debug, Deserialize)]
struct Value {
    url: String,
}

/// Why a key says nothing of use.
#[derive(Debug, Error)]
enum KeyError {
    #[error("its name is not PREFIX/prefill/NAME or PREFIX/decode/NAME")]
    Name,
    #[error("its value has more than {LONGEST_VALUE} bytes")]
    TooLong,
    #[error(r#"its value is not {{"url": "http://HOST:PORT"}}: {0}"#)]
    Form(#[from] serde_json::Error),
    #[error("its url is none of a server: {0}")]
    Url(#[from] ServerUrlError),
}

impl Keys {
    pub(super) const fn new(cluster: Cluster) -> Self {
        Self { cluster, known: BTreeMap::new(), full: false }
    }

    /// Takes all keys that there are; `more` if there are further ones.
    pub(super) fn replace(&mut self, pairs: Vec<Pair>, more: bool) {
        let mut before = std::mem::take(&mut self.known);
        for pair in pairs {
            // What was said of it stays, so that it is not said again.
            match before.remove_entry(&pair.key) {
                Some((key, known)) if known.since == pair.mod_revision => {
                    self.known.insert(key, known);
                }
                _ => self.put(pair),
            }
        }
        self.is_full(more);
    }

    /// Takes what has changed; whether anything has.
    pub(super) fn change(&mut self, answer: WatchAnswer) -> bool {
        let changed = !answer.events.is_empty();
        for event in answer.events {
            match event.r#type {
                Change::Put => self.put(event.kv),
                Change::Delete => {
                    self.known.remove(&event.kv.key);
                }
            }
        }
        changed
    }

    fn put(&mut self, pair: Pair) {
        let full = self.known.len() >= MOST_KEYS;
        let server = match read(&self.cluster, &pair) {
            Ok(server) => Some(server),
            Err(error) => {
                let key = String::from_utf8_lossy(&pair.key[..pair.key.len().min(LONGEST_KEY)]);
                tracing::warn!(?key, %error, "a key at etcd names no server");
                None
            }
        };
        let known = Known { since: pair.mod_revision, server };
        match self.known.entry(pair.key) {
            Entry::Occupied(mut entry) => {
                entry.insert(known);
            }
            Entry::Vacant(_) if full => self.is_full(true),
            Entry::Vacant(entry) => {
                entry.insert(known);
            }
        }
    }

    fn is_full(&mut self, full: bool) {
        if full && !self.full {
            tracing::warn!("etcd has more than {MOST_KEYS} keys of servers; the others are left out");
        }
        self.full = full;
    }

    /// The servers of a role, in the order of their keys.
    pub(super) fn servers(&self, role: Role) -> Vec<ServerUrl> {
        let servers = self.known.values().filter_map(|known| known.server.as_ref());
        let mine = servers.filter(|(of, _)| *of == role);
        mine.map(|(_, url)| url.clone()).collect()
    }
}

fn read(cluster: &Cluster, pair: &Pair) -> Result<(Role, ServerUrl), KeyError> {
    let named = cluster.role(&pair.key).filter(|_| pair.key.len() <= LONGEST_KEY);
    let role = named.ok_or(KeyError::Name)?;
    if pair.value.len() > LONGEST_VALUE {
        return Err(KeyError::TooLong);
    }
    let Value { url } = serde_json::from_slice(&pair.value)?;
    Ok((role, ServerUrl::parse(&url)?))
}
