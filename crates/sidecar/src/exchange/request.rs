//! The parts of a client's request that matter here, and the bodies that servers get in place of the client's.

use std::fmt;

use bytes::Bytes;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::overlap::Meeting;
use crate::json::{self, Object};
use crate::settings::KvConnector;

/// The members of a body with which a client could steer transfers. Only this process and the servers may set them.
pub(crate) const CLIENT_PARAMS: [&str; 6] = [
    "kv_transfer_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "disaggregated_params",
    "ec_transfer_params",
];

/// The parameters that ask a prefill server to keep the blocks and answer with parameters for them.
const ASK_FOR_BLOCKS: &str = concat!(
    r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"#,
    r#""remote_block_ids":null,"remote_host":null,"remote_port":null}"#
);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    ChatCompletions,
    Completions,
    Responses,
    /// Anthropic's Messages API.
    Messages,
    /// vLLM's API from token ids to token ids.
    Tokens,
    /// SGLang's native API.
    Generate,
}

impl Route {
    /// Returns the route of a path, which has to match exactly, if the connector serves it.
    pub(crate) fn of(path: &str, connector: KvConnector) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::ChatCompletions,
            "/v1/completions" => Self::Completions,
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Messages,
            "/inference/v1/generate" => Self::Tokens,
            // Other servers use this path for other purposes.
            "/generate" if connector == KvConnector::Sglang => Self::Generate,
            _ => return None,
        })
    }

    /// Returns the members that limit the number of generated tokens.
    const fn limits(self) -> &'static [&'static str] {
        match self {
            Self::ChatCompletions | Self::Completions => &["max_tokens", "max_completion_tokens"],
            Self::Responses => &["max_output_tokens"],
            Self::Messages | Self::Tokens => &["max_tokens"],
            Self::Generate => &["max_new_tokens"],
        }
    }

    /// Returns the member that contains the limits, or `None` if they are members of the body itself.
    const fn limits_in(self) -> Option<&'static str> {
        match self {
            Self::Tokens | Self::Generate => Some("sampling_params"),
            Self::ChatCompletions | Self::Completions | Self::Responses | Self::Messages => None,
        }
    }

    /// Returns the prompt of a body as JSON text, or its embeddings if it has those.
    pub(crate) fn prompt(self, body: &Object) -> &str {
        let members: &[&str] = match self {
            Self::ChatCompletions | Self::Messages => &["messages"],
            Self::Completions => &["prompt_embeds", "prompt"],
            Self::Responses => &["input"],
            Self::Tokens => &["token_ids"],
            Self::Generate => &["input_embeds", "input_ids", "text"],
        };
        let mut prompts = members.iter().filter_map(|member| body.get(member));
        prompts.find(|prompt| *prompt != "null").unwrap_or_default()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) route: Route,
    /// The client's body, without the parameters that clients may not set.
    pub(crate) body: Object,
    pub(crate) disaggregated: bool,
    /// Used by SGLang only: the meeting point of the two servers.
    pub(crate) bootstrap: Option<Bootstrap>,
    /// The data with which the two servers find each other, if both may be asked at once.
    pub(crate) meeting: Option<Meeting>,
}

/// The meeting point of SGLang's prefill and decode server for one request.
#[derive(Debug, Clone)]
pub(crate) struct Bootstrap {
    /// The prefill server's host, as JSON text.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The request's identifier there: 63 random bits.
    pub(crate) room: u64,
}

impl Request {
    pub(super) fn streams(&self) -> bool {
        self.body.get("stream") == Some("true")
    }

    pub(super) fn has_threshold(&self) -> bool {
        self.body.get(THRESHOLD).is_some()
    }

    /// Returns the body of a prefill leg for NIXL and connectors with the same protocol.
    pub(super) fn prefill_for_params(&self) -> Bytes {
        let edit = self.limited().set("stream", "false").remove("stream_options");
        match &self.meeting {
            None => edit.set("kv_transfer_params", ASK_FOR_BLOCKS).finish(),
            Some(meeting) => {
                let asked = ASK_FOR_BLOCKS.trim_end_matches('}');
                edit.set("kv_transfer_params", format!("{asked},{}}}", meeting.member())).finish()
            }
        }
    }

