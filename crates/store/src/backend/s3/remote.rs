//! Requests: a runtime of our own on threads of our own, and blocking calls into it.
//!
//! The callers' threads may belong to a runtime themselves, so they never run one: they hand a future over
//! and wait for its answer on a channel. The threads end before the store is dropped, since the library whose
//! code they run may be unloaded next.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientConfigKey, Error, GetOptions, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutPayload, RetryConfig, UpdateVersion,
};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

use super::connector::Connector;
use super::options::{self, S3Options};
use crate::backend::Revision;
use crate::backend::damaged::Damaged;
use crate::error::StoreError;

/// The longest value: what S3 takes in one object of at most 10,000 parts, kept well within memory.
pub(super) const LONGEST: u64 = 16 << 30;

/// A thread each for two requests' checksums and encryption.
const WORKERS: usize = 2;

/// How long making a connection may take, and getting credentials from somebody who hands them out.
const CONNECT: Duration = Duration::from_secs(5);

/// What to do without credentials.
const NO_CREDENTIALS: &str = "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and \
     AWS_ENDPOINT_URL for a store that is not Amazon's";

#[derive(Debug)]
pub(super) struct Remote {
    pub(super) client: Arc<Client>,
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What the futures need.
#[derive(Debug)]
pub(super) struct Client {
    store: AmazonS3,
    permits: Semaphore,
    part_bytes: usize,
    pub(super) damaged: Damaged,
}

/// Whether a conditional put wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Created {
    Now,
    Before,
}

impl Remote {
    pub(super) fn new(bucket: &str, options: &S3Options) -> Result<Self, StoreError> {
        let millis = |time: Duration| format!("{}ms", time.as_millis());
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), millis(options.timeout))
            .with_config(
                AmazonS3ConfigKey::Client(ClientConfigKey::ConnectTimeout),
                millis(options.timeout.min(CONNECT)),
            );
        for (key, value) in &options.config.0 {
            let key: AmazonS3ConfigKey =
                key.parse().map_err(|error: Error| StoreError::remote("read the options", error))?;
            builder = builder.with_config(key, value);
        }
        let has = |key| builder.get_config_value(&key).is_some();
        let (key, secret) = (has(AmazonS3ConfigKey::AccessKeyId), has(AmazonS3ConfigKey::SecretAccessKey));
        let action = || format!("open bucket {bucket}");
        if key != secret {
            return Err(StoreError::remote(action(), NO_CREDENTIALS));
        }
        let unsigned = builder.get_config_value(&AmazonS3ConfigKey::SkipSignature);
        let unsigned = unsigned.is_some_and(|skip| options::truth(&skip));
        let store = builder
            .with_http_connector(Connector::default())
            // Each of our deletes is of one object, so a bulk delete saves nothing, and some stores have none.
            .with_disable_bulk_delete(true)
            .with_retry(RetryConfig {
                backoff: BackoffConfig::default(),
                max_retries: 10,
                retry_timeout: options.retry,
            })
            .build()
            .map_err(|error| StoreError::remote(action(), error))?;
        let (tell, handle) = mpsc::sync_channel(1);
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("transload-s3".into())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(WORKERS)
                    .thread_name("transload-s3")
                    .enable_all()
                    .build();
                match runtime {
                    Ok(runtime) => {
                        let _ = tell.send(Ok(runtime.handle().clone()));
                        // An error is the sender's end, which means the same.
                        let _ = runtime.block_on(stopped);
                    }
                    Err(error) => drop(tell.send(Err(error))),
                }
            })
            .map_err(StoreError::io("start a thread"))?;
        let handle = handle.recv().map_err(|_| gone())?.map_err(StoreError::io("start a runtime"))?;
        let this = Self {
            client: Arc::new(Client {
                store,
                permits: Semaphore::new(options.concurrency.max(1)),
                part_bytes: options.part_bytes.max(5 << 20),
                damaged: Damaged::default(),
            }),
            handle,
            stop: Some(stop),
            thread: Some(thread),
        };
        if !key && !unsigned {
            let limit = options.timeout.min(CONNECT);
            let client = this.client.clone();
            this.wait(async move { client.has_role(limit).await })
                .map_err(|why| StoreError::remote(action(), format!("{NO_CREDENTIALS} ({why})")))?;
        }
        Ok(this)
    }

    /// Starts a future and goes on.
    pub(super) fn start<F>(&self, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.handle.spawn(future);
    }

    /// Waits for a future.
    pub(super) fn wait<T, F>(&self, future: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let (tell, answer) = mpsc::sync_channel(1);
        self.handle.spawn(async move {
            // Nobody waits if the caller panicked.
            let _ = tell.send(future.await);
        });
        answer.recv().map_err(|_| gone())?
    }

    /// Waits for all of them, which run at once within the limit of requests, and answers in their order.
    pub(super) fn wait_all<T, F>(
        &self,
        futures: impl Iterator<Item = F>,
    ) -> Result<Vec<Result<T, StoreError>>, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let answers: Vec<_> = futures
            .map(|future| {
                let (tell, answer) = mpsc::sync_channel(1);
                self.handle.spawn(async move {
                    let _ = tell.send(future.await);
                });
                answer
            })
            .collect();
        answers.into_iter().map(|answer| answer.recv().map_err(|_| gone())).collect()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed by the thread.
            let _ = thread.join();
        }
    }
}

