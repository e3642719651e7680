//! Accepting connections, with bounds on how many unauthenticated peers there are.

use std::sync::Arc;

use quinn::{Connection, ConnectionError, Incoming, RecvStream, SendStream, ServerConfig};
use rustls_pki_types::CertificateDer;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{
    bound::Bound,
    credentials::Credentials,
    error::CloseCode,
    options::QuicOptions,
    path::{Path, TransportTowards},
    places::{Place, Places, Source},
};
use crate::identity::{PeerIdentity, PeerIdentityError};
use transload_plan::ids::ServiceName;

/// The first bytes of the first stream, which state the purpose of a connection: control. The answer is [`WELCOME`].
pub(super) const CONTROL_PREAMBLE: &[u8; 4] = b"TLc1";
/// A lane's first bytes, before its token.
pub(super) const LANE_PREAMBLE: &[u8; 4] = b"TLl1";
/// The answer to either preamble. Without it the connecting side could not know whether its certificate was accepted:
/// in TLS 1.3 its handshake completes before the other side has checked.
pub(super) const WELCOME: &[u8; 4] = b"TLok";

/// Accepts connections on one endpoint until it is closed. A connection within the limits is passed to `welcome` once
/// its handshake is done and its peer known. `welcome` must finish within another handshake timeout.
pub(super) struct Acceptor<F> {
    endpoint: quinn::Endpoint,
    options: Arc<QuicOptions>,
    credentials: Arc<Credentials>,
    /// The socket's receive buffer, in bytes.
    buffer: usize,
    transport: TransportTowards,
    welcome: F,
    /// Connections whose peer has not shown a certificate.
    strangers: Places<Source>,
    /// Connections whose peer has shown one, but not stated the purpose.
    guests: Places<ServiceName>,
    /// Permits for connections of authenticated peers.
    known: Arc<Semaphore>,
}

/// The most connections of a socket without those of strangers, as a multiple of those that peers may open. Closing
/// connections and our own are included.
const IN_ALL: usize = 4;

/// A connection with its first stream, whose peer has proved its identity.
pub(super) struct Met {
    pub(super) connection: Connection,
    /// A permit for a connection that a peer has opened, held while it is open.
    pub(super) known: Option<OwnedSemaphorePermit>,
    pub(super) peer: PeerIdentity,
    pub(super) path: Path,
    pub(super) stream: (SendStream, RecvStream),
}

