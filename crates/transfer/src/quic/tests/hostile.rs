//! Peers that misbehave, before or after they are accepted.

use std::net::UdpSocket;

use super::{
    super::acceptor::{CONTROL_PREAMBLE, LANE_PREAMBLE},
    relay::Relay,
    *,
};

#[tokio::test]
async fn garbage_on_the_ports_changes_nothing() {
    let authority = authority();
    let server = bind(&authority, "server", impatient());
    let socket = UdpSocket::bind(loopback(0)).unwrap();
    let mut seed = 1_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as u32
    };
    for round in 0..2000 {
        let len = 1 + random() as usize % 2000;
        let mut packet: Vec<u8> = (0..len).map(|_| random() as u8).collect();
        // Some of it looks like QUIC: long headers of version 1, short headers.
        match round % 4 {
            0 => {}
            1 => packet[0] = 0xc3,
            2 => {
                packet[0] = 0xc0 | (packet[0] & 0x3f);
                for (to, byte) in packet.iter_mut().skip(1).zip([0, 0, 0, 1, 8]) {
                    *to = byte;
                }
            }
            _ => packet[0] = 0x40 | (packet[0] & 0x3f),
        }
        for port in [server.control_addr().port(), server.lane_ports()[0]] {
            // The kernel may drop what is too much.
            let _ = socket.send_to(&packet, loopback(port));
        }
    }
    assert_serves(&server, &authority).await;
    while server.open_connections() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Strangers begin handshakes all the time and never show a certificate, from the address of honest peers, from other
/// ones, and from forged ones, which no answer reaches.
#[tokio::test]
async fn strangers_lock_nobody_out() {
    const RETRY: u8 = 0xf0;
    let only_retries: fn(&[u8]) -> bool = |packet| packet[0] & 0xf0 == RETRY;
    let nothing: fn(&[u8]) -> bool = |_| false;
    let authority = authority();
    for (passes, last_bytes) in [(only_retries, &[1_u8][..]), (only_retries, &[2, 3, 4, 5]), (nothing, &[1])] {
        let options = QuicOptions { lanes: 1, ..QuicOptions::default() };
        let places = options.max_handshakes;
        let server = bind(&authority, "server", options);
        let relays = last_bytes.iter().map(|last| {
            let from = SocketAddr::from(([127, 0, 0, *last], 0));
            let relay = Relay::from(from, server.control_addr(), 65_507, passes);
            (relay, Stranger::new(&authority, None, tls::ALPN))
        });
        let relays: Vec<_> = relays.collect();
        let mut attempts = Vec::new();
        let mut attack = |count| {
            for (relay, stranger) in relays.iter().cycle().take(count) {
                let config = stranger.config.clone();
                let attempt = stranger.endpoint.connect_with(config, relay.addr, tls::SERVER_NAME);
                attempts.push(attempt.unwrap());
            }
        };
        attack(2 * places);
        // Of addresses that lie, half get a place.
        while server.open_connections() < places / 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for _ in 0..10 {
            attack(places / 8);
            assert_serves(&server, &authority).await;
        }
    }
}

#[tokio::test]
async fn a_connection_that_does_not_say_what_it_is_for_is_closed() {
    let authority = authority();
    let server = bind(&authority, "server", impatient());
    let traitor = Stranger::traitor(&authority);
    let control = server.control_addr().port();
    let lane = server.lane_ports()[0];
    // More than is let in before the token is known.
    let connection = traitor.connect(loopback(lane)).await.unwrap();
    let (mut send, _receive) = connection.open_bi().await.unwrap();
    let soon = Duration::from_millis(200);
    let much = [&LANE_PREAMBLE[..], &[0; 3], &vec![0; 1 << 20]].concat();
    send.write_all(LANE_PREAMBLE).await.unwrap();
    assert!(
        tokio::time::timeout(soon, send.write_all(&much)).await.is_ok_and(|written| written.is_err()),
        "1 MiB from a stranger was taken in"
    );
    // Garbage, the other port's introduction, a trickle, silence on the stream, and no stream at all.
    for (port, said) in [
        (control, &b"garbage"[..]),
        (control, LANE_PREAMBLE),
        (lane, CONTROL_PREAMBLE),
        (lane, b"TLl1 and not a whole token"),
        (control, b"TL"),
        (lane, b"TLl1"),
        (control, b""),
        (lane, b""),
    ] {
        let connection = traitor.connect(loopback(port)).await.unwrap();
        let (mut send, _receive) = connection.open_bi().await.unwrap();
        let _ = send.write_all(said).await;
        let error = connection.closed().await;
        assert!(matches!(error, quinn::ConnectionError::ApplicationClosed(_)), "{said:?}: {error:?}");
    }
    assert_serves(&server, &authority).await;
}

