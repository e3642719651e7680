//! A network in between that loses what is too large, or everything.

use std::{
    net::UdpSocket,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use super::*;

/// Passes packets between whoever sends to it and a server, as long as they are small enough.
pub(super) struct Relay {
    pub(super) addr: SocketAddr,
    largest: Arc<AtomicUsize>,
}

impl Relay {
    fn to(server: SocketAddr, largest: usize) -> Self {
        Self::from(loopback(0), server, largest, |_| true)
    }

    /// Reaches the server from the address `back`, and passes those of its answers that `passes`.
    pub(super) fn from(
        back: SocketAddr,
        server: SocketAddr,
        largest: usize,
        passes: fn(&[u8]) -> bool,
    ) -> Self {
        let front = UdpSocket::bind(loopback(0)).unwrap();
        let back = UdpSocket::bind(back).unwrap();
        let addr = front.local_addr().unwrap();
        let largest = Arc::new(AtomicUsize::new(largest));
        let client = Arc::new(std::sync::Mutex::new(None));
        for socket in [&front, &back] {
            socket
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
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
        Self { addr, largest }
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
    let options = QuicOptions {
        idle_timeout: Duration::from_millis(500),
        keep_alive: Duration::from_millis(100),
        ..impatient()
    };
    let authority = authority();
    let a = bind(&authority, "a", options.clone());
    let b = bind(&authority, "b", options);
    let relay = Relay::to(b.control_addr(), 65_507);
    let (at_a, at_b) = tokio::join!(a.connect(relay.addr, None), b.accept());
    let (at_a, at_b) = (at_a.unwrap(), at_b.unwrap());
    // Silence within the timeout does no harm: keep-alives go on.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    relay.largest.store(0, Ordering::Relaxed);
    assert_eq!(at_a.closed().await, ConnectionLost::Silent);
    assert_eq!(at_b.closed().await, ConnectionLost::Silent);
    assert_serves(&b, &authority).await;
}
