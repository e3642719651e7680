//! The QUIC transport as its users see it: no packet size hangs it, lanes carry disjoint parts at once,
//! and figures say what happened.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use transload_transfer::internal::quic::{
    ControlConnection, DataReceiver, Endpoints, Lane, MAX_UDP_PAYLOAD, MIN_UDP_PAYLOAD,
};
use transload_transfer::{AgentId, Authority, QuicOptions, Roles};

/// A time limit far above what anything here takes, so that a test that hangs fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two agents, a control connection between them, and as many lanes as both have.
struct Connected {
    _ends: [Endpoints; 2],
    _control: [ControlConnection; 2],
    lanes: Vec<[Lane; 2]>,
}

/// Returns the id of the agent at the other end, the only one of its service.
fn id(connection: &ControlConnection) -> AgentId {
    AgentId::from(&connection.peer().service)
}

async fn connect(ip: IpAddr, options: [QuicOptions; 2]) -> Connected {
    let authority = Authority::new("test".parse().unwrap()).unwrap();
    let mut names = ["a", "b"].into_iter();
    let [a, b] = options.map(|options| {
        let name = names.next().unwrap().parse().unwrap();
        let identity = authority.issue(&name, Roles::all()).unwrap();
        Endpoints::bind(identity, options, SocketAddr::new(ip, 0)).unwrap()
    });
    let (at_a, at_b) = tokio::join!(a.connect(b.control_addr(), None), b.accept());
    let (at_a, at_b) = (at_a.unwrap(), at_b.unwrap());
    let ports = b.lane_ports();
    let mut session = b.expect_lanes(&id(&at_b), ports.len() as u16).unwrap();
    let mut lanes = Vec::new();
    for (index, port) in ports.into_iter().enumerate() {
        let addr = SocketAddr::new(ip, port);
        let lane = a.connect_lane(index, addr, &id(&at_a), session.token()).await.unwrap();
        lanes.push([lane, session.accept().await.unwrap()]);
    }
    Connected { _ends: [a, b], _control: [at_a, at_b], lanes }
}

fn packets_of(bytes: u16) -> QuicOptions {
    QuicOptions { lanes: 1, udp_payload: Some(bytes), ..QuicOptions::default() }
}

/// Returns bytes that differ from place to place and from seed to seed.
fn contents(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed) as u8).collect()
}

/// Moves `bytes` from the first lane end to the second, and checks them.
async fn carry(from: &Lane, to: &Lane, bytes: Vec<u8>) {
    let receiving = to.spawn({
        let to = to.clone();
        async move { collect(to.accept_stream().await.unwrap()).await }
    });
    let mut sender = from.open_stream().await.unwrap();
    sender.send_chunk(bytes.clone().into()).await.unwrap();
    sender.finish().unwrap().await.unwrap();
    assert!(receiving.await.unwrap() == bytes, "other bytes arrived");
}

async fn collect(mut stream: DataReceiver) -> Vec<u8> {
    let mut got = Vec::new();
    let mut pieces = vec![Bytes::new(); 16];
    while let Some(count) = stream.recv_chunks(&mut pieces).await.unwrap() {
        pieces[..count].iter().for_each(|piece| got.extend_from_slice(piece));
    }
    got
}

/// All packet sizes at which something changes: the limits and beyond, and the sizes at which batches of 10, 9, 7, 4, 2
/// and 1 packets just fit and just do not.
const SIZES: [u16; 22] = [
    0, 1, 1199, 1200, 1452, 1472, 6500, 6547, 6548, 6550, 6551, 8952, 9353, 9354, 16_368, 16_384, 32_736, 32_737,
    65_473, 65_506, 65_507, 65_535,
];

