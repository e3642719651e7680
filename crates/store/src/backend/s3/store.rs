//! The S3 store's handle, which implements [`Backend`].

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use object_store::path::Path;

use super::keys;
use super::options::{self, S3Options};
use super::prefetch::Prefetch;
use super::remote::{Client, LONGEST, Remote};
use super::writer::{How, Writer};
use crate::backend::guard::{Guard, Needed};
use crate::backend::recorded::{self, Recorded};
use crate::backend::sealed::Seal;
use crate::backend::{Backend, Inventory, Put, Revision};
use crate::error::StoreError;
use crate::export::Plugin;
use crate::hash::ChunkHash;
use crate::name::ManifestName;
use crate::uri::StoreUri;

/// A store in a bucket. See the [module](super).
#[derive(Debug)]
pub struct S3Store {
    pub(super) root: Vec<String>,
    /// The prefix of manifest names: empty, or ending in `/`.
    pub(super) prefix: String,
    pub(super) options: S3Options,
    pub(super) writer: Arc<Writer>,
    pub(super) guard: Guard,
    pub(super) prefetch: Prefetch,
    pub(super) remote: Remote,
}

impl S3Store {
    /// Opens the store at an `s3://` URI. Creates one if neither the path nor an ancestor is one.
    ///
    /// # Errors
    /// [`StoreError::Uri`] if the URI has another form; [`StoreError::Remote`] if the bucket does not exist or cannot
    /// be reached; [`StoreError::Damaged`] if the root's marker is not of this version.
    pub fn open(uri: &StoreUri, options: S3Options) -> Result<Self, StoreError> {
        let (bucket, path) = options::parse(uri)?;
        let remote = Remote::new(&bucket, &options)?;
        let len = match nearest_root(&remote, &path)? {
            Some(len) => len,
            None => {
                make_root(&remote, &bucket, &path)?;
                path.len()
            }
        };
        Ok(Self::at(remote, &path, len, options))
    }

    /// Opens a store like [`open`](Self::open), but never creates one.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open), and [`StoreError::NotThere`] if neither the path nor one above it is a
    /// store.
    pub fn open_existing(uri: &StoreUri, options: S3Options) -> Result<Self, StoreError> {
        let (bucket, path) = options::parse(uri)?;
        let remote = Remote::new(&bucket, &options)?;
        let len = nearest_root(&remote, &path)?.ok_or_else(|| StoreError::NotThere { place: uri.to_string() })?;
        Ok(Self::at(remote, &path, len, options))
    }

    fn at(remote: Remote, path: &[String], len: usize, options: S3Options) -> Self {
        Self {
            root: path[..len].to_vec(),
            prefix: path[len..].iter().map(|part| format!("{part}/")).collect(),
            writer: Arc::new(Writer::new(options.pending_bytes)),
            guard: Guard::default(),
            prefetch: Prefetch::new(options.ahead_bytes),
            options,
            remote,
        }
    }

    fn whole_name(&self, name: &ManifestName) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(super) fn client(&self) -> Arc<Client> {
        self.remote.client.clone()
    }

    pub(super) fn send(&self, hash: ChunkHash, data: Bytes, how: How) {
        match how {
            How::Create => self.create(hash, data),
            How::Refresh => self.refresh(hash, data),
        }
    }

    pub(super) fn create(&self, hash: ChunkHash, data: Bytes) {
        let (client, writer) = (self.client(), self.writer.clone());
        let path = keys::chunk(&self.root, &hash);
        self.remote.start(async move {
            let header = header(Seal::Chunk(hash.as_bytes()), &data);
            let outcome = client.create(&path, [header, data]).await;
            writer.settle(&hash, outcome.map(drop));
        });
    }

    /// Writes an existing chunk again in the background, to make it young.
    pub(super) fn refresh(&self, hash: ChunkHash, data: Bytes) {
        let (client, writer) = (self.client(), self.writer.clone());
        let path = keys::chunk(&self.root, &hash);
        self.remote.start(async move {
            let seal = Seal::Chunk(hash.as_bytes());
            let outcome = async {
                // Keep the stored bytes if they are intact.
                let stored = client.get(&path).await?;
                let data = match stored.map(|stored| seal.open(stored)) {
                    Some(Ok(stored)) => stored,
                    Some(Err(_)) | None => data,
                };
                client.put(&path, [header(seal, &data), data]).await
            };
            writer.settle(&hash, outcome.await);
        });
    }

