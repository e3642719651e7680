//! What host copies cost, beside one `memcpy` of the same bytes.
//!
//! `cargo bench -p transload-benches --bench copy [-- FILTER]`. First a table of ratios: everything
//! is measured in turn, round after round, in processor time of this one thread, so that they hold
//! on a busy machine too; the median round counts. Then single figures by criterion.
//!
//! Memories are far bigger than any cache (671 MB and 336 MB), touched beforehand, and made of huge
//! pages where the system gives them. `SMALL_PAGES=1` measures with ordinary ones, `ROUNDS=n` more
//! rounds than 9.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use rustix::time::{ClockId, clock_gettime};
use transload_layout::Deployment;
use transload_layout::document::Value;
use transload_transfer::copy::{CopyOptions, Crc32c, Kernel, MemoryStream, copy, settle};
use transload_transfer::memory::{Access, Memory};
use transload_transfer::plan::program::Program;
use transload_transfer::plan::{BlockTable, Plan, Request, Side, Tables};

/// A pair of deployments of the shape of Llama-3-70B, and what one decode rank gets of a request.
struct Case {
    name: &'static str,
    /// TP size, block size and order of either side.
    src: (u32, u32, &'static str),
    dst: (u32, u32, &'static str),
    /// Against one `memcpy` of as many bytes, at least, as the issue has it.
    target: f64,
}

/// Chunks of 512 B (the canonical pair), 8 KiB, and 1.25 MiB.
const CASES: [Case; 3] = [
    Case {
        name: "512 B",
        src: (4, 16, "LBSHC"),
        dst: (8, 64, "LBHSC"),
        target: 0.55,
    },
    Case {
        name: "8 KiB",
        src: (4, 16, "LBHSC"),
        dst: (8, 64, "LBHSC"),
        target: 0.75,
    },
    Case {
        name: "1.25 MiB",
        src: (8, 16, "BLSHC"),
        dst: (8, 16, "BLSHC"),
        target: 1.2,
    },
];

const LAYERS: u32 = 80;
const TOKENS: u32 = 8192;

fn main() {
    let memories = Memories::new();
    let copies: Vec<_> = CASES
        .iter()
        .map(|case| Copy::new(case, &memories))
        .collect();
    ratios(&copies);
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    for copy in &copies {
        single(&mut criterion, copy);
    }
    criterion.final_summary();
}

/// The memories of a prefill rank and of a decode rank, used by all cases.
struct Memories {
    src: Memory,
    dst: Memory,
}

impl Memories {
    fn new() -> Self {
        // 8 and 4 KiB per token and layer of 8,192 tokens, twice over on the source side.
        let (src, dst) = (LAYERS * TOKENS * 1024, LAYERS * TOKENS * 512);
        let memories = Self {
            src: allocate(src as usize),
            dst: allocate(dst as usize),
        };
        let noise: Vec<u8> = (0..1 << 20)
            .map(|i: u32| (i.wrapping_mul(i) >> 7) as u8)
            .collect();
        for at in (0..u64::from(src)).step_by(noise.len()) {
            memories.src.write(at, &noise).unwrap();
        }
        memories
    }
}

fn allocate(len: usize) -> Memory {
    if std::env::var_os("SMALL_PAGES").is_none() {
        return Memory::allocate(&[len]).unwrap();
    }
    let bytes = Box::leak(vec![1u8; len].into_boxed_slice());
    let parts = [(bytes.as_mut_ptr(), len)];
    // SAFETY: leaked, and the reference is not used again.
    unsafe { Memory::from_raw_parts(&parts, Access::ReadWrite, None) }.unwrap()
}

/// What a case moves.
struct Copy<'a> {
    case: &'a Case,
    memories: &'a Memories,
    program: Program,
    /// The source rank's half, to gather from, and the destination's, to scatter into.
    gather: MemoryStream,
    scatter: MemoryStream,
}

impl<'a> Copy<'a> {
    fn new(case: &'a Case, memories: &'a Memories) -> Self {
        let side = |(tp, block, order): (u32, u32, &str)| {
            let text = format!(
                r#"{{"schema": "transload.deployment/1", "tp": {tp}, "block_size": {block},
                    "num_blocks": {}, "order": "{order}", "group": [{{"name": "attn",
                    "layers": "0-{}", "spec": [{{"kind": "attention", "heads": 8,
                    "head_dim": 128, "dtype": "bf16"}}]}}]}}"#,
                TOKENS / block,
                LAYERS - 1,
            );
            let value: Value = serde_json::from_str(&text).unwrap();
            Deployment::from_value(&value).unwrap()
        };
        let plan = Plan::compile(
            &side(case.src),
            &side(case.dst),
            &Request::tokens(u64::from(TOKENS)),
        )
        .unwrap();
        // Every block of either side, in an order that jumps.
        let scattered = |(_, block, _): (u32, u32, &str), step: u32| {
            let blocks = TOKENS / block;
            Tables(vec![BlockTable::List(
                (0..blocks).map(|i| i * step % blocks).collect(),
            )])
        };
        let (src, dst) = (scattered(case.src, 37), scattered(case.dst, 41));
        let route = &plan.routes()[0];
        let stream = |side, tables, memory: &Memory| {
            let route = plan.bind_stream(route, side, tables).unwrap();
            let [section] = <[_; 1]>::try_from(route.sections).unwrap();
            MemoryStream::new(section.program, memory.clone()).unwrap()
        };
        Self {
            case,
            memories,
            program: plan.bind(&src, &dst).unwrap().routes.remove(0).program(),
            gather: stream(Side::Source, &src, &memories.src),
            scatter: stream(Side::Destination, &dst, &memories.dst),
        }
    }

    fn run(&self, options: &CopyOptions) {
        copy(
            &self.program,
            &self.memories.src,
            &self.memories.dst,
            options,
        )
        .unwrap();
    }

    /// The limit: one `memcpy` of as many bytes, or several of `most`.
    fn memcpy(&self, most: usize) {
        let (src, dst) = (&self.memories.src, &self.memories.dst);
        let (src, dst) = (src.allocation(0).unwrap().0, dst.allocation(0).unwrap().0);
        let bytes = self.program.bytes() as usize;
        let mut at = 0;
        while at < bytes {
            let len = most.min(bytes - at);
            // SAFETY: both memories are longer, and nobody else's.
            unsafe {
                std::ptr::copy_nonoverlapping(src.add(at).as_ptr(), dst.add(at).as_ptr(), len);
            }
            at += len;
        }
        black_box(dst);
    }

    fn gather(&self, piece: usize, summed: bool) {
        let mut cursor = self.gather.cursor(0).unwrap();
        let (mut out, mut sum) = (vec![0; piece], Crc32c::new());
        while cursor.remaining() > 0 {
            let len = piece.min(cursor.remaining() as usize);
            let sum = summed.then_some(&mut sum);
            cursor.gather(&mut out[..len], sum).unwrap();
            black_box(&mut out);
        }
    }

    fn scatter(&self, piece: usize, summed: bool) {
        let mut cursor = self.scatter.cursor(0).unwrap();
        let (bytes, mut sum) = (vec![1; piece], Crc32c::new());
        while cursor.remaining() > 0 {
            let len = piece.min(cursor.remaining() as usize);
            let sum = summed.then_some(&mut sum);
            cursor.scatter(&bytes[..len], sum).unwrap();
        }
        settle();
    }
}

