//! The options that `transload sidecar` and `transload proxy` share.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, ValueHint};
use transload::store::internal::size;
use transload_sidecar::Otlp;
use transload_sidecar::settings::{KvConnector, Limits, Mode, PrefillFailure, ServingTls, Settings, UpstreamTls};

use super::values::{self, Admin, Stage, Stages};
use crate::failure::Failure;

pub(super) const SECURITY: &str = "Security";

/// All common options except [`Protocol`], which comes first in the help.
#[derive(Debug, clap::Args)]
pub(super) struct Common {
    #[command(flatten)]
    tls: Tls,
    #[command(flatten)]
    failing: Failing,
    #[command(flatten)]
    trust: Trust,
    #[command(flatten)]
    bounds: Bounds,
    #[command(flatten)]
    operating: Operating,
}

/// A function that returns the value of an environment variable that is set and not empty.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Common {
    /// Makes the settings for a mode and a listening address, with TLS for clients if `secure`.
    pub(super) fn settings(
        self,
        protocol: &Protocol,
        mode: Mode,
        listen: SocketAddr,
        secure: bool,
        environment: Environment<'_>,
    ) -> Result<Settings, Failure> {
        let bootstrap_port = match environment("SGLANG_BOOTSTRAP_PORT") {
            None => 8998,
            Some(text) => match text.parse::<NonZeroU16>() {
                Ok(port) => port.get(),
                Err(_) => {
                    return Err(Failure::input(
                        format!("the environment variable SGLANG_BOOTSTRAP_PORT={text:?} is not a port"),
                        "set a number from 1 to 65535, or unset it for the default 8998",
                    ));
                }
            },
        };
        let least = self.bounds.body_limit.saturating_mul(2);
        let body_memory = self.bounds.body_memory;
        if body_memory.is_some_and(|memory| memory < least) {
            return Err(Failure::input(
                "--body-memory is less than twice --body-limit, which the longest body may need while it arrives",
                "raise --body-memory, or lower --body-limit",
            ));
        }
        if protocol.overlap && (protocol.kv_connector != KvConnector::NixlV2 || protocol.decode_chunk_size != 0) {
            return Err(Failure::input(
                "--overlap is for --kv-connector nixlv2, and without --decode-chunk-size",
                "leave one of them out",
            ));
        }
        Ok(Settings {
            mode,
            connector: protocol.kv_connector,
            listen,
            admin: self.operating.admin.0,
            serving_tls: self.tls.serving(secure)?,
            upstream_tls: self.tls.upstream()?,
            limits: Limits {
                prefill_timeout: self.bounds.prefill_timeout,
                connect_timeout: self.bounds.connect_timeout,
                body: self.bounds.body_limit,
                // Even the default has room for the longest body while its buffer grows.
                body_memory: body_memory.unwrap_or(least.max(1 << 30)),
                connections: self.bounds.max_connections,
                requests_per_client: self.bounds.max_requests_per_client,
                idle_connections: self.bounds.max_idle_conns_per_host,
                ..Limits::default()
            },
            prefill_failure: self.failing.prefill_failure,
            prefill_retries: self.failing.prefill_max_retries,
            prefill_backoff: self.failing.prefill_retry_backoff,
            decode_chunk: Some(protocol.decode_chunk_size).filter(|tokens| *tokens != 0),
            overlap: protocol.overlap,
            bootstrap_port,
            trust_client_params: self.trust.trust_client_params,
            certs: self.operating.certs,
            drain: self.operating.drain,
            otlp: Otlp::from_environment(environment),
        })
    }

    pub(super) fn has_certificate(&self) -> bool {
        self.tls.cert_path.is_some()
    }
}

impl Tls {
    fn serving(&self, secure: bool) -> Result<Option<ServingTls>, Failure> {
        if !secure && self.client_ca.is_some() {
            return Err(Failure::input(
                "--client-ca needs TLS, but clients are served without TLS",
                "add --cert-path with a server certificate, or leave --client-ca out",
            ));
        }
        Ok(secure.then(|| ServingTls { folder: self.cert_path.clone(), client_ca: self.client_ca.clone() }))
    }

