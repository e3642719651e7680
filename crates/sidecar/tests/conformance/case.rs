//! The format of cases: the client's request, the servers' expected requests and their answers, and the client's
//! expected answer.

use serde::{Deserialize, Deserializer};
use transload_test_servers::End;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub(crate) case: Vec<Case>,
}

/// A request of a client, with the requests to servers that must follow and the answer that the client must get. In
/// every text, `{prefill}`, `{prefill1}`, `{decode}` and `{sidecar}` stand for addresses.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// The source of the expectation, if it is not obvious.
    #[allow(dead_code)]
    pub(crate) why: String,
    pub(crate) settings: Knobs,
    /// Servers that refuse connections: `prefill`, `decode1`.
    pub(crate) down: Vec<String>,
    /// Method and target.
    pub(crate) request: String,
    /// The value of `x-prefiller-host-port`. If empty, the header is not sent.
    pub(crate) prefiller: String,
    /// Header lines besides `Host`, `Content-Type` and `x-prefiller-host-port`.
    pub(crate) headers: Vec<String>,
    /// The number of additional header lines of 200 bytes each.
    pub(crate) padding: usize,
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
    pub(crate) chunked: bool,
    pub(crate) trailers: Vec<String>,
    /// The request cannot be disaggregated, whatever its route, so its own id is forwarded.
    pub(crate) passed: bool,
    /// The client speaks HTTP/1.0 and names no host.
    pub(crate) old: bool,
    /// The rank whose port gets the request.
    pub(crate) rank: usize,
    /// Repeat the case for every way to split the request and its answers in two.
    pub(crate) splits: bool,
    /// The client waits for `100 Continue` before it sends the body.
    pub(crate) waits: bool,
    /// The time after which the client leaves.
    pub(crate) leaves_ms: Option<u64>,
    /// Servers that notice that within 2 s.
    pub(crate) left: Vec<String>,
    /// Bytes that are sent after the protocol switch and echoed back.
    pub(crate) echo: Option<String>,
    /// The requests that the prefill servers must see, and their answers, in order.
    pub(crate) prefill: Vec<Leg>,
    pub(crate) decode: Vec<Leg>,
    pub(crate) client: Seen,
}

/// The differences of the settings from those of a plain sidecar.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Knobs {
    pub(crate) proxy: bool,
    pub(crate) prefills: Option<usize>,
    pub(crate) decodes: Option<usize>,
    pub(crate) policy: String,
    pub(crate) min_prompt: u64,
    pub(crate) api_key: Option<String>,
    pub(crate) connector: String,
    pub(crate) ranks: Option<u16>,
    pub(crate) pod_ip: Option<String>,
    pub(crate) sample: bool,
    pub(crate) allow: Option<String>,
    pub(crate) verify_remote_host: Option<bool>,
    pub(crate) trust: bool,
    pub(crate) chunk: Option<u32>,
    pub(crate) body_limit: Option<u64>,
    pub(crate) body_memory: Option<u64>,
    pub(crate) connections: Option<usize>,
    pub(crate) prefill_timeout_ms: Option<u64>,
    pub(crate) head_timeout_ms: Option<u64>,
    pub(crate) requests_per_client: Option<u32>,
    pub(crate) failure_is_error: bool,
    pub(crate) retries: u32,
    pub(crate) bootstrap_port: Option<u16>,
}

/// A request that a server must see, and its answer.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Leg {
    /// The index of the server in its role.
    pub(crate) at: usize,
    /// Method and target; the client's, if not given.
    pub(crate) line: Option<String>,
    /// The expected body as JSON: the client's members in their order and spelling, and anywhere in it the members that
    /// were set.
    pub(crate) sees: Option<String>,
    /// The expected body; the client's, if neither is given.
    pub(crate) sees_bytes: Option<Bytes>,
    /// Header lines that must be present, with no other value.
    pub(crate) has: Vec<String>,
    pub(crate) lacks: Vec<String>,
    /// Trailers that came with it.
    pub(crate) sees_trailers: Vec<String>,

    pub(crate) delay_ms: u64,
    pub(crate) status: u16,
    pub(crate) headers: Vec<String>,
    pub(crate) content_type: String,
    pub(crate) answers: Bytes,
    /// The body in several chunks, instead of `answers`.
    pub(crate) pieces: Vec<Bytes>,
    pub(crate) framing: Ends,
    pub(crate) gzip: bool,
    pub(crate) trailers: Vec<String>,
    /// The answer has no body, even if its head announces one.
    pub(crate) head_only: bool,
    /// The server sends nothing at all.
    pub(crate) mute: bool,
    /// The connection ends before this byte of the body as sent.
    pub(crate) cut: Option<usize>,
    pub(crate) end: End,
    /// The server answers before it reads the request's body.
    pub(crate) early: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Ends {
    #[default]
    Length,
    Chunked,
    Close,
}

