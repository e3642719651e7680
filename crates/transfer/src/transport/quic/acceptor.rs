//! Taking connections in, without ever holding more strangers than the options allow.

use std::sync::Arc;

use quinn::{
    Connection, ConnectionError, Incoming, RecvStream, SendStream, ServerConfig, TransportConfig,
};
use rustls_pki_types::CertificateDer;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{error::CloseCode, options::QuicOptions, path::Path};
use crate::identity::{PeerIdentity, PeerIdentityError};

/// What the first bytes of the first stream say a connection is for. The answer is [`WELCOME`].
pub(super) const CONTROL_PREAMBLE: &[u8; 4] = b"TLc1";
/// A lane's first bytes, before its token.
pub(super) const LANE_PREAMBLE: &[u8; 4] = b"TLl1";
/// The answer to either. Without it the side that connects could not know whether its certificate
/// was accepted: in TLS 1.3 its handshake is complete before the other side has looked.
pub(super) const WELCOME: &[u8; 4] = b"TLok";

/// Accepts connections on one endpoint until it is closed. Each that gets past the limits is handed,
/// with its handshake done and its peer known, to `welcome`, which has to finish within the same
/// handshake timeout.
pub(super) struct Acceptor<F> {
    pub(super) endpoint: quinn::Endpoint,
    pub(super) options: Arc<QuicOptions>,
    pub(super) server: ServerConfig,
    /// The socket's receive buffer, in bytes.
    pub(super) buffer: usize,
    pub(super) transport: fn(Path, &QuicOptions) -> Arc<TransportConfig>,
    pub(super) welcome: Arc<F>,
}

/// A connection whose peer has proved who it is, with the one stream that it opened first.
pub(super) struct Guest {
    pub(super) connection: Connection,
    pub(super) peer: PeerIdentity,
    pub(super) path: Path,
    pub(super) stream: (SendStream, RecvStream),
}

impl<F, W> Acceptor<F>
where
    F: Fn(Guest) -> W + Send + Sync + 'static,
    W: Future<Output = ()> + Send,
{
    pub(super) async fn run(self) {
        let places = Arc::new(Semaphore::new(self.options.max_handshakes));
        while let Some(incoming) = self.endpoint.accept().await {
            let Some((incoming, place)) = self.admit(incoming, &places) else {
                continue;
            };
            let path = Path::towards(incoming.remote_address(), &self.options, self.buffer);
            let mut config = self.server.clone();
            config.transport_config((self.transport)(path, &self.options));
            let config = Arc::new(config);
            let welcome = self.welcome.clone();
            let limit = self.options.handshake_timeout;
            tokio::spawn(async move {
                if let Err(error) =
                    timeout(limit, take_in(incoming, path, config, &*welcome, place)).await
                {
                    tracing::debug!(%error, "a connection did not get to the point in time");
                }
            });
        }
    }

    /// Decides whether a stranger may begin its handshake.
    fn admit(
        &self,
        incoming: Incoming,
        places: &Arc<Semaphore>,
    ) -> Option<(Incoming, OwnedSemaphorePermit)> {
        if self.endpoint.open_connections() >= self.options.max_connections {
            incoming.refuse();
            return None;
        }
        // With half of the places taken, an address has to prove that it is real before it gets one
        // of the others: a flood from forged addresses is answered statelessly.
        if places.available_permits() <= self.options.max_handshakes / 2
            && !incoming.remote_address_validated()
        {
            // Fails only for validated addresses.
            let _ = incoming.retry();
            return None;
        }
        match places.clone().try_acquire_owned() {
            Ok(place) => Some((incoming, place)),
            Err(_) => {
                incoming.refuse();
                None
            }
        }
    }
}

async fn take_in<F, W>(
    incoming: Incoming,
    path: Path,
    config: Arc<ServerConfig>,
    welcome: &F,
    place: OwnedSemaphorePermit,
) where
    F: Fn(Guest) -> W,
    W: Future<Output = ()>,
{
    let from = incoming.remote_address();
    match handshake(incoming, path, config).await {
        Ok(guest) => welcome(guest).await,
        Err(error) => tracing::debug!(%from, %error, "turned a connection away"),
    }
    drop(place);
}

async fn handshake(
    incoming: Incoming,
    path: Path,
    config: Arc<ServerConfig>,
) -> Result<Guest, Box<dyn std::error::Error + Send + Sync>> {
    let connection = incoming.accept_with(config)?.await?;
    let peer = peer_of(&connection)?;
    let stream = connection.accept_bi().await?;
    Ok(Guest {
        connection,
        peer,
        path,
        stream,
    })
}

/// Who the verified certificate of a connection says the peer is.
pub(super) fn peer_of(connection: &Connection) -> Result<PeerIdentity, PeerIdentityError> {
    let chain = connection
        .peer_identity()
        .and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok())
        .ok_or(PeerIdentityError::NoCertificate)?;
    let own = chain.first().ok_or(PeerIdentityError::NoCertificate)?;
    PeerIdentity::from_certificate(own)
}

impl Guest {
    /// Reads exactly `N` bytes, or closes the connection.
    pub(super) async fn read<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        match self.stream.1.read_exact(&mut bytes).await {
            Ok(()) => Some(bytes),
            Err(_) => {
                self.close(CloseCode::PROTOCOL);
                None
            }
        }
    }

    pub(super) async fn answer(&mut self) -> bool {
        self.stream.0.write_all(WELCOME).await.is_ok()
    }

    pub(super) fn close(&self, code: CloseCode) {
        self.connection.close(code.wire(), b"");
    }
}

/// The connecting side of [`Guest`]: says what the connection is for and waits for the answer.
pub(super) async fn introduce(
    connection: &Connection,
    introduction: &[u8],
) -> Result<(SendStream, RecvStream), ConnectionError> {
    let (mut send, mut receive) = connection.open_bi().await?;
    let mut answer = [0; WELCOME.len()];
    let answered =
        send.write_all(introduction).await.is_ok() && receive.read_exact(&mut answer).await.is_ok();
    if answered && answer == *WELCOME {
        return Ok((send, receive));
    }
    // Either the connection is gone and says why, or the peer does not keep to the protocol.
    let reason = connection.close_reason();
    connection.close(CloseCode::PROTOCOL.wire(), b"no welcome");
    Err(reason.unwrap_or(ConnectionError::LocallyClosed))
}
