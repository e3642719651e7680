//! A client that asks one member of an etcd cluster, and the next one after a failure.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use thiserror::Error;

use super::Cluster;
use super::answers::{Done, LeaseAnswer, Message, RangeAnswer, Refusal, WatchAnswer, encoded};
use crate::Role;
use crate::target::ServerUrl;
use crate::tls::{self, TlsError, UpstreamTls};
use crate::upstream::{Answer, Outgoing, SendError, Upstream};

/// The time limits for a connection and for a whole call. A lease outlives three calls without an answer.
const CONNECT: Duration = Duration::from_secs(1);
const CALL: Duration = Duration::from_secs(2);

/// The pauses after the first failure and after many. The longest leaves an announcer the time to renew its lease.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// The most bytes of one message: as many keys as are read, each of the greatest length.
const MOST_BYTES: usize = 16 << 20;

/// The gRPC code for something that does not exist, for example a lease that has ended.
const NOT_FOUND: u32 = 5;

pub(crate) struct Client {
    cluster: Cluster,
    upstream: Upstream,
    at: usize,
    /// The number of failures since the last success.
    failures: u32,
}

#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum EtcdError {
    #[error(transparent)]
    Send(#[from] SendError),
    #[error("it refuses with {status}: {message:?}")]
    Refused { status: StatusCode, message: String, code: u32 },
    #[error("its answer is not as etcd's gateway answers: {0}")]
    Unreadable(#[from] serde_json::Error),
    #[error("its answer ended early")]
    Cut,
    #[error("it has ended the watch: {0:?}")]
    Canceled(String),
    #[error("the lease has ended")]
    LeaseEnded,
}

impl Client {
    /// Creates a client. Must be called within a tokio runtime. Only the authorities and certificates of the settings
    /// apply: an etcd's certificate is always checked.
    pub(crate) fn new(cluster: Cluster, tls: &UpstreamTls) -> Result<Self, TlsError> {
        let tls =
            tls::Upstream::load(&UpstreamTls { skip_verify_prefill: false, skip_verify_decode: false, ..tls.clone() })?;
        Ok(Self { cluster, upstream: Upstream::new(tls, CONNECT, 1, |_| true), at: 0, failures: 0 })
    }

    pub(crate) const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub(crate) fn endpoint(&self) -> &ServerUrl {
        &self.cluster.endpoints[self.at]
    }

    /// Records a failure and switches to the next endpoint. Returns the pause before the next call.
    #[must_use]
    pub(crate) fn failed(&mut self, doing: &str, error: &EtcdError) -> Duration {
        let endpoint = self.endpoint();
        if self.failures == 0 {
            tracing::warn!(etcd = %endpoint, %error, "cannot {doing}; trying on");
        } else {
            tracing::debug!(etcd = %endpoint, %error, "cannot {doing}");
        }
        self.at = (self.at + 1) % self.cluster.endpoints.len();
        self.failures = self.failures.saturating_add(1);
        let rounds = self.failures as usize / self.cluster.endpoints.len();
        let longest = (FIRST_WAIT * (1 << rounds.min(8))).min(LONGEST_WAIT);
        // Random pauses keep all clients from reconnecting at once after an outage.
        longest.mul_f64(rand::random_range(0.5..=1.0))
    }

    pub(crate) fn succeeded(&mut self, doing: &str) {
        if std::mem::take(&mut self.failures) > 0 {
            tracing::info!(etcd = %self.endpoint(), "can {doing} again");
        }
    }

    pub(crate) async fn range(&self, most: usize) -> Result<RangeAnswer, EtcdError> {
        let mut asked = self.all_keys();
        asked["limit"] = json!(most.to_string());
        self.call("/v3/kv/range", &asked).await
    }

    pub(crate) async fn watch(&self, from: i64) -> Result<Watch, EtcdError> {
        let mut asked = self.all_keys();
        asked["start_revision"] = json!(from.to_string());
        let asked = json!({ "create_request": asked });
        let response = in_time(self.ask("/v3/watch", &asked)).await?;
        Ok(Watch { body: response.into_body(), messages: Messages::default() })
    }

    pub(crate) async fn grant(&self, life: Duration) -> Result<i64, EtcdError> {
        let asked = json!({ "TTL": life.as_secs().to_string() });
        let lease: LeaseAnswer = self.call("/v3/lease/grant", &asked).await?;
        Ok(lease.id)
    }

    pub(crate) async fn put(&self, key: &str, value: &[u8], lease: i64) -> Result<(), EtcdError> {
        let asked = json!({
            "key": encoded(key.as_bytes()),
            "value": encoded(value),
            "lease": lease.to_string(),
        });
        let Done {} = self.call("/v3/kv/put", &asked).await.map_err(ended)?;
        Ok(())
    }

    pub(crate) async fn keep_alive(&self, lease: i64) -> Result<(), EtcdError> {
        let asked = json!({ "ID": lease.to_string() });
        let alive: Message<LeaseAnswer> = self.call("/v3/lease/keepalive", &asked).await?;
        match alive {
            Message::Result(lease) if lease.ttl > 0 => Ok(()),
            Message::Result(_) => Err(EtcdError::LeaseEnded),
            Message::Error(refusal) => Err(ended(refused(StatusCode::OK, refusal))),
        }
    }

    pub(crate) async fn revoke(&self, lease: i64) -> Result<(), EtcdError> {
        let asked = json!({ "ID": lease.to_string() });
        let Done {} = self.call("/v3/lease/revoke", &asked).await.map_err(ended)?;
        Ok(())
    }

    /// Returns the range of all keys that begin with `PREFIX/`. It ends before the keys that begin with the next byte,
    /// `0`.
    fn all_keys(&self) -> Value {
        let prefix = &self.cluster.prefix;
        json!({
            "key": encoded(format!("{prefix}/").as_bytes()),
            "range_end": encoded(format!("{prefix}0").as_bytes()),
        })
    }

    async fn call<T: DeserializeOwned>(&self, path: &str, asked: &Value) -> Result<T, EtcdError> {
        in_time(async {
            let body = self.ask(path, asked).await?.into_body();
            Ok(serde_json::from_slice(&whole(body).await?)?)
        })
        .await
    }

    async fn ask(&self, path: &str, asked: &Value) -> Result<Response<Answer>, EtcdError> {
        let endpoint = self.endpoint();
        let mut request = Request::new(Outgoing::whole(asked.to_string().into()));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = path.parse().map_err(unsendable)?;
        let host = endpoint.target.to_string().parse().map_err(unsendable)?;
        request.headers_mut().insert(http::header::HOST, host);
        // This client has an `Upstream` of its own, so the role has no effect.
        let response = self.upstream.send(Role::Decode, endpoint, request).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = whole(response.into_body()).await.unwrap_or_default();
        let refusal = serde_json::from_slice(&body)
            .unwrap_or_else(|_| Refusal { message: String::from_utf8_lossy(&body).into_owned(), code: 0 });
        Err(refused(status, refusal))
    }
}

/// A watch, which ends when it is dropped.
pub(crate) struct Watch {
    body: Answer,
    messages: Messages,
}

impl Watch {
    /// Waits for the next message: changes, or the revision from which on changes are still available. Dropping the
    /// future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<WatchAnswer, EtcdError> {
        loop {
            if let Some(message) = self.messages.next() {
                return message;
            }
            let data = next_data(&mut self.body).await?;
            self.messages.push(&data.ok_or(EtcdError::Cut)?)?;
        }
    }
}

