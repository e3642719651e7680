//! The Redis store's handle, which implements [`Backend`].

use std::sync::Arc;

use bytes::Bytes;

use super::address::{Address, PASSWORD, RedisOptions};
use super::connection::Connector;
use super::failure::Failure;
use super::fetch::{Fetcher, MOST_TOGETHER};
use super::keys;
use super::pool::Pool;
use super::prefetch::Prefetch;
use super::reply::{MAX_BULK, Reply, unexpected};
use super::writer::Writer;
use crate::backend::guard::{Guard, Needed};
use crate::backend::header::HEADER;
use crate::backend::recorded;
use crate::backend::sealed::Seal;
use crate::backend::{Backend, Inventory, Put, Revision};
use crate::error::StoreError;
use crate::export::Plugin;
use crate::hash::ChunkHash;
use crate::name::ManifestName;
use crate::uri::StoreUri;

const PUBLISH_BYTES: usize = 16 << 20;

/// Texts in the errors of servers and of the `redis` crate for a missing or wrong password.
const LOGIN: &[&str] = &["NOAUTH", "WRONGPASS", "authentication"];

/// A database of a Redis or Valkey server. See the [module](super).
///
/// A handle has a pool of connections, so that its threads do not wait for one another, and a thread that sends chunks
/// to the server while the caller makes the next.
#[derive(Debug)]
pub struct RedisStore {
    pub(super) pool: Arc<Pool>,
    pub(super) longest: usize,
    // Dropped before the pool, since their threads use it.
    pub(super) writer: Writer,
    pub(super) prefetch: Prefetch,
    pub(super) fetcher: Arc<Fetcher>,
    pub(super) guard: Guard,
}

impl RedisStore {
    /// Connects to the server of a `redis://` or `rediss://` URI.
    ///
    /// # Errors
    /// [`StoreError::Uri`] if the URI has another form; [`StoreError::Remote`] if the server cannot be reached, has a
    /// wrong certificate, requires another password, or is a node of a cluster or a Sentinel.
    pub fn open(uri: &StoreUri, options: RedisOptions) -> Result<Self, StoreError> {
        let address = Address::parse(uri)?;
        let action = format!("open redis {address}");
        let (pending, ahead, timeout) = (options.pending_bytes, options.ahead_bytes, options.timeout);
        let pool = Connector::new(address, options)
            .map(|connector| Arc::new(Pool::new(connector)))
            .map_err(|failure| failure.during(&action))?;
        pool.open().map_err(|failure| match &failure {
            Failure::Refused(why) if LOGIN.iter().any(|login| why.contains(login)) => {
                StoreError::remote(&action, format!("{failure} (the password is taken from {PASSWORD})"))
            }
            _ => failure.during(&action),
        })?;
        let longest = longest_value(&pool).map_err(|failure| failure.during(&action))?;
        let fetcher = Arc::new(Fetcher::new(pool.clone()));
        Ok(Self {
            longest,
            writer: Writer::start(pool.clone(), pending)?,
            prefetch: Prefetch::new(fetcher.clone(), ahead, timeout),
            fetcher,
            pool,
            guard: Guard::default(),
        })
    }

    /// Returns how often this handle has waited for the server: once for each exchange, however many values it carried.
    /// Exchanges of its background threads are counted too.
    pub fn round_trips(&self) -> u64 {
        self.pool.round_trips()
    }

    pub(super) fn whole_name(&self, name: &ManifestName) -> String {
        format!("{}{name}", self.pool.connector().address().prefix)
    }

    fn fits(&self, data: &[u8]) -> Result<(), StoreError> {
        let most = self.longest.saturating_sub(HEADER);
        if data.len() > most {
            return Err(StoreError::TooLarge { bytes: data.len() as u64, most: most as u64 });
        }
        Ok(())
    }

