//! Prefill/decode disaggregation over HTTP: one request becomes two, and the client sees one answer.
//!
//! `transload sidecar` runs next to a decode server, and a header names the prefill server to use; `transload
//! proxy` is a front door that chooses both. One engine does the work of either:
//!
//! | room | what it does | pure |
//! |---|---|---|
//! | `target` | reads where a server is, once, and decides whether it may be dialled | yes |
//! | `strict` | checks each request's head and framing before hyper's parser, which is lenient | yes |
//! | `json` | finds the members of a JSON object and edits them, all other bytes kept | yes |
//! | `usage` | rewrites `cached_tokens` in answers: JSON and server-sent events | yes |
//! | `exchange` | one request as a state machine: which leg runs, what is held back, when to fall back | yes |
//! | `servers` | the servers known: their states, what is in flight, which one is chosen | yes |
//! | [`discover`] | where servers come from besides the command line: a file, DNS, etcd | |
//! | [`announce`] | announces a server at an etcd | |
//! | [`etcd`] | speaks to an etcd over its JSON gateway | |
//! | `observe` | what is remembered of requests: recent ones, histograms, counters | |
//! | `upstream` | connections to servers | |
//! | `tls` | certificates of both sides, and their renewal | |
//! | `front` | listeners, and HTTP around an exchange | |
//! | `telemetry` | traces, exported by OTLP | |
//! | `admin` | probes, metrics, status and a page | |

#![forbid(unsafe_code)]

mod admin;
pub mod announce;
mod budget;
pub mod discover;
pub mod etcd;
mod exchange;
mod front;
#[cfg(any(test, feature = "fuzz"))]
mod fuzz;
mod json;
mod observe;
mod servers;
pub mod settings;
mod socket;
mod strict;
mod target;
mod telemetry;
mod tls;
mod upstream;
mod usage;
#[cfg(test)]
mod warnings;

/// The half of a disaggregated request that a server computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Computes the prompt's KV cache.
    Prefill,
    /// Generates the tokens of the answer.
    Decode,
}

impl Role {
    /// Returns the role's name in URIs, metrics and documents: `prefill` or `decode`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

#[cfg(feature = "tickets")]
mod release;
mod running;
pub use self::running::{Running, StartError};
pub use self::target::{AllowList, AllowListError, Host, ServerUrl, ServerUrlError, Target, TargetError};
pub use self::telemetry::Otlp;
pub use self::tls::TlsError;

/// Items for the tests, benches and crates of this repository. They are not part of the interface and change without
/// notice.
#[doc(hidden)]
pub mod internal {
    pub mod admin {
        pub use crate::admin::{Source, serve};
    }
    pub mod discover {
        pub use crate::discover::follow;
    }
    #[cfg(any(test, feature = "fuzz"))]
    pub mod fuzz {
        pub use crate::fuzz::{form, json, strict, target, usage};
    }
    pub mod observe {
        pub use crate::observe::{FailureKind, Observer, Outcome, Path, Record, ServerState, ServerStatus};
    }
    pub mod servers {
        pub use crate::servers::Servers;
    }
}
