//! `transload proxy`: a front end that chooses prefill and decode servers.

use std::net::{IpAddr, SocketAddr};

use clap::ArgAction;
use transload_sidecar::discover::Source;
use transload_sidecar::settings::{Choosing, Mode, Policy, Secret, Settings};
use transload_sidecar::{ServerUrl, Target};

use super::common::{Common, Environment, Protocol};
use super::options::{CommandLine, OtherSources};
use super::{serve, values, variable};
use crate::failure::Failure;
use crate::show::number;

pub(super) const EXAMPLES: &str = "\
Examples:
  transload proxy --prefill http://p1:8100 --decode http://d1:8200
  transload proxy --prefill http://p1:8100,http://p2:8100 --decode http://d1:8200 \\
    --policy prefix --min-prompt 256
  transload proxy --discover file:/etc/transload/servers.json
  transload proxy --discover etcd://etcd:2379/transload
  transload proxy --prefiller-hosts p1 p2 --prefiller-ports 8100 8100 \\
    --decoder-hosts d1 --decoder-ports 8200 --host 0.0.0.0 --port 8192

The proxy chooses a prefill and a decode server for each request. It ignores the
header x-prefiller-host-port.

Flags take precedence over a configuration, a configuration over environment
variables, and these over the defaults above. For lists, separate values with
commas or repeat the flag. A switch without a value is true. TIME is for
example 200ms, 30s or 5m; SIZE is for example 64MiB or 1GiB.

Environment:
  OPENAI_API_KEY          key to send to servers for clients that send no
                          Authorization header
  SGLANG_BOOTSTRAP_PORT   bootstrap port of SGLang's prefill servers, by default
                          8998

After SIGTERM, requests in flight have the time of --drain to end; a second
SIGTERM stops at once. SIGHUP re-reads certificates. The file of --discover is
re-read when it changes.";

/// Serve clients in front of prefill and decode servers, and choose servers per request.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: CommandLine<Options>,
}

