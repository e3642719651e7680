//! What etcd's gateway answers: protobuf's JSON, where numbers of 64 bits are texts, bytes are base64 and zeros are left out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, de};

/// What every answer begins with.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Header {
    #[serde(default, deserialize_with = "number")]
    pub(crate) revision: i64,
}

/// A key and its value. Both may be anything.
#[derive(Debug, Deserialize)]
pub(crate) struct Pair {
    #[serde(deserialize_with = "bytes")]
    pub(crate) key: Vec<u8>,
    #[serde(default, deserialize_with = "bytes")]
    pub(crate) value: Vec<u8>,
    /// The revision in which it became what it is.
    #[serde(default, deserialize_with = "number")]
    pub(crate) mod_revision: i64,
}

/// All keys of a range, as of one revision.
#[derive(Debug, Deserialize)]
pub(crate) struct RangeAnswer {
    #[serde(default)]
    pub(crate) header: Header,
    #[serde(default)]
    pub(crate) kvs: Vec<Pair>,
    /// There are further ones.
    #[serde(default)]
    pub(crate) more: bool,
}

/// One message of a watch.
#[derive(Debug, Deserialize)]
pub(crate) struct WatchAnswer {
    #[serde(default)]
    pub(crate) header: Header,
    /// The watch has ended.
    #[serde(default)]
    pub(crate) canceled: bool,
    #[serde(default)]
    pub(crate) cancel_reason: String,
    /// It has ended because what it asks for is older than this, and not kept.
    #[serde(default, deserialize_with = "number")]
    pub(crate) compact_revision: i64,
    #[serde(default)]
    pub(crate) events: Vec<ChangeEvent>,
}

/// A key that was put or deleted.
#[derive(Debug, Deserialize)]
pub(crate) struct ChangeEvent {
    #[serde(default)]
    pub(crate) r#type: Change,
    pub(crate) kv: Pair,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Change {
    #[default]
    Put,
    Delete,
}

/// A lease and the seconds that it lives; 0 if it does not.
#[derive(Debug, Deserialize)]
pub(crate) struct LeaseAnswer {
    #[serde(rename = "ID", default, deserialize_with = "number")]
    pub(crate) id: i64,
    #[serde(rename = "TTL", default, deserialize_with = "number")]
    pub(crate) ttl: i64,
}

/// An answer of which nothing matters but that it is one.
#[derive(Debug, Deserialize)]
pub(crate) struct Done {}

/// One message of an answer that may have several.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Message<T> {
    Result(T),
    Error(Refusal),
}

/// Why something was not done.
#[derive(Debug, Deserialize)]
pub(crate) struct Refusal {
    #[serde(default)]
    pub(crate) message: String,
    /// gRPC's code, under either name that gateways have for it.
    #[serde(default, alias = "grpc_code")]
    pub(crate) code: u32,
}

pub(super) fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn number<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(de::Error::custom)
}

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(from)?;
    STANDARD.decode(text).map_err(de::Error::custom)
}
