//! Probes that find out whether a port is closed. A host without a process at a port says so, but only to sockets that
//! are connected to the port. QUIC's sockets are not, so they do not hear it.
//!
//! Hosts say so seldom: Linux sends another host six of these messages at once and then one a second, for all ports
//! together. So a peer is probed only while it is silent, and a single such answer suffices.
//!
//! A connection with a sign of life is never ended. If something else answers probes for the peer (a firewall, or an
//! address shared by several hosts), it ends no connection, since the peer is heard of meanwhile.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use quinn::Connection;
use tokio::{
    net::UdpSocket,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::path::{CONTROL_KEEP_ALIVE, INITIAL_RTT};

/// The pause between two probes, and between two checks whether a peer was heard of. A process that is gone is noticed
/// within 1 s: after the longest silence of a live peer, which is 0.7 s, one such pause, and an answer.
const PAUSE: Duration = Duration::from_millis(250);

/// The bounds of the time for which a probe waits for its answer: three round trips, if the round trip time is known.
/// For that long, each connection with a silent peer has one open socket.
const ANSWER: (Duration, Duration) = (Duration::from_millis(10), INITIAL_RTT);

/// How long a connection may still be established although its port was found closed. QUIC repeats its first packet
/// after 0.3 s and 0.9 s, so the loss of one or two packets is not taken for the end of a process.
const BENEFIT_OF_DOUBT: Duration = Duration::from_secs(1);

/// A byte that is too short for a QUIC packet. Every endpoint drops it.
const PROBE: &[u8] = &[0];

/// Returns whether a port is found closed within `answer`. Probes from a random port of `local`.
async fn is_refused(local: IpAddr, addr: SocketAddr, answer: Duration) -> bool {
    let asked = async {
        let socket = towards(local, addr).await?;
        socket.send(PROBE).await?;
        socket.recv(&mut [0]).await
    };
    let answer = timeout(answer, asked).await;
    matches!(answer, Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Makes a socket that uses the same source address as the endpoint at `local`, since routes and firewalls may depend
/// on it.
async fn towards(local: IpAddr, addr: SocketAddr) -> io::Result<UdpSocket> {
    let (addr, any): (_, IpAddr) = match addr.ip().to_canonical() {
        IpAddr::V4(v4) => ((v4, addr.port()).into(), Ipv4Addr::UNSPECIFIED.into()),
        // An IPv6 address is kept, since it may have a scope.
        IpAddr::V6(_) => (addr, Ipv6Addr::UNSPECIFIED.into()),
    };
    let local = local.to_canonical();
    let from = match local.is_ipv4() == any.is_ipv4() {
        true => local,
        // An IPv6 wildcard also serves IPv4.
        false => any,
    };
    let socket = match UdpSocket::bind((from, 0)).await {
        // The address lacks the scope that it needs.
        Err(_) if !from.is_unspecified() => UdpSocket::bind((any, 0)).await?,
        bound => bound?,
    };
    socket.connect(addr).await?;
    Ok(socket)
}

/// Waits until a port that is being dialled is known to be closed; for ever if nothing says so. Then waits for
/// [`BENEFIT_OF_DOUBT`], or until `deadline` if that is earlier, after which the dial reports a closed port rather than
/// a timeout.
pub(super) async fn closed_port(local: IpAddr, addr: SocketAddr, deadline: Instant) {
    while !is_refused(local, addr, ANSWER.1).await {
        sleep(PAUSE).await;
    }
    sleep_until(deadline.min(Instant::now() + BENEFIT_OF_DOUBT)).await;
}

/// Waits until the process at the other end of an open control connection is known to be gone: it has not answered a
/// keep-alive, and its port is closed. Waits for ever if nothing says so. A process that is stopped keeps its port.
pub(super) async fn peer_gone(local: IpAddr, connection: &Connection) {
    let addr = connection.remote_address();
    let heard = || connection.stats().udp_rx.datagrams;
    let longest_silence = || CONTROL_KEEP_ALIVE + 2 * INITIAL_RTT.max(connection.rtt());
    let refused = || is_refused(local, addr, (3 * connection.rtt()).clamp(ANSWER.0, ANSWER.1));
    if !gone(heard, longest_silence, refused).await {
        tracing::debug!(%addr, "probes are refused, and the peer is there");
        std::future::pending().await
    }
}

/// Waits until a peer is known to be gone, and returns `true`. Returns `false` if the first probe shows that something
/// else answers for the peer, which it would also do while the peer is stopped. Packets that arrive during a later
/// probe may be old, and prove nothing.
async fn gone<Asked: Future<Output = bool>>(
    heard: impl Fn() -> u64,
    longest_silence: impl Fn() -> Duration,
    refused: impl Fn() -> Asked,
) -> bool {
    let (mut before, mut since) = (heard(), Instant::now());
    // A live peer is probed only here, to find out whether something else answers for it.
    if refused().await {
        sleep(longest_silence()).await;
        if heard() != before {
            return false;
        }
    }
    loop {
        let now = heard();
        if now != before {
            (before, since) = (now, Instant::now());
        } else if since.elapsed() >= longest_silence() && refused().await && heard() == before {
            return true;
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, collections::BTreeSet};

    use super::*;

    const HOUR: u64 = 3_600_000;

    /// Simulates a peer that is heard of every 540 ms until the time `last`, and again from `again` on, while probes
    /// are refused from `refused_from` on. Returns the times of the probes, and the time and value of the result. All
    /// are in milliseconds of virtual time.
    async fn watch(last: u64, again: u64, refused_from: u64) -> (Vec<u64>, Option<(u64, bool)>) {
        let heard = |at: u64| at.min(last) / 540 + at.saturating_sub(again) / 540;
        watch_heard(heard, refused_from).await
    }

    /// Simulates a peer as [`watch`] does, with the number of packets heard until a time.
    async fn watch_heard(heard: impl Fn(u64) -> u64, refused_from: u64) -> (Vec<u64>, Option<(u64, bool)>) {
        let start = Instant::now();
        let at = || u64::try_from(start.elapsed().as_millis()).unwrap();
        let asked = RefCell::new(Vec::new());
        let heard = || heard(at());
        let silence = || CONTROL_KEEP_ALIVE + 2 * INITIAL_RTT;
        let refused = || async {
            asked.borrow_mut().push(at());
            sleep(ANSWER.0).await;
            at() >= refused_from
        };
        let end = timeout(Duration::from_millis(HOUR), gone(heard, silence, refused)).await;
        (asked.take(), end.ok().map(|is_gone| (at(), is_gone)))
    }

    /// Hosts seldom say that a port is closed, so probes of live peers must not use that up.
    #[tokio::test(start_paused = true)]
    async fn peers_that_are_heard_of_are_asked_for_once() {
        assert_eq!(watch(HOUR, HOUR, HOUR).await, (vec![0], None));
    }

    #[tokio::test(start_paused = true)]
    async fn one_refusal_ends_a_silent_peer_and_none_ends_another() {
        let asks = async |last, again, refused_from| {
            let (asked, end) = watch(last, again, refused_from).await;
            (asked.len(), end)
        };
        let last = 10 * 540;
        let (asked, end) = asks(last, HOUR, last).await;
        let (when, is_gone) = end.expect("it is noticed");
        assert!(asked == 2 && is_gone && when <= last + 1000, "{asked} {when}");

        // A host that answers late is probed until then.
        let (asked, end) = asks(last, HOUR, 2 * last).await;
        let (when, is_gone) = end.expect("it is noticed");
        assert!(asked > 10 && is_gone && when <= 2 * last + 1000, "{asked} {when}");

        // Something else answers: the first probe, or a later one while the peer is stopped and then continues.
        assert_eq!(asks(HOUR, HOUR, 0).await, (1, Some((710, false))));
        let mut seen = BTreeSet::new();
        for again in (last..last + 1000).step_by(5) {
            let (asked, end) = asks(last, again, last).await;
            seen.insert((asked, end.map(|(_, is_gone)| is_gone)));
        }
        // The peer continues before the probe, during it, or later.
        assert_eq!(seen, [(1, None), (2, None), (2, Some(true))].into());
    }

    /// A late packet delays the result by one silence at most.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_is_gone_is_noticed_in_spite_of_a_late_packet() {
        let last = 10 * 540;
        let mut seen = BTreeSet::new();
        for late in (last..last + 1000).step_by(5) {
            let heard = |at: u64| at.min(last) / 540 + u64::from(at >= late);
            let (asked, end) = watch_heard(heard, last).await;
            let (when, is_gone) = end.expect("it is noticed");
            assert!(is_gone && when <= late + 1100, "{late}: {when}");
            seen.insert(asked.len());
        }
        // The packet comes before the probe, during it, or after everything.
        assert_eq!(seen, [2, 3].into());
    }
}
