//! The socket to which local peers connect.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use blake3::Hash;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};

use super::connection::{Connection, Limits};
use super::error::HandoverError;
use super::message::{self, Caches, decode_greeting, encode_greeting};
use super::socket::{self, Packets};
use crate::path::ring::carrier::random_socket;
use transload_wire::internal::ring::SocketName;
use transload_wire::internal::ring::Token;

/// A listening socket with a random name, served by a task of the runtime in which it was bound.
///
/// Peers of other users are rejected without reading. Others have [`Limits::timeout`] to present an expected token,
/// [`Limits::greetings`] of them at a time. Dropping this stops listening.
#[derive(Debug)]
pub struct Listener {
    name: SocketName,
    lobby: Arc<Lobby>,
    task: AbortHandle,
}

impl Listener {
    /// Listens on a new random name. Must be called inside a tokio runtime with I/O and time.
    pub fn bind(limits: Limits) -> io::Result<Self> {
        let runtime = tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
        let name = random_socket()?;
        let socket = socket::listen(&name)?;
        let lobby = Arc::new(Lobby { limits, guests: Mutex::default() });
        let task = runtime.spawn(serve(socket, lobby.clone())).abort_handle();
        Ok(Self { name, lobby, task })
    }

    /// Returns the name, which the peer needs in order to connect.
    pub fn name(&self) -> &SocketName {
        &self.name
    }

    /// Admits the first peer that presents `token` from now on. Call this before sending the token to the peer.
    pub fn expect(&self, token: &Token) -> Result<Expected, HandoverError> {
        let (deliver, connection) = oneshot::channel();
        let mut guests = self.lobby.guests();
        if guests.len() >= self.lobby.limits.expected {
            let limit = self.lobby.limits.expected as u64;
            return Err(HandoverError::too_much("peers expected at a time", limit));
        }
        let token = token.clone();
        guests.push(Guest { token, deliver });
        Ok(Expected { connection })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A peer that is expected. Dropping this forgets the token.
#[must_use = "dropped, the token is forgotten"]
#[derive(Debug)]
pub struct Expected {
    connection: oneshot::Receiver<Connection>,
}

impl Expected {
    /// Waits for the peer.
    pub async fn connection(self, within: Duration) -> Result<Connection, HandoverError> {
        match tokio::time::timeout(within, self.connection).await {
            Err(_) => Err(HandoverError::TimedOut),
            // The listener was dropped, or the peer left before our welcome.
            Ok(Err(_)) => Err(HandoverError::PeerGone),
            Ok(Ok(connection)) => Ok(connection),
        }
    }
}

#[derive(Debug)]
struct Lobby {
    limits: Limits,
    guests: Mutex<Vec<Guest>>,
}

/// A peer that is expected by a holder of [`Expected`].
#[derive(Debug)]
struct Guest {
    token: Token,
    deliver: oneshot::Sender<Connection>,
}

impl Lobby {
    /// Returns the peers that are still expected.
    fn guests(&self) -> MutexGuard<'_, Vec<Guest>> {
        // A panic cannot leave the list half-changed.
        let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        guests.retain(|guest| !guest.deliver.is_closed());
        guests
    }

    /// Returns the expected peer with this proof, and the location of its caches. Its token cannot be used again.
    fn admit(&self, proof: Hash) -> Option<(Guest, Caches)> {
        let mut guests = self.guests();
        let mut found = None;
        // All are compared, so that the time does not reveal which one matched.
        for (at, guest) in guests.iter().enumerate() {
            for caches in [Caches::OnHost, Caches::OnDevice] {
                if message::hello(&guest.token, caches) == proof {
                    found = Some((at, caches));
                }
            }
        }
        found.map(|(at, caches)| (guests.remove(at), caches))
    }
}

async fn serve(socket: UnixListener, lobby: Arc<Lobby>) {
    let mut greetings = JoinSet::new();
    loop {
        tokio::select! {
            accepted = socket.accept(), if greetings.len() < lobby.limits.greetings => {
                match accepted {
                    Ok((stream, _)) => {
                        greetings.spawn(greet(Packets::new(stream), lobby.clone()));
                    }
                    // Most likely there are no descriptors left: others must be closed first.
                    Err(e) => {
                        tracing::warn!(error = %e, "accepting a local peer failed");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
            Some(_) = greetings.join_next(), if !greetings.is_empty() => {}
        }
    }
}

async fn greet(packets: Packets, lobby: Arc<Lobby>) {
    let limits = lobby.limits.clone();
    let greeting = async {
        limits.check_user(&packets)?;
        let (hello, _) = packets.receive(false).await?;
        let (guest, caches) = lobby.admit(decode_greeting(&hello)?).ok_or(HandoverError::UnknownToken)?;
        packets.send(&encode_greeting(message::welcome(&guest.token)), &[]).await?;
        Ok::<_, HandoverError>((guest, caches))
    };
    match tokio::time::timeout(limits.timeout, greeting).await {
        Ok(Ok((guest, peer_caches))) => {
            // An error means that the peer is not expected any more, and the connection closes.
            let _ = guest.deliver.send(Connection { packets, limits, peer_caches });
        }
        Ok(Err(e)) => tracing::debug!(error = %e, "a local peer was turned away"),
        Err(_) => tracing::debug!("a local peer was too slow"),
    }
}
