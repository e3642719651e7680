//! One bare QUIC lane on loopback at several packet sizes, beside TCP with TLS in the same run; and how
//! long it takes to connect.
//!
//! `cargo bench -p transload-benches --bench quic [-- ROUNDS]`. Both sides need a core of their own: on a
//! busy machine run it with real-time priority (`chrt -f 5`), or go by the CPU seconds.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use bytes::Bytes;
use rustls::{ClientConnection, ServerConnection, Stream};
use transload_transfer::identity::{Authority, Identity, Roles, tls};
use transload_transfer::ids::AgentId;
use transload_transfer::quic::{ControlConnection, Endpoints, Lane, QuicOptions};

/// Bytes of each measurement.
const BYTES: u64 = 1 << 30;
/// Bytes of each write.
const WRITE: usize = 1 << 20;
/// What TLS is asked for at once. More was not faster.
const READ: usize = 256 << 10;
/// What is read from, and written to: more than the caches of one core hold.
const REGION: usize = 64 << 20;

/// UDP payloads: Ethernet, the largest of which ten make one batch, jumbo frames, and what is the
/// default on loopback.
const PAYLOADS: [Option<u16>; 4] = [Some(1452), Some(6547), Some(8952), None];

/// At 1 MiB, against TCP and TLS.
const TARGET: f64 = 1.2;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let measuring = arguments.iter().any(|argument| argument == "--bench");
    let rounds = arguments.iter().find_map(|argument| argument.parse().ok());
    // `cargo test --benches` only wants to see that it runs.
    let rounds = rounds.unwrap_or(if measuring { 7 } else { 1 });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let source: Bytes = (0..REGION)
        .map(|i| (i >> 3) as u8)
        .collect::<Vec<_>>()
        .into();

    println!(
        "{:24} {:>20} {:>10} {:>12} {:>8}  target",
        "a bare lane, copied out", "GB/s (min..max)", "CPU s/GB", "TCP and TLS", "ratio"
    );
    for payload in PAYLOADS {
        let mut turns = Vec::new();
        for _ in 0..rounds {
            let lane = measured(|| runtime.block_on(lane(payload, &source)));
            turns.push((lane, measured(|| tcp_tls(&source))));
        }
        let speed = sorted(turns.iter().map(|turn| turn.0.speed));
        let ratio = median(turns.iter().map(|turn| turn.0.speed / turn.1.speed));
        println!(
            "{:24} {:>20} {:>10.2} {:>12} {:>8.2}  {}",
            payload.map_or("packets as they come".to_owned(), |bytes| format!(
                "packets of {bytes} bytes"
            )),
            format!(
                "{:.2} ({:.2}..{:.2})",
                speed[speed.len() / 2],
                speed[0],
                speed[speed.len() - 1]
            ),
            median(turns.iter().map(|turn| turn.0.cpu)),
            format!(
                "{:.2} ({:.2})",
                median(turns.iter().map(|turn| turn.1.speed)),
                median(turns.iter().map(|turn| turn.1.cpu)),
            ),
            ratio,
            if payload.is_none() {
                TARGET.to_string()
            } else {
                String::new()
            },
        );
    }

    let connects: Vec<_> = (0..rounds * 20)
        .map(|_| runtime.block_on(connect()))
        .collect();
    println!(
        "\ncold connect: control {:.2} ms, then a lane {:.2} ms (medians of {})",
        median(connects.iter().map(|times| times[0] * 1e3)),
        median(connects.iter().map(|times| times[1] * 1e3)),
        connects.len()
    );
}

/// What one measurement came to.
struct Measured {
    /// In GB/s.
    speed: f64,
    /// Seconds per GB, both sides together.
    cpu: f64,
}

fn measured(run: impl FnOnce() -> f64) -> Measured {
    let before = cpu_seconds();
    let seconds = run();
    let gb = BYTES as f64 / 1e9;
    Measured {
        speed: gb / seconds,
        cpu: (cpu_seconds() - before) / gb,
    }
}

/// Of this process so far; 0 where the system does not say.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks: f64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok())
        .sum();
    ticks / 100.0
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let sorted = sorted(values);
    sorted[sorted.len() / 2]
}

fn writes(source: Bytes) -> impl Iterator<Item = Bytes> + Send {
    (0..BYTES as usize / WRITE).map(move |i| {
        let at = i * WRITE % REGION;
        source.slice(at..at + WRITE)
    })
}