    fn upstream(self) -> Result<UpstreamTls, Failure> {
        Ok(UpstreamTls {
            skip_verify_prefill: Stages::name(&self.tls_insecure_skip_verify, Stage::Prefiller),
            skip_verify_decode: Stages::name(&self.tls_insecure_skip_verify, Stage::Decoder),
            ca: self.upstream_ca,
            client: self.client.pair()?,
        })
    }
}

/// How the KV cache travels, and where a configuration is.
#[derive(Debug, clap::Args)]
pub(super) struct Protocol {
    /// Protocol by which the KV cache is transferred: nixlv2 (also for Transload's own connector), shared-storage or
    /// sglang.
    #[arg(long, alias = "connector", value_name = "NAME", default_value = "nixlv2", value_parser = values::connector)]
    kv_connector: KvConnector,
    /// Maximum number of tokens per decode request: longer chat completions are split into several. 0 means no limit.
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    decode_chunk_size: u32,
    /// Ask prefill and decode servers at once, so that the prompt is loaded while it is computed. For vLLM with
    /// Transload's connector.
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, default_value = "false",
        default_missing_value = "true", value_parser = values::switch)]
    overlap: bool,
    /// Options as YAML or JSON text, with the names of flags as keys: `{port: 8085, vllm-port: 8203}`. Flags take
    /// precedence.
    #[arg(long, value_name = "TEXT")]
    configuration: Option<String>,
    /// File with options as YAML or JSON, in place of --configuration.
    #[arg(long, value_name = "FILE", value_parser = values::path, value_hint = ValueHint::FilePath)]
    configuration_file: Option<PathBuf>,
}

/// Certificates that are the same for both commands.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "TLS")]
struct Tls {
    /// Folder with the certificate for clients, tls.crt, and its key, tls.key. Changes are picked up.
    #[arg(long, value_name = "DIR", value_parser = values::path, value_hint = ValueHint::DirPath)]
    cert_path: Option<PathBuf>,
    /// PEM file of authorities; clients must present a certificate of one of them.
    #[arg(long, value_name = "FILE", value_parser = values::path, value_hint = ValueHint::FilePath)]
    client_ca: Option<PathBuf>,
    /// Do not verify the certificates of prefiller or decoder servers; may be repeated.
    #[arg(long, value_name = "STAGE,…", action = ArgAction::Append, value_parser = values::stages)]
    tls_insecure_skip_verify: Vec<Stages>,
    /// PEM file of authorities to verify the certificates of servers. Default: those of the system.
    #[arg(long, value_name = "FILE", value_parser = values::path, value_hint = ValueHint::FilePath)]
    upstream_ca: Option<PathBuf>,
    #[command(flatten)]
    client: ClientCertificate,
}

/// The certificate that servers are shown.
#[derive(Debug, clap::Args)]
pub(super) struct ClientCertificate {
    /// PEM file with the certificate chain to present to servers.
    #[arg(long, value_name = "FILE", value_parser = values::path, value_hint = ValueHint::FilePath)]
    client_cert: Option<PathBuf>,
    /// PEM file with the key of --client-cert.
    #[arg(long, value_name = "FILE", value_parser = values::path, value_hint = ValueHint::FilePath)]
    client_key: Option<PathBuf>,
}

impl ClientCertificate {
    /// Returns the certificate chain and its key, if both are given.
    pub(super) fn pair(self) -> Result<Option<(PathBuf, PathBuf)>, Failure> {
        match (self.client_cert, self.client_key) {
            (Some(chain), Some(key)) => Ok(Some((chain, key))),
            (None, None) => Ok(None),
            (chain, _) => {
                let missing = match chain {
                    Some(_) => "--client-key",
                    None => "--client-cert",
                };
                Err(Failure::input(
                    format!("{missing} is missing: a certificate and its key go together"),
                    "give both --client-cert FILE and --client-key FILE, or neither",
                ))
            }
        }
    }
}