/// Splits the bytes of a watch into messages, one JSON document a line.
#[derive(Default)]
pub(super) struct Messages {
    held: BytesMut,
    /// The number of held bytes that contain no end of a line.
    searched: usize,
}

impl Messages {
    pub(super) fn push(&mut self, data: &[u8]) -> Result<(), EtcdError> {
        if self.held.len() + data.len() > MOST_BYTES {
            return Err(SendError::TooLong(MOST_BYTES).into());
        }
        self.held.extend_from_slice(data);
        Ok(())
    }

    pub(super) fn next(&mut self) -> Option<Result<WatchAnswer, EtcdError>> {
        while let Some(end) = memchr::memchr(b'\n', &self.held[self.searched..]) {
            let line = self.held.split_to(self.searched + end + 1);
            self.searched = 0;
            if !line.trim_ascii().is_empty() {
                return Some(Self::read(&line));
            }
        }
        self.searched = self.held.len();
        None
    }

    fn read(line: &[u8]) -> Result<WatchAnswer, EtcdError> {
        match serde_json::from_slice(line)? {
            Message::<WatchAnswer>::Error(refusal) => Err(refused(StatusCode::OK, refusal)),
            Message::Result(answer) if answer.canceled && answer.compact_revision == 0 => {
                Err(EtcdError::Canceled(shortened(&answer.cancel_reason)))
            }
            Message::Result(answer) => Ok(answer),
        }
    }
}

async fn in_time<T>(call: impl Future<Output = Result<T, EtcdError>>) -> Result<T, EtcdError> {
    let done = tokio::time::timeout(CALL, call).await;
    done.unwrap_or(Err(EtcdError::Send(SendError::Timeout(CALL))))
}

async fn whole(mut body: Answer) -> Result<BytesMut, EtcdError> {
    let mut whole = BytesMut::new();
    while let Some(data) = next_data(&mut body).await? {
        if whole.len() + data.len() > MOST_BYTES {
            return Err(SendError::TooLong(MOST_BYTES).into());
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole)
}

async fn next_data(body: &mut Answer) -> Result<Option<Bytes>, EtcdError> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(SendError::Broken)?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

fn refused(status: StatusCode, refusal: Refusal) -> EtcdError {
    EtcdError::Refused { status, message: shortened(&refusal.message), code: refusal.code }
}

fn shortened(message: &str) -> String {
    message.chars().take(200).collect()
}

/// Turns the error about a missing lease into [`EtcdError::LeaseEnded`].
fn ended(error: EtcdError) -> EtcdError {
    match error {
        EtcdError::Refused { code, .. } if code == NOT_FOUND => EtcdError::LeaseEnded,
        error => error,
    }
}

fn unsendable(wrong: impl std::error::Error + Send + Sync + 'static) -> SendError {
    SendError::Unreachable(std::io::Error::other(wrong))
}