    pub(super) fn prefill_for_storage(&self) -> Bytes {
        self.limited().set(THRESHOLD, "0").finish()
    }

    pub(super) fn decode_from_storage(&self) -> Bytes {
        self.body.edit().set(THRESHOLD, "0").finish()
    }

    pub(super) fn decode_with_params(&self, params: &str) -> Bytes {
        self.body.edit().set("kv_transfer_params", params).finish()
    }

    /// Returns the body of both legs for servers that meet at a bootstrap server.
    pub(super) fn with_bootstrap(&self, bootstrap: &Bootstrap) -> Bytes {
        let edit = self.body.edit().set("bootstrap_host", &*bootstrap.host);
        let edit = edit.set("bootstrap_port", bootstrap.port.to_string());
        edit.set("bootstrap_room", bootstrap.room.to_string()).finish()
    }

    /// Returns an edit that limits generation to one token. It removes a minimum, since engines refuse a minimum above
    /// the maximum.
    fn limited(&self) -> json::Edit<'_> {
        let Some(holder) = self.route.limits_in() else {
            return self.limit(&self.body);
        };
        let edit = self.body.edit();
        let inner = match self.body.get(holder) {
            None | Some("null") => Object::parse(Bytes::from_static(b"{}")).ok(),
            Some(_) => self.body.object(holder),
        };
        match inner {
            Some(inner) => {
                let limited = self.limit(&inner).finish();
                edit.set(holder, String::from_utf8_lossy(&limited).into_owned())
            }
            // An invalid member is left to the server, which reports it.
            None => edit,
        }
    }

    fn limit<'a>(&self, object: &'a Object) -> json::Edit<'a> {
        let limits = self.route.limits().iter();
        let edit = limits.fold(object.edit().remove("min_tokens"), |edit, limit| edit.set(limit, "1"));
        // One answer is enough: the prompt's cache is the same for all answers.
        let is_set = |key: &str| object.get(key).is_some_and(|value| value != "null");
        let single = SINGLE.iter().filter(|(key, _)| is_set(key));
        single.fold(edit, |edit, (key, one)| edit.set(key, *one))
    }
}

/// The members that ask for several answers, with the values for a single one.
const SINGLE: [(&str, &str); 3] = [("n", "1"), ("best_of", "1"), ("use_beam_search", "false")];

const THRESHOLD: &str = "cache_hit_threshold";

/// The number of items in a list, and of numbers among them. The items are not kept: there may be millions.
#[derive(Default)]
struct Items {
    numbers: usize,
    all: usize,
}

impl<'de> Deserialize<'de> for Items {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Items;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Items, A::Error> {
                let mut items = Items::default();
                while let Some(item) = list.next_element::<&RawValue>()? {
                    let digit = |first: char| first == '-' || first.is_ascii_digit();
                    items.numbers += usize::from(item.get().starts_with(digit));
                    items.all += 1;
                }
                Ok(items)
            }
        }
        deserializer.deserialize_seq(Each)
    }
}

/// Returns whether a body has several prompts, whose blocks one set of parameters cannot describe.
pub(crate) fn several_prompts(route: Route, body: &Object) -> bool {
    let members: &[&str] = match route {
        Route::Completions => &["prompt", "prompt_embeds"],
        Route::Generate => &["text", "input_ids"],
        _ => return false,
    };
    let prompts = |key| match body.get(key) {
        // Clients that send embeddings also have to send an empty prompt.
        None | Some("null" | "\"\"") => 0,
        Some(prompt) if prompt.starts_with('[') => match body.read(key).unwrap_or_default() {
            // A list of numbers is one prompt, of token ids.
            Items { numbers, all } if numbers > 0 && numbers == all => 1,
            Items { all, .. } => all,
        },
        Some(_) => 1,
    };
    members.iter().map(|member| prompts(member)).sum::<usize>() > 1
}
