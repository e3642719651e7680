//! A network in between that drops large packets, or everything.

use std::{
    net::UdpSocket,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use super::*;

/// Relays packets between clients and a server, as long as they are small enough.
pub(super) struct Relay {
    pub(super) addr: SocketAddr,
    front: UdpSocket,
    largest: Arc<AtomicUsize>,
}

impl Relay {
    fn to(server: SocketAddr, largest: usize) -> Self {
        Self::from(loopback(0), server, largest, |_| true)
    }

    /// Uses the address `back` towards the server, and relays those of its answers that `passes` accepts.
    pub(super) fn from(back: SocketAddr, server: SocketAddr, largest: usize, passes: fn(&[u8]) -> bool) -> Self {
        let front = UdpSocket::bind(loopback(0)).unwrap();
        let back = UdpSocket::bind(back).unwrap();
        let addr = front.local_addr().unwrap();
        let kept = front.try_clone().unwrap();
        let largest = Arc::new(AtomicUsize::new(largest));
        let client = Arc::new(std::sync::Mutex::new(None));
        for socket in [&front, &back] {
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        }
        let forward = {
            let (front, back) = (front.try_clone().unwrap(), back.try_clone().unwrap());
            let (largest, client) = (largest.clone(), client.clone());
            move || {
                let mut packet = vec![0; 65_536];
                while let Ok((len, from)) = front.recv_from(&mut packet) {
                    *client.lock().unwrap() = Some(from);
                    if len <= largest.load(Ordering::Relaxed) {
                        let _ = back.send_to(&packet[..len], server);
                    }
                }
            }
        };
        let backward = {
            let largest = largest.clone();
            move || {
                let mut packet = vec![0; 65_536];
                while let Ok((len, _)) = back.recv_from(&mut packet) {
                    let client = *client.lock().unwrap();
                    if let Some(client) = client
                        && len <= largest.load(Ordering::Relaxed)
                        && passes(&packet[..len])
                    {
                        let _ = front.send_to(&packet[..len], client);
                    }
                }
            }
        };
        // They end when nothing has come for a while.
        thread::spawn(forward);
        thread::spawn(backward);
        Self { addr, front: kept, largest }
    }

    /// Makes the system refuse packets from anywhere else, including probes.
    fn refuse_all_but(&self, client: SocketAddr) {
        self.front.connect(client).unwrap();
    }

    /// Drops everything in both directions, or nothing.
    fn let_through(&self, all: bool) {
        let largest = if all { 65_507 } else { 0 };
        self.largest.store(largest, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_path_that_loses_large_packets_slows_down_and_does_not_hang() {
    let pair = Pair::with(QuicOptions::default(), QuicOptions::default()).await;
    for largest in [1252, 9000] {
        let relay = Relay::to(loopback(pair.b.lane_ports()[0]), largest);
        let (lane, other) = pair.lane_to(relay.addr.port()).await;
        let sent = vec![5; 1 << 20];
        let mut sender = lane.open_stream().await.unwrap();
        sender.send_chunk(sent.clone().into()).await.unwrap();
        let acknowledged = sender.finish().unwrap();
        let mut stream = other.accept_stream().await.unwrap();
        let mut got = vec![0; sent.len()];
        stream.recv_exact(&mut got).await.unwrap();
        assert_eq!(got, sent);
        acknowledged.await.unwrap();
        assert!(usize::from(lane.stats().udp_payload) <= largest);
    }
}

#[tokio::test]
async fn a_peer_that_vanishes_is_given_up_after_the_idle_timeout() {
    let options =
        QuicOptions { idle_timeout: Duration::from_millis(500), keep_alive: Duration::from_millis(100), ..impatient() };
    let authority = authority();
    let a = bind(&authority, "a", options.clone());
    let b = bind(&authority, "b", options);
    let relay = Relay::to(b.control_addr(), 65_507);
    let (at_a, at_b) = tokio::join!(a.connect(relay.addr, None), b.accept());
    let (at_a, at_b) = (at_a.unwrap(), at_b.unwrap());
    // Silence within the timeout does no harm: keep-alives go on.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    relay.let_through(false);
    assert_eq!(at_a.closed().await, ConnectionLost::Silent);
    assert_eq!(at_b.closed().await, ConnectionLost::Silent);
    assert_serves(&b, &authority).await;
}

/// Three times the time that it takes to notice that a peer is gone, if its port were closed.
const STAND_STILL: Duration = Duration::from_secs(3);

/// A relay answers probes in the peer's place. If it does so from the first probe on, even silence does not count as the
/// peer's end; if it starts later, the end is noticed.
#[tokio::test]
async fn refused_probes_end_nothing_that_may_be_there() {
    let patient = QuicOptions { idle_timeout: 2 * PATIENCE, ..impatient() };
    let authority = authority();
    let case = async |from_the_first_on: bool| {
        let a = bind(&authority, "a", patient.clone());
        let b = bind(&authority, "b", patient.clone());
        let relay = Relay::to(b.control_addr(), 65_507);
        if from_the_first_on {
            relay.refuse_all_but(a.control_addr());
        }
        // An attempt has little time, where probes are refused even less, and a busy machine may need several.
        let mut at_a = loop {
            match a.connect(relay.addr, None).await {
                Ok(connection) => break connection,
                Err(ConnectError::TimedOut { .. }) => {}
                Err(ConnectError::PortClosed(_)) if from_the_first_on => {}
                Err(error) => panic!("{error}"),
            }
        };
        // Until it has been heard of after the first probe.
        tokio::time::sleep(Duration::from_secs(1)).await;
        relay.refuse_all_but(a.control_addr());
        relay.let_through(!from_the_first_on);
        tokio::time::sleep(STAND_STILL).await;
        relay.let_through(true);
        at_a.sender.send(framed(b"still here")).await.unwrap();
        loop {
            // An attempt that ran out of time delivers nothing.
            let mut at_b = b.accept().await.unwrap();
            if let Ok(frame) = at_b.receiver.recv().await {
                return assert_eq!(frame, &b"still here"[..]);
            }
        }
    };
    let cases = timeout(PATIENCE, async { tokio::join!(case(true), case(false)) });
    cases.await.expect("it comes");
}

/// The peer has vanished without a notice, and is back at once, so that its port was never found closed.
#[tokio::test]
async fn a_restarted_peer_resets_the_connections_of_its_life_before() {
    let patient = QuicOptions { idle_timeout: 2 * PATIENCE, keep_alive: Duration::from_millis(100), ..impatient() };
    let authority = authority();
    let a = bind(&authority, "a", patient.clone());
    let identity = identity(&authority, "b");
    let start = |addr| Endpoints::bind(identity.clone(), patient.clone(), addr);
    let b = start(loopback(0)).unwrap();
    let addr = b.control_addr();
    let relay = Relay::to(addr, 65_507);
    let (at_a, at_b) = tokio::join!(a.connect(relay.addr, None), b.accept());
    let (at_a, at_b) = (at_a.unwrap(), at_b.unwrap());
    relay.let_through(false);
    drop((b, at_b));
    let reborn = timeout(PATIENCE, async {
        loop {
            match start(addr) {
                Ok(endpoints) => return endpoints,
                // The old socket is closed once nobody waits for its goodbye any more.
                Err(EndpointsError::Socket { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(error) => panic!("{error}"),
            }
        }
    });
    let _reborn = reborn.await.expect("its port becomes free");
    relay.let_through(true);
    let lost = timeout(PATIENCE, at_a.closed()).await;
    assert_eq!(lost.expect("it is heard of"), ConnectionLost::Reset);
}
