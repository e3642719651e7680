//! The test rig: the engine between fakes.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use transload_sidecar::settings::{Beside, Choosing, KvConnector, Mode, Policy, PrefillFailure, Secret, Settings};
use transload_sidecar::{AllowList, Running, ServerUrl};
use transload_test_servers::Fake;

use crate::case::{Case, Knobs};

/// The parameters that ask a prefill server to keep the blocks: `{ask}` in cases.
const ASK: &str = concat!(
    r#""kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"#,
    r#""remote_block_ids":null,"remote_host":null,"remote_port":null}"#
);

pub(crate) struct Rig {
    pub(crate) prefill: Vec<Fake>,
    pub(crate) decode: Vec<Fake>,
    pub(crate) running: Running,
}

impl Rig {
    pub(crate) async fn start(case: &Case) -> Self {
        let knobs = &case.settings;
        let fakes = |role: &str, count: Option<usize>| -> io::Result<Vec<Fake>> {
            let start = |index: usize, port| {
                let name = name(role, index);
                match case.down.contains(&name) {
                    true => Fake::refusing(port),
                    false => Fake::start(port, knobs.proxy),
                }
            };
            let mut fakes: Vec<Fake> = Vec::new();
            for index in 0..count.unwrap_or(1) {
                // Ranks listen at consecutive ports.
                let port = match (knobs.ranks, fakes.first()) {
                    (None, _) => 0,
                    (Some(_), None) => quiet_port(),
                    (Some(_), Some(first)) => first.address.port() + index as u16,
                };
                fakes.push(start(index, port)?);
            }
            Ok(fakes)
        };
        let ranks = knobs.ranks.map(usize::from);
        // Some of the consecutive ports may be in use. Then others are tried.
        for _ in 0..50 {
            let prefill = fakes("prefill", knobs.prefills).expect("prefill servers");
            let Ok(decode) = fakes("decode", ranks.or(knobs.decodes)) else {
                continue;
            };
            let settings = settings(knobs, &prefill, &decode);
            if let Ok(running) = Running::start(settings).await {
                return Self { prefill, decode, running };
            }
        }
        panic!("{}: there are no ports in a row", case.name);
    }

    /// Replaces the names of servers in a text by addresses.
    pub(crate) fn fill(&self, text: &str) -> String {
        let mut text = text.replace("{ask}", ASK);
        for (role, fakes) in [("prefill", &self.prefill), ("decode", &self.decode)] {
            for (index, fake) in fakes.iter().enumerate() {
                let name = name(role, index);
                text = text.replace(&format!("{{{name}}}"), &fake.address.to_string());
                text = text.replace(&format!("{{{name}.port}}"), &fake.port());
            }
        }
        for (rank, address) in self.running.addresses().iter().enumerate() {
            text = text.replace(&format!("{{{}}}", name("sidecar", rank)), &address.to_string());
        }
        text
    }

    pub(crate) fn fakes(&self) -> impl Iterator<Item = (String, &Fake)> {
        let prefill = self.prefill.iter().enumerate();
        let prefill = prefill.map(|(index, fake)| (name("prefill", index), fake));
        let decode = self.decode.iter().enumerate();
        prefill.chain(decode.map(|(index, fake)| (name("decode", index), fake)))
    }
}

/// Returns the name of a server. The first of a role has no number.
pub(crate) fn name(role: &str, index: usize) -> String {
    match index {
        0 => role.to_owned(),
        index => format!("{role}{index}"),
    }
}

/// Returns a port below those that systems hand out, where consecutive ports are likely to be free.
fn quiet_port() -> u16 {
    rand::random_range(12_000..30_000)
}

fn settings(knobs: &Knobs, prefill: &[Fake], decode: &[Fake]) -> Settings {
    let url = |fake: &Fake| ServerUrl::parse(&fake.url()).expect("a URL");
    let mode = if knobs.proxy {
        Mode::Proxy(Choosing {
            prefill: prefill.iter().map(url).collect(),
            decode: decode.iter().map(url).collect(),
            discover: None,
            policy: match &*knobs.policy {
                "" | "round-robin" => Policy::RoundRobin,
                "least-loaded" => Policy::LeastLoaded,
                "prefix" => Policy::Prefix,
                other => panic!("no policy {other}"),
            },
            min_prompt: knobs.min_prompt,
            api_key: knobs.api_key.clone().map(Secret),
        })
    } else {
        let allow = knobs.allow.as_deref();
        Mode::Sidecar(Beside {
            decode: url(&decode[0]),
            ranks: knobs.ranks.unwrap_or(1),
            pod_ip: knobs.pod_ip.clone(),
            prefill_tls: false,
            sample: knobs.sample,
            allow: allow.map(|allow| AllowList::parse([allow]).expect("an allow-list")),
            verify_remote_host: knobs.verify_remote_host.unwrap_or(true),
        })
    };
    // With several ranks, the consecutive ports have to be known in advance.
    let port = match knobs.ranks {
        Some(_) => quiet_port(),
        None => 0,
    };
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut settings = Settings::new(mode, listen);
    settings.connector = match &*knobs.connector {
        "" | "nixlv2" => KvConnector::NixlV2,
        "shared-storage" => KvConnector::SharedStorage,
        "sglang" => KvConnector::Sglang,
        other => panic!("no connector {other}"),
    };
    settings.admin = None;
    settings.serving_tls = None;
    settings.limits.prefill_timeout = Duration::from_millis(knobs.prefill_timeout_ms.unwrap_or(10_000));
    if let Some(head) = knobs.head_timeout_ms {
        settings.limits.head = Duration::from_millis(head);
        settings.limits.silence = settings.limits.head;
    }
    settings.limits.requests_per_client = knobs.requests_per_client;
    settings.limits.body = knobs.body_limit.unwrap_or(settings.limits.body);
    settings.limits.body_memory = knobs.body_memory.unwrap_or(settings.limits.body_memory);
    settings.limits.connections = knobs.connections;
    if knobs.failure_is_error {
        settings.prefill_failure = PrefillFailure::Error;
    }
    settings.prefill_retries = knobs.retries;
    settings.prefill_backoff = Duration::from_millis(20);
    settings.decode_chunk = knobs.chunk;
    settings.bootstrap_port = knobs.bootstrap_port.unwrap_or(settings.bootstrap_port);
    settings.trust_client_params = knobs.trust;
    settings
}