/// The runtime ended while somebody waited: a task panicked.
fn gone() -> StoreError {
    StoreError::Poisoned { why: "a task of the S3 client panicked".into() }
}

impl Client {
    /// Whether the environment, the pod or the instance has a role that credentials can be got for. Asked first and
    /// in a limited time: a machine that has none is not told so by anybody.
    async fn has_role(&self, limit: Duration) -> Result<(), StoreError> {
        let action = "look for those of this pod or instance";
        match tokio::time::timeout(limit, self.store.credentials().get_credential()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(StoreError::remote(action, error)),
            Err(_) => Err(StoreError::remote(action, format!("no answer in {limit:?}"))),
        }
    }

    /// What is known of an object, or `None`.
    pub(super) async fn head(&self, path: &Path) -> Result<Option<ObjectMeta>, StoreError> {
        let _permit = self.permit().await?;
        found(self.store.head(path).await).map_err(during("look for", path))
    }

    /// The bytes of an object, or `None`.
    ///
    /// What is longer than a part is read in parts, each of which has the time of a request, may fail and be read
    /// again by itself.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if it is longer than any value.
    pub(super) async fn get(&self, path: &Path) -> Result<Option<Bytes>, StoreError> {
        Ok(self.get_tagged(path).await?.map(|(bytes, _)| bytes))
    }

    /// Reads an object as [`get`](Self::get) does, with the tag that tells it from what is put there later.
    pub(super) async fn get_tagged(&self, path: &Path) -> Result<Option<(Bytes, Option<String>)>, StoreError> {
        let _permit = self.permit().await?;
        for _ in 0..CHANGES {
            let Some(first) = self.first_part(path).await.map_err(during("get", path))? else {
                return Ok(None);
            };
            let (size, tag) = (first.meta.size, first.meta.e_tag.clone());
            // With the header and what a manifest has in front.
            if size > LONGEST.saturating_mul(2) {
                return Err(StoreError::Damaged {
                    what: format!("object {path}"),
                    how: format!("it has {size} bytes, and no value is so long"),
                });
            }
            let begins = first.bytes().await.map_err(during("get", path))?;
            if begins.len() as u64 >= size {
                return Ok(Some((begins, tag)));
            }
            match self.rest(path, begins, size, tag.clone()).await {
                // It was replaced while we read.
                Err(Error::Precondition { .. } | Error::NotFound { .. }) => {}
                other => {
                    let whole = other.map_err(during("get", path))?;
                    return Ok(Some((whole, tag)));
                }
            }
        }
        Err(StoreError::remote(format!("get {path}"), "it changed each time while it was read"))
    }

    /// The beginning of an object: all of it, if it is not longer.
    pub(super) async fn beginning(&self, path: &Path, most: u64) -> Result<Option<Bytes>, StoreError> {
        let _permit = self.permit().await?;
        let got = self.start(path, most).await;
        match got.map_err(during("get", path))? {
            None => Ok(None),
            Some(got) => got.bytes().await.map(Some).map_err(during("get", path)),
        }
    }

    async fn first_part(&self, path: &Path) -> Result<Option<GetResult>, Error> {
        self.start(path, self.part_bytes as u64).await
    }

    async fn start(&self, path: &Path, most: u64) -> Result<Option<GetResult>, Error> {
        let options = GetOptions::default().with_range(Some(0..most));
        match found(self.store.get_opts(path, options).await) {
            // An empty object, as of a manifest that was removed, has no first byte. It can be got as a whole.
            Err(error) if is_out_of_range(&error) => found(self.store.get(path).await),
            other => other,
        }
    }

