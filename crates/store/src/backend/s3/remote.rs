//! Requests to S3: blocking calls into a separate runtime with threads of its own.
//!
//! A caller's thread may belong to a runtime itself, so it must not run another. It spawns a future and waits for the
//! result on a channel. The threads end before the store is dropped, because the library that contains their code may
//! be unloaded next.

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

/// The longest value. S3 accepts objects of 10,000 parts; this stays well within that and within memory.
pub(super) const LONGEST: u64 = 16 << 30;

/// The number of threads: two requests can compute checksums and encrypt in parallel.
const WORKERS: usize = 2;

/// The time limit for connecting, and for getting credentials from a metadata service.
const CONNECT: Duration = Duration::from_secs(5);

const NO_CREDENTIALS: &str = "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and \
     AWS_ENDPOINT_URL for a store that is not Amazon's";

#[derive(Debug)]
pub(super) struct Remote {
    pub(super) client: Arc<Client>,
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
pub(super) struct Client {
    store: AmazonS3,
    permits: Semaphore,
    part_bytes: usize,
    pub(super) damaged: Damaged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Creation {
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
            // Every delete is of one object, so bulk deletes save nothing, and some stores do not have them.
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
                        // The receiver gets an error when the sender is dropped, which means stop.
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

    pub(super) fn start<F>(&self, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.handle.spawn(future);
    }

    pub(super) fn wait<T, F>(&self, future: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let (tell, answer) = mpsc::sync_channel(1);
        self.handle.spawn(async move {
            // The receiver is gone if the caller panicked.
            let _ = tell.send(future.await);
        });
        answer.recv().map_err(|_| gone())?
    }

    /// Waits for all futures, which run concurrently within the limit of requests. Returns the results in order.
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
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

fn gone() -> StoreError {
    StoreError::Poisoned { why: "a task of the S3 client panicked".into() }
}

impl Client {
    /// Checks whether the environment, the pod or the instance has a role with credentials. Called when the store is
    /// opened and with a time limit, because on a machine without a role the request is never answered.
    async fn has_role(&self, limit: Duration) -> Result<(), StoreError> {
        let action = "look for those of this pod or instance";
        match tokio::time::timeout(limit, self.store.credentials().get_credential()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(StoreError::remote(action, error)),
            Err(_) => Err(StoreError::remote(action, format!("no answer in {limit:?}"))),
        }
    }

    pub(super) async fn head(&self, path: &Path) -> Result<Option<ObjectMeta>, StoreError> {
        let _permit = self.permit().await?;
        found(self.store.head(path).await).map_err(during("look for", path))
    }

    /// Returns the bytes of an object, or `None`.
    /// An object longer than a part is read in parts. Each part has its own time limit and retries.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the object is longer than any value.
    pub(super) async fn get(&self, path: &Path) -> Result<Option<Bytes>, StoreError> {
        Ok(self.get_tagged(path).await?.map(|(bytes, _)| bytes))
    }

    /// Reads an object like [`get`](Self::get). Also returns its tag, which distinguishes it from later versions.
    pub(super) async fn get_tagged(&self, path: &Path) -> Result<Option<(Bytes, Option<String>)>, StoreError> {
        let _permit = self.permit().await?;
        for _ in 0..CHANGES {
            let Some(first) = self.first_part(path).await.map_err(during("get", path))? else {
                return Ok(None);
            };
            let (size, tag) = (first.meta.size, first.meta.e_tag.clone());
            // The limit also leaves room for the header and what precedes a manifest's data.
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
                // The object was replaced meanwhile, so start again.
                Err(Error::Precondition { .. } | Error::NotFound { .. }) => {}
                other => {
                    let whole = other.map_err(during("get", path))?;
                    return Ok(Some((whole, tag)));
                }
            }
        }
        Err(StoreError::remote(format!("get {path}"), "it changed each time while it was read"))
    }

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
            // An empty object (a removed manifest) has no first byte, so a range fails. Read it as a whole.
            Err(error) if is_out_of_range(&error) => found(self.store.get(path).await),
            other => other,
        }
    }

    /// Reads the other parts, a few at a time, on the condition that the object has not changed.
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

