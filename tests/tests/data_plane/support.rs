//! Two agents without a control plane, and routes between memories that can be looked at.

use std::collections::HashMap;
use std::future::ready;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use transload_layout::Side;
use transload_tests::compiled::deployment;
use transload_transfer::internal::data::{
    Admitted, Arrivals, Landing, Outgoing, ReceiveError, Receiver, RouteBytes, SendEvent, SendEvents,
};
use transload_transfer::internal::handover::{Limits, Listener, connect};
use transload_transfer::internal::lanes::LaneOut;
use transload_transfer::internal::quic::{ControlConnection, Endpoints, Lane};
use transload_transfer::internal::ring::random_token;
use transload_transfer::internal::slots::{Consumer, Producer, RingShape};
use transload_transfer::plan::Route;
use transload_transfer::plan::codec::Codec;
use transload_transfer::plan::ids::{Nonce, TransferId};
use transload_transfer::wire::internal::stream::{StreamHeader, StreamTrailer};
use transload_transfer::{
    AgentId, Authority, BlockTable, DataOptions, Memory, Plan, QuicOptions, Request, Roles, Tables,
};

/// A time limit far above what anything here takes, so that a test that hangs fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Fails a test that hangs.
pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("done in time")
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A source and a destination, connected by lanes.
pub(crate) struct Pair {
    pub(crate) source: Endpoints,
    pub(crate) destination: Endpoints,
    pub(crate) lanes: Vec<LaneOut>,
    pub(crate) receiver: Receiver,
    pub(crate) desk: Desk,
    _control: (ControlConnection, ControlConnection),
}

impl Pair {
    pub(crate) async fn connect(lanes: u16, quic: QuicOptions, data: &DataOptions) -> Self {
        Self::connect_by(None, lanes, quic, data).await
    }

    /// Connects two sides, over lanes that a test can cut.
    pub(crate) async fn connect_by(wire: Option<&Wire>, lanes: u16, quic: QuicOptions, data: &DataOptions) -> Self {
        let authority = Authority::new("test".parse().unwrap()).unwrap();
        let mut quic = quic;
        quic.lanes = lanes;
        let bind = |name: &str| {
            let identity = authority.issue(&name.parse().unwrap(), Roles::NONE).unwrap();
            let any = (Ipv4Addr::LOCALHOST, 0).into();
            Endpoints::bind(identity, quic.clone(), any).unwrap()
        };
        let (source, destination) = (bind("source"), bind("destination"));
        let connecting = source.connect(destination.control_addr(), None);
        let (ours, theirs) = tokio::join!(connecting, destination.accept());
        let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
        let mut session = destination.expect_lanes(&AgentId::from(&theirs.peer().service), lanes).unwrap();
        let desk = Desk::default();
        let receiver = Receiver::new(desk.clone(), data);
        let mut out = Vec::new();
        for (index, port) in destination.lane_ports().into_iter().enumerate() {
            let mut addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            if let Some(wire) = wire {
                addr = wire.to(addr).await;
            }
            let peer = AgentId::from(&ours.peer().service);
            let lane = source.connect_lane(index, addr, &peer, session.token());
            out.push(LaneOut::new(lane.await.unwrap(), data));
            receiver.serve(&session.accept().await.unwrap());
        }
        Self { source, destination, lanes: out, receiver, desk, _control: (ours, theirs) }
    }

    /// Returns the source's id.
    pub(crate) fn sender(&self) -> AgentId {
        "source".parse().unwrap()
    }

    /// Returns a lane on which the test can write any bytes.
    pub(crate) fn lane(&self) -> &Lane {
        self.lanes[0].lane()
    }

    /// Begins to send a route to its destination. None of its bytes may be read yet.
    pub(crate) fn begin(&self, from: RouteBytes, to: RouteBytes) -> Transfer {
        let transfer = self.desk.expect(from, to, self.lanes.len());
        self.lanes.iter().for_each(|lane| lane.carry(&transfer.out));
        transfer
    }
}

