//! Measures how fast codecs encode and decode keys and values, compared with one `memcpy` of their bytes.
//!
//! `cargo bench --profile dist -p transload-benches --bench codec`. All are measured in turn, round after round, in
//! processor time of this one thread, so that ratios hold on a busy machine, too. The median round counts. Rates refer
//! to the bytes of the values. `ROUNDS=n` sets the number of rounds, 21 by default.

use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};
use transload_layout::Dtype;
use transload_transfer::plan::codec::{Codec, Rows};

/// Keys and values with a head size of 128, 64 MiB in bf16: more than any cache holds.
const WIDTH: usize = 128;
const TOKENS: usize = 256;
const HEADS: usize = 512;

fn main() {
    let rounds = std::env::var("ROUNDS").map_or(21, |rounds| rounds.parse().unwrap());
    println!("type  codec   size  encode GB/s  of memcpy  decode GB/s  of memcpy");
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        for codec in [Codec::Q8, Codec::Q4] {
            measure(codec, dtype, rounds);
        }
    }
}

fn measure(codec: Codec, dtype: Dtype, rounds: usize) {
    let rows = Rows::new(dtype, WIDTH, WIDTH).unwrap();
    let head = rows.bytes(TOKENS).unwrap();
    let values = numbers(dtype);
    let (mut codes, mut exact) = (Vec::new(), Vec::new());
    let mut back = values.clone();
    let mut seconds = [const { Vec::new() }; 3];
    for _ in 0..=rounds {
        codes.clear();
        exact.clear();
        let encoded = timed(|| {
            for values in values.chunks_exact(head) {
                codec.encode(rows, values, &mut codes, &mut exact);
            }
        });
        assert!(exact.is_empty(), "all groups are encoded");
        let each = codes.len() / HEADS;
        let decoded = timed(|| {
            for (codes, to) in codes.chunks_exact(each).zip(back.chunks_exact_mut(head)) {
                codec.decode(rows, codes, &mut &exact[..], to).unwrap();
            }
        });
        let copied = timed(|| back.copy_from_slice(black_box(&values)));
        for (seconds, one) in seconds.iter_mut().zip([encoded, decoded, copied]) {
            seconds.push(one);
        }
    }
    // The first round allocates the buffers that the others reuse.
    let median = |mut seconds: Vec<f64>| {
        seconds.remove(0);
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2]
    };
    let [encode, decode, memcpy] = seconds.map(median);
    let rate = |seconds: f64| values.len() as f64 / seconds / 1e9;
    println!(
        "{dtype:<5} {codec:<5} {:>6.4} {:>12.2} {:>10.3} {:>12.2} {:>10.3}",
        codes.len() as f64 / values.len() as f64,
        rate(encode),
        memcpy / encode,
        rate(decode),
        memcpy / decode,
    );
}

/// Returns bell-shaped random numbers.
fn numbers(dtype: Dtype) -> Vec<u8> {
    let mut state = 1_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let numbers = (0..HEADS * TOKENS * 2 * WIDTH).map(|_| (0..4).map(|_| uniform()).sum::<f32>());
    match dtype {
        Dtype::F32 => numbers.flat_map(f32::to_le_bytes).collect(),
        // The distribution does not matter; any f16 from -2 to 2 will do.
        Dtype::F16 => {
            let half = |x: f32| ((x.abs() * 8192.0) as u16).min(0x3fff) | (x.to_bits() >> 16) as u16 & 0x8000;
            numbers.flat_map(|x| half(x).to_le_bytes()).collect()
        }
        _ => {
            let high = numbers.map(|x| (x.to_bits() >> 16) as u16);
            high.flat_map(u16::to_le_bytes).collect()
        }
    }
}

fn timed(work: impl FnOnce()) -> f64 {
    let start = processor_time();
    work();
    processor_time() - start
}

fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