/// What quinn hands over of a datagram of 1,500 B, and of one of 6,500 B.
const PACKETS: [usize; 2] = [1372, 6400];

/// What is gathered at a time.
const BUFFER: usize = 64 << 10;

/// Everything in turn, round after round, as ratios.
fn ratios(copies: &[Copy<'_>]) {
    let rounds = std::env::var("ROUNDS").map_or(9, |rounds| rounds.parse().unwrap());
    let best = Kernel::detect();
    println!(
        "one thread, {rounds} rounds, kernel {}; GB/s and ratio to one memcpy",
        best.name()
    );
    for copy in copies {
        let one = CopyOptions::new().with_threads(1);
        let ways: [(&str, &dyn Fn()); 9] = [
            ("memcpy", &|| copy.memcpy(usize::MAX)),
            ("memcpy, 80 MiB at a time", &|| copy.memcpy(80 << 20)),
            ("memcpy, chunk by chunk", &|| {
                copy.run(&one.clone().with_kernel(Kernel::Portable));
            }),
            ("copy", &|| copy.run(&one)),
            ("copy, summed", &|| copy.run(&one.clone().with_checksum())),
            ("gather", &|| copy.gather(BUFFER, false)),
            ("gather, summed", &|| copy.gather(BUFFER, true)),
            ("scatter of 6,400 B", &|| copy.scatter(PACKETS[1], false)),
            ("scatter of 6,400 B, summed", &|| {
                copy.scatter(PACKETS[1], true)
            }),
        ];
        let mut seconds = vec![Vec::new(); ways.len()];
        for _ in 0..rounds {
            for ((_, way), seconds) in ways.iter().zip(&mut seconds) {
                let start = processor_time();
                way();
                seconds.push(processor_time() - start);
            }
        }
        let bytes = copy.program.bytes() as f64;
        println!(
            "\n{} x {} ({:.0} MB), target {}",
            copy.program.chunks(),
            copy.case.name,
            bytes / 1e6,
            copy.case.target,
        );
        let memcpy = seconds[0].clone();
        for ((name, _), seconds) in ways.iter().zip(&mut seconds) {
            let mut ratios: Vec<_> = memcpy.iter().zip(&*seconds).map(|(m, s)| m / s).collect();
            let (seconds, ratio) = (median(seconds), median(&mut ratios));
            println!("  {name:28} {:6.2} {ratio:6.2}", bytes / seconds / 1e9);
        }
    }
    println!();
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Seconds that this thread has run.
fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// One by one, by criterion.
fn single(criterion: &mut Criterion, copy: &Copy<'_>) {
    let mut group = criterion.benchmark_group(format!("copy/{}", copy.case.name));
    group.throughput(Throughput::Bytes(copy.program.bytes()));
    group.bench_function("memcpy", |b| b.iter(|| copy.memcpy(usize::MAX)));
    for kernel in Kernel::available() {
        let options = CopyOptions::new().with_threads(1);
        let options = options.with_kernel(*kernel);
        group.bench_function(kernel.name(), |b| b.iter(|| copy.run(&options)));
        let options = options.with_checksum();
        let name = format!("{}, summed", kernel.name());
        group.bench_function(name, |b| b.iter(|| copy.run(&options)));
    }
    group.bench_function("all threads", |b| b.iter(|| copy.run(&CopyOptions::new())));
    for piece in PACKETS {
        let name = format!("scatter of {piece} B, summed");
        group.bench_function(name, |b| b.iter(|| copy.scatter(piece, true)));
    }
    for piece in [BUFFER, 1 << 20] {
        let name = format!("gather of {} KiB, summed", piece >> 10);
        group.bench_function(name, |b| b.iter(|| copy.gather(piece, true)));
    }
    group.finish();
}