/// Carries packets until it is cut.
#[derive(Clone, Default)]
pub(crate) struct Wire {
    cut: Arc<AtomicBool>,
    carried: Arc<AtomicU64>,
}

impl Wire {
    /// Drops all packets from now on.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    /// Returns the number of bytes in the packets that it has carried.
    pub(crate) fn carried(&self) -> u64 {
        self.carried.load(Ordering::SeqCst)
    }

    /// Returns an address that leads to another one.
    async fn to(&self, there: SocketAddr) -> SocketAddr {
        let any = (Ipv4Addr::LOCALHOST, 0);
        let (near, far) = (UdpSocket::bind(any).await.unwrap(), UdpSocket::bind(any).await.unwrap());
        let addr = near.local_addr().unwrap();
        let this = self.clone();
        tokio::spawn(async move {
            let (mut out, mut back) = (vec![0; 1 << 16], vec![0; 1 << 16]);
            let mut here = None;
            loop {
                let (bytes, from, to) = tokio::select! {
                    Ok((len, from)) = near.recv_from(&mut out) => {
                        here = Some(from);
                        (&out[..len], &far, there)
                    }
                    Ok((len, _)) = far.recv_from(&mut back) => match here {
                        Some(here) => (&back[..len], &near, here),
                        None => continue,
                    },
                };
                if !this.cut.load(Ordering::SeqCst) {
                    // What does not arrive is sent again.
                    let _ = from.send_to(bytes, to).await;
                    this.carried.fetch_add(bytes.len() as u64, Ordering::SeqCst);
                }
            }
        });
        addr
    }
}

/// One transfer, seen from both sides.
pub(crate) struct Transfer {
    pub(crate) id: TransferId,
    pub(crate) out: Outgoing,
    pub(crate) sending: SendEvents,
    pub(crate) landing: Landing,
    pub(crate) arriving: mpsc::UnboundedReceiver<Arrival>,
}

impl Transfer {
    /// Waits until the source has read all, and until all has arrived.
    pub(crate) async fn done(&mut self) {
        let total = self.out.route().bytes();
        let mut written = 0;
        while written < total {
            match soon(self.sending.next()).await.unwrap() {
                SendEvent::Written { bytes, .. } => written += bytes,
                other => panic!("{other:?}"),
            }
        }
        self.arrived().await;
    }

