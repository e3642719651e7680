//! Parsers for the values of options.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use transload::store::internal::period::{self, PeriodError};
use transload_sidecar::settings::{KvConnector, Policy, PrefillFailure};
use transload_sidecar::{Role, ServerUrl};

/// The longest period that an option accepts: a day. Deadlines far in the future overflow clocks.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Parses a switch in the spellings of Go's flags.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("not a switch; write true or false".to_owned()),
    }
}

/// Parses a period: `200ms`, `30s`, `5m`.
pub(super) fn period(text: &str) -> Result<Duration, String> {
    within_a_day(period::parse(text))
}

/// Parses a time limit: a period above zero.
pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    within_a_day(period::parse_limit(text))
}

fn within_a_day(period: Result<Duration, PeriodError>) -> Result<Duration, String> {
    match period {
        Ok(period) if period <= LONGEST => Ok(period),
        Ok(_) => Err("longer than a day; write at most 24h".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses a listening address: `127.0.0.1:8000`, `[::1]:8000`, `localhost:8000`, or `:8000` for all interfaces.
pub(super) fn listen(text: &str) -> Result<SocketAddr, String> {
    let wrong =
        || "not an address; write, for example, 127.0.0.1:8000, [::1]:8000, or :8000 for all interfaces".to_owned();
    let (at, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    let at = match at.strip_prefix('[').map(|at| at.strip_suffix(']')) {
        Some(at) => host(at.ok_or_else(wrong)?),
        None if at.contains(':') => return Err(wrong()),
        None => host(at),
    };
    Ok(SocketAddr::new(at.map_err(|_| wrong())?, port))
}

/// Parses a listening address without a port: an address, `localhost`, or the empty text for all interfaces.
pub(super) fn host(text: &str) -> Result<IpAddr, String> {
    match text {
        "" => Ok(Ipv6Addr::UNSPECIFIED.into()),
        "localhost" => Ok(IpAddr::from([127, 0, 0, 1])),
        _ => text
            .parse()
            .map_err(|_| "not an address without a port; write, for example, 127.0.0.1, 0.0.0.0 or ::1".to_owned()),
    }
}

/// The admin address; `None` for `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Admin(pub(super) Option<SocketAddr>);

pub(super) fn admin(text: &str) -> Result<Admin, String> {
    match text {
        // YAML reads a bare off as false.
        "off" | "false" => Ok(Admin(None)),
        _ => match listen(text) {
            Ok(address) => Ok(Admin(Some(address))),
            Err(wrong) => Err(format!("{wrong}, or off")),
        },
    }
}

pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    Ok(text.into())
}

/// Parses the URL of a server: `http://HOST:PORT` or `https://HOST:PORT`.
pub(super) fn server(text: &str) -> Result<ServerUrl, String> {
    ServerUrl::parse(text).map_err(|error| format!("{error}; write http://HOST:PORT"))
}

/// Parses a connector's name; the empty text is the default.
pub(super) fn connector(text: &str) -> Result<KvConnector, String> {
    const ALL: [KvConnector; 3] = [KvConnector::NixlV2, KvConnector::SharedStorage, KvConnector::Sglang];
    if text.is_empty() {
        return Ok(KvConnector::default());
    }
    let known = ALL.into_iter().find(|known| known.name() == text);
    known.ok_or_else(|| match text {
        "mooncake" | "offloading" => {
            format!("llm-d's connector {text} is not supported; the connectors are nixlv2, shared-storage and sglang")
        }
        _ => "the connectors are nixlv2, shared-storage and sglang".to_owned(),
    })
}

/// Accepts only the empty text, since no connector for encoders is supported.
pub(super) fn no_encoder(text: &str) -> Result<String, String> {
    match text {
        "" => Ok(String::new()),
        _ => Err("encoders are not supported; leave the option out, and servers encode images themselves".to_owned()),
    }
}

pub(super) fn connections(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("0 admits no client; write at least 1".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("not a number; write, for example, 10000".to_owned()),
    }
}

pub(super) fn role(text: &str) -> Result<Role, String> {
    match text {
        "prefill" => Ok(Role::Prefill),
        "decode" => Ok(Role::Decode),
        _ => Err("the roles are prefill and decode".to_owned()),
    }
}

pub(super) fn policy(text: &str) -> Result<Policy, String> {
    match text {
        "round-robin" => Ok(Policy::RoundRobin),
        "least-loaded" => Ok(Policy::LeastLoaded),
        "prefix" => Ok(Policy::Prefix),
        _ => Err("the policies are round-robin, least-loaded and prefix".to_owned()),
    }
}

pub(super) fn prefill_failure(text: &str) -> Result<PrefillFailure, String> {
    match text {
        "fallback" => Ok(PrefillFailure::Fallback),
        "error" => Ok(PrefillFailure::Error),
        _ => Err("write fallback or error".to_owned()),
    }
}

/// A leg of a request, as llm-d's flags on TLS name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Prefiller,
    Decoder,
    /// Accepted without effect, so that manifests that name it still work.
    Encoder,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stages(Vec<Stage>);

impl Stages {
    pub(super) fn name(all: &[Self], stage: Stage) -> bool {
        all.iter().any(|stages| stages.0.contains(&stage))
    }
}

pub(super) fn stages(text: &str) -> Result<Stages, String> {
    let stages = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    let stages = stages.map(|name| match name {
        "prefiller" => Ok(Stage::Prefiller),
        "decoder" => Ok(Stage::Decoder),
        "encoder" => Ok(Stage::Encoder),
        _ => Err(format!("{name:?} is not a stage; the stages are prefiller, decoder and encoder")),
    });
    stages.collect::<Result<_, _>>().map(Stages)
}
