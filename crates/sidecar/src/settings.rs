//! What an operator decides: the settings of a sidecar or proxy, checked, whatever they were read from.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::discover::Source;
use crate::strict;
use crate::target::{AllowList, ServerUrl};
use crate::telemetry::Otlp;

/// Everything that one running sidecar or proxy goes by.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How servers are chosen, and what is particular to that.
    pub mode: Mode,
    /// How the KV cache travels from the prefill to the decode server.
    pub connector: KvConnector,
    /// Where clients connect. In [`Mode::Sidecar`] with data parallelism the next `ranks - 1` ports are taken too.
    pub listen: SocketAddr,
    /// Where the admin address is; `None` is none.
    pub admin: Option<SocketAddr>,
    /// The certificates that clients are shown; `None` is plain HTTP.
    pub serving_tls: Option<ServingTls>,
    /// How servers' certificates are checked.
    pub upstream_tls: UpstreamTls,
    /// What bounds time and memory.
    pub limits: Limits,
    /// What happens when a prefill server fails.
    pub prefill_failure: PrefillFailure,
    /// How often a prefill that the server failed with 502, 503 or 504 is asked for again.
    pub prefill_retries: u32,
    /// The wait before each of these.
    pub prefill_backoff: Duration,
    /// The tokens of one leg of a chunked decode; `None` is not chunked.
    pub decode_chunk: Option<u32>,
    /// The port of SGLang's bootstrap servers.
    pub bootstrap_port: u16,
    /// Clients may send transfer parameters of their own.
    pub trust_client_params: bool,
    /// The certificates of a Transload cluster, with which blocks that prefill servers hold for clients that have left are
    /// given up at once.
    #[cfg(feature = "tickets")]
    pub certs: Option<PathBuf>,
    /// How long streams in flight may take to end after SIGTERM.
    pub drain: Duration,
    /// Where spans are exported to; `None` is nowhere.
    pub otlp: Option<Otlp>,
}

impl Settings {
    /// The defaults: plain HTTP on both sides and no admin address.
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
            bootstrap_port: 8998,
            trust_client_params: false,
            #[cfg(feature = "tickets")]
            certs: None,
            otlp: None,
            drain: Duration::from_secs(30),
        }
    }
}

/// How servers are chosen.
#[derive(Debug, Clone)]
pub enum Mode {
    /// Beside a decode server; requests name their prefill server.
    Sidecar(Beside),
    /// Before any number of servers of both roles.
    Proxy(Choosing),
}

/// What is particular to a sidecar.
#[derive(Debug, Clone)]
pub struct Beside {
    /// The decode server of data-parallel rank 0; rank `r` listens `r` ports higher.
    pub decode: ServerUrl,
    /// Data-parallel ranks, 1 or more.
    pub ranks: u16,
    /// The address by which `x-data-parallel-host-port` names this host: `POD_IP` in Kubernetes.
    pub pod_ip: Option<String>,
    /// Prefill servers are spoken to over TLS.
    pub prefill_tls: bool,
    /// A prefill server of the header's list is drawn at random; otherwise the first one is taken.
    pub sample: bool,
    /// Which prefill servers may be named; `None` is all but link-local and metadata addresses.
    pub allow: Option<AllowList>,
    /// The addresses in a prefill server's parameters have to be its own, or allowed.
    pub verify_remote_host: bool,
}

impl Beside {
    /// Beside one decode server without data parallelism.
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

    /// The decode server of a data-parallel rank.
    #[must_use]
    pub fn decode_of(&self, rank: u16) -> ServerUrl {
        let mut url = self.decode.clone();
        url.target.port = url.target.port.saturating_add(rank);
        url
    }
}

/// What is particular to a proxy.
#[derive(Debug, Clone)]
pub struct Choosing {
    /// Prefill servers that are always known.
    pub prefill: Vec<ServerUrl>,
    /// Decode servers that are always known.
    pub decode: Vec<ServerUrl>,
    /// Where further servers are looked for.
    pub discover: Option<Source>,
    /// How a server is chosen among several.
    pub policy: Policy,
    /// Prompts of fewer tokens than this go to a decode server only.
    pub min_prompt: u64,
    /// What `Authorization: Bearer` is set to where the client sends none. Never printed.
    pub api_key: Option<Secret>,
}

/// A text that is never printed.
#[derive(Clone)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// How a server is chosen among several of its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// One after the other.
    #[default]
    RoundRobin,
    /// The one with the fewest tokens in flight.
    LeastLoaded,
    /// The one that a hash of the prompt's beginning falls to, unless it is much busier than others.
    Prefix,
}

/// How the KV cache travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvConnector {
    /// The prefill server answers with parameters, which the decode server is handed.
    #[default]
    NixlV2,
    /// Through storage that both servers use.
    SharedStorage,
    /// Both servers are asked at once and meet at the prefill server's bootstrap port.
    Sglang,
}

impl KvConnector {
    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NixlV2 => "nixlv2",
            Self::SharedStorage => "shared-storage",
            Self::Sglang => "sglang",
        }
    }
}

/// What happens when a prefill server fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PrefillFailure {
    /// The decode server computes the prompt itself.
    #[default]
    Fallback,
    /// The client gets an error.
    Error,
}

/// The certificates that clients are shown, and those that they have to show.
#[derive(Debug, Clone, Default)]
pub struct ServingTls {
    /// A folder with `tls.crt` and `tls.key`, read again when they change; `None` is a self-signed certificate.
    pub folder: Option<PathBuf>,
    /// Clients have to show a certificate of an authority in this PEM file.
    pub client_ca: Option<PathBuf>,
}

/// How servers' certificates are checked, and what they are shown.
#[derive(Debug, Clone, Default)]
pub struct UpstreamTls {
    /// Prefill servers' certificates are not checked.
    pub skip_verify_prefill: bool,
    /// Decode servers' certificates are not checked.
    pub skip_verify_decode: bool,
    /// Authorities that sign servers' certificates, in PEM; `None` is those of the operating system.
    pub ca: Option<PathBuf>,
    /// The certificate chain and key shown to servers, in PEM.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// What bounds time and memory.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The time of a whole prefill leg, to its last byte.
    pub prefill_timeout: Duration,
    /// The time to connect to a server.
    pub connect_timeout: Duration,
    /// The time that a request's head may take.
    pub head: Duration,
    /// The time for which a client may send nothing of a body that is read whole.
    pub silence: Duration,
    /// The bytes of a body that is read whole, of a request or of a prefill server's answer.
    pub body: u64,
    /// The bytes of all bodies that are read whole at a time, of requests and of prefill servers' answers. A request's copies for
    /// servers come to it, and are as long.
    pub body_memory: u64,
    /// Clients' connections at a time; `None` is a third of the files that the process may have, 65,536 at most.
    pub connections: Option<usize>,
    /// Requests of one client address at a time; `None` is any number.
    pub requests_per_client: Option<u32>,
    /// Idle connections kept for each server.
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
