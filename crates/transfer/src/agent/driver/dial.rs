//! Dialling: from the name of a host to a control connection.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::quic::{ConnectError, ControlConnection, Endpoints};
use transload_plan::ids::{AgentId, ServiceName};

/// How many names of hosts are asked for at a time. A thread that asks waits for as long as the system's resolver does,
/// often 10 s, where a name server does not answer, whatever our own patience.
const LOOKUPS: usize = 16;

/// Why no connection to an agent came about.
#[derive(Debug)]
pub(super) enum DialError {
    /// One that was asked has not answered in time: an address of the agent's, or a name server.
    Unanswered(String),
    /// The port is closed at all of them.
    Closed(String),
    /// All have failed otherwise.
    Failed(String),
}

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

    /// Connects to an agent, at any of the addresses of its host.
    pub(super) async fn dial(
        self,
        endpoints: &Endpoints,
        agent: &AgentId,
        host: String,
        port: u16,
    ) -> Result<ControlConnection, DialError> {
        let service = ServiceName::from(agent);
        let within = endpoints.options().handshake_timeout;
        let addresses = timeout(within, self.addresses(host.clone(), port)).await;
        let addresses = addresses.map_err(|_| {
            DialError::Unanswered(format!(
                "no name server has told of {host} within {within:?}, or too many other names were asked for"
            ))
        })?;
        let addresses = addresses.map_err(|error| DialError::Failed(format!("{host} has no address: {error}")))?;
        let (mut unanswered, mut otherwise) = (false, false);
        let mut failed = DialError::Failed(format!("{host}:{port} has no address"));
        for address in addresses {
            match endpoints.connect(address, Some(&service)).await {
                Ok(connection) => return Ok(connection),
                // These two name the address.
                Err(error @ ConnectError::TimedOut { .. }) => {
                    unanswered = true;
                    failed = DialError::Unanswered(error.to_string());
                }
                Err(error @ ConnectError::PortClosed(_)) => {
                    failed = DialError::Closed(error.to_string());
                }
                Err(error) => {
                    otherwise = true;
                    failed = DialError::Failed(format!("{address}: {error}"));
                }
            }
        }
        match failed {
            DialError::Closed(why) | DialError::Failed(why) if unanswered => Err(DialError::Unanswered(why)),
            DialError::Closed(why) if otherwise => Err(DialError::Failed(why)),
            failed => Err(failed),
        }
    }
}