    /// Waits for all earlier puts, and checks that chunks which were put long ago still exist.
    fn flush(&self, needed: &Needed) -> Result<(), StoreError> {
        for (hash, data, how) in self.writer.again() {
            self.send(hash, data, how);
        }
        self.writer.flush()?;
        let old = needed.older(self.options.refresh / 2);
        let asked = old.iter().map(|hash| {
            let (client, path) = (self.client(), keys::chunk(&self.root, hash));
            async move { client.head(&path).await }
        });
        let mut gone = Vec::new();
        for (hash, found) in old.iter().zip(self.remote.wait_all(asked)?) {
            if found?.is_none() {
                gone.push(*hash);
            }
        }
        self.guard.gone(needed, &gone).map_or(Ok(()), Err)
    }
}

/// Returns the number of segments that lead to the nearest root, if there is one. Looks up all ancestors at once.
fn nearest_root(remote: &Remote, path: &[String]) -> Result<Option<usize>, StoreError> {
    let asked = (0..=path.len()).map(|len| {
        let (client, marker) = (remote.client.clone(), marker(&path[..len]));
        async move { client.get(&marker).await }
    });
    for (len, found) in remote.wait_all(asked)?.into_iter().enumerate().rev() {
        if let Some(found) = found? {
            if found != keys::FORMAT {
                return Err(StoreError::Damaged {
                    what: format!("object {}", marker(&path[..len])),
                    how: format!(
                        "it is not that of an s3 store of version 1, but {:?}",
                        String::from_utf8_lossy(&found[..found.len().min(40)])
                    ),
                });
            }
            return Ok(Some(len));
        }
    }
    Ok(None)
}

/// Creates a root in an existing bucket. The bucket is checked, since some servers would create it.
fn make_root(remote: &Remote, bucket: &str, path: &[String]) -> Result<(), StoreError> {
    let (client, marker) = (remote.client.clone(), marker(path));
    let bucket = bucket.to_owned();
    remote.wait(async move {
        // A missing object and a missing bucket look alike. Only a listing distinguishes them.
        if !client.has_bucket(&marker).await? {
            return Err(StoreError::remote(format!("open bucket {bucket}"), "there is no such bucket"));
        }
        let format = [Bytes::new(), Bytes::from_static(keys::FORMAT)];
        client.create(&marker, format).await.map(drop)
    })
}

fn marker(root: &[String]) -> Path {
    keys::path(root, &[keys::MARKER])
}

fn header(seal: Seal<'_>, data: &[u8]) -> Bytes {
    Bytes::copy_from_slice(&seal.header(data))
}

fn fits(data: &[u8]) -> Result<(), StoreError> {
    match data.len() as u64 {
        bytes if bytes > LONGEST => Err(StoreError::TooLarge { bytes, most: LONGEST }),
        _ => Ok(()),
    }
}

pub(super) async fn get_chunk(client: Arc<Client>, path: Path, hash: ChunkHash) -> Result<Option<Bytes>, StoreError> {
    let stored = client.get(&path).await?;
    let read = stored.map(|stored| Seal::Chunk(hash.as_bytes()).open(stored)).transpose();
    client.damaged.note(&hash, &read);
    read
}

async fn get_manifest(client: Arc<Client>, path: Path, whole_name: String) -> Result<Option<Bytes>, StoreError> {
    let read = get_revision(client, path, whole_name).await?;
    Ok(read.map(|(data, _)| data))
}

/// Reads a manifest and the tag of its object. An empty object is no manifest.
async fn get_revision(
    client: Arc<Client>,
    path: Path,
    whole_name: String,
) -> Result<Option<(Bytes, Option<String>)>, StoreError> {
    match client.get_tagged(&path).await? {
        Some((stored, tag)) if !stored.is_empty() => {
            let recorded = open_manifest(&whole_name, stored)?;
            Ok(Some((recorded.data, tag)))
        }
        _ => Ok(None),
    }
}

pub(super) fn open_manifest(whole_name: &str, object: Bytes) -> Result<Recorded, StoreError> {
    let seal = Seal::Manifest(whole_name.as_bytes());
    let stored = seal.open(object)?;
    let (_, len) = keys::split_name(&stored)?;
    Recorded::decode(stored.slice(len..), || seal.to_string())
}

