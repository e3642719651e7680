//! Between agents in two processes on one GPU, beside the same two in memory of the host.

use transload::transfer::device::Gpu;
use transload::transfer::wire::Path;

use crate::commands::bench::case::{Case, SIZES};
use crate::commands::bench::course::Course;
use crate::commands::bench::measure::Figure;
use crate::commands::bench::paths::Engines;
use crate::commands::engines::runtime;
use crate::commands::shapes::Llama;
use crate::failure::Failure;

pub(super) const CASES: usize = 1;

/// Over QUIC.
pub(super) fn run(course: &mut Course, gpu: &Gpu, mib: u64) -> Result<Vec<Figure>, Failure> {
    const NAME: &str = "GPU to GPU over QUIC, chunks of 512 B";
    course.prepare(NAME);
    let case = case(mib);
    let runtime = runtime()?;
    let mut on_gpu = Engines::start(&runtime, case, Some(gpu.clone()))?;
    let mut on_host = Engines::start(&runtime, case, None)?;
    let rounds = course.in_turns::<Failure, 2>(
        NAME,
        [&mut || on_gpu.pull(Path::QUIC), &mut || {
            on_host.pull(Path::QUIC)
        }],
    )?;
    on_gpu.finish()?;
    on_host.finish()?;
    Ok(vec![Figure::new(
        NAME,
        "GB/s",
        "host to host",
        &rounds,
        [0, 1],
    )])
}

/// What agents pull: chunks of 512 B, fewer of them where there is less memory.
pub(super) fn case(mib: u64) -> Case {
    let layers = (u64::from(SIZES[0].src.layers) * mib / super::FULL).clamp(1, 20) as u32;
    let of = |side: Llama| Llama { layers, ..side };
    Case {
        src: of(SIZES[0].src),
        dst: of(SIZES[0].dst),
        ..SIZES[0]
    }
}
