//! The checked settings of a sidecar or proxy, independent of where they were read from.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::discover::Source;
pub use crate::servers::Policy;
use crate::strict;
use crate::target::{AllowList, ServerUrl};
use crate::telemetry::Otlp;
pub use crate::tls::UpstreamTls;

/// The settings of one sidecar or proxy.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The choice of servers, with its own settings.
    pub mode: Mode,
    /// The way in which the KV cache gets from the prefill to the decode server.
    pub connector: KvConnector,
    /// The address for clients. In [`Mode::Sidecar`] with data parallelism, the next `ranks - 1` ports are used, too.
    pub listen: SocketAddr,
    /// The admin address; `None` disables it.
    pub admin: Option<SocketAddr>,
    /// The certificate for clients; `None` serves plain HTTP.
    pub serving_tls: Option<ServingTls>,
    /// The check of servers' certificates.
    pub upstream_tls: UpstreamTls,
    /// Limits for time and memory.
    pub limits: Limits,
    /// The behaviour after a failed prefill.
    pub prefill_failure: PrefillFailure,
    /// The number of retries of a prefill that failed with status 502, 503 or 504.
    pub prefill_retries: u32,
    /// The pause before each retry.
    pub prefill_backoff: Duration,
    /// The number of tokens of one leg of a chunked decode; `None` disables chunking.
    pub decode_chunk: Option<u32>,
    /// Ask both servers at once, so that the decode server loads the prompt while the prefill server computes it. For
    /// servers with Transload's connector for vLLM.
    pub overlap: bool,
    /// The port of SGLang's bootstrap servers.
    pub bootstrap_port: u16,
    /// Accept transfer parameters from clients.
    pub trust_client_params: bool,
    /// The certificates of a Transload cluster. With them, blocks held by prefill servers for clients that have left
    /// are released at once.
    #[cfg(feature = "tickets")]
    pub certs: Option<PathBuf>,
    /// The time that requests in flight get to end after SIGTERM.
    pub drain: Duration,
    /// The export of spans; `None` disables it.
    pub otlp: Option<Otlp>,
}

impl Settings {
    /// Creates the default settings: plain HTTP on both sides, no admin address.
    #[must_use]
    pub fn new(mode: Mode, listen: SocketAddr) -> Self {
        Self {
            mode,
            connector: KvConnector::default(),
            listen,
            admin: None,
            serving_tls: None,
            upstream_tls: UpstreamTls::default(),
            limits: Limits::default(),
            prefill_failure: PrefillFailure::default(),
            prefill_retries: 0,
            prefill_backoff: Duration::from_millis(200),
            decode_chunk: None,
            overlap: false,
            bootstrap_port: 8998,
            trust_client_params: false,
            #[cfg(feature = "tickets")]
            certs: None,
            otlp: None,
            drain: Duration::from_secs(30),
        }
    }
}

/// The way in which servers are chosen.
#[derive(Debug, Clone)]
pub enum Mode {
    /// The sidecar runs in front of one decode server; requests name their prefill server.
    Sidecar(Beside),
    /// The proxy runs in front of any number of servers of both roles, among which it chooses.
    Proxy(Choosing),
}

/// The settings of a sidecar.
#[derive(Debug, Clone)]
pub struct Beside {
    /// The decode server of data-parallel rank 0; rank `r` listens `r` ports higher.
    pub decode: ServerUrl,
    /// The number of data-parallel ranks, at least 1.
    pub ranks: u16,
    /// The host by which `x-data-parallel-host-port` names this host: `POD_IP` in Kubernetes.
    pub pod_ip: Option<String>,
    /// Use TLS for prefill servers.
    pub prefill_tls: bool,
    /// Choose at random among the prefill servers in the header; otherwise the first one is used.
    pub sample: bool,
    /// The prefill servers that requests may name; `None` allows all but link-local and metadata addresses.
    pub allow: Option<AllowList>,
    /// Require that the addresses in a prefill server's parameters are its own, or on the list.
    pub verify_remote_host: bool,
}

impl Beside {
    /// Creates the default settings for one decode server without data parallelism.
    #[must_use]
    pub const fn new(decode: ServerUrl) -> Self {
        Self {
            decode,
            ranks: 1,
            pod_ip: None,
            prefill_tls: false,
            sample: false,
            allow: None,
            verify_remote_host: true,
        }
    }

    /// Returns the decode server of a data-parallel rank.
    #[must_use]
    pub fn decode_of(&self, rank: u16) -> ServerUrl {
        let mut url = self.decode.clone();
        url.target.port = url.target.port.saturating_add(rank);
        url
    }
}

/// The settings of a proxy.
#[derive(Debug, Clone)]
pub struct Choosing {
    /// Prefill servers that are configured.
    pub prefill: Vec<ServerUrl>,
    /// Decode servers that are configured.
    pub decode: Vec<ServerUrl>,
    /// The source of further servers.
    pub discover: Option<Source>,
    /// The policy for choosing among several servers.
    pub policy: Policy,
    /// The shortest prompt, in tokens, that uses a prefill server.
    pub min_prompt: u64,
    /// The key for `Authorization: Bearer` if the client sends none. It is never printed.
    pub api_key: Option<Secret>,
}

/// A text that its `Debug` output hides.
#[derive(Clone)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// The way in which the KV cache is transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvConnector {
    /// The prefill server answers with parameters, which are passed to the decode server.
    #[default]
    NixlV2,
    /// Both servers use the same storage.
    SharedStorage,
    /// Both servers get the request at once and meet at the prefill server's bootstrap port.
    Sglang,
}

impl KvConnector {
    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NixlV2 => "nixlv2",
            Self::SharedStorage => "shared-storage",
            Self::Sglang => "sglang",
        }
    }
}

/// The behaviour after a failed prefill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PrefillFailure {
    /// The decode server computes the prompt itself.
    #[default]
    Fallback,
    /// The client gets an error.
    Error,
}

/// The server certificate for clients, and the check of client certificates.
#[derive(Debug, Clone, Default)]
pub struct ServingTls {
    /// A folder with `tls.crt` and `tls.key`, which are reread when they change; `None` uses a self-signed certificate.
    pub folder: Option<PathBuf>,
    /// Authorities in PEM, one of which has to sign each client's certificate; `None` requires no client certificate.
    pub client_ca: Option<PathBuf>,
}

/// Limits for time and memory.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The time limit for a prefill leg, to its last byte.
    pub prefill_timeout: Duration,
    /// The time limit for a connection to a server.
    pub connect_timeout: Duration,
    /// The time limit for a request's head.
    pub head: Duration,
    /// The longest silence of a client while its body is being buffered.
    pub silence: Duration,
    /// The most bytes of a buffered body, of a request or of a prefill server's answer.
    pub body: u64,
    /// The most bytes of all buffered bodies together, of requests and of prefill servers' answers. The copies of a
    /// request for its servers come on top, and are as long.
    pub body_memory: u64,
    /// The most client connections; `None` is a third of the process's file descriptors, at most 65,536.
    pub connections: Option<usize>,
    /// The most concurrent requests of one client address; `None` is unlimited.
    pub requests_per_client: Option<u32>,
    /// The most idle connections that are kept open to each server.
    pub idle_connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            prefill_timeout: Duration::from_secs(300),
            connect_timeout: Duration::from_secs(2),
            head: strict::HEAD_TIMEOUT,
            silence: Duration::from_secs(30),
            body: 64 << 20,
            body_memory: 1 << 30,
            connections: None,
            requests_per_client: None,
            idle_connections: 1024,
        }
    }
}
