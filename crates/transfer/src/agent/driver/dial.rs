//! Dialling: from the name of a host to a control connection.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::event::ControlEvent;
use crate::ids::{AgentId, ServiceName};
use crate::quic::{ConnectError, Endpoints};

/// How many names of hosts are asked for at a time. A thread that asks waits for as long as the system's resolver does,
/// often 10 s, where a name server does not answer, whatever our own patience.
const LOOKUPS: usize = 16;

/// Who may ask for the addresses of a host.
#[derive(Clone, Debug)]
pub(super) struct Lookups(Arc<Semaphore>);

impl Default for Lookups {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LOOKUPS)))
    }
}

impl Lookups {
    async fn addresses(self, host: String, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![(ip, port).into()]);
        }
        // The semaphore is never closed. The thread has the place, since it may outlive whoever waits.
        let place = self.0.acquire_owned().await.ok();
        let asked = spawn_blocking(move || {
            let _place = place;
            Ok((host.as_str(), port).to_socket_addrs()?.collect())
        });
        asked.await.unwrap_or_else(|error| Err(error.into()))
    }
}

/// Connects to an agent, at any of the addresses of its host.
pub(super) async fn dial(
    endpoints: Endpoints,
    lookups: Lookups,
    agent: AgentId,
    host: String,
    port: u16,
    events: mpsc::Sender<ControlEvent>,
) {
    let service = ServiceName::from(&agent);
    let within = endpoints.options().handshake_timeout;
    let mut result = Err(format!("{host}:{port} has no address"));
    match timeout(within, lookups.addresses(host.clone(), port)).await {
        Err(_) => {
            result = Err(format!(
                "no name server has told of {host} within {within:?}, or too many other names were asked for"
            ))
        }
        Ok(Err(error)) => result = Err(format!("{host} has no address: {error}")),
        Ok(Ok(addresses)) => {
            for address in addresses {
                let connected = endpoints.connect(address, Some(&service)).await;
                result = connected.map_err(|error| match error {
                    // It names the address.
                    ConnectError::TimedOut { .. } => error.to_string(),
                    error => format!("{address}: {error}"),
                });
                if result.is_ok() {
                    break;
                }
            }
        }
    }
    // The driver is gone where this fails.
    let _ = events.send(ControlEvent::Dialled { agent, result }).await;
}
