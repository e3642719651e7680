//! Loopback QUIC: a route carried again and again, beside one lane that only carries bytes.

use std::any::Any;
use std::future::ready;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::mpsc;
use transload_transfer::copy::Crc32c;
use transload_transfer::data::{
    Admitted, Arrivals, DataOptions, Landing, Outgoing, ReceiveError, Receiver, RouteBytes,
    SendEvent,
};
use transload_transfer::identity::{Authority, Roles};
use transload_transfer::ids::AgentId;
use transload_transfer::ids::{Nonce, TransferId};
use transload_transfer::path::quic::carrier::LaneOut;
use transload_transfer::plan::Side;
use transload_transfer::quic::{Endpoints, Lane, QuicOptions};
use transload_transfer::wire::stream::{StreamHeader, StreamTrailer};

use crate::case::{ALL, Case, memory};
use crate::show::{Figure, Target};
use crate::{runtime, setting};

/// Bytes of a figure and of its limit: half a second each.
const BYTES: u64 = 1_000_000_000;

/// GB/s wanted for each of the cases, on a quiet machine.
const TARGETS: [f64; 3] = [1.0, 1.5, 1.6];

pub(crate) fn measure(rounds: usize) {
    let runtime = runtime();
    let mut quic = QuicOptions::default();
    quic.lanes = setting("LANES").unwrap_or(1);
    quic.udp_payload = setting("UDP_PAYLOAD");
    let mut data = DataOptions::default();
    data.buffers = setting("BUFFERS").unwrap_or(data.buffers);
    data.buffer_bytes = setting("BUFFER_BYTES").unwrap_or(data.buffer_bytes);

    let (from, to) = (memory(), memory());
    let mut seconds_per_gb = f64::NAN;
    for (layouts, target) in ALL.into_iter().zip(TARGETS) {
        let case = Case::new(layouts);
        let src = case.bytes(Side::Source, &from);
        let dst = case.bytes(Side::Destination, &to);
        let round = |_| {
            runtime.block_on(async {
                let limit = bare(&quic).await;
                (carry(&quic, &data, &src, &dst).await, limit)
            })
        };
        let figure = Figure {
            name: format!("QUIC, {}", layouts.name),
            rounds: (0..rounds).map(round).collect(),
            limit: "QUIC, one copy out",
            target: Some(Target::Speed(target)),
        };
        figure.print();
        seconds_per_gb = 1.0 / figure.rounds[rounds / 2].0;
    }
    checksums(seconds_per_gb);
}

/// How much of the last figure's time one checksum of everything takes.
fn checksums(seconds_per_gb: f64) {
    let bytes: Vec<u8> = (0..128 << 10).map(|i: u32| (i >> 3) as u8).collect();
    let mut sum = Crc32c::new();
    let start = Instant::now();
    for _ in 0..BYTES / bytes.len() as u64 {
        bytes.chunks(16 << 10).for_each(|bytes| sum.update(bytes));
    }
    let seconds = start.elapsed().as_secs_f64() / (BYTES as f64 / 1e9);
    std::hint::black_box(sum.value());
    println!(
        "CRC32C takes {:.1} ms per GB, {:.1} % of the time of the figure above (target: 5 %)",
        seconds * 1e3,
        100.0 * seconds / seconds_per_gb,
    );
}

