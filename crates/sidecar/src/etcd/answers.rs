//! The answers of etcd's gateway: protobuf's JSON, where 64-bit numbers are strings, bytes are base64 and zeros are
//! left out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, de};

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Header {
    #[serde(default, deserialize_with = "number")]
    pub(crate) revision: i64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Pair {
    #[serde(deserialize_with = "bytes")]
    pub(crate) key: Vec<u8>,
    #[serde(default, deserialize_with = "bytes")]
    pub(crate) value: Vec<u8>,
    /// The revision of the last change to the key.
    #[serde(default, deserialize_with = "number")]
    pub(crate) mod_revision: i64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RangeAnswer {
    #[serde(default)]
    pub(crate) header: Header,
    #[serde(default)]
    pub(crate) kvs: Vec<Pair>,
    #[serde(default)]
    pub(crate) more: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct WatchAnswer {
    #[serde(default)]
    pub(crate) header: Header,
    #[serde(default)]
    pub(crate) canceled: bool,
    #[serde(default)]
    pub(crate) cancel_reason: String,
    /// The oldest revision that etcd still has, if the watch has ended because it asked for an older one; otherwise 0.
    #[serde(default, deserialize_with = "number")]
    pub(crate) compact_revision: i64,
    #[serde(default)]
    pub(crate) events: Vec<ChangeEvent>,
}

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

/// A lease and its remaining seconds, 0 if it has ended.
#[derive(Debug, Deserialize)]
pub(crate) struct LeaseAnswer {
    #[serde(rename = "ID", default, deserialize_with = "number")]
    pub(crate) id: i64,
    #[serde(rename = "TTL", default, deserialize_with = "number")]
    pub(crate) ttl: i64,
}

/// An answer without content that matters.
#[derive(Debug, Deserialize)]
pub(crate) struct Done {}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Message<T> {
    Result(T),
    Error(Refusal),
}

#[derive(Debug, Deserialize)]
pub(crate) struct Refusal {
    #[serde(default)]
    pub(crate) message: String,
    /// The gRPC code, under either name that gateways use.
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