#[tokio::test]
async fn forged_tokens_open_no_lane() {
    let pair = Pair::new().await;
    let Pair { a, b, at_a, at_b, .. } = &pair;
    let addr = loopback(b.lane_ports()[0]);
    let mut session = b.expect_lanes(&id(at_b.peer()), 2).unwrap();
    let dial = |token: [u8; 16]| async move { a.connect_lane(0, addr, &id(at_a.peer()), &Nonce(token)).await };
    assert_eq!(dial([0; 16]).await.unwrap_err(), ConnectError::LaneRefused);
    // One bit off, at either end.
    for at in [0, 127] {
        let mut token = session.token().0;
        token[at / 8] ^= 1 << (at % 8);
        assert_eq!(dial(token).await.unwrap_err(), ConnectError::LaneRefused);
    }
    // The right token in the hands of another agent of the cluster.
    let stolen = {
        let authority = authority();
        let victim = bind(&authority, "victim", impatient());
        let (x, y) = (bind(&authority, "x", impatient()), bind(&authority, "y", impatient()));
        let (at_x, at_victim) = tokio::join!(x.connect(victim.control_addr(), None), victim.accept());
        let session = victim.expect_lanes(&id(at_victim.unwrap().peer()), 1).unwrap();
        let port = loopback(victim.lane_ports()[0]);
        y.connect_lane(0, port, &id(at_x.unwrap().peer()), session.token()).await
    };
    assert_eq!(stolen.unwrap_err(), ConnectError::LaneRefused);

    // As many lanes as were asked for, and not one more; none after the session.
    let token = session.token().0;
    let first = dial(token).await.unwrap();
    let second = dial(token).await.unwrap();
    assert_eq!(dial(token).await.unwrap_err(), ConnectError::LaneRefused);
    assert!(session.accept().await.is_some() && session.accept().await.is_some());
    let later = b.expect_lanes(&id(at_b.peer()), 1).unwrap();
    let token = later.token().0;
    drop(later);
    assert_eq!(dial(token).await.unwrap_err(), ConnectError::LaneRefused);
    drop((first, second));
}

#[tokio::test]
async fn nobody_opens_more_streams_than_allowed() {
    let authority = authority();
    let options = QuicOptions { max_streams: 50, ..impatient() };
    let server = bind(&authority, "server", options);
    let traitor = Stranger::traitor(&authority);

    let connection = traitor.connect(server.control_addr()).await.unwrap();
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(CONTROL_PREAMBLE).await.unwrap();
    receive.read_exact(&mut [0; 4]).await.unwrap();
    let control = server.accept().await.unwrap();
    let soon = Duration::from_millis(100);
    // Control has one stream, and no others.
    assert!(tokio::time::timeout(soon, connection.open_bi()).await.is_err());
    assert!(tokio::time::timeout(soon, connection.open_uni()).await.is_err());

    let mut session = server.expect_lanes(&id(control.peer()), 1).unwrap();
    let connection = traitor.connect(loopback(server.lane_ports()[0])).await.unwrap();
    // Before its token is known, a lane may not make us keep anything.
    assert!(tokio::time::timeout(soon, connection.open_uni()).await.is_err());
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(LANE_PREAMBLE).await.unwrap();
    send.write_all(&session.token().0).await.unwrap();
    receive.read_exact(&mut [0; 4]).await.unwrap();
    let lane = session.accept().await.unwrap();
    let mut open = Vec::new();
    for _ in 0..5000 {
        match tokio::time::timeout(soon, connection.open_uni()).await {
            Ok(stream) => {
                let mut stream = stream.unwrap();
                stream.write_all(b"x").await.unwrap();
                open.push(stream);
            }
            Err(_) => break,
        }
    }
    assert_eq!(open.len(), 50);
    // They are served one after the other, and others may follow.
    for stream in &mut open {
        stream.finish().unwrap();
    }
    for _ in 0..50 {
        let mut stream = lane.accept_stream().await.unwrap();
        assert_eq!(&next_piece(&mut stream).await.unwrap().unwrap()[..], b"x");
        assert_eq!(next_piece(&mut stream).await.unwrap(), None);
    }
    connection.open_uni().await.unwrap();
}
