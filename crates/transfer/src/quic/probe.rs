//! Probes, which find out that a port is closed: a host without a process at a port says so, to sockets that are connected to
//! it. Those of QUIC are not, so they hear nothing.
//!
//! Nothing is ended that has a sign of life. Whoever answers probes for somebody else (a firewall, an address that stands for
//! several hosts) ends no connection, since its peer is heard of meanwhile.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use quinn::Connection;
use tokio::{
    net::UdpSocket,
    time::{Instant, sleep, timeout},
};

use super::path::{CONTROL_KEEP_ALIVE, INITIAL_RTT};

/// How long nothing is asked after a probe, nor after a peer was heard of. With [`CONTROL_KEEP_ALIVE`] a process that is gone
/// is noticed within 1.1 s; half of this would save an eighth of that, and double the probes.
const PAUSE: Duration = Duration::from_millis(250);

/// How long a probe waits for its answer, where the round trip is known: three of it, within these bounds. A socket is open for
/// as long, once for each connection whose peer is silent.
const ANSWER: (Duration, Duration) = (Duration::from_millis(10), INITIAL_RTT);

/// How long a connection has to come about although its port was found closed: two round trips between distant hosts of one
/// region.
const BENEFIT_OF_DOUBT: Duration = INITIAL_RTT.saturating_mul(2);

/// A byte that is too short for a packet of QUIC's, which every endpoint drops.
const PROBE: &[u8] = &[0];

/// Asks whether a port is closed, from a port that nobody can know before, and waits for so long.
async fn is_refused(addr: SocketAddr, answer: Duration) -> bool {
    let asked = async {
        let socket = towards(addr).await?;
        socket.send(PROBE).await?;
        socket.recv(&mut [0]).await
    };
    let answer = timeout(answer, asked).await;
    matches!(answer, Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused)
}

async fn towards(addr: SocketAddr) -> io::Result<UdpSocket> {
    let (addr, any): (_, IpAddr) = match addr.ip().to_canonical() {
        IpAddr::V4(v4) => ((v4, addr.port()).into(), Ipv4Addr::UNSPECIFIED.into()),
        // With its scope.
        IpAddr::V6(_) => (addr, Ipv6Addr::UNSPECIFIED.into()),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(addr).await?;
    Ok(socket)
}

/// Waits until a port that is being dialled is known to be closed: for ever, where nothing says so.
pub(super) async fn closed_port(addr: SocketAddr) {
    while !is_refused(addr, ANSWER.1).await {
        sleep(PAUSE).await;
    }
    sleep(BENEFIT_OF_DOUBT).await;
}

/// Waits until the process at the other end of an open control connection is known to be gone: its port stays closed, and it
/// has not even answered a keep-alive. For ever, where nothing says so; a process that stands still keeps its port.
pub(super) async fn peer_gone(connection: &Connection) {
    let addr = connection.remote_address();
    let round_trip = connection.rtt();
    let answer = (3 * round_trip).clamp(ANSWER.0, ANSWER.1);
    let silence = CONTROL_KEEP_ALIVE + 2 * INITIAL_RTT.max(round_trip);
    let heard = || connection.stats().udp_rx.datagrams;
    let mut before = heard();
    if is_refused(addr, answer).await {
        sleep(silence).await;
        if heard() != before {
            // Something else answers probes for it, and would do so while it stands still.
            tracing::debug!(%addr, "probes are refused, and the peer is there");
            return std::future::pending().await;
        }
    }
    let mut closed_since = None;
    loop {
        sleep(PAUSE).await;
        let now = heard();
        if now != before {
            before = now;
            closed_since = None;
        } else if is_refused(addr, answer).await
            && closed_since.get_or_insert_with(Instant::now).elapsed() >= silence
        {
            return;
        }
    }
}
