//! `bench gpu`: the copies of one GPU, compared with its plain copies and with other methods.

mod agents;
mod buffers;
mod bus;
mod relayout;
mod ring;
mod running;
mod small;

use std::fs::File;
use std::path::{Path, PathBuf};

use super::measure::Figure;
use super::network::Network;
use super::schedule::{Limits, Schedule};
use crate::commands::engines::open_gpu;
use crate::failure::Failure;
use buffers::Buffers;
use running::{Bench, FULL};

/// What to measure.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Index of the GPU, as the driver counts.
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: u32,

    /// Memory on each side of a copy in MiB. The bench allocates it twice on the GPU and five times on the host, two of
    /// them pinned. Small values measure the GPU's cache as well.
    #[arg(long, value_name = "MIB", default_value_t = FULL,
          value_parser = clap::value_parser!(u64).range(1..=16_384))]
    mib: u64,

    #[command(flatten)]
    pub(super) network: Network,

    /// File to which each figure is written as soon as it is measured, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(super) fn run(args: &Args, limits: Limits) -> Result<(Vec<Figure>, Vec<String>), Failure> {
    let gpu = open_gpu(args.device)?;
    let cases = relayout::CASES + bus::CASES + small::CASES + ring::CASES + agents::CASES + 1;
    let mut bench = Bench {
        schedule: Schedule::new(limits, cases),
        out: args.out.as_deref().map(create).transpose()?,
        figures: Vec::new(),
        notes: vec![
            format!("GPU {}: {}", gpu.ordinal(), gpu.name()),
            format!("{} MiB on each side; every byte was checked before it was measured", args.mib),
        ],
    };
    bench.schedule.prepare("memory");
    let mut buffers = Buffers::new(&gpu, args.mib << 20)?;
    // Cases that need the least of the driver run first, and those that involve other libraries last.
    bus::run(&mut bench, &mut buffers);
    small::waiting(&mut bench, &buffers);
    ring::slots(&mut bench, &mut buffers);
    relayout::by_run(&mut bench, &mut buffers);
    small::submitting(&mut bench, &mut buffers);
    drop(buffers);
    relayout::canonical(&mut bench, &gpu, args.mib);
    ring::agents(&mut bench, &gpu, args.mib);
    agents::run(&mut bench, &gpu, args.mib);
    Ok((bench.figures, bench.notes))
}

fn create(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| {
        Failure::input(
            format!("cannot write {}: {error}", path.display()),
            "name a file in an existing, \
                                                                                  writable folder with `--out`",
        )
    })
}