impl<F, W> Acceptor<F>
where
    F: Fn(Met) -> W + Send + Sync + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    /// Accepts connections at `bound`, on its thread, while its endpoint is open.
    pub(super) fn start(
        bound: &Bound,
        options: &Arc<QuicOptions>,
        credentials: &Arc<Credentials>,
        transport: TransportTowards,
        welcome: F,
    ) {
        let most = options.max_connections.min(Semaphore::MAX_PERMITS);
        let acceptor = Self {
            endpoint: bound.endpoint.clone(),
            options: options.clone(),
            credentials: credentials.clone(),
            buffer: bound.buffers.receive.granted,
            transport,
            welcome,
            strangers: Places::new(options.max_handshakes),
            guests: Places::new(options.max_handshakes),
            known: Arc::new(Semaphore::new(most)),
        };
        bound.thread.handle.spawn(acceptor.run());
    }

    async fn run(self) {
        let this = Arc::new(self);
        while let Some(incoming) = this.endpoint.accept().await {
            if let Some((incoming, place)) = this.admit(incoming) {
                let this = this.clone();
                tokio::spawn(async move { this.take_in(incoming, place).await });
            }
        }
    }

    /// Decides whether a stranger may begin its handshake. If too many try, it gets no answer, and its QUIC stack
    /// retries. An answer would end its attempt, or reach the owner of a forged address.
    fn admit(&self, incoming: Incoming) -> Option<(Incoming, Place<Source>)> {
        let strangers = &self.strangers;
        let most = IN_ALL.saturating_mul(self.options.max_connections);
        let open = self.endpoint.open_connections();
        // Connections of strangers have a separate bound.
        let open = open.saturating_sub(strangers.connections());
        if self.known.available_permits() == 0 || open >= most {
            incoming.refuse();
            return None;
        }
        // A retry needs no state, which withstands a flood from forged addresses.
        if strangers.taken() >= self.options.max_handshakes.div_ceil(2) && !incoming.remote_address_validated() {
            // Fails only if the address is validated.
            let _ = incoming.retry();
            return None;
        }
        match strangers.take(incoming.remote_address().into()) {
            Some(place) => Some((incoming, place)),
            None => {
                incoming.ignore();
                None
            }
        }
    }

    /// Accepts a connection that may begin its handshake.
    async fn take_in(&self, incoming: Incoming, mut place: Place<Source>) {
        let from = incoming.remote_address();
        let path = Path::towards(from, &self.options, self.buffer);
        let mut config = self.credentials.server();
        config.transport_config((self.transport)(path, &self.options));
        let limit = self.options.handshake_timeout;
        let proved = tokio::select! {
            proved = timeout(limit.min(self.options.certificate_timeout), prove(incoming, config)) => {
                proved.unwrap_or_else(|late| Err(late.into()))
            }
            () = place.lost() => Err("its place went to another".into()),
        };
        let (connection, peer) = match proved {
            Ok(proved) => proved,
            Err(error) => {
                tracing::debug!(%from, %error, "turned a connection away");
                return place.close().await;
            }
        };
        drop(place);
        let place = self.guests.take(peer.service.clone());
        let known = self.known.clone().try_acquire_owned().ok();
        let Some((mut place, known)) = place.zip(known) else {
            return connection.close(CloseCode::BUSY.wire(), b"");
        };
        let getting_in = async {
            if let Ok(stream) = connection.accept_bi().await {
                let met = Met { connection: connection.clone(), known: Some(known), peer, path, stream };
                (self.welcome)(met).await;
            }
        };
        tokio::select! {
            done = timeout(limit, getting_in) => if done.is_err() {
                tracing::debug!(%from, "a connection did not get to the point in time");
            },
            () = place.lost() => connection.close(CloseCode::BUSY.wire(), b""),
        }
    }
}

/// Completes a stranger's handshake, which proves its identity.
async fn prove(
    incoming: Incoming,
    config: ServerConfig,
) -> Result<(Connection, PeerIdentity), Box<dyn std::error::Error + Send + Sync>> {
    let connection = incoming.accept_with(Arc::new(config))?.await?;
    let peer = peer_of(&connection)?;
    Ok((connection, peer))
}

/// Returns the peer's identity, from the connection's verified certificate.
pub(super) fn peer_of(connection: &Connection) -> Result<PeerIdentity, PeerIdentityError> {
    let chain = connection
        .peer_identity()
        .and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok())
        .ok_or(PeerIdentityError::NoCertificate)?;
    let own = chain.first().ok_or(PeerIdentityError::NoCertificate)?;
    PeerIdentity::from_certificate(own)
}

impl Met {
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

    pub(super) fn close(&self, code: CloseCode) {
        self.connection.close(code.wire(), b"");
    }
}

/// Tells the peer that it is accepted. Returns whether that could be sent.
pub(super) async fn answer(stream: &mut SendStream) -> bool {
    stream.write_all(WELCOME).await.is_ok()
}

/// States the purpose of the connection, and waits for the answer.
pub(super) async fn introduce(
    connection: &Connection,
    introduction: &[u8],
) -> Result<(SendStream, RecvStream), ConnectionError> {
    let (mut send, mut receive) = connection.open_bi().await?;
    let mut answer = [0; WELCOME.len()];
    let answered = send.write_all(introduction).await.is_ok() && receive.read_exact(&mut answer).await.is_ok();
    if answered && answer == *WELCOME {
        return Ok((send, receive));
    }
    // Either the connection was lost for a reason that it knows, or the peer violates the protocol.
    let reason = connection.close_reason();
    connection.close(CloseCode::PROTOCOL.wire(), b"no welcome");
    Err(reason.unwrap_or(ConnectionError::LocallyClosed))
}
