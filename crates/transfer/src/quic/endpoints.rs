//! The sockets of an agent.

use std::{
    fmt,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use quinn::{ClientConfig, crypto::rustls::QuicClientConfig};
use tokio::{
    sync::{Mutex, mpsc},
    task::JoinHandle,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    acceptor::{Acceptor, CONTROL_PREAMBLE, LANE_PREAMBLE, Met, answer, introduce, peer_of},
    bound::Bound,
    control::ControlConnection,
    credentials::Credentials,
    error::{CloseCode, ConnectError, ConnectionLost, EndpointsError},
    lane::Lane,
    options::QuicOptions,
    path::{Path, TransportTowards, admit_lane, control_transport, lane_transport},
    probe::closed_port,
    reset::ResetSecret,
    session::{LaneSession, Registry},
    threads::GOODBYE,
};
use crate::identity::{Identity, RenewalError, TicketSecret, tls::SERVER_NAME};
use transload_plan::ids::{AgentId, Nonce, ServiceName};

/// The sockets of an agent: one for control and one for each lane, each with a thread. Clones refer to the same
/// endpoints; dropping the last one closes every connection.
#[derive(Clone)]
pub struct Endpoints {
    inner: Arc<Inner>,
}

struct Inner {
    credentials: Arc<Credentials>,
    ticket_secret: TicketSecret,
    options: Arc<QuicOptions>,
    control: Bound,
    lanes: Vec<Bound>,
    arrivals: Mutex<mpsc::Receiver<ControlConnection>>,
    registry: Arc<Registry>,
}

impl Endpoints {
    /// Binds `addr` for control, and one port per lane at the same IP address, and starts accepting.
    ///
    /// Port 0 lets the system choose. An IPv6 wildcard address also serves IPv4.
    pub fn bind(identity: Identity, options: QuicOptions, addr: SocketAddr) -> Result<Self, EndpointsError> {
        options.check()?;
        let options = Arc::new(options);
        let ticket_secret = identity.ticket_secret().clone();
        let credentials = Arc::new(Credentials::new(identity, options.clone())?);
        let server = credentials.server();

        let secret = ResetSecret::of(&credentials.identity());
        let control = Bound::for_control(addr, &options, &server, &secret)?;
        let lanes = Bound::for_lanes(addr, &options, &server, &secret)?;
        for short in lanes.iter().flat_map(|lane| lane.buffers.short()).take(2) {
            tracing::warn!("{short}");
        }

        let registry = Arc::new(Registry::new());
        let (arrived, arrivals) = mpsc::channel(options.max_handshakes);
        let settings = options.clone();
        let local = control.addr.ip();
        let welcome = move |guest| welcome_control(guest, arrived.clone(), settings.clone(), local);
        Acceptor::start(&control, &options, &credentials, control_transport, welcome);
        for lane in &lanes {
            let thread = lane.thread.handle.clone();
            let (registry, settings) = (registry.clone(), options.clone());
            let welcome = move |guest| welcome_lane(guest, registry.clone(), thread.clone(), settings.clone());
            Acceptor::start(lane, &options, &credentials, lane_transport, welcome);
        }
        Ok(Self {
            inner: Arc::new(Inner {
                credentials,
                ticket_secret,
                options,
                control,
                lanes,
                arrivals: Mutex::new(arrivals),
                registry,
            }),
        })
    }

    /// Returns the current identity.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.inner.credentials.identity()
    }

    /// Returns the ticket secret of the identity that this was bound with. Renewals do not change it.
    #[must_use]
    pub fn ticket_secret(&self) -> &TicketSecret {
        &self.inner.ticket_secret
    }

    /// Makes new connections use another identity, with a renewed certificate or other authorities. It must be of the
    /// same service and cluster. Open connections continue, with the roles that they began with.
    ///
    /// # Errors
    /// [`RenewalError::Another`].
    pub fn renew(&self, identity: Identity) -> Result<(), RenewalError> {
        self.inner.credentials.replace(identity)
    }

    /// Returns the settings.
    #[must_use]
    pub fn options(&self) -> &QuicOptions {
        &self.inner.options
    }

    /// Returns the bound address of control connections, which may differ from the advertised one.
    #[must_use]
    pub fn control_addr(&self) -> SocketAddr {
        self.inner.control.addr
    }

    /// Returns the ports of the lanes, which peers are told over control.
    #[must_use]
    pub fn lane_ports(&self) -> Vec<u16> {
        let lanes = self.inner.lanes.iter();
        lanes.map(|lane| lane.addr.port()).collect()
    }

    /// Returns the number of open connections of all kinds, including handshakes.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.all().map(|bound| bound.endpoint.open_connections()).sum()
    }

    /// Opens a control connection. With `expected`, only that service is accepted; its instance is known from the first
    /// messages. A busy peer is tried again, with pauses.
    ///
    /// When this returns, both sides have proved their identity and accepted each other.
    ///
    /// # Errors
    /// [`ConnectError`], within the handshake timeout.
    pub async fn connect(
        &self,
        addr: SocketAddr,
        expected: Option<&ServiceName>,
    ) -> Result<ControlConnection, ConnectError> {
        let call = Call {
            bound: &self.inner.control,
            addr,
            expected,
            transport: control_transport,
            introduction: CONTROL_PREAMBLE,
        };
        let met = self.dial(call).await?;
        let patience = self.inner.options.frame_timeout;
        let Bound { thread, addr, .. } = &self.inner.control;
        let thread = &thread.handle;
        Ok(ControlConnection::new(met, patience, addr.ip(), thread))
    }

    /// Returns the next control connection that a peer has opened. Its handshake is done and its peer known. Returns
    /// `None` once the endpoints are closed. Cancel-safe.
    ///
    /// While this is not called, `max_handshakes` connections wait. Further peers are told that this agent is busy, and
    /// try again.
    pub async fn accept(&self) -> Option<ControlConnection> {
        self.inner.arrivals.lock().await.recv().await
    }

    /// Allows `peer` to open up to `lanes` lanes. Send it the session's token and [`lane_ports`](Self::lane_ports).
    ///
    /// # Errors
    /// An error of the operating system if it provides no randomness for the token.
    pub fn expect_lanes(&self, peer: &AgentId, lanes: u16) -> io::Result<LaneSession> {
        self.inner.registry.open(peer.clone(), usize::from(lanes))
    }

    /// Opens a lane to `peer`, with the `token` of its session, at `addr`. `index` selects one of our own sockets and
    /// threads, modulo their number.
    ///
    /// # Errors
    /// [`ConnectError`], within the handshake timeout.
    pub async fn connect_lane(
        &self,
        index: usize,
        addr: SocketAddr,
        peer: &AgentId,
        token: &Nonce,
    ) -> Result<Lane, ConnectError> {
        let lanes = &self.inner.lanes;
        let bound = lanes.get(index % lanes.len().max(1)).ok_or(ConnectError::Closed)?;
        let call = Call {
            bound,
            addr,
            expected: Some(&ServiceName::from(peer)),
            transport: lane_transport,
            introduction: &[&LANE_PREAMBLE[..], &token.0].concat(),
        };
        let met = self.dial(call).await?;
        let thread = bound.thread.handle.clone();
        admit_lane(&met.connection, met.path, &self.inner.options);
        Ok(Lane::new(met, peer.clone(), thread, &self.inner.options))
    }

    /// Runs `task` on the control thread. It must not block.
    pub fn spawn_control<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.inner.control.thread.handle.spawn(task)
    }

    /// Closes all connections, accepts no new ones, and waits until the peers were told, for half a second at most.
    pub async fn close(&self, code: CloseCode, reason: &str) {
        self.hang_up(code, reason);
        // A peer that was not told in time finds out by itself.
        let _ = timeout(GOODBYE, async {
            for bound in self.all() {
                bound.endpoint.wait_idle().await;
            }
        })
        .await;
    }

    /// Closes all connections and accepts no new ones. Does not wait until the peers were told.
    pub fn hang_up(&self, code: CloseCode, reason: &str) {
        self.inner.registry.close();
        for bound in self.all() {
            bound.endpoint.close(code.wire(), reason.as_bytes());
        }
    }

    fn all(&self) -> impl Iterator<Item = &Bound> {
        std::iter::once(&self.inner.control).chain(&self.inner.lanes)
    }

    async fn dial(&self, call: Call<'_>) -> Result<Met, ConnectError> {
        let (local, addr) = (call.bound.addr.ip(), call.addr);
        let options = &self.inner.options;
        // The shorter one ends the attempt.
        let after = options.handshake_timeout.min(options.idle_timeout);
        let deadline = Instant::now() + after;
        let mut pause = FIRST_PAUSE;
        loop {
            let result = tokio::select! {
                // If both end at the deadline, the closed port says more.
                biased;
                () = closed_port(local, addr, deadline) => Err(ConnectError::PortClosed(addr)),
                met = timeout_at(deadline, self.attempt(&call)) => match met {
                    Ok(Err(ConnectError::Lost(ConnectionLost::Silent))) | Err(_) => {
                        Err(ConnectError::TimedOut { addr, after })
                    }
                    Ok(result) => result,
                },
            };
            let is_busy = matches!(result, Err(ConnectError::Busy));
            if !is_busy || Instant::now() + pause >= deadline {
                return result;
            }
            sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    async fn attempt(&self, call: &Call<'_>) -> Result<Met, ConnectError> {
        let Call { bound, addr, .. } = *call;
        let path = Path::towards(addr, &self.inner.options, bound.buffers.receive.granted);
        let identity = self.identity();
        let (tls, verdict) = identity.tls().client_with_verdict(call.expected);
        let crypto = QuicClientConfig::try_from(tls).map_err(|_| ConnectError::Closed)?;
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config((call.transport)(path, &self.inner.options));
        let connection = bound
            .endpoint
            .connect_with(config, addr, SERVER_NAME)
            .map_err(|error| match error {
                quinn::ConnectError::InvalidRemoteAddress(addr) => ConnectError::Address(addr),
                _ => ConnectError::Closed,
            })?
            .await
            .map_err(|error| ConnectError::from_handshake(error, verdict.get().cloned()))?;
        let peer = peer_of(&connection)?;
        let stream = introduce(&connection, call.introduction)
            .await
            .map_err(|error| ConnectError::from_handshake(error, None))?;
        Ok(Met { connection, known: None, peer, path, stream })
    }
}

/// The pause after a peer is busy for the first time. It doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The longest pause before a busy peer is tried again.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A connection to be opened.
struct Call<'a> {
    bound: &'a Bound,
    addr: SocketAddr,
    expected: Option<&'a ServiceName>,
    transport: TransportTowards,
    introduction: &'a [u8],
}

