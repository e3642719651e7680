//! `transload sidecar`: prefill/decode disaggregation in front of a decode server.

use std::net::IpAddr;

use clap::ArgAction;
use transload_sidecar::settings::{Beside, Mode, Settings};
use transload_sidecar::{AllowList, ServerUrl, Target};

use super::common::{Common, Environment, Ignored, Protocol, SECURITY};
use super::options::{CommandLine, OtherSources};
use super::values::{self, Stage, Stages};
use super::{serve, variable};
use crate::failure::Failure;

pub(super) const EXAMPLES: &str = "\
Examples:
  transload sidecar --port 8000 --vllm-port 8200 --secure-proxy=false
  transload sidecar --vllm-port 8200 --cert-path /etc/tls --enable-tls prefiller
  transload sidecar --vllm-port 8200 --allow-prefill 10.0.0.0/16:8000
  transload sidecar --configuration-file /etc/transload/sidecar.yaml

A request names its prefill server in the header x-prefiller-host-port. Without
it, the decode server computes the prompt itself.

Flags take precedence over a configuration, a configuration over environment
variables, and these over the defaults above. For lists, separate values with
commas or repeat the flag. A switch without a value is true. TIME is for
example 200ms, 30s or 5m; SIZE is for example 64MiB or 1GiB.

Environment:
  POD_IP                      address of this host in x-data-parallel-host-port
  SGLANG_BOOTSTRAP_PORT       bootstrap port of SGLang's prefill servers, by
                              default 8998
  ENABLE_PREFILLER_SAMPLING   same as --enable-prefiller-sampling

After SIGTERM, requests in flight have the time of --drain to end; a second
SIGTERM stops at once. SIGHUP re-reads certificates.";

/// Send prompts to prefill servers in front of a decode server; replaces llm-d's sidecar.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: CommandLine<Options>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Options of llm-d's sidecar")]
struct Options {
    /// Port that clients connect to.
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    port: u16,
    /// Address that clients connect to. Default: all interfaces.
    #[arg(long, value_name = "ADDR", default_value = "", hide_default_value = true, value_parser = values::host)]
    host: IpAddr,
    /// Port of the decode server on this host.
    #[arg(long, visible_alias = "model-server-port", value_name = "PORT", default_value_t = 8001,
        value_parser = clap::value_parser!(u16).range(1..))]
    vllm_port: u16,
    /// Number of data-parallel ranks of the decode server. The sidecar listens on this many ports from --port on and
    /// forwards each to the matching port from --vllm-port on.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    data_parallel_size: u16,
    /// If a request names several prefill servers, choose one at random; false takes the first.
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, default_value = "false",
        default_missing_value = "true", value_parser = values::switch)]
    enable_prefiller_sampling: bool,
    /// Require an allow-list of prefill servers: --allow-prefill.
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, default_value = "false",
        default_missing_value = "true", value_parser = values::switch)]
    enable_ssrf_protection: bool,
    /// Export traces to OTEL_EXPORTER_OTLP_ENDPOINT, or to http://localhost:4317 if that is not set; false exports
    /// none. Default: export only if it is set.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", value_parser = values::switch)]
    tracing: Option<bool>,
    /// Port of the admin address on all interfaces, in place of --admin.
    #[arg(long, value_name = "PORT")]
    metrics_port: Option<u16>,
    #[arg(long, hide = true, value_parser = values::no_encoder)]
    ec_connector: Option<String>,
    #[command(flatten)]
    protocol: Protocol,
    /// Serve clients over TLS. Without --cert-path, the certificate is self-signed.
    #[arg(long, help_heading = "TLS", value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1,
        default_value = "true", default_missing_value = "true", value_parser = values::switch)]
    secure_proxy: bool,
    /// Use TLS to connect to prefiller or decoder servers; may be repeated.
    #[arg(long, help_heading = "TLS", value_name = "STAGE,…", action = ArgAction::Append,
        value_parser = values::stages)]
    enable_tls: Vec<Stages>,
    /// Prefill server that requests may name, on any port if none is given. HOST may be a network in CIDR notation. May
    /// be repeated. Default: all except link-local and metadata addresses.
    #[arg(long, help_heading = SECURITY, value_name = "HOST[:PORT],…", action = ArgAction::Append)]
    allow_prefill: Vec<String>,
    /// Accept from a prefill server's response only addresses of that server itself or of --allow-prefill.
    #[arg(long, help_heading = SECURITY, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1,
        default_value = "true", default_missing_value = "true", value_parser = values::switch)]
    verify_remote_host: bool,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    deprecated: Deprecated,
    #[command(flatten)]
    ignored: Ignored,
}

/// How llm-d's flags on TLS were called before.
#[derive(Debug, clap::Args)]
struct Deprecated {
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true", value_parser = values::switch)]
    prefiller_use_tls: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true", value_parser = values::switch)]
    decoder_use_tls: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true", value_parser = values::switch)]
    prefiller_tls_insecure_skip_verify: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true", value_parser = values::switch)]
    decoder_tls_insecure_skip_verify: Option<bool>,
}