#[tokio::test]
async fn no_packet_size_hangs() {
    for (seed, size) in SIZES.into_iter().enumerate() {
        for other in [size, 0, 1452, 65_535] {
            let case = async {
                let options = [packets_of(size), packets_of(other)];
                let connected = connect(Ipv4Addr::LOCALHOST.into(), options).await;
                let [a, b] = &connected.lanes[0];
                carry(a, b, contents(seed, 1_500_000)).await;
                carry(b, a, contents(seed + 100, 1_500_000)).await;
                let used = a.stats().udp_payload;
                let least = size.min(other).clamp(MIN_UDP_PAYLOAD, MAX_UDP_PAYLOAD);
                assert!(used <= least, "{used} bytes in a packet");
            };
            assert!(timeout(PATIENCE, case).await.is_ok(), "packets of {size} and {other} bytes hang");
        }
    }
}

#[tokio::test]
async fn ipv6_carries_the_same() {
    let ip = Ipv6Addr::LOCALHOST.into();
    if std::net::UdpSocket::bind(SocketAddr::new(ip, 0)).is_err() {
        println!("SKIPPED: this machine has no IPv6");
        return;
    }
    for size in [0, 1452, 65_487, 65_488, 65_489, 65_535] {
        let connected = connect(ip, [packets_of(size), packets_of(size)]).await;
        let [a, b] = &connected.lanes[0];
        timeout(PATIENCE, carry(a, b, contents(1, 1_500_000)))
            .await
            .unwrap_or_else(|_| panic!("packets of {size} bytes hang"));
    }
    // A socket for both serves either.
    let connected = connect(ip, [QuicOptions::default(), QuicOptions::default()]).await;
    let [a, b] = &connected.lanes[0];
    carry(b, a, contents(2, 1_500_000)).await;
}

#[tokio::test]
async fn an_ipv6_wildcard_serves_ipv4() {
    let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
    if std::net::UdpSocket::bind(any).is_err() {
        println!("SKIPPED: this machine has no IPv6");
        return;
    }
    let authority = Authority::new("test".parse().unwrap()).unwrap();
    let identity = |name: &str| authority.issue(&name.parse().unwrap(), Roles::all()).unwrap();
    let server = Endpoints::bind(identity("a"), QuicOptions::default(), any).unwrap();
    let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let client = Endpoints::bind(identity("b"), QuicOptions::default(), v4).unwrap();
    let addr = (Ipv4Addr::LOCALHOST, server.control_addr().port()).into();
    let (ours, theirs) = tokio::join!(client.connect(addr, None), server.accept());
    assert_eq!(ours.unwrap().peer().service.as_str(), "a");
    assert_eq!(theirs.unwrap().peer().service.as_str(), "b");
}

#[tokio::test]
async fn lanes_carry_parts_at_once_both_ways() {
    let options = QuicOptions { lanes: 4, ..QuicOptions::default() };
    let connected = connect(Ipv4Addr::LOCALHOST.into(), [options.clone(), options]).await;
    assert_eq!(connected.lanes.len(), 4);
    let mut carrying = tokio::task::JoinSet::new();
    for (i, [a, b]) in connected.lanes.iter().enumerate() {
        for (from, to, seed) in [(a, b, i), (b, a, i + 10)] {
            let (from, to) = (from.clone(), to.clone());
            carrying.spawn(async move { carry(&from, &to, contents(seed, 8 << 20)).await });
        }
    }
    timeout(PATIENCE, carrying.join_all()).await.unwrap();
    // On loopback, with windows that fit the buffers, nothing is lost on the way.
    for [a, _] in &connected.lanes {
        let stats = a.stats();
        assert!(stats.sent_packets > 0 && stats.send_calls <= stats.sent_packets);
    }
}

#[tokio::test]
async fn small_kernel_buffers_are_lived_with() {
    let options = QuicOptions { lanes: 1, socket_buffer: 64 << 10, ..QuicOptions::default() };
    let connected = connect(Ipv4Addr::LOCALHOST.into(), [options.clone(), options]).await;
    let [a, b] = &connected.lanes[0];
    timeout(PATIENCE, carry(a, b, contents(3, 20 << 20))).await.expect("hangs with small buffers");
}