    /// What comes behind the first part, a few parts at a time, as long as the object stays what it was.
    async fn rest(&self, path: &Path, begins: Bytes, size: u64, tag: Option<String>) -> Result<Bytes, Error> {
        use futures_util::{StreamExt, TryStreamExt};
        let too_much = |source| Error::Generic { store: "S3", source };
        let mut whole = Vec::new();
        usize::try_from(size).map_err(|error| too_much(error.into())).and_then(|size| {
            let reserved = whole.try_reserve_exact(size);
            reserved.map_err(|error| too_much(error.into()))
        })?;
        whole.extend_from_slice(&begins);
        let starts = (begins.len() as u64..size).step_by(self.part_bytes);
        let parts = starts.map(|from| {
            let options = GetOptions::default()
                .with_range(Some(from..size.min(from + self.part_bytes as u64)))
                .with_if_match(tag.clone());
            async move { self.store.get_opts(path, options).await?.bytes().await }
        });
        let mut parts = futures_util::stream::iter(parts).buffered(PARTS);
        while let Some(part) = parts.try_next().await? {
            whole.extend_from_slice(&part);
        }
        Ok(whole.into())
    }

    /// Writes an object, whatever was there.
    pub(super) async fn put(&self, path: &Path, parts: [Bytes; 2]) -> Result<(), StoreError> {
        let _permit = self.permit().await?;
        let len: usize = parts.iter().map(Bytes::len).sum();
        let put = if len > self.part_bytes {
            self.put_in_parts(path, parts).await
        } else {
            self.store.put(path, PutPayload::from_iter(parts)).await.map(drop)
        };
        put.map_err(during("put", path))
    }

    /// Writes an object unless there is one. Values in parts cannot ask that, and stores that do not know how
    /// to are told by `AWS_CONDITIONAL_PUT=disabled`; whoever calls this has looked before.
    pub(super) async fn create(&self, path: &Path, parts: [Bytes; 2]) -> Result<Created, StoreError> {
        let len: usize = parts.iter().map(Bytes::len).sum();
        if len > self.part_bytes {
            return self.put(path, parts).await.map(|()| Created::Now);
        }
        let outcome = {
            let _permit = self.permit().await?;
            let payload = PutPayload::from_iter(parts.clone());
            self.store.put_opts(path, payload, PutMode::Create.into()).await
        };
        match outcome {
            Ok(_) => Ok(Created::Now),
            // 409 is also said while another writer is at it, who may yet fail.
            Err(Error::AlreadyExists { .. }) => match self.head(path).await? {
                Some(_) => Ok(Created::Before),
                None => self.put(path, parts).await.map(|()| Created::Now),
            },
            Err(Error::NotImplemented { .. }) => self.put(path, parts).await.map(|()| Created::Now),
            Err(error) => Err(during("put", path)(error)),
        }
    }