const OTHER_SOURCES: OtherSources<'_> = OtherSources {
    variables: &[
        ("ENABLE_PREFILLER_SAMPLING", "enable-prefiller-sampling"),
        ("INFERENCE_POOL", "inference-pool"),
        ("INFERENCE_POOL_NAMESPACE", "inference-pool-namespace"),
        ("INFERENCE_POOL_NAME", "inference-pool-name"),
    ],
    never_empty: &["allow-prefill"],
    superseded: &[
        ("prefiller-use-tls", "enable-tls"),
        ("decoder-use-tls", "enable-tls"),
        ("prefiller-tls-insecure-skip-verify", "tls-insecure-skip-verify"),
        ("decoder-tls-insecure-skip-verify", "tls-insecure-skip-verify"),
    ],
};

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (settings, ignored) = args.settings(&variable)?;
    if !ignored.is_empty() {
        tracing::warn!("these options of llm-d's sidecar have no effect: {}", ignored.join(", "));
    }
    serve::serve(settings)
}

impl Args {
    /// Returns the settings, and the names of the given options that have no effect.
    pub(super) fn settings(&self, environment: Environment<'_>) -> Result<(Settings, Vec<String>), Failure> {
        let resolved = self.flags.resolve(&OTHER_SOURCES, environment)?;
        let given = |name: &str| resolved.names.iter().any(|given| given == name);
        if given("admin") && given("metrics-port") {
            return Err(Failure::input(
                "--admin and --metrics-port both set the admin address",
                "give only one of the two",
            ));
        }
        let mut ignored = resolved.names;
        ignored.retain(|name| Ignored::has(name));
        Ok((resolved.options.settings(environment)?, ignored))
    }
}

impl Options {
    fn settings(self, environment: Environment<'_>) -> Result<Settings, Failure> {
        let ranks = self.data_parallel_size;
        for (flag, first) in [("--port", self.port), ("--vllm-port", self.vllm_port)] {
            if first.checked_add(ranks - 1).is_none() {
                return Err(Failure::input(
                    format!("{ranks} ranks from {flag} {first} on exceed port 65535"),
                    format!("lower {flag} or --data-parallel-size"),
                ));
            }
        }
        let allow = AllowList::parse(&self.allow_prefill).map_err(|error| {
            Failure::input(
                format!("--allow-prefill: {error}"),
                "name servers as prefill.example:8000 or 10.0.0.0/16:8000, with or without a port",
            )
        })?;
        if allow == AllowList::default() && !self.allow_prefill.is_empty() {
            return Err(Failure::input(
                "--allow-prefill names no server",
                "name servers, or leave it out to allow all except link-local and metadata addresses",
            ));
        }
        let allow = Some(allow).filter(|_| !self.allow_prefill.is_empty());
        if self.enable_ssrf_protection && allow.is_none() {
            return Err(Failure::input(
                "--enable-ssrf-protection is on, but no prefill server is allowed",
                "allow servers or networks (CIDR) with --allow-prefill HOST:PORT; an InferencePool is not queried",
            ));
        }
        let tls = |stage| Stages::name(&self.enable_tls, stage);
        let deprecated = self.deprecated;
        let mode = Mode::Sidecar(Beside {
            decode: ServerUrl {
                tls: tls(Stage::Decoder) || deprecated.decoder_use_tls == Some(true),
                target: Target::parse(&format!("localhost:{}", self.vllm_port))
                    .map_err(|error| Failure::input(error.to_string(), "correct --vllm-port"))?,
            },
            ranks,
            pod_ip: environment("POD_IP"),
            prefill_tls: tls(Stage::Prefiller) || deprecated.prefiller_use_tls == Some(true),
            sample: self.enable_prefiller_sampling,
            allow,
            verify_remote_host: self.verify_remote_host,
        });
        let (tracing, metrics_port) = (self.tracing, self.metrics_port);
        // `--tracing` acts like the variable that asks for an exporter, so that the variables for its endpoint still
        // apply.
        let environment = &|name: &str| match name {
            "OTEL_TRACES_EXPORTER" if tracing == Some(true) => Some("otlp".to_owned()),
            _ => environment(name),
        };
        let listen = (self.host, self.port).into();
        let mut settings = self.common.settings(&self.protocol, mode, listen, self.secure_proxy, environment)?;
        if tracing == Some(false) {
            settings.otlp = None;
        }
        if let Some(port) = metrics_port {
            settings.admin = Some((std::net::Ipv6Addr::UNSPECIFIED, port).into());
        }
        let upstream = &mut settings.upstream_tls;
        upstream.skip_verify_prefill |= deprecated.prefiller_tls_insecure_skip_verify == Some(true);
        upstream.skip_verify_decode |= deprecated.decoder_tls_insecure_skip_verify == Some(true);
        Ok(settings)
    }
}
