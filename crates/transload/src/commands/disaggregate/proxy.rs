//! `transload proxy`: a front end that chooses prefill and decode servers.

use std::net::{IpAddr, SocketAddr};

use clap::ArgAction;
use transload_sidecar::discover::Source;
use transload_sidecar::settings::{Choosing, Mode, Policy, Secret, Settings};
use transload_sidecar::{ServerUrl, Target};

use super::common::{Common, Environment, Protocol};
use super::given::{Elsewhere, Given};
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

It chooses a prefill and a decode server for each request; what a request says
in x-prefiller-host-port counts for nothing.

Flags go before a configuration, that before the environment, that before what
is said here. Lists take several values after one flag, separated by commas, or
the flag several times. A switch alone is true. TIME is 200ms, 30s or 5m; SIZE
is 64MiB or 1GiB.

Environment:
  OPENAI_API_KEY          sent to servers where a client sends no Authorization
  SGLANG_BOOTSTRAP_PORT   8998 by default

SIGTERM lets requests in flight end, within --drain. A second one ends at once.
SIGHUP re-reads certificates. The file of --discover is re-read when it changes.";

/// Be the front door of prefill and decode servers, and choose among them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(flatten)]
    given: Given<Options>,
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
    /// Where clients connect. Default: 127.0.0.1:8000.
    #[arg(long, value_name = "ADDR:PORT", value_parser = values::listen)]
    listen: Option<SocketAddr>,
    /// A prefill server; may be repeated.
    #[arg(long, value_name = "URL,…", value_delimiter = ',', action = ArgAction::Append, value_parser = values::server)]
    prefill: Vec<ServerUrl>,
    /// A decode server; may be repeated.
    #[arg(long, value_name = "URL,…", value_delimiter = ',', action = ArgAction::Append, value_parser = values::server)]
    decode: Vec<ServerUrl>,
    /// Where to look for further servers: file:PATH, dns:[ROLE=]NAME:PORT[,…] or etcd://HOST:PORT[,…]/PREFIX.
    #[arg(long, value_name = "URI")]
    discover: Option<String>,
    /// How one of several is chosen: round-robin, least-loaded, or prefix (by how the prompt begins).
    #[arg(long, value_name = "POLICY", default_value = "round-robin", value_parser = values::policy)]
    policy: Policy,
    /// Prompts of fewer tokens go straight to a decode server.
    #[arg(long, value_name = "TOKENS", default_value = "0", value_parser = number::parse_tokens)]
    min_prompt: u64,
}

/// The options of vLLM's example proxy.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "As vLLM's example proxy has them")]
struct Example {
    /// Hosts of prefill servers, as many as ports.
    #[arg(long, visible_alias = "prefiller-host", value_name = "HOST", num_args = 1.., value_delimiter = ',')]
    prefiller_hosts: Vec<String>,
    /// Ports of prefill servers.
    #[arg(long, visible_alias = "prefiller-port", value_name = "PORT", num_args = 1.., value_delimiter = ',')]
    prefiller_ports: Vec<u16>,
    /// Hosts of decode servers, as many as ports.
    #[arg(long, visible_alias = "decoder-host", value_name = "HOST", num_args = 1.., value_delimiter = ',')]
    decoder_hosts: Vec<String>,
    /// Ports of decode servers.
    #[arg(long, visible_alias = "decoder-port", value_name = "PORT", num_args = 1.., value_delimiter = ',')]
    decoder_ports: Vec<u16>,
    /// Where clients connect, in place of --listen.
    #[arg(long, value_name = "ADDR", value_parser = values::host)]
    host: Option<IpAddr>,
    /// The port that clients connect to, in place of --listen.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    serve::serve(args.settings(&variable)?)
}

impl Args {
    pub(super) fn settings(&self, environment: Environment<'_>) -> Result<Settings, Failure> {
        let elsewhere = Elsewhere { variables: &[], superseded: &[], never_empty: &[] };
        let complete = self.given.complete(&elsewhere, environment)?;
        complete.options.settings(environment)
    }
}

impl Options {
    fn settings(self, environment: Environment<'_>) -> Result<Settings, Failure> {
        let Servers { listen, mut prefill, mut decode, discover, policy, min_prompt } = self.servers;
        // The value is not shown, since it may contain a password.
        let discover = discover.map(|uri| Source::parse(&uri)).transpose();
        let discover = discover.map_err(|error| {
            Failure::input(
                format!("--discover names no place to look for servers: {error}"),
                "give file:PATH, dns:NAME:PORT or etcd://HOST:PORT/PREFIX",
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
                    "--listen is given, and --host or --port as well",
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
            return Err(Failure::input(
                "there is no decode server, and nowhere to look for one",
                "give --decode http://HOST:PORT, or --discover URI",
            ));
        }
        let api_key = environment("OPENAI_API_KEY");
        let is_sendable = |key: &String| key.bytes().all(|byte| byte.is_ascii_graphic());
        if !api_key.iter().all(is_sendable) {
            return Err(Failure::input(
                "OPENAI_API_KEY has a space, a line end or another byte that no key has",
                "give the key alone: export OPENAI_API_KEY=$(tr -d '\\n' <FILE)",
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
            format!("--{role}-hosts has {} and --{role}-ports {}", hosts.len(), ports.len()),
            "give as many ports as hosts: the first port is that of the first host, and so on",
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
                format!("--{role}-hosts and --{role}-ports name {text}: {error}"),
                "give names or addresses without a scheme, and ports apart from them",
            )),
        }
    });
    urls.collect()
}