    /// Waits until all has arrived.
    pub(crate) async fn arrived(&mut self) {
        let total = self.landing.route().bytes();
        let mut arrived = 0;
        while arrived < total {
            match soon(self.arriving.recv()).await.unwrap() {
                Arrival::Whole(header) => arrived += header.length,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((arrived, self.landing.placed()), (total, total));
    }
}

/// Admits the streams that were announced to it.
#[derive(Clone, Default)]
pub(crate) struct Desk {
    inner: Arc<Mutex<Book>>,
}

#[derive(Default)]
struct Book {
    next: u8,
    expected: HashMap<TransferId, Expected>,
}

struct Expected {
    nonce: Nonce,
    landing: Landing,
    tell: mpsc::UnboundedSender<Arrival>,
}

/// The end of a stream.
#[derive(Debug)]
pub(crate) enum Arrival {
    Whole(StreamHeader),
    Broken(ReceiveError),
}

impl Desk {
    /// Announces a transfer.
    pub(crate) fn expect(&self, from: RouteBytes, to: RouteBytes, lanes: usize) -> Transfer {
        let (tell, arriving) = mpsc::unbounded_channel();
        let landing = Landing::new(to);
        let mut book = self.inner.lock().unwrap();
        book.next = book.next.wrapping_add(1);
        let (id, nonce) = (TransferId([book.next; 16]), Nonce([!book.next; 16]));
        let expected = Expected { nonce, landing: landing.clone(), tell };
        book.expected.insert(id, expected);
        let (out, sending) = Outgoing::new(id, nonce, from, lanes);
        Transfer { id, out, sending, landing, arriving }
    }

    /// Returns the nonce of a transfer that was announced.
    pub(crate) fn nonce(&self, id: TransferId) -> Nonce {
        self.inner.lock().unwrap().expected[&id].nonce
    }

    pub(crate) fn forget(&self, id: TransferId) {
        self.inner.lock().unwrap().expected.remove(&id);
    }

    fn tell(&self, header: &StreamHeader, arrival: Arrival) {
        if let Some(expected) = self.inner.lock().unwrap().expected.get(&header.transfer) {
            let _ = expected.tell.send(arrival);
        }
    }
}

impl Arrivals for Desk {
    fn admit(&self, peer: &AgentId, header: &StreamHeader) -> Admitted {
        assert_eq!(peer.as_str(), "source");
        let book = self.inner.lock().unwrap();
        let expected = book.expected.get(&header.transfer);
        let expected = expected.filter(|expected| expected.nonce == header.nonce);
        Box::pin(ready(expected.map(|expected| expected.landing.clone())))
    }

    fn arrived(&self, header: &StreamHeader, trailer: &StreamTrailer, _: u32) {
        assert_eq!(header.length, trailer.length);
        self.tell(header, Arrival::Whole(*header));
    }

    fn failed(&self, header: &StreamHeader, error: ReceiveError) {
        self.tell(header, Arrival::Broken(error));
    }
}

/// The value of a memory's bytes before a test writes to them.
pub(crate) const CANARY: u8 = 0xCA;

/// The value of a memory's bytes after they may no longer be used.
pub(crate) const POISON: u8 = 0xEE;

/// Returns all bytes of a memory, allocation by allocation.
pub(crate) fn bytes_of(memory: &Memory) -> Vec<Vec<u8>> {
    let all = 0..memory.allocations();
    let read = |number: usize| {
        let mut bytes = vec![0; memory.allocation(number).unwrap().1];
        memory.read((number as u64) << 44, &mut bytes).unwrap();
        bytes
    };
    all.map(read).collect()
}

/// Writes every byte of a memory: `byte` of its allocation and offset.
pub(crate) fn fill(memory: &Memory, byte: impl Fn(usize, usize) -> u8) {
    for number in 0..memory.allocations() {
        let len = memory.allocation(number).unwrap().1;
        let bytes: Vec<u8> = (0..len).map(|offset| byte(number, offset)).collect();
        memory.write((number as u64) << 44, &bytes).unwrap();
    }
}

/// Makes every byte of a memory the same.
pub(crate) fn paint(memory: &Memory, byte: u8) {
    for number in 0..memory.allocations() {
        let len = memory.allocation(number).unwrap().1;
        memory.write((number as u64) << 44, &vec![byte; len]).unwrap();
    }
}

/// Returns whether every byte is this one.
pub(crate) fn is_all(memory: &Memory, byte: u8) -> bool {
    bytes_of(memory).iter().all(|bytes| *bytes == vec![byte; bytes.len()])
}

/// Returns whether any byte is this one.
pub(crate) fn has(memory: &Memory, byte: u8) -> bool {
    bytes_of(memory).iter().any(|bytes| bytes.contains(&byte))
}

/// Returns a byte that looks random, and is never [`CANARY`] or [`POISON`].
pub(crate) fn content(number: usize, offset: usize) -> u8 {
    let mixed = (offset as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number as u64;
    (mixed >> 40) as u8 & 0x7F
}

/// A route of a model of Llama's kind from one layout into another, some MiB, with both memories.
pub(crate) struct Sample {
    pub(crate) plan: Plan,
    pub(crate) src: (Memory, RouteBytes),
    pub(crate) dst: (Memory, RouteBytes),
    pub(crate) tables: (Tables, Tables),
}

impl Sample {
    /// `tokens` tokens of 8 layers, 8 heads of 256 B: 16 KiB a token.
    pub(crate) fn new(tokens: u64, by_layer: bool, orders: (&str, &str)) -> Self {
        Self::coded(tokens, by_layer, orders, Codec::Exact)
    }

    /// Like [`new`](Self::new), with a codec.
    pub(crate) fn coded(tokens: u64, by_layer: bool, orders: (&str, &str), codec: Codec) -> Self {
        let blocks = |size: u64| (tokens.div_ceil(size) + 3) as u32;
        let side = |order: &str, block: u64| {
            let blocks = blocks(block);
            deployment(&serde_json::json!({
                "schema": "transload.deployment/1", "block_size": block, "num_blocks": blocks,
                "order": order, "group": [{"name": "attn", "layers": "0-7", "spec": [
                    {"kind": "attention", "heads": 8, "head_dim": 64, "dtype": "bf16"}]}]
            }))
            .unwrap()
        };
        let (from, to) = (side(orders.0, 16), side(orders.1, 24));
        let request = Request { start: 0, tokens, by_layer, codec };
        let plan = Plan::compile(&from, &to, &request).unwrap();
        let tables = (backwards(blocks(16)), backwards(blocks(24)));
        let memory = |blocks: u32, size: usize| Memory::allocate(&[blocks as usize * size * (16 << 10)]).unwrap();
        let (src, dst) = (memory(blocks(16), 16), memory(blocks(24), 24));
        fill(&src, content);
        paint(&dst, CANARY);
        let bind = |side, tables, memory: &Memory| route(&plan, &plan.routes()[0], side, tables, memory);
        let (read, written) = (bind(Side::Source, &tables.0, &src), bind(Side::Destination, &tables.1, &dst));
        Self { src: (src, read), dst: (dst, written), plan, tables }
    }

    /// Returns the contents that the destination must have in the end.
    pub(crate) fn expected(&self) -> Vec<Vec<u8>> {
        let src = bytes_of(&self.src.0);
        let sizes = (0..self.dst.0.allocations()).map(|n| self.dst.0.allocation(n).unwrap().1);
        let mut dst: Vec<_> = sizes.map(|size| vec![CANARY; size]).collect();
        let bound = self.plan.bind(&self.tables.0, &self.tables.1).unwrap();
        for route in &bound.routes {
            copy_slowly(&route.program(), &src, &mut dst);
        }
        dst
    }
}

fn backwards(blocks: u32) -> Tables {
    Tables(vec![BlockTable::List((0..blocks).rev().collect())])
}

/// Returns one side of a route, with all groups in one memory.
pub(crate) fn route(plan: &Plan, route: &Route, side: Side, tables: &Tables, memory: &Memory) -> RouteBytes {
    let stream = plan.bind_stream(route, side, tables).unwrap();
    RouteBytes::new(stream, |_| Some(memory.into())).unwrap()
}

/// Runs a program byte by byte.
pub(crate) fn copy_slowly(program: &transload_transfer::plan::program::Program, src: &[Vec<u8>], dst: &mut [Vec<u8>]) {
    let split = |address: u64| ((address >> 44) as usize, (address & ((1 << 44) - 1)) as usize);
    program.for_each_chunk(|from, to, len| {
        let ((a, from), (b, to)) = (split(from), split(to));
        dst[b][to..to + len as usize].copy_from_slice(&src[a][from..from + len as usize]);
    });
}

/// A source of small numbers.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Makes both ends of a staging ring.
pub(crate) async fn ring(shape: RingShape) -> (Producer, Consumer) {
    let listener = Listener::bind(Limits::default()).unwrap();
    let token = random_token().unwrap();
    let expected = listener.expect(&token).unwrap();
    let limits = Limits::default();
    let connecting = connect(listener.name(), &token, &limits);
    let (here, there) = tokio::join!(connecting, expected.connection(PATIENCE));
    let offering = here.unwrap().offer_producer(shape);
    let accepting = there.unwrap().accept_consumer();
    let (producer, consumer) = tokio::join!(offering, accepting);
    (producer.unwrap(), consumer.unwrap())
}

/// Returns memory for one rank and group of a document.
pub(crate) fn allocate(document: &serde_json::Value, rank: u64, group: &str) -> Memory {
    let (count, bytes) = transload_tests::oracle::allocations(document, rank, group).unwrap();
    Memory::allocate(&vec![bytes as usize; count as usize]).unwrap()
}
