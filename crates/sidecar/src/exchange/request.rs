//! What a client asks for, as far as it matters here, and the bodies that servers get instead of the client's.

use std::fmt;

use bytes::Bytes;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::json::{self, Object};
use crate::settings::KvConnector;

/// The members of a body by which a client could steer transfers: only we and the servers set them.
pub(crate) const CLIENT_PARAMS: [&str; 6] = [
    "kv_transfer_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "disaggregated_params",
    "ec_transfer_params",
];

/// What asks a prefill server to keep the blocks and answer with parameters for them.
const ASK_FOR_BLOCKS: &str = concat!(
    r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"#,
    r#""remote_block_ids":null,"remote_host":null,"remote_port":null}"#
);

/// A path whose requests are disaggregated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    ChatCompletions,
    Completions,
    Responses,
    /// Anthropic's.
    Messages,
    /// vLLM's, from token ids to token ids.
    Tokens,
    /// SGLang's own.
    Generate,
}

impl Route {
    /// The route of a path, which is matched exactly, where servers move their caches so.
    pub(crate) fn of(path: &str, connector: KvConnector) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::ChatCompletions,
            "/v1/completions" => Self::Completions,
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Messages,
            "/inference/v1/generate" => Self::Tokens,
            // Other servers have other things there.
            "/generate" if connector == KvConnector::Sglang => Self::Generate,
            _ => return None,
        })
    }

    /// The members that bound how much is generated.
    const fn limits(self) -> &'static [&'static str] {
        match self {
            Self::ChatCompletions | Self::Completions => &["max_tokens", "max_completion_tokens"],
            Self::Responses => &["max_output_tokens"],
            Self::Messages | Self::Tokens => &["max_tokens"],
            Self::Generate => &["max_new_tokens"],
        }
    }

    /// The member that these are in, if they are not members of the body.
    const fn limits_in(self) -> Option<&'static str> {
        match self {
            Self::Tokens | Self::Generate => Some("sampling_params"),
            Self::ChatCompletions | Self::Completions | Self::Responses | Self::Messages => None,
        }
    }

    /// The prompt of a body, as it is written there; embedded, if it comes so.
    pub(crate) fn prompt(self, body: &Object) -> &str {
        let members: &[&str] = match self {
            Self::ChatCompletions | Self::Messages => &["messages"],
            Self::Completions => &["prompt_embeds", "prompt"],
            Self::Responses => &["input"],
            Self::Tokens => &["token_ids"],
            Self::Generate => &["input_embeds", "input_ids", "text"],
        };
        let mut given = members.iter().filter_map(|member| body.get(member));
        given.find(|prompt| *prompt != "null").unwrap_or_default()
    }
}

/// One request of a P/D route.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) route: Route,
    /// The client's body, without parameters that are not a client's to set.
    pub(crate) body: Object,
    /// A prefill server is asked.
    pub(crate) disaggregated: bool,
    /// Where servers of SGLang meet.
    pub(crate) bootstrap: Option<Bootstrap>,
}

/// Where servers of SGLang meet for one request.
#[derive(Debug, Clone)]
pub(crate) struct Bootstrap {
    /// The prefill server's host, as JSON text.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// What tells this request from others there: 63 random bits.
    pub(crate) room: u64,
}

impl Request {
    /// Whether it wants its answer as events.
    pub(super) fn streams(&self) -> bool {
        self.body.get("stream") == Some("true")
    }

    pub(super) fn has_threshold(&self) -> bool {
        self.body.get(THRESHOLD).is_some()
    }

    /// The body of a prefill leg over NIXL or a connector that is asked alike.
    pub(super) fn prefill_for_params(&self) -> Bytes {
        let edit = self.limited().set("stream", "false").remove("stream_options");
        edit.set("kv_transfer_params", ASK_FOR_BLOCKS).finish()
    }

    /// The body of a prefill leg whose KV goes to shared storage.
    pub(super) fn prefill_for_storage(&self) -> Bytes {
        self.limited().set(THRESHOLD, "0").finish()
    }

    /// The body of a decode leg whose KV is in shared storage.
    pub(super) fn decode_from_storage(&self) -> Bytes {
        self.body.edit().set(THRESHOLD, "0").finish()
    }

    /// The body of a decode leg that fetches what these parameters name.
    pub(super) fn decode_with_params(&self, params: &str) -> Bytes {
        self.body.edit().set("kv_transfer_params", params).finish()
    }

    /// The body of both legs where servers meet at a bootstrap server.
    pub(super) fn with_bootstrap(&self, bootstrap: &Bootstrap) -> Bytes {
        let edit = self.body.edit().set("bootstrap_host", &*bootstrap.host);
        let edit = edit.set("bootstrap_port", bootstrap.port.to_string());
        edit.set("bootstrap_room", bootstrap.room.to_string()).finish()
    }

    /// A copy that generates one token. Engines refuse more tokens at least than at most.
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
            // The server says what is wrong with it.
            None => edit,
        }
    }

    fn limit<'a>(&self, object: &'a Object) -> json::Edit<'a> {
        let limits = self.route.limits().iter();
        let edit = limits.fold(object.edit().remove("min_tokens"), |edit, limit| edit.set(limit, "1"));
        // Nor more than one answer: the prompt's cache is the same for all of them.
        let given = |key: &str| object.get(key).is_some_and(|value| value != "null");
        let single = SINGLE.iter().filter(|(key, _)| given(key));
        single.fold(edit, |edit, (key, one)| edit.set(key, *one))
    }
}

/// The members that ask for several answers, and with which there is one.
const SINGLE: [(&str, &str); 3] = [("n", "1"), ("best_of", "1"), ("use_beam_search", "false")];

const THRESHOLD: &str = "cache_hit_threshold";

/// How many items a list has, and how many of them are numbers. The items themselves are not kept: there may be millions.
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

/// Whether a body asks for several prompts at once, whose blocks no one parameter stands for.
pub(crate) fn several_prompts(route: Route, body: &Object) -> bool {
    let members: &[&str] = match route {
        Route::Completions => &["prompt", "prompt_embeds"],
        Route::Generate => &["text", "input_ids"],
        _ => return false,
    };
    let prompts = |key| match body.get(key) {
        // Beside embedded prompts clients have to send an empty one.
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
