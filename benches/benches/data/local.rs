//! Two processes of one host: the staging ring, and the single copy out of lent memory, beside one
//! `memcpy` of the same bytes. The other process is this binary once more.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use transload_transfer::agent::data::{
    DataOptions, Landing, Outgoing, Receiver, RingOut, SendEvent, SharedCopy, SharedRoute,
};
use transload_transfer::ids::AgentId;
use transload_transfer::ids::{Nonce, TransferId};
use transload_transfer::memory::Memory;
use transload_transfer::plan::Side;
use transload_transfer::transport::local::handover::{Limits, Listener, Token, connect};
use transload_transfer::transport::local::host::SocketName;
use transload_transfer::transport::local::ring::{RingLimits, RingShape};
use transload_transfer::transport::local::shared::SharedMemory;

use crate::case::{ALL, Case, fill, memory, memory_bytes};
use crate::lanes::Desk;
use crate::runtime;
use crate::show::{Figure, Target};

pub(crate) const OTHER_PROCESS: &str = "TRANSLOAD_BENCH_DATA_SOCKET";

const PATIENCE: Duration = Duration::from_secs(60);

/// Of that `memcpy`, for the canonical case: ring and shared source.
const TARGETS: (f64, f64) = (0.35, 0.5);

pub(crate) fn measure(rounds: usize) {
    let runtime = runtime();
    let _inside = runtime.enter();
    let listener = Listener::bind(Limits::default()).expect("a socket");
    let rings = listener.expect(&token(1)).expect("room");
    let loans = listener.expect(&token(2)).expect("room");
    let mut source = Command::new(std::env::current_exe().expect("a path"))
        .env(OTHER_PROCESS, listener.name().as_str())
        .stdin(Stdio::piped())
        .spawn()
        .expect("a process");
    let (consumer, borrowed, _link) = runtime.block_on(async {
        let ring = rings.connection(PATIENCE).await.expect("a peer");
        let ring = ring.accept_consumer(RingLimits::default()).await;
        let loan = loans.connection(PATIENCE).await.expect("a peer");
        let (borrowed, link) = loan
            .borrow(2 * memory_bytes() as u64)
            .await
            .expect("a loan");
        (ring.expect("a ring"), borrowed, link)
    });
    let theirs = borrowed[0].memory().expect("one allocation");
    let (desk, mut arrived) = Desk::new();
    let receiver = Receiver::new(desk, &DataOptions::default());
    let peer: AgentId = "source".parse().expect("a name");
    let _receiving = receiver.serve_ring(consumer, peer);

    let (mine, other) = (memory(), memory());
    for (number, layouts) in ALL.into_iter().enumerate() {
        let case = Case::new(layouts);
        let dst = case.bytes(Side::Destination, &mine);
        let bytes = dst.bytes();
        let speed = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;
        let (mut ring, mut shared, mut both) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let limit = speed(memcpy(&other, &mine, bytes as usize));
            receiver.arrivals().expect(Landing::new(dst.clone()));
            let stdin = source.stdin.as_mut().expect("a pipe");
            let start = Instant::now();
            stdin.write_all(&[number as u8]).expect("a reader");
            runtime.block_on(arrived.all(bytes));
            ring.push((speed(start.elapsed()), limit));
            for (threads, figures) in [(1, &mut shared), (2, &mut both)] {
                let start = Instant::now();
                let copy = shared_copy(&case, &theirs, &mine);
                runtime.block_on(copy.run(threads)).expect("a copy");
                figures.push((speed(start.elapsed()), limit));
            }
        }
        let canonical = |ratio| (number == 0).then_some(Target::Ratio(ratio));
        for (path, rounds, target) in [
            ("ring", ring, canonical(TARGETS.0)),
            ("shared source", shared, canonical(TARGETS.1)),
            ("shared source, 2 threads", both, None),
        ] {
            let figure = Figure {
                name: format!("{path}, {}", layouts.name),
                rounds,
                limit: "memcpy of the bytes",
                target,
            };
            figure.print();
        }
    }
    drop(source.stdin.take());
    source.wait().expect("an exit");
}

fn shared_copy(case: &Case, src: &Memory, dst: &Memory) -> SharedCopy {
    let (src_rank, dst_rank) = case.ranks();
    let route = SharedRoute {
        plan: &case.plan,
        src_rank,
        dst_rank,
        src_tables: &case.tables.0,
        dst_tables: &case.tables.1,
    };
    SharedCopy::new(&route, |_| Some(src), |_| Some(dst)).expect("tables and memory")
}

/// One `memcpy`, by the C library.
fn memcpy(src: &Memory, dst: &Memory, bytes: usize) -> Duration {
    let start_of = |memory: &Memory| {
        let (start, len) = memory.allocation(0).expect("one allocation");
        assert!(bytes <= len);
        start.as_ptr()
    };
    let start = Instant::now();
    // SAFETY: two memories of at least so many bytes, which nobody else uses at the moment.
    unsafe { std::ptr::copy_nonoverlapping(start_of(src), start_of(dst), bytes) };
    start.elapsed()
}

/// The other process: lends its memory, and sends a case over the ring for each byte that it reads.
pub(crate) fn source(socket: String) {
    let shared = SharedMemory::create(&[memory_bytes() as u64]).expect("shared memory");
    fill(&shared.memory().expect("one allocation"));
    let own = memory();
    let runtime = runtime();
    let name = SocketName::try_from(socket).expect("a socket's name");
    let (ring, _link) = runtime.block_on(async {
        let limits = Limits::default();
        let ring = connect(&name, &token(1), &limits).await.expect("a peer");
        let loan = connect(&name, &token(2), &limits).await.expect("a peer");
        let ring = ring.offer_producer(RingShape::DEFAULT).await;
        let link = loan.lend(std::slice::from_ref(&shared)).await;
        (ring.expect("a ring"), link.expect("a loan"))
    });
    let ring = RingOut::new(ring, PATIENCE).expect("a thread");
    let cases = ALL.map(|layouts| Case::new(layouts).bytes(Side::Source, &own));
    let mut number = [0];
    while matches!(std::io::stdin().read(&mut number), Ok(1)) {
        let bytes = cases[usize::from(number[0])].clone();
        runtime.block_on(async {
            let (transfer, nonce) = (TransferId([1; 16]), Nonce([2; 16]));
            let (outgoing, mut events) = Outgoing::new(transfer, nonce, bytes, 1);
            outgoing.open_all();
            ring.carry(&outgoing);
            let mut left = outgoing.route().bytes();
            while left > 0 {
                match events.next().await {
                    Some(SendEvent::Written { bytes, .. }) => left -= bytes,
                    other => panic!("{other:?}"),
                }
            }
        });
    }
}

/// Both processes are this program; no stranger is to be kept out.
fn token(number: u8) -> Token {
    Token::from_bytes([number; 32])
}
