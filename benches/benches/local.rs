//! The staging ring between two processes, beside one `memcpy` of the same bytes in this run.
//!
//! `cargo bench -p transload-benches --bench local [-- ROUNDS]`. The other process is this binary
//! once more. Each needs a core of its own: on a busy machine run it with real-time priority
//! (`chrt -f 5`), or it measures the scheduler.
//!
//! Gather and scatter are plain copies here, so that what is measured is the path and not a kernel.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memmap2::{Advice, MmapMut};
use tokio::runtime::Runtime;
use transload_transfer::path::ring::carrier::handover::{Limits, Listener, connect};
use transload_transfer::path::ring::carrier::staging::{Consumer, Producer, RingShape};
use transload_transfer::path::ring::{SocketName, Token};

/// What one decode rank of the canonical pair gets: 80 layers, 2,048 tokens, one head of 512 B.
const BYTES: usize = 80 * 2048 * 512;

/// Chunks of one length, every other one in the source, and longer runs in the destination; the
/// blocks of both in random order. All lengths are powers of two.
struct Case {
    name: &'static str,
    chunk: usize,
    /// Chunks of a source block (each followed by one that another rank gets).
    chunks: usize,
    /// Bytes contiguous in the destination.
    run: usize,
}

const CASES: [Case; 3] = [
    Case {
        name: "512 B (canonical)",
        chunk: 512,
        chunks: 16,
        run: 32 << 10,
    },
    Case {
        name: "8 KiB",
        chunk: 8 << 10,
        chunks: 1,
        run: 32 << 10,
    },
    Case {
        name: "1 MiB",
        chunk: 1 << 20,
        chunks: 1,
        run: 1 << 20,
    },
];

/// Against that `memcpy`, at 512 B.
const TARGET: f64 = 0.5;

fn main() {
    if let Ok(name) = std::env::var(OTHER_PROCESS) {
        return source(SocketName::try_from(name).expect("a socket name"));
    }
    let mut arguments = std::env::args().skip(1);
    let measuring = std::env::args().any(|a| a == "--bench");
    let rounds = arguments.find_map(|a| a.parse().ok());
    // `cargo test --benches` only wants to see that it runs.
    destination(rounds.unwrap_or(if measuring { 31 } else { 1 }));
}

fn destination(rounds: usize) {
    let runtime = runtime();
    let mut source = Source::start(&runtime);
    let mine = huge_pages(BYTES);
    let (from, to) = (huge_pages(BYTES), huge_pages(BYTES));
    println!(
        "{:18} {:14} {:>22} {:>8} {:>8}",
        "chunks", "path", "GB/s (min..max)", "ratio", "target"
    );
    for (number, case) in CASES.iter().enumerate() {
        let tables = Tables::new(case);
        let [mut memcpy, mut ring] = [(); 2].map(|()| Vec::with_capacity(rounds));
        for _ in 0..rounds {
            memcpy.push(time(|| {
                // SAFETY: two buffers of so many bytes, used here only.
                unsafe {
                    std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr().cast_mut(), BYTES)
                }
            }));

            source.stream(number);
            ring.push(time(|| scatter(&mut source.ring, &tables, &mine)));
            check(&tables, &mine);
        }
        print_row(case.name, "memcpy", &memcpy, &memcpy, None);
        let target = (number == 0).then_some(TARGET);
        print_row(case.name, "staging ring", &ring, &memcpy, target);
    }
    source.stop();
}

fn scatter(ring: &mut Consumer, tables: &Tables, mine: &MmapMut) {
    let mut received = 0;
    while received < BYTES {
        let window = ring.receive(None).expect("a slot");
        let start = window.offset() as usize;
        tables.walk(start..start + window.len(), tables.case.run, |at, len| {
            // SAFETY: `at..at + len` is inside the window, and the tables lead into `mine`.
            unsafe {
                let from = window.as_ptr().add(at - start);
                let to = mine.as_ptr().cast_mut().add(tables.dst(at));
                std::ptr::copy_nonoverlapping(from, to, len);
            }
        });
        received += window.len();
    }
}

fn check(tables: &Tables, mine: &MmapMut) {
    tables.walk(
        0..BYTES,
        tables.case.chunk.min(tables.case.run),
        |at, len| {
            let (src, dst) = (tables.src(at), tables.dst(at));
            let words: &[u64] = bytemuck::cast_slice(&mine[dst..dst + len]);
            for (i, &word) in words.iter().enumerate() {
                assert_eq!(word, fill(src / 8 + i), "at {at} of {}", tables.case.name);
            }
        },
    );
}