/// Two identities of one cluster.
fn identities() -> [Identity; 2] {
    let authority = Authority::new("bench".parse().unwrap()).unwrap();
    ["a", "b"].map(|name| {
        authority
            .issue(&name.parse().unwrap(), Roles::NONE)
            .unwrap()
    })
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

async fn endpoints(payload: Option<u16>) -> [Endpoints; 2] {
    identities().map(|identity| {
        let mut options = QuicOptions::default();
        options.lanes = 1;
        options.udp_payload = payload;
        Endpoints::bind(identity, options, loopback(0)).unwrap()
    })
}

async fn control(a: &Endpoints, b: &Endpoints) -> [ControlConnection; 2] {
    let (at_a, at_b) = tokio::join!(a.connect(b.control_addr(), None), b.accept());
    [at_a.unwrap(), at_b.unwrap()]
}

async fn lane_between(a: &Endpoints, b: &Endpoints, ends: &[ControlConnection; 2]) -> [Lane; 2] {
    let mut session = b
        .expect_lanes(&AgentId::from(&ends[1].peer().service), 1)
        .unwrap();
    let addr = loopback(b.lane_ports()[0]);
    let lane = a
        .connect_lane(
            0,
            addr,
            &AgentId::from(&ends[0].peer().service),
            session.token(),
        )
        .await
        .unwrap();
    [lane, session.accept().await.unwrap()]
}

/// Seconds to a control connection, and from there to a lane. The endpoints are there already, and
/// have not seen each other.
async fn connect() -> [f64; 2] {
    let [a, b] = endpoints(None).await;
    let start = Instant::now();
    let ends = control(&a, &b).await;
    let control = start.elapsed();
    let start = Instant::now();
    let _lane = lane_between(&a, &b, &ends).await;
    [control, start.elapsed()].map(|time| time.as_secs_f64())
}

/// Seconds from the first write until the last byte was copied out.
async fn lane(payload: Option<u16>, source: &Bytes) -> f64 {
    let [a, b] = endpoints(payload).await;
    let ends = control(&a, &b).await;
    let [from, to] = lane_between(&a, &b, &ends).await;
    let mut region = vec![1_u8; REGION];
    let receiving = to.clone().spawn(async move {
        let mut stream = to.accept_stream().await.unwrap();
        let mut pieces = vec![Bytes::new(); 64];
        let (mut got, mut at) = (0, 0);
        while let Some(count) = stream.recv_chunks(&mut pieces).await.unwrap() {
            for piece in pieces[..count].iter_mut().map(std::mem::take) {
                if at + piece.len() > REGION {
                    at = 0;
                }
                region[at..at + piece.len()].copy_from_slice(&piece);
                at += piece.len();
                got += piece.len() as u64;
            }
        }
        assert_eq!(got, BYTES);
        Instant::now()
    });
    let pieces = writes(source.clone());
    let start = Instant::now();
    let sending = from.clone().spawn(async move {
        let mut stream = from.open_stream().await.unwrap();
        for piece in pieces {
            stream.send_chunk(piece).await.unwrap();
        }
        stream.finish().unwrap().await.unwrap();
    });
    sending.await.unwrap();
    receiving.await.unwrap().duration_since(start).as_secs_f64()
}

/// The same over TCP with the same certificates, one thread a side and no runtime in between. What
/// rustls has decrypted is copied to where a lane's receiver puts it.
fn tcp_tls(source: &Bytes) -> f64 {
    let [a, b] = identities();
    let listener = TcpListener::bind(loopback(0)).unwrap();
    let addr = listener.local_addr().unwrap();
    let receiving = thread::spawn(move || {
        let (mut tcp, _) = listener.accept().unwrap();
        let mut tls = ServerConnection::new(b.tls().server()).unwrap();
        let mut stream = Stream::new(&mut tls, &mut tcp);
        let mut region = vec![1_u8; REGION];
        let mut got = 0;
        while got < BYTES {
            let at = got as usize % REGION;
            let until = REGION.min(at + READ);
            got += stream.read(&mut region[at..until]).unwrap() as u64;
        }
        Instant::now()
    });
    let mut tcp = TcpStream::connect(addr).unwrap();
    tcp.set_nodelay(true).unwrap();
    let mut tls = ClientConnection::new(a.tls().client(None), tls::server_name()).unwrap();
    tls.set_buffer_limit(Some(WRITE));
    while tls.is_handshaking() {
        tls.complete_io(&mut tcp).unwrap();
    }
    let pieces = writes(source.clone());
    let start = Instant::now();
    let mut stream = Stream::new(&mut tls, &mut tcp);
    for piece in pieces {
        stream.write_all(&piece).unwrap();
    }
    stream.flush().unwrap();
    receiving
        .join()
        .unwrap()
        .duration_since(start)
        .as_secs_f64()
}
