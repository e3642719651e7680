//! Pulls between agents in two processes on one GPU, compared with the same agents in host memory.

use transload::transfer::Path;
use transload::transfer::device::Gpu;

use super::Bench;
use crate::commands::bench::case::{Case, SIZES};
use crate::commands::bench::paths::Engines;
use crate::commands::engines::runtime;
use crate::commands::shapes::Llama;

pub(super) const CASES: usize = 1;

pub(super) fn run(bench: &mut Bench, gpu: &Gpu, mib: u64) {
    const NAME: &str = "GPU to GPU over QUIC, chunks of 512 B";
    bench.case(NAME, |bench| {
        let case = case(mib);
        let runtime = runtime()?;
        let mut on_gpu = Engines::start(&runtime, case, Some(gpu.clone()))?;
        let mut on_host = Engines::start(&runtime, case, None)?;
        let rounds = bench.in_turns(NAME, [&mut || on_gpu.pull(Path::QUIC), &mut || on_host.pull(Path::QUIC)]);
        bench.add(rounds.figure(NAME, "GB/s", "host to host", [0, 1]));
        on_gpu.finish()?;
        on_host.finish()
    });
}

/// Returns the case that agents pull: chunks of 512 B, with fewer layers if there is less memory.
pub(super) fn case(mib: u64) -> Case {
    let layers = (u64::from(SIZES[0].src.layers) * mib / super::FULL).clamp(1, 20) as u32;
    let of = |side: Llama| Llama { layers, ..side };
    Case { src: of(SIZES[0].src), dst: of(SIZES[0].dst), ..SIZES[0] }
}
