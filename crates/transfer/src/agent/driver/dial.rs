//! Dialling: from a host name to a control connection.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::quic::{ConnectError, ControlConnection, Endpoints};
use transload_plan::ids::{AgentId, ServiceName};

/// The most host names that are resolved at a time. A lookup occupies a thread for as long as the system's resolver
/// takes, often 10 s if a name server does not answer, whatever the timeout here.
const LOOKUPS: usize = 16;

/// The reason why an agent could not be connected to.
#[derive(Debug)]
pub(super) enum DialError {
    /// An address of the agent, or a name server, did not answer in time.
    Unanswered(String),
    /// The port is closed at all addresses.
    Closed(String),
    /// All addresses have failed for another reason.
    Failed(String),
}

/// Limits the number of concurrent lookups.
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
        // The semaphore is never closed. The thread holds the permit, since it may outlive the caller.
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
                // These two errors contain the address.
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