    /// Writes an object unless it exists. Values in parts have no such condition, and neither have stores with
    /// `AWS_CONDITIONAL_PUT=disabled`. So callers look for the object first.
    pub(super) async fn create(&self, path: &Path, parts: [Bytes; 2]) -> Result<Creation, StoreError> {
        let len: usize = parts.iter().map(Bytes::len).sum();
        if len > self.part_bytes {
            return self.put(path, parts).await.map(|()| Creation::Now);
        }
        let outcome = {
            let _permit = self.permit().await?;
            let payload = PutPayload::from_iter(parts.clone());
            self.store.put_opts(path, payload, PutMode::Create.into()).await
        };
        match outcome {
            Ok(_) => Ok(Creation::Now),
            // A store also answers 409 while another client is writing, which may still fail.
            Err(Error::AlreadyExists { .. }) => match self.head(path).await? {
                Some(_) => Ok(Creation::Before),
                None => self.put(path, parts).await.map(|()| Creation::Now),
            },
            Err(Error::NotImplemented { .. }) => self.put(path, parts).await.map(|()| Creation::Now),
            Err(error) => Err(during("put", path)(error)),
        }
    }

    /// Replaces an object with an empty one if it still has this tag. Returns whether it did. More stores support this
    /// condition on a put than on a delete; for the others see [`create`](Self::create).
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if conditional puts are switched off.
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
            Err(error) if is_unsupported(&error) => Err(StoreError::remote(
                format!(
                    "remove {path} if it is unchanged (a put with If-Match: set AWS_CONDITIONAL_PUT=disabled for a \
                     store that does not know it)"
                ),
                error,
            )),
            Err(error) => Err(during("remove", path)(error)),
        }
    }

    /// Removes an object if it has not changed since it was listed. Returns whether it was removed.
    /// With conditional puts switched off, a value that is put between the look-up and the removal is lost.
    pub(super) async fn delete_unchanged(&self, listed: &ObjectMeta) -> Result<bool, StoreError> {
        let path = &listed.location;
        let Some(now) = self.head(path).await? else {
            return Ok(false);
        };
        let same = match (&listed.e_tag, &now.e_tag) {
            // Some servers quote the tag in one reply and not in the other.
            (Some(listed), Some(now)) => listed.trim_matches('"') == now.trim_matches('"'),
            // A listing has fractions of seconds, and the reply for one object does not.
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

    /// Removes an object. A missing one is not an error.
    pub(super) async fn delete(&self, path: &Path) -> Result<(), StoreError> {
        let _permit = self.permit().await?;
        found(self.store.delete(path).await).map(drop).map_err(during("delete", path))
    }

    pub(super) async fn list(&self, below: &Path) -> Result<Vec<ObjectMeta>, StoreError> {
        use futures_util::TryStreamExt;
        let _permit = self.permit().await?;
        self.store.list(Some(below)).try_collect().await.map_err(during("list", below))
    }

    /// Checks that the bucket exists, by listing below `path`, where few objects should be.
    pub(super) async fn has_bucket(&self, path: &Path) -> Result<bool, StoreError> {
        use futures_util::TryStreamExt;
        let _permit = self.permit().await?;
        match self.store.list(Some(path)).try_next().await {
            Ok(_) => Ok(true),
            // The crate has no kind for this error, but its text contains the server's reply.
            Err(error) if error.to_string().contains("NoSuchBucket") => Ok(false),
            Err(error) => Err(during("list", path)(error)),
        }
    }

    async fn put_in_parts(&self, path: &Path, parts: [Bytes; 2]) -> Result<(), Error> {
        let [header, data] = parts;
        let mut upload = self.store.put_multipart(path).await?;
        // The first part starts with the header. All parts except the last must have the same length.
        let first = data.slice(..self.part_bytes - header.len());
        let mut rest = data.slice(first.len()..);
        let mut under_way = vec![upload.put_part(PutPayload::from_iter([header, first]))];
        while !rest.is_empty() {
            let part = rest.split_to(rest.len().min(self.part_bytes));
            under_way.push(upload.put_part(part.into()));
            // Send few at a time, since the whole value has one permit.
            if under_way.len() == PARTS {
                let sent = futures_util::future::try_join_all(under_way.drain(..)).await;
                if let Err(error) = sent {
                    // This may fail too. The bucket's rules should remove incomplete uploads.
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
        // The semaphore is never closed.
        self.permits.acquire().await.map_err(|_| gone())
    }
}

/// The number of parts of one value that are sent or read concurrently.
const PARTS: usize = 4;

/// The number of attempts to read a value that is replaced while it is read in parts.
const CHANGES: usize = 5;

/// Tells whether the server answered 416. The crate has no kind for it, but its text contains the status. The key comes
/// before it and may contain the same digits.
fn is_out_of_range(error: &Error) -> bool {
    // The text before the number contains a space, so no URL can match it.
    error.to_string().contains("status code: 416")
}

fn is_unsupported(error: &Error) -> bool {
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

    /// Tests of real servers read empty objects, which shows that 416 is recognized.
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
        assert!(is_unsupported(&error("501 Not Implemented")));
        for other in ["403 Forbidden", "503 Slow Down"] {
            assert!(!is_unsupported(&error(other)));
        }
    }
}