/// What is done where a prefill server fails.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "When a prefill server fails")]
struct Failing {
    /// fallback: the decode server computes the prompt itself. error: the client receives an error.
    #[arg(long, value_name = "WHAT", default_value = "fallback", value_parser = values::prefill_failure)]
    prefill_failure: PrefillFailure,
    /// Maximum number of retries of a prefill that failed with status 502, 503 or 504.
    #[arg(long, value_name = "N", default_value_t = 0)]
    prefill_max_retries: u32,
    /// Time to wait before each retry.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = values::period)]
    prefill_retry_backoff: Duration,
}

/// What bounds requests.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
struct Bounds {
    /// Time limit for a whole prefill, to the last byte of its response.
    #[arg(long, value_name = "TIME", default_value = "300s", value_parser = values::timeout)]
    prefill_timeout: Duration,
    /// Time limit for connecting to a server.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = values::timeout)]
    connect_timeout: Duration,
    /// Maximum size of the body of a request or of a prefill's response.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size::parse)]
    body_limit: u64,
    /// Maximum memory for all bodies at a time; requests beyond it are refused with status 503. Default: 1GiB, or twice
    /// --body-limit if that is more.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    body_memory: Option<u64>,
    /// Maximum number of client connections; a further one replaces an idle one. Default: a third of the files that the
    /// process may have open, at most 65536.
    #[arg(long, value_name = "N", value_parser = values::connections)]
    max_connections: Option<usize>,
    /// Maximum number of concurrent requests per client address. Default: no limit.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_requests_per_client: Option<u32>,
    /// Maximum number of idle connections to keep to each server.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_idle_conns_per_host: usize,
}

/// Whether clients may send what only servers should.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = SECURITY)]
struct Trust {
    /// Pass on transfer parameters that clients send; false removes them from requests.
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, default_value = "false",
        default_missing_value = "true", value_parser = values::switch)]
    trust_client_params: bool,
}

/// How it is watched, and ended.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Monitoring and shutdown")]
struct Operating {
    /// Address at which to serve /healthz, /readyz, /metrics, /status and a page at /, or off.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9400", value_parser = values::admin)]
    admin: Admin,
    /// Folder with certificates of a Transload cluster (`transload certs`). With it, blocks held for a client that
    /// disconnects are released at once; without it, when their lease ends.
    #[arg(long, value_name = "DIR", value_parser = values::path, value_hint = ValueHint::DirPath)]
    certs: Option<PathBuf>,
    /// Time that requests in flight have to end after SIGTERM.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::period)]
    drain: Duration,
}

/// The options of llm-d's sidecar that have no effect here. They are accepted, so that manifests with them keep working.
#[derive(Debug, clap::Args)]
pub(super) struct Ignored {
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true")]
    zap_devel: Option<String>,
    #[arg(long, hide = true)]
    zap_encoder: Option<String>,
    #[arg(long, hide = true)]
    zap_log_level: Option<String>,
    #[arg(long, hide = true)]
    zap_stacktrace_level: Option<String>,
    #[arg(long, hide = true)]
    zap_time_encoding: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true")]
    enable_p2p_pull: Option<String>,
    #[arg(long, hide = true)]
    p2p_connector_port: Option<String>,
    #[arg(long, hide = true)]
    pool_group: Option<String>,
    #[arg(long, hide = true)]
    inference_pool: Option<String>,
    #[arg(long, hide = true)]
    inference_pool_namespace: Option<String>,
    #[arg(long, hide = true)]
    inference_pool_name: Option<String>,
}

impl Ignored {
    pub(super) fn has(name: &str) -> bool {
        name.starts_with("zap-")
            || name.starts_with("inference-pool")
            || ["enable-p2p-pull", "p2p-connector-port", "pool-group"].contains(&name)
    }
}
