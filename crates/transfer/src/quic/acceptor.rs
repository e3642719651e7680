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

use super::{
    credentials::Credentials,
    error::CloseCode,
    options::QuicOptions,
    path::Path,
    places::{Place, Places, Source},
};
use crate::identity::{PeerIdentity, PeerIdentityError};
use crate::ids::ServiceName;

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
    pub(super) credentials: Arc<Credentials>,
    /// The socket's receive buffer, in bytes.
    pub(super) buffer: usize,
    pub(super) transport: fn(Path, &QuicOptions) -> Arc<TransportConfig>,
    pub(super) welcome: Arc<F>,
}

/// How many connections a socket has in all but for strangers, closing ones and our own included, for each that peers may have
/// opened.
const IN_ALL: usize = 4;

/// A connection whose peer has proved who it is, with the one stream that it opened first.
pub(super) struct Guest {
    pub(super) connection: Connection,
    /// Its place among the connections of such peers, for as long as it is open.
    pub(super) known: OwnedSemaphorePermit,
    pub(super) peer: PeerIdentity,
    pub(super) path: Path,
    pub(super) stream: (SendStream, RecvStream),
}

impl<F, W> Acceptor<F>
where
    F: Fn(Guest) -> W + Send + Sync + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    pub(super) async fn run(self) {
        let strangers = Places::new(self.options.max_handshakes);
        let guests = Arc::new(Places::new(self.options.max_handshakes));
        let known = Arc::new(Semaphore::new(
            self.options.max_connections.min(Semaphore::MAX_PERMITS),
        ));
        while let Some(incoming) = self.endpoint.accept().await {
            let Some((incoming, place)) = self.admit(incoming, &strangers, &known) else {
                continue;
            };
            let path = Path::towards(incoming.remote_address(), &self.options, self.buffer);
            let mut config = self.credentials.server();
            config.transport_config((self.transport)(path, &self.options));
            let taking_in = TakingIn {
                config: Arc::new(config),
                path,
                options: self.options.clone(),
                guests: guests.clone(),
                known: known.clone(),
                welcome: self.welcome.clone(),
            };
            tokio::spawn(taking_in.run(incoming, place));
        }
    }

    /// Decides whether a stranger may begin its handshake. Where too many try, it hears nothing, and its QUIC asks again:
    /// an answer would end its attempt, and reach whoever's address it has forged.
    fn admit(
        &self,
        incoming: Incoming,
        strangers: &Places<Source>,
        known: &Semaphore,
    ) -> Option<(Incoming, Place<Source>)> {
        let most = IN_ALL.saturating_mul(self.options.max_connections);
        let open = self.endpoint.open_connections();
        // Those of strangers have a bound of their own.
        let open = open.saturating_sub(strangers.connections());
        if known.available_permits() == 0 || open >= most {
            incoming.refuse();
            return None;
        }
        // A flood from forged addresses is answered statelessly.
        if strangers.taken() >= self.options.max_handshakes.div_ceil(2)
            && !incoming.remote_address_validated()
        {
            // Fails only for validated addresses.
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
}

/// What it takes to take a connection in.
struct TakingIn<F> {
    config: Arc<ServerConfig>,
    path: Path,
    options: Arc<QuicOptions>,
    guests: Arc<Places<ServiceName>>,
    known: Arc<Semaphore>,
    welcome: Arc<F>,
}

impl<F, W> TakingIn<F>
where
    F: Fn(Guest) -> W,
    W: Future<Output = ()>,
{
    async fn run(self, incoming: Incoming, mut place: Place<Source>) {
        let from = incoming.remote_address();
        let limit = self.options.handshake_timeout;
        let proved = tokio::select! {
            proved = timeout(limit.min(self.options.certificate_timeout), prove(incoming, self.config)) => {
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
        let Some((mut place, known)) = place.zip(self.known.try_acquire_owned().ok()) else {
            return connection.close(CloseCode::BUSY.wire(), b"");
        };
        let (path, welcome) = (self.path, self.welcome);
        let getting_in = async {
            if let Ok(stream) = connection.accept_bi().await {
                let connection = connection.clone();
                welcome(Guest {
                    connection,
                    known,
                    peer,
                    path,
                    stream,
                })
                .await;
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

/// Has a stranger prove who it is.
async fn prove(
    incoming: Incoming,
    config: Arc<ServerConfig>,
) -> Result<(Connection, PeerIdentity), Box<dyn std::error::Error + Send + Sync>> {
    let connection = incoming.accept_with(config)?.await?;
    let peer = peer_of(&connection)?;
    Ok((connection, peer))
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

    pub(super) fn close(&self, code: CloseCode) {
        self.connection.close(code.wire(), b"");
    }
}

/// Tells the peer that it is in.
pub(super) async fn answer(stream: &mut SendStream) -> bool {
    stream.write_all(WELCOME).await.is_ok()
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
