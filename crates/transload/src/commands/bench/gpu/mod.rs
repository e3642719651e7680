//! `bench gpu`: what one GPU does beside what it can do, and beside what others have it do.

mod agents;
mod bus;
mod ground;
mod relayout;
mod ring;
mod small;

use transload::transfer::device::DeviceError;

use super::course::{Course, Effort};
use super::measure::Figure;
use crate::commands::engines::open_gpu;
use crate::failure::{Failure, chain};
use ground::Ground;

/// What to measure.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The GPU, as the driver counts them.
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: u32,

    /// Memory on each side of a copy. Where it is small, the GPU's own cache helps. It is taken twice on the GPU, and
    /// five times on the host, twice of it pinned.
    #[arg(long, value_name = "MIB", default_value_t = FULL,
          value_parser = clap::value_parser!(u64).range(1..=16_384))]
    mib: u64,
}

/// Megabytes with which the working set is over 1 GiB, and that blocks of 128 MiB divide.
const FULL: u64 = 640;

pub(super) fn run(args: &Args, effort: Effort) -> Result<(Vec<Figure>, Vec<String>), Failure> {
    let gpu = open_gpu(args.device)?;
    let cases = relayout::CASES + bus::CASES + small::CASES + ring::CASES + agents::CASES;
    let mut course = Course::new(effort, cases);
    let mut figures = Vec::new();
    course.prepare("memory");
    let mut ground = Ground::new(&gpu, args.mib << 20)?;
    figures.extend(relayout::by_run(&mut course, &mut ground)?);
    figures.extend(bus::run(&mut course, &ground)?);
    figures.extend(small::run(&mut course, &mut ground)?);
    figures.extend(ring::slots(&mut course, &ground)?);
    figures.extend(ring::agents(&mut course, &ground, args.mib)?);
    drop(ground);
    figures.extend(relayout::canonical(&mut course, &gpu, args.mib)?);
    figures.extend(agents::run(&mut course, &gpu, args.mib)?);
    let notes = vec![
        format!("GPU {}: {}", gpu.ordinal(), gpu.name()),
        format!(
            "{} MiB on each side; every byte was checked before it was measured",
            args.mib
        ),
    ];
    Ok((figures, notes))
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        Self::no(
            format!("the GPU could not be measured: {}", chain(&error)),
            "who else uses it? `--mib` takes less memory, `--device` another GPU",
        )
    }
}