    /// Replaces an object by an empty one if it still has this tag. Whether it did. More stores know a put with this
    /// condition than a delete, and those that do not know it have to be told so: see [`create`](Self::create).
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] where conditional puts are switched off.
    pub(super) async fn empty(&self, path: &Path, tag: String) -> Result<bool, StoreError> {
        let _permit = self.permit().await?;
        let version = UpdateVersion { e_tag: Some(tag), version: None };
        let mode = PutMode::Update(version);
        match self.store.put_opts(path, PutPayload::default(), mode.into()).await {
            Ok(_) => Ok(true),
            Err(Error::Precondition { .. } | Error::NotFound { .. }) => Ok(false),
            Err(Error::NotImplemented { .. }) => Err(StoreError::Unsupported {
                what: "removing an object only if it is unchanged",
                why: "conditional puts are switched off (AWS_CONDITIONAL_PUT)".into(),
            }),
            Err(error) if is_not_known(&error) => Err(StoreError::remote(
                format!(
                    "remove {path} if it is unchanged (a put with If-Match: set AWS_CONDITIONAL_PUT=disabled for a \
                     store that does not know it)"
                ),
                error,
            )),
            Err(error) => Err(during("remove", path)(error)),
        }
    }

    /// Removes an object if it still is what a listing said. Answers whether it went.
    ///
    /// Where conditional puts are switched off, what is put between looking at it and removing it is lost.
    pub(super) async fn delete_unchanged(&self, listed: &ObjectMeta) -> Result<bool, StoreError> {
        let path = &listed.location;
        let Some(now) = self.head(path).await? else {
            return Ok(false);
        };
        let same = match (&listed.e_tag, &now.e_tag) {
            // Quotes belong to it in one answer and not in the other, with some.
            (Some(listed), Some(now)) => listed.trim_matches('"') == now.trim_matches('"'),
            // A listing knows fractions of seconds, and the answer to a question for one object does not.
            _ => listed.last_modified.timestamp() == now.last_modified.timestamp(),
        };
        if !same {
            return Ok(false);
        }
        let emptied = match now.e_tag {
            Some(tag) => self.empty(path, tag).await,
            None => Err(Revision::unsupported()),
        };
        match emptied {
            Err(StoreError::Unsupported { .. }) => self.delete(path).await.map(|()| true),
            other => other,
        }
    }

    /// Removes an object; not an error if there is none.
    pub(super) async fn delete(&self, path: &Path) -> Result<(), StoreError> {
        let _permit = self.permit().await?;
        found(self.store.delete(path).await).map(drop).map_err(during("delete", path))
    }

    /// Everything below a path.
    pub(super) async fn list(&self, below: &Path) -> Result<Vec<ObjectMeta>, StoreError> {
        use futures_util::TryStreamExt;
        let _permit = self.permit().await?;
        self.store.list(Some(below)).try_collect().await.map_err(during("list", below))
    }

    /// Whether the bucket is there. Lists below `path`, where little should be.
    pub(super) async fn has_bucket(&self, path: &Path) -> Result<bool, StoreError> {
        use futures_util::TryStreamExt;
        let _permit = self.permit().await?;
        match self.store.list(Some(path)).try_next().await {
            Ok(_) => Ok(true),
            // The crate has no kind for it, but its text holds what the store said.
            Err(error) if error.to_string().contains("NoSuchBucket") => Ok(false),
            Err(error) => Err(during("list", path)(error)),
        }
    }

    async fn put_in_parts(&self, path: &Path, parts: [Bytes; 2]) -> Result<(), Error> {
        let [header, data] = parts;
        let mut upload = self.store.put_multipart(path).await?;
        // The header in front of the first part; all parts but the last have to be equally long.
        let first = data.slice(..self.part_bytes - header.len());
        let mut rest = data.slice(first.len()..);
        let mut under_way = vec![upload.put_part(PutPayload::from_iter([header, first]))];
        while !rest.is_empty() {
            let part = rest.split_to(rest.len().min(self.part_bytes));
            under_way.push(upload.put_part(part.into()));
            // Few at a time: each value has one permit.
            if under_way.len() == PARTS {
                let sent = futures_util::future::try_join_all(under_way.drain(..)).await;
                if let Err(error) = sent {
                    // It may fail as well; the bucket's rules remove such uploads in time.
                    let _ = upload.abort().await;
                    return Err(error);
                }
            }
        }
        let sent = match futures_util::future::try_join_all(under_way).await {
            Ok(_) => upload.complete().await,
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            let _ = upload.abort().await;
            return Err(error);
        }
        Ok(())
    }

    async fn permit(&self) -> Result<tokio::sync::SemaphorePermit<'_>, StoreError> {
        // It is never closed.
        self.permits.acquire().await.map_err(|_| gone())
    }
}

/// Parts of one value that are sent or read together.
const PARTS: usize = 4;

/// How often a value that is replaced while it is read in parts is read from its beginning.
const CHANGES: usize = 5;

/// Whether the server answered 416. The crate has no kind for it, but its text says the status, behind the key,
/// whose digits may be the same.
fn is_out_of_range(error: &Error) -> bool {
    // No URL has a space.
    error.to_string().contains("status code: 416")
}

/// Whether the server answered as one does that does not know the request.
fn is_not_known(error: &Error) -> bool {
    let text = error.to_string();
    let status = text.split_once(" status code: ").map(|(_, status)| status);
    status.is_some_and(|status| ["400", "405", "501"].iter().any(|code| status.starts_with(code)))
}

fn found<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn during(what: &'static str, path: &Path) -> impl FnOnce(Error) -> StoreError {
    move |error| StoreError::remote(format!("{what} {path}"), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That 416 itself is known is shown by reading empty objects from servers.
    #[test]
    fn digits_of_a_key_are_no_status() {
        let error = |status: &str| {
            let text = format!(
                "Error performing GET http://127.0.0.1:41600/bucket/c/416f in 1.416s - Server returned \
                 non-2xx status code: {status}: "
            );
            let (store, source) = ("S3", text.into());
            Error::Generic { store, source }
        };
        assert!(!is_out_of_range(&error("500 Internal Server Error")));
        assert!(is_out_of_range(&error("416 Range Not Satisfiable")));
        assert!(is_not_known(&error("501 Not Implemented")));
        for other in ["403 Forbidden", "503 Slow Down"] {
            assert!(!is_not_known(&error(other)));
        }
    }
}