impl Backend for S3Store {
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
        fits(data)?;
        if self.writer.has(hash) {
            self.guard.put(hash);
            return Ok(Put::AlreadyThere);
        }
        let (client, path) = (self.client(), keys::chunk(&self.root, hash));
        let found = self.remote.wait(async move { client.head(&path).await })?;
        let age =
            found.as_ref().map(|meta| SystemTime::now().duration_since(meta.last_modified.into()).unwrap_or_default());
        let damaged = self.remote.client.damaged.has(hash);
        match age {
            Some(age) if age < self.options.refresh && !damaged => {
                self.guard.put(hash);
                Ok(Put::AlreadyThere)
            }
            found => {
                let data = Bytes::copy_from_slice(data);
                let (put, how) = match found {
                    // If the stored bytes are intact after all, they stay.
                    Some(_) if damaged => (Put::Stored, How::Refresh),
                    Some(_) => (Put::AlreadyThere, How::Refresh),
                    None => (Put::Stored, How::Create),
                };
                let taken = self.writer.take(*hash, data.clone(), how)?;
                self.guard.put(hash);
                if taken {
                    // The writer now knows how to send it, also in a retry.
                    self.remote.client.damaged.forget(hash);
                    self.send(*hash, data, how);
                    return Ok(put);
                }
                // Another thread has queued it meanwhile.
                Ok(Put::AlreadyThere)
            }
        }
    }

    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        let near = self.writer.pending(hash).or_else(|| self.prefetch.take(hash));
        if near.is_some() {
            return Ok(near);
        }
        let path = keys::chunk(&self.root, hash);
        self.remote.wait(get_chunk(self.client(), path, *hash))
    }

    fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError> {
        fits(data)?;
        let needed = self.guard.needed([data])?;
        self.flush(&needed)?;
        let name = self.whole_name(name);
        let (client, path) = (self.client(), keys::manifest(&self.root, &name));
        let stored = recorded::encode(&keys::front(&name), &needed.chunks, data)?;
        let stored = Bytes::from(stored);
        let header = header(Seal::Manifest(name.as_bytes()), &stored);
        self.remote.wait(async move { client.put(&path, [header, stored]).await })?;
        self.guard.published(&needed);
        Ok(())
    }

    fn get_manifest(&self, name: &ManifestName) -> Result<Option<Bytes>, StoreError> {
        let name = self.whole_name(name);
        let path = keys::manifest(&self.root, &name);
        self.remote.wait(get_manifest(self.client(), path, name))
    }

    fn delete_manifest(&self, name: &ManifestName) -> Result<(), StoreError> {
        let path = keys::manifest(&self.root, &self.whole_name(name));
        let client = self.client();
        self.remote.wait(async move { client.delete(&path).await })
    }

    fn manifest_revision(&self, name: &ManifestName) -> Result<Option<(Bytes, Revision)>, StoreError> {
        let name = self.whole_name(name);
        let path = keys::manifest(&self.root, &name);
        let read = self.remote.wait(get_revision(self.client(), path, name))?;
        match read {
            None => Ok(None),
            Some((data, Some(tag))) => Ok(Some((data, Revision::new(tag)))),
            // The server gives no tags.
            Some((_, None)) => Err(Revision::unsupported()),
        }
    }

    /// Puts an empty object on the condition that the tag matches. A later collection deletes it.
    fn delete_revision(&self, name: &ManifestName, revision: &Revision) -> Result<bool, StoreError> {
        let Some(tag) = revision.mark::<String>().cloned() else {
            return Ok(false);
        };
        let path = keys::manifest(&self.root, &self.whole_name(name));
        let client = self.client();
        self.remote.wait(async move { client.empty(&path, tag).await })
    }

    /// Fetches the chunks in the background, up to [`S3Options::ahead_bytes`]. Each is handed out once.
    fn prefetch_chunks(&self, hashes: &[ChunkHash]) -> Result<(), StoreError> {
        for hash in hashes {
            if self.writer.pending(hash).is_some() {
                continue;
            }
            let Some(slot) = self.prefetch.want(*hash) else {
                continue;
            };
            let chunk = get_chunk(self.client(), keys::chunk(&self.root, hash), *hash);
            self.remote.start(async move {
                // A failed prefetch is ignored. The reader of the chunk will get the error.
                slot.fill(chunk.await.ok().flatten());
            });
        }
        Ok(())
    }

    fn batch(&self) -> usize {
        self.options.concurrency.max(1)
    }

    fn get_chunks(&self, hashes: &[ChunkHash]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let asked = hashes.iter().map(|hash| {
            let near = self.writer.pending(hash).or_else(|| self.prefetch.take(hash));
            let chunk = get_chunk(self.client(), keys::chunk(&self.root, hash), *hash);
            async move {
                match near {
                    Some(near) => Ok(Some(near)),
                    None => chunk.await,
                }
            }
        });
        self.remote.wait_all(asked)?.into_iter().collect()
    }

    fn get_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let asked = names.iter().map(|name| {
            let name = self.whole_name(name);
            get_manifest(self.client(), keys::manifest(&self.root, &name), name)
        });
        self.remote.wait_all(asked)?.into_iter().collect()
    }

    fn inventory(&self) -> Option<&dyn Inventory> {
        Some(self)
    }
}

/// Opens stores with the default options and the environment's credentials.
impl Plugin for S3Store {
    const PREFETCH: bool = true;

    fn open(uri: &StoreUri) -> Result<Self, StoreError> {
        Self::open(uri, S3Options::default())
    }
}