    /// Publishes manifests in one step, if the chunks they need all exist. The first manifest records these chunks.
    fn publish(&self, manifests: &[(ManifestName, Bytes)], needed: &Needed) -> Result<(), StoreError> {
        let action = || match manifests {
            [(name, _)] => format!("put manifest {:?}", name.as_str()),
            _ => format!("put {} manifests", manifests.len()),
        };
        let mut keys = vec![keys::GENERATION.into(), keys::REMOVED.into(), keys::MARKS.into()];
        let mut values = vec![manifests.len().to_string().into_bytes()];
        let mut references = &needed.chunks[..];
        for (name, data) in manifests {
            let name = self.whole_name(name);
            keys.push(keys::manifest(&name));
            let mut value = recorded::encode(&[0; HEADER], std::mem::take(&mut references), data)?;
            self.fits(&value[HEADER..])?;
            let header = Seal::Manifest(name.as_bytes()).header(&value[HEADER..]);
            value[..HEADER].copy_from_slice(&header);
            values.push(value);
        }
        keys.extend(needed.chunks.iter().map(keys::chunk));
        let reply = self.script(keys::PUBLISH, &keys, &values).map_err(|failure| failure.during(action()))?;
        let missing = match &reply {
            Reply::Array(numbers) => numbers
                .iter()
                .map(|number| match number {
                    Reply::Int(number) => {
                        let at = usize::try_from(number.checked_sub(1)?).ok()?;
                        needed.chunks.get(at).copied()
                    }
                    _ => None,
                })
                .collect::<Option<Vec<_>>>(),
            _ => None,
        };
        let missing = missing.ok_or_else(|| unexpected(&reply).during(action()))?;
        match self.guard.gone(needed, &missing) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Removes a chunk that was found damaged, unless it has been replaced meanwhile.
    fn remove_damaged(&self, hash: &ChunkHash) -> Result<(), StoreError> {
        let action = || format!("put chunk {hash}");
        let key = [keys::chunk(hash)];
        let found = self.script(keys::LOOK, &key, &[]);
        let found = match found.map_err(|failure| failure.during(action()))? {
            Reply::Array(items) => items,
            other => return Err(unexpected(&other).during(action())),
        };
        if let Ok([Reply::Bulk(value), Reply::Bulk(sum)]) = <[Reply; 2]>::try_from(found)
            && Seal::Chunk(hash.as_bytes()).open(value.into()).is_err()
        {
            self.script(keys::REMOVE, &key, &[sum]).map_err(|failure| failure.during(action()))?;
        }
        self.fetcher.damaged.forget(hash);
        Ok(())
    }

    pub(super) fn script(&self, script: &str, keys: &[Vec<u8>], values: &[Vec<u8>]) -> Result<Reply, Failure> {
        let count = keys.len().to_string();
        let mut args = vec![&b"EVAL"[..], script.as_bytes(), count.as_bytes()];
        args.extend(keys.iter().chain(values).map(Vec::as_slice));
        self.pool.call(&args)
    }
}

/// Returns the server's limit on one value, or the default if the user may not ask.
fn longest_value(pool: &Pool) -> Result<usize, Failure> {
    let reply = match pool.call(&[b"CONFIG", b"GET", b"proto-max-bulk-len"]) {
        Ok(reply) => reply,
        Err(Failure::Refused(_)) => return Ok(MAX_BULK),
        Err(failure) => return Err(failure),
    };
    let limit = match reply {
        Reply::Array(items) => match items.as_slice() {
            [_, Reply::Bulk(limit)] => std::str::from_utf8(limit).ok().and_then(|limit| limit.parse().ok()),
            _ => None,
        },
        other => return Err(unexpected(&other)),
    };
    Ok(limit.unwrap_or(MAX_BULK).min(MAX_BULK))
}

impl Backend for RedisStore {
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
        self.fits(data)?;
        if self.writer.pending(hash).is_some() {
            self.guard.put(hash);
            return Ok(Put::AlreadyThere);
        }
        if self.fetcher.damaged.has(hash) {
            self.remove_damaged(hash)?;
        }
        // `TOUCH` counts existing keys and makes them recently used.
        let action = || format!("put chunk {hash}");
        match self.pool.call(&[b"TOUCH", &keys::chunk(hash)]) {
            Ok(Reply::Int(0)) => {
                self.writer.put(*hash, Bytes::copy_from_slice(data))?;
                self.guard.put(hash);
                Ok(Put::Stored)
            }
            Ok(Reply::Int(1)) => {
                self.guard.put(hash);
                Ok(Put::AlreadyThere)
            }
            Ok(other) => Err(unexpected(&other).during(action())),
            Err(failure) => Err(failure.during(action())),
        }
    }

    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        let near = self.writer.pending(hash).or_else(|| self.prefetch.take(hash));
        if near.is_some() {
            return Ok(near);
        }
        Ok(self.fetcher.chunks(&[*hash])?.pop().flatten())
    }

    fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError> {
        self.put_manifests(&[(name.clone(), Bytes::copy_from_slice(data))])
    }

    fn get_manifest(&self, name: &ManifestName) -> Result<Option<Bytes>, StoreError> {
        let names = [self.whole_name(name)];
        Ok(self.fetcher.manifests(&names)?.pop().flatten())
    }

    fn delete_manifest(&self, name: &ManifestName) -> Result<(), StoreError> {
        let keys = [keys::REMOVED.into(), keys::manifest(&self.whole_name(name))];
        match self.script(keys::DELETE, &keys, &[b"0".to_vec(), Vec::new(), b"0".to_vec()]) {
            Ok(Reply::Int(_)) => Ok(()),
            Ok(other) => Err(unexpected(&other)),
            Err(failure) => Err(failure),
        }
        .map_err(|failure| failure.during(format!("delete manifest {:?}", name.as_str())))
    }

    fn manifest_revision(&self, name: &ManifestName) -> Result<Option<(Bytes, Revision)>, StoreError> {
        let names = [self.whole_name(name)];
        let found = self.fetcher.manifests_quietly(&names)?.pop().flatten();
        Ok(found.map(|found| (found.recorded.data, Revision::new(found.identity))))
    }

    fn delete_revision(&self, name: &ManifestName, revision: &Revision) -> Result<bool, StoreError> {
        let Some(identity) = revision.mark::<Bytes>() else {
            return Ok(false);
        };
        let keys = [keys::REMOVED.into(), keys::manifest(&self.whole_name(name))];
        match self.script(keys::DELETE, &keys, &[b"0".to_vec(), identity.to_vec(), b"0".to_vec()]) {
            Ok(Reply::Int(gone)) => Ok(gone == 1),
            Ok(other) => Err(unexpected(&other)),
            Err(failure) => Err(failure),
        }
        .map_err(|failure| failure.during(format!("delete manifest {:?}", name.as_str())))
    }

    /// Fetches the chunks in the background, up to [`RedisOptions::ahead_bytes`]. Each is handed out once.
    fn prefetch_chunks(&self, hashes: &[ChunkHash]) -> Result<(), StoreError> {
        let far = hashes.iter().filter(|hash| self.writer.pending(hash).is_none());
        self.prefetch.want(far.copied())
    }

    fn batch(&self) -> usize {
        MOST_TOGETHER
    }

    fn get_chunks(&self, hashes: &[ChunkHash]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let mut values: Vec<Option<Bytes>> =
            hashes.iter().map(|hash| self.writer.pending(hash).or_else(|| self.prefetch.take(hash))).collect();
        let far: Vec<usize> = (0..hashes.len()).filter(|&at| values[at].is_none()).collect();
        let wanted: Vec<ChunkHash> = far.iter().map(|&at| hashes[at]).collect();
        for (at, value) in far.into_iter().zip(self.fetcher.chunks(&wanted)?) {
            values[at] = value;
        }
        Ok(values)
    }

    fn get_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let names: Vec<String> = names.iter().map(|name| self.whole_name(name)).collect();
        self.fetcher.manifests(&names)
    }

    fn put_manifests(&self, manifests: &[(ManifestName, Bytes)]) -> Result<(), StoreError> {
        for (_, data) in manifests {
            self.fits(data)?;
        }
        let mut left = manifests;
        while !left.is_empty() {
            let mut bytes = 0_usize;
            let together = left
                .iter()
                .take_while(|(_, data)| {
                    bytes = bytes.saturating_add(data.len());
                    bytes <= PUBLISH_BYTES
                })
                .count()
                .clamp(1, MOST_TOGETHER);
            let (now, later) = left.split_at(together);
            let datas = now.iter().map(|(_, data)| &data[..]);
            let needed = self.guard.needed(datas)?;
            self.writer.flush()?;
            self.publish(now, &needed)?;
            self.guard.published(&needed);
            left = later;
        }
        Ok(())
    }

    fn inventory(&self) -> Option<&dyn Inventory> {
        Some(self)
    }
}

/// Opens stores with [`RedisOptions::from_env`].
impl Plugin for RedisStore {
    const PREFETCH: bool = true;

    fn open(uri: &StoreUri) -> Result<Self, StoreError> {
        Self::open(uri, RedisOptions::from_env())
    }
}
