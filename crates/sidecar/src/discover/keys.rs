//! Discovers servers that announce themselves at an etcd. All keys are read once and then watched.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

use super::found::{Found, MOST_SERVERS};
use crate::Role;
use crate::etcd::{Change, Client, Cluster, EtcdError, LEASE, Pair, WatchAnswer};
use crate::target::{ServerUrl, ServerUrlError};

/// The silence after which a watch is cancelled and everything is read again, since a dead connection is silent, too.
const SILENCE: Duration = Duration::from_secs(10);

/// The most keys, for both roles together.
const MOST_KEYS: usize = 2 * MOST_SERVERS;

const LONGEST_KEY: usize = 1 << 10;
const LONGEST_VALUE: usize = 4 << 10;

const DOING: &str = "look for servers";

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

/// Reads all keys, then follows changes until there is none for [`SILENCE`].
async fn read_and_watch(
    client: &Client,
    keys: &mut Keys,
    found: &mut Found,
    revision: &mut i64,
) -> Result<(), EtcdError> {
    let range = client.range(MOST_KEYS).await?;
    let before = std::mem::replace(revision, range.header.revision);
    if *revision < before {
        // Healthy servers announce themselves again before their leases would have ended.
        tracing::warn!(etcd = %client.endpoint(), "etcd has lost what it knew; servers found before stay for {LEASE:?}");
        tokio::time::sleep(LEASE).await;
        return Ok(());
    }
    keys.replace(range.kvs, range.more);
    found.update(keys.servers(Role::Prefill), keys.servers(Role::Decode));
    let mut watch = client.watch(*revision + 1).await?;
    while let Ok(answer) = tokio::time::timeout(SILENCE, watch.next()).await {
        let answer = answer?;
        if answer.compact_revision > 0 {
            // Changes in between are no longer available, so everything is reread.
            return Ok(());
        }
        *revision = answer.header.revision.max(*revision);
        if keys.change(answer) {
            found.update(keys.servers(Role::Prefill), keys.servers(Role::Decode));
        }
    }
    Ok(())
}

#[derive(Debug)]
pub(super) struct Keys {
    cluster: Cluster,
    known: BTreeMap<Vec<u8>, Known>,
    /// The excess of keys has been logged.
    full: bool,
}

/// The content of a key, and the revision that set it.
#[derive(Debug)]
struct Known {
    since: i64,
    /// The announced server; `None` if the key is invalid.
    server: Option<(Role, ServerUrl)>,
}

#[derive(Debug, Deserialize)]
struct Value {
    url: String,
}

#[derive(Debug, Error)]
enum KeyError {
    #[error("its name is not PREFIX/prefill/NAME or PREFIX/decode/NAME")]
    Name,
    #[error("its value has more than {LONGEST_VALUE} bytes")]
    TooLong,
    #[error(r#"its value is not {{"url": "http://HOST:PORT"}}: {0}"#)]
    Form(#[from] serde_json::Error),
    #[error("its url is not that of a server: {0}")]
    Url(#[from] ServerUrlError),
}

impl Keys {
    pub(super) const fn new(cluster: Cluster) -> Self {
        Self { cluster, known: BTreeMap::new(), full: false }
    }

    /// Replaces all keys. `more` says that etcd has further ones.
    pub(super) fn replace(&mut self, pairs: Vec<Pair>, more: bool) {
        let mut before = std::mem::take(&mut self.known);
        for pair in pairs {
            // An unchanged key keeps its entry, so that a fault in it is not logged again.
            match before.remove_entry(&pair.key) {
                Some((key, known)) if known.since == pair.mod_revision => {
                    self.known.insert(key, known);
                }
                _ => self.put(pair),
            }
        }
        self.is_full(more);
    }

    /// Applies a watch's changes. Returns whether there were any.
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