/// Accepts a control connection if it states that purpose. It then waits for [`Endpoints::accept`].
async fn welcome_control(
    mut guest: Met,
    arrived: mpsc::Sender<ControlConnection>,
    options: Arc<QuicOptions>,
    local: IpAddr,
) {
    match guest.read().await {
        Some(preamble) if preamble == *CONTROL_PREAMBLE => {}
        _ => return guest.close(CloseCode::PROTOCOL),
    }
    let Ok(place) = arrived.try_reserve() else {
        return guest.close(CloseCode::BUSY);
    };
    if answer(&mut guest.stream.0).await {
        let thread = tokio::runtime::Handle::current();
        place.send(ControlConnection::new(guest, options.frame_timeout, local, &thread));
    }
}

/// Accepts a lane if it begins with the token of a session of its peer.
async fn welcome_lane(
    mut guest: Met,
    registry: Arc<Registry>,
    thread: tokio::runtime::Handle,
    options: Arc<QuicOptions>,
) {
    match guest.read().await {
        Some(preamble) if preamble == *LANE_PREAMBLE => {}
        _ => return guest.close(CloseCode::PROTOCOL),
    }
    let Some(token) = guest.read().await else {
        return;
    };
    let Some((session, agent)) = registry.admit(&Nonce(token), &guest.peer) else {
        tracing::debug!(peer = %guest.peer, "refused a lane");
        return guest.close(CloseCode::LANE_REFUSED);
    };
    // Done before the answer, so that the peer gets its new limits together with it.
    admit_lane(&guest.connection, guest.path, &options);
    if answer(&mut guest.stream.0).await {
        // There is room for every lane of a session, so this fails only if the session has ended.
        let _ = session.try_send(Lane::new(guest, agent, thread, &options));
    }
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoints")
            .field("identity", &self.identity())
            .field("control", &self.control_addr())
            .field("lane_ports", &self.lane_ports())
            .finish_non_exhaustive()
    }
}
