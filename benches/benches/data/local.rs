//! Two processes of one host: the staging ring, beside one `memcpy` of the same bytes. The other process
//! is this binary once more.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use transload_transfer::data::{DataOptions, Landing, Outgoing, Receiver, SendEvent};
use transload_transfer::ids::AgentId;
use transload_transfer::ids::{Nonce, TransferId};
use transload_transfer::memory::Memory;
use transload_transfer::path::ring::carrier::handover::{Limits, Listener, connect};
use transload_transfer::path::ring::carrier::staging::RingShape;
use transload_transfer::path::ring::carrier::{RingIn, RingOut};
use transload_transfer::path::ring::{SocketName, Token};
use transload_transfer::plan::Side;

use crate::case::{ALL, Case, memory};
use crate::lanes::Desk;
use crate::runtime;
use crate::show::{Figure, Target};

pub(crate) const OTHER_PROCESS: &str = "TRANSLOAD_BENCH_DATA_SOCKET";

const PATIENCE: Duration = Duration::from_secs(60);

/// Of that `memcpy`, for the canonical case.
const TARGET: f64 = 0.5;

pub(crate) fn measure(rounds: usize) {
    let runtime = runtime();
    let _inside = runtime.enter();
    let listener = Listener::bind(Limits::default()).expect("a socket");
    let expected = listener.expect(&token()).expect("room");
    let mut source = Command::new(std::env::current_exe().expect("a path"))
        .env(OTHER_PROCESS, listener.name().as_str())
        .stdin(Stdio::piped())
        .spawn()
        .expect("a process");
    let consumer = runtime.block_on(async {
        let peer = expected.connection(PATIENCE).await.expect("a peer");
        let ring = peer.accept_consumer().await;
        ring.expect("a ring")
    });
    let (desk, mut arrived) = Desk::new();
    let receiver = Receiver::new(desk.clone(), &DataOptions::default());
    let peer: AgentId = "source".parse().expect("a name");
    let _receiving = RingIn::serve(&receiver, consumer, peer);

    let (mine, other) = (memory(), memory());
    for (number, layouts) in ALL.into_iter().enumerate() {
        let case = Case::new(layouts);
        let dst = case.bytes(Side::Destination, &mine);
        let bytes = dst.bytes();
        let speed = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;
        let mut figures = Vec::new();
        for _ in 0..rounds {
            let limit = speed(memcpy(&other, &mine, bytes as usize));
            desk.expect(Landing::new(dst.clone()));
            let stdin = source.stdin.as_mut().expect("a pipe");
            let start = Instant::now();
            stdin.write_all(&[number as u8]).expect("a reader");
            runtime.block_on(arrived.all(bytes));
            figures.push((speed(start.elapsed()), limit));
        }
        let figure = Figure {
            name: format!("ring, {}", layouts.name),
            rounds: figures,
            limit: "memcpy of the bytes",
            target: (number == 0).then_some(Target::Ratio(TARGET)),
        };
        figure.print();
    }
    drop(source.stdin.take());
    source.wait().expect("an exit");
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

/// The other process: sends a case over the ring for each byte that it reads.
pub(crate) fn source(socket: String) {
    let own = memory();
    let runtime = runtime();
    let name = SocketName::try_from(socket).expect("a socket's name");
    let ring = runtime.block_on(async {
        let peer = connect(&name, &token(), &Limits::default()).await;
        let ring = peer.expect("a peer").offer_producer(RingShape::DEFAULT);
        ring.await.expect("a ring")
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
fn token() -> Token {
    Token([1; 32])
}