#[derive(Debug, clap::Args)]
struct Options {
    #[command(flatten)]
    servers: Servers,
    #[command(flatten, next_help_heading = "Protocol")]
    protocol: Protocol,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    example: Example,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Servers")]
struct Servers {
    /// Address that clients connect to. Default: 127.0.0.1:8000.
    #[arg(long, value_name = "ADDR:PORT", value_parser = values::listen)]
    listen: Option<SocketAddr>,
    /// URL of a prefill server; may be repeated.
    #[arg(long, value_name = "URL,…", value_delimiter = ',', action = ArgAction::Append, value_parser = values::server)]
    prefill: Vec<ServerUrl>,
    /// URL of a decode server; may be repeated.
    #[arg(long, value_name = "URL,…", value_delimiter = ',', action = ArgAction::Append, value_parser = values::server)]
    decode: Vec<ServerUrl>,
    /// Source from which to discover more servers: file:PATH, dns:[ROLE=]NAME:PORT[,…] or etcd://HOST:PORT[,…]/PREFIX.
    #[arg(long, value_name = "URI")]
    discover: Option<String>,
    /// Policy by which to choose among servers: round-robin, least-loaded, or prefix (by the beginning of the prompt).
    #[arg(long, value_name = "POLICY", default_value = "round-robin", value_parser = values::policy)]
    policy: Policy,
    /// Minimum number of prompt tokens for a prefill server; shorter prompts go directly to a decode server.
    #[arg(long, value_name = "TOKENS", default_value = "0", value_parser = number::parse_tokens)]
    min_prompt: u64,
}

/// The options of vLLM's example proxy.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Options of vLLM's example proxy")]
struct Example {
    /// Hosts of prefill servers, one for each of --prefiller-ports.
    #[arg(long, visible_alias = "prefiller-host", value_name = "HOST", num_args = 1.., value_delimiter = ',')]
    prefiller_hosts: Vec<String>,
    /// Ports of prefill servers, one for each of --prefiller-hosts.
    #[arg(long, visible_alias = "prefiller-port", value_name = "PORT", num_args = 1.., value_delimiter = ',')]
    prefiller_ports: Vec<u16>,
    /// Hosts of decode servers, one for each of --decoder-ports.
    #[arg(long, visible_alias = "decoder-host", value_name = "HOST", num_args = 1.., value_delimiter = ',')]
    decoder_hosts: Vec<String>,
    /// Ports of decode servers, one for each of --decoder-hosts.
    #[arg(long, visible_alias = "decoder-port", value_name = "PORT", num_args = 1.., value_delimiter = ',')]
    decoder_ports: Vec<u16>,
    /// Address that clients connect to, in place of --listen.
    #[arg(long, value_name = "ADDR", value_parser = values::host)]
    host: Option<IpAddr>,
    /// Port that clients connect to, in place of --listen.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    serve::serve(args.settings(&variable)?)
}

impl Args {
    pub(super) fn settings(&self, environment: Environment<'_>) -> Result<Settings, Failure> {
        let other_sources = OtherSources { variables: &[], superseded: &[], never_empty: &[] };
        let resolved = self.flags.resolve(&other_sources, environment)?;
        resolved.options.settings(environment)
    }
}

impl Options {
    fn settings(self, environment: Environment<'_>) -> Result<Settings, Failure> {
        let Servers { listen, mut prefill, mut decode, discover, policy, min_prompt } = self.servers;
        // The value is not shown, since it may contain a password.
        let discover = discover.map(|uri| Source::parse(&uri)).transpose();
        let discover = discover.map_err(|error| {
            Failure::input(
                format!("--discover is not valid: {error}"),
                "write file:PATH, dns:NAME:PORT or etcd://HOST:PORT/PREFIX",
            )
        })?;
        let example = self.example;
        let listen = match (listen, example.host, example.port) {
            (Some(listen), None, None) => listen,
            (None, host, port) => {
                let host = host.unwrap_or_else(|| [127, 0, 0, 1].into());
                SocketAddr::new(host, port.unwrap_or(8000))
            }
            _ => {
                return Err(Failure::input(
                    "--listen cannot be combined with --host or --port",
                    "give --listen ADDR:PORT alone, or --host ADDR and --port PORT",
                ));
            }
        };
        prefill.extend(pairs("prefiller", &example.prefiller_hosts, &example.prefiller_ports, 8100)?);
        decode.extend(pairs("decoder", &example.decoder_hosts, &example.decoder_ports, 8200)?);
        for (role, servers) in [("prefill", &prefill), ("decode", &decode)] {
            let mut seen = std::collections::HashSet::new();
            if let Some(twice) = servers.iter().find(|server| !seen.insert(*server)) {
                return Err(Failure::input(
                    format!("the {role} server {twice} is given twice"),
                    "give each server once",
                ));
            }
        }
        if decode.is_empty() && discover.is_none() {
            return Err(Failure::input("no decode server is given", "add --decode http://HOST:PORT or --discover URI"));
        }
        let api_key = environment("OPENAI_API_KEY");
        let is_sendable = |key: &String| key.bytes().all(|byte| byte.is_ascii_graphic());
        if !api_key.iter().all(is_sendable) {
            return Err(Failure::input(
                "OPENAI_API_KEY contains a space, a line end or another byte that keys cannot have",
                "set only the key: export OPENAI_API_KEY=$(tr -d '\\n' <FILE)",
            ));
        }
        let mode =
            Mode::Proxy(Choosing { prefill, decode, discover, policy, min_prompt, api_key: api_key.map(Secret) });
        let secure = self.common.has_certificate();
        self.common.settings(&self.protocol, mode, listen, secure, environment)
    }
}

/// Combines a list of hosts with a list of ports. An empty list of either is replaced by its default.
fn pairs(role: &str, hosts: &[String], ports: &[u16], default_port: u16) -> Result<Vec<ServerUrl>, Failure> {
    let (localhost, default_port) = (["localhost".to_owned()], [default_port]);
    let (hosts, ports) = match (hosts, ports) {
        ([], []) => return Ok(Vec::new()),
        ([], ports) => (&localhost[..], ports),
        (hosts, []) => (hosts, &default_port[..]),
        given => given,
    };
    if hosts.len() != ports.len() {
        return Err(Failure::input(
            format!("--{role}-hosts and --{role}-ports differ in number: {} and {}", hosts.len(), ports.len()),
            "give one port for each host, in the same order",
        ));
    }
    let urls = hosts.iter().zip(ports).map(|(host, port)| {
        let text = match host.contains(':') && !host.starts_with('[') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        match Target::parse(&text) {
            Ok(target) => Ok(ServerUrl { tls: false, target }),
            Err(error) => Err(Failure::input(
                format!("--{role}-hosts and --{role}-ports give {text}: {error}"),
                "give hosts as names or addresses without a scheme, and ports separately",
            )),
        }
    });
    urls.collect()
}