/// Carries a route until [`BYTES`] have crossed; GB/s.
async fn carry(quic: &QuicOptions, data: &DataOptions, src: &RouteBytes, dst: &RouteBytes) -> f64 {
    let pair = Pair::connect(quic).await;
    let (desk, mut arrived) = Desk::new();
    let receiver = Receiver::new(desk.clone(), data);
    for lane in &pair.arriving {
        receiver.serve(lane);
    }
    let leaving = pair.leaving.iter().cloned();
    let lanes: Vec<LaneOut> = leaving.map(|lane| LaneOut::new(lane, data)).collect();
    let times = BYTES.div_ceil(src.bytes());
    let mut start = Instant::now();
    for time in 0..=times {
        if time == 1 {
            // The congestion window has opened.
            start = Instant::now();
        }
        desk.expect(Landing::new(dst.clone()));
        let (outgoing, mut events) = Outgoing::new(
            TransferId([1; 16]),
            Nonce([2; 16]),
            src.clone(),
            lanes.len(),
        );
        outgoing.open_all();
        lanes.iter().for_each(|lane| lane.carry(&outgoing));
        arrived.all(src.bytes()).await;
        let mut left = src.bytes();
        while left > 0 {
            match events.next().await {
                Some(SendEvent::Written { bytes, .. }) => left -= bytes,
                other => panic!("{other:?}"),
            }
        }
    }
    (times * src.bytes()) as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// Carries as many bytes over one lane and copies them out one after the other, nothing else; GB/s.
async fn bare(quic: &QuicOptions) -> f64 {
    const REGION: usize = 64 << 20;
    let pair = Pair::connect(quic).await;
    let (lane, other) = (pair.leaving[0].clone(), pair.arriving[0].clone());
    let source = Bytes::from(vec![7; REGION]);
    let mut sink = vec![1; REGION];
    let receiving = other.clone().spawn(async move {
        let mut stream = other.accept_stream().await.expect("a stream");
        let mut pieces = vec![Bytes::new(); 64];
        let mut at = 0;
        while let Some(count) = stream.recv_chunks(&mut pieces).await.expect("more") {
            for piece in &mut pieces[..count] {
                let piece = std::mem::take(piece);
                at = if at + piece.len() > REGION { 0 } else { at };
                sink[at..at + piece.len()].copy_from_slice(&piece);
                at += piece.len();
            }
        }
    });
    let start = Instant::now();
    let sending = lane.clone().spawn(async move {
        let mut stream = lane.open_stream().await.expect("a stream");
        let piece = 256 << 10;
        for at in 0..BYTES as usize / piece {
            let at = at * piece % REGION;
            let piece = source.slice(at..at + piece);
            stream.send_chunk(piece).await.expect("a reader");
        }
        stream.finish().expect("a reader").await.expect("all of it");
    });
    sending.await.expect("no panic");
    receiving.await.expect("no panic");
    BYTES as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// Two agents' endpoints, and the lanes between them.
struct Pair {
    leaving: Vec<Lane>,
    arriving: Vec<Lane>,
    _alive: Box<dyn Any + Send>,
}

impl Pair {
    async fn connect(options: &QuicOptions) -> Self {
        let authority = Authority::new("bench".parse().expect("a name")).expect("certificates");
        let bind = |name: &str| {
            let identity = authority.issue(&name.parse().expect("a name"), Roles::NONE);
            let any = (Ipv4Addr::LOCALHOST, 0).into();
            Endpoints::bind(identity.expect("a certificate"), options.clone(), any)
                .expect("sockets")
        };
        let (a, b) = (bind("source"), bind("destination"));
        let (ours, theirs) = tokio::join!(a.connect(b.control_addr(), None), b.accept());
        let (ours, theirs) = (ours.expect("a connection"), theirs.expect("a connection"));
        let mut session = b
            .expect_lanes(&AgentId::from(&theirs.peer().service), options.lanes)
            .expect("a token");
        let (mut leaving, mut arriving) = (Vec::new(), Vec::new());
        for (index, port) in b.lane_ports().into_iter().enumerate() {
            let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let peer = AgentId::from(&ours.peer().service);
            let lane = a.connect_lane(index, addr, &peer, session.token());
            leaving.push(lane.await.expect("a lane"));
            arriving.push(session.accept().await.expect("a lane"));
        }
        Self {
            leaving,
            arriving,
            _alive: Box::new((a, b, ours, theirs)),
        }
    }
}

/// Admits every stream to the landing of the moment.
#[derive(Clone)]
pub(crate) struct Desk {
    landing: Arc<Mutex<Option<Landing>>>,
    tell: mpsc::UnboundedSender<u64>,
}

pub(crate) struct Arrived(mpsc::UnboundedReceiver<u64>);

impl Desk {
    pub(crate) fn new() -> (Self, Arrived) {
        let (tell, told) = mpsc::unbounded_channel();
        let landing = Arc::default();
        (Self { landing, tell }, Arrived(told))
    }

    pub(crate) fn expect(&self, landing: Landing) {
        *self.landing.lock().expect("no panic") = Some(landing);
    }
}

impl Arrived {
    /// Waits until so many bytes more have landed.
    pub(crate) async fn all(&mut self, mut bytes: u64) {
        while bytes > 0 {
            bytes -= self.0.recv().await.expect("a receiver");
        }
    }
}

impl Arrivals for Desk {
    fn admit(&self, _: &AgentId, _: &StreamHeader) -> Admitted {
        let landing = self.landing.lock().expect("no panic").clone();
        Box::pin(ready(landing))
    }

    fn arrived(&self, header: &StreamHeader, _: &StreamTrailer, _: u32) {
        // Whoever measures may be gone.
        let _ = self.tell.send(header.length);
    }

    fn failed(&self, _: &StreamHeader, error: ReceiveError) {
        panic!("{error}");
    }
}