/// The answer that the client must get.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Seen {
    pub(crate) status: u16,
    pub(crate) reason: Option<String>,
    /// The body; the last answer of a decode server, if neither this nor `json` nor `error` is given.
    pub(crate) body: Option<Bytes>,
    /// The body as JSON, where order and texts of numbers count, and white space does not.
    pub(crate) json: Option<String>,
    /// The body is an error of this type.
    pub(crate) error: Option<String>,
    /// Expected values in the body: `/a/0/b = 1`, or `/a = absent`.
    pub(crate) holds: Vec<String>,
    /// Expected values, or the whole data, of each of its events.
    pub(crate) events: Vec<Vec<String>>,
    /// The body does not matter.
    pub(crate) any_body: bool,
    pub(crate) has: Vec<String>,
    pub(crate) lacks: Vec<String>,
    pub(crate) trailers: Vec<String>,
    /// The answer breaks off: after `body` where that is given, before its end otherwise.
    pub(crate) cut: bool,
    /// `100 Continue` came first.
    pub(crate) continued: bool,
    /// No answer comes: the connection ends without one, or the client leaves.
    pub(crate) nothing: bool,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            name: String::new(),
            why: String::new(),
            settings: Knobs::default(),
            down: Vec::new(),
            request: "POST /v1/chat/completions".to_owned(),
            prefiller: "{prefill}".to_owned(),
            headers: Vec::new(),
            padding: 0,
            content_type: "application/json".to_owned(),
            body: Bytes::default(),
            chunked: false,
            trailers: Vec::new(),
            passed: false,
            old: false,
            rank: 0,
            splits: false,
            waits: false,
            leaves_ms: None,
            left: Vec::new(),
            echo: None,
            prefill: Vec::new(),
            decode: Vec::new(),
            client: Seen::default(),
        }
    }
}

impl Default for Leg {
    fn default() -> Self {
        Self {
            at: 0,
            line: None,
            sees: None,
            sees_bytes: None,
            has: Vec::new(),
            lacks: Vec::new(),
            sees_trailers: Vec::new(),
            delay_ms: 0,
            status: 200,
            headers: Vec::new(),
            content_type: "application/json".to_owned(),
            answers: Bytes::default(),
            pieces: Vec::new(),
            framing: Ends::default(),
            gzip: false,
            trailers: Vec::new(),
            head_only: false,
            mute: false,
            cut: None,
            end: End::default(),
            early: false,
        }
    }
}

impl Leg {
    /// Makes an answer that keeps the connection.
    pub(crate) fn good() -> Self {
        Self { answers: Bytes(b"{}".to_vec()), ..Self::default() }
    }
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            status: 200,
            reason: None,
            body: None,
            json: None,
            error: None,
            holds: Vec::new(),
            events: Vec::new(),
            any_body: false,
            has: Vec::new(),
            lacks: Vec::new(),
            trailers: Vec::new(),
            cut: false,
            continued: false,
            nothing: false,
        }
    }
}

/// Bytes, written as text, or as `{ hex = "…" }`, or as `{ text = "…", times = n }`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Text(String),
            Hex { hex: String },
            Times { text: String, times: usize },
        }
        Ok(Self(match Written::deserialize(from)? {
            Written::Text(text) => text.into_bytes(),
            Written::Times { text, times } => text.repeat(times).into_bytes(),
            Written::Hex { hex } => {
                let digits: Vec<char> = hex.chars().filter(|char| *char != ' ').collect();
                let byte = |pair: &[char]| {
                    let text: String = pair.iter().collect();
                    u8::from_str_radix(&text, 16).map_err(serde::de::Error::custom)
                };
                digits.chunks(2).map(byte).collect::<Result<_, _>>()?
            }
        }))
    }
}