/// The word at `index` of the source's memory.
fn fill(index: usize) -> u64 {
    (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// The other process: streams a case for each byte that it reads.
fn source(name: SocketName) {
    let mut own = huge_pages(2 * BYTES);
    let words: &mut [u64] = bytemuck::cast_slice_mut(&mut own);
    for (i, word) in words.iter_mut().enumerate() {
        *word = fill(i);
    }
    let mut ring = runtime().block_on(async {
        let peer = connect(&name, &token(), &Limits::default()).await;
        let ring = peer.expect("a peer").offer_producer(RingShape::DEFAULT);
        ring.await.expect("a ring")
    });
    let tables = CASES.each_ref().map(Tables::new);
    let mut case = [0];
    while matches!(io::stdin().read(&mut case), Ok(1)) {
        gather(&mut ring, &tables[usize::from(case[0])], &own);
    }
}

fn gather(ring: &mut Producer, tables: &Tables, own: &MmapMut) {
    let slot = ring.shape().slot_bytes() as usize;
    for start in (0..BYTES).step_by(slot) {
        let end = BYTES.min(start + slot);
        let mut window = ring.reserve(None).expect("a slot");
        let to = window.as_mut_ptr();
        tables.walk(start..end, tables.case.chunk, |at, len| {
            // SAFETY: `at..at + len` is inside the window, and the tables lead into `own`.
            unsafe {
                let from = own.as_ptr().add(tables.src(at));
                std::ptr::copy_nonoverlapping(from, to.add(at - start), len);
            }
        });
        window
            .publish(0, start as u64, end - start)
            .expect("a consumer");
    }
}

/// A case with its blocks shuffled.
struct Tables<'a> {
    case: &'a Case,
    src_blocks: Vec<usize>,
    dst_runs: Vec<usize>,
    chunk_bits: u32,
    block_bits: u32,
    run_bits: u32,
}

impl<'a> Tables<'a> {
    fn new(case: &'a Case) -> Self {
        let block = case.chunk * case.chunks;
        Self {
            case,
            src_blocks: shuffled(BYTES / block),
            dst_runs: shuffled(BYTES / case.run),
            chunk_bits: case.chunk.ilog2(),
            block_bits: block.ilog2(),
            run_bits: case.run.ilog2(),
        }
    }

    /// Where byte `at` of the stream lies in the source.
    fn src(&self, at: usize) -> usize {
        let block = self.src_blocks[at >> self.block_bits] << self.block_bits;
        let in_block = at & ((1 << self.block_bits) - 1);
        let chunk = in_block >> self.chunk_bits;
        // Every chunk is followed by one for another rank.
        2 * block + (chunk << self.chunk_bits) + in_block
    }

    /// Where it lies in the destination.
    fn dst(&self, at: usize) -> usize {
        let run = self.dst_runs[at >> self.run_bits] << self.run_bits;
        run + (at & ((1 << self.run_bits) - 1))
    }

    /// Calls `copy(at, len)` for all pieces of `range` that end at multiples of `unit`.
    #[inline(always)]
    fn walk(&self, range: Range<usize>, unit: usize, mut copy: impl FnMut(usize, usize)) {
        let mut at = range.start;
        while at < range.end {
            let len = (unit - (at & (unit - 1))).min(range.end - at);
            copy(at, len);
            at += len;
        }
    }
}

/// What the destination holds of the other process.
struct Source {
    child: Child,
    ring: Consumer,
}

impl Source {
    fn start(runtime: &Runtime) -> Self {
        runtime.block_on(async {
            let listener = Listener::bind(Limits::default()).expect("a socket");
            let expected = listener.expect(&token()).expect("room");
            let child = Command::new(std::env::current_exe().expect("a path"))
                .env(OTHER_PROCESS, listener.name().as_str())
                .stdin(Stdio::piped())
                .spawn()
                .expect("a process");
            let patience = Duration::from_secs(60);
            let peer = expected.connection(patience).await.expect("a peer");
            let ring = peer.accept_consumer().await;
            let ring = ring.expect("a ring");
            Self { child, ring }
        })
    }

    fn stream(&mut self, case: usize) {
        let stdin = self.child.stdin.as_mut().expect("a pipe");
        stdin.write_all(&[case as u8]).expect("a reader");
    }

    fn stop(mut self) {
        drop(self.child.stdin.take());
        self.child.wait().expect("an exit");
    }
}

fn print_row(case: &str, path: &str, times: &[Duration], memcpy: &[Duration], target: Option<f64>) {
    let speed = |t: &Duration| BYTES as f64 / 1e9 / t.as_secs_f64();
    let mut speeds: Vec<_> = times.iter().map(speed).collect();
    let mut ratios: Vec<_> = times
        .iter()
        .zip(memcpy)
        .map(|(t, m)| m.as_secs_f64() / t.as_secs_f64())
        .collect();
    speeds.sort_by(f64::total_cmp);
    ratios.sort_by(f64::total_cmp);
    let (low, high) = (speeds[0], speeds[speeds.len() - 1]);
    let speed = format!("{:.2} ({low:.2}..{high:.2})", speeds[speeds.len() / 2]);
    let ratio = ratios[ratios.len() / 2];
    let target = target.map_or(String::new(), |t| format!("{t:.2}"));
    println!("{case:18} {path:14} {speed:>22} {ratio:8.2} {target:>8}");
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// Touched memory of huge pages, where there are any.
fn huge_pages(len: usize) -> MmapMut {
    let mut map = MmapMut::map_anon(len).expect("memory");
    let _ = map.advise(Advice::HugePage);
    map.fill(1);
    map
}

fn shuffled(len: usize) -> Vec<usize> {
    let mut order: Vec<_> = (0..len).collect();
    let mut state = 1u64;
    for i in (1..len).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        order.swap(i, (state >> 33) as usize % (i + 1));
    }
    order
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Both processes are this program; no stranger is to be kept out.
fn token() -> Token {
    Token([1; 32])
}

const OTHER_PROCESS: &str = "TRANSLOAD_BENCH_LOCAL_SOCKET";
