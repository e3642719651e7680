//! `bench gpu`: the copies of one GPU, compared with its plain copies and with other methods.

mod agents;
mod buffers;
mod bus;
mod relayout;
mod ring;
mod small;

use std::cell::RefCell;
use std::convert::Infallible;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use transload::transfer::device::DeviceError;
use transload::transfer::plan::program::Program;

use super::measure::Figure;
use super::schedule::{Limits, Schedule};
use crate::commands::engines::open_gpu;
use crate::failure::{Failure, chain};
use buffers::{Buffers, Method};

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
    pub(super) network: super::Network,

    /// File to which each figure is written as soon as it is measured, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// The default size in MiB: the working set exceeds 1 GiB, and blocks of 128 MiB divide it.
const FULL: u64 = 640;

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

/// A running bench. Each figure is written at once, and a failed case does not stop the others.
struct Bench {
    schedule: Schedule,
    out: Option<File>,
    figures: Vec<Figure>,
    notes: Vec<String>,
}

/// The values of an interleaved measurement, and the errors of functions that failed.
struct Rounds<const N: usize> {
    values: Vec<[f64; N]>,
    errors: [Option<String>; N],
}

impl Bench {
    /// Runs a case. A failure becomes a figure with the case's name and an error.
    fn case(&mut self, name: &str, measure: impl FnOnce(&mut Self) -> Result<(), Failure>) {
        self.schedule.prepare(name);
        if let Err(failure) = measure(self) {
            self.add(Figure::failed(name, failure.wrong()));
        }
    }

    /// Returns a program with this run length that these ways execute correctly. Each way that fails becomes a figure
    /// with an error.
    fn verified(&mut self, buffers: &mut Buffers, run: u64, methods: &[Method]) -> Result<Program, Failure> {
        buffers.verified(run, methods, |method, why| {
            let name = format!("runs of {run} B, {}", method.name());
            self.add(Figure::failed(name, why.to_owned()));
        })
    }

    /// Measures several functions in alternation. One that fails is not called again.
    fn in_turns<const N: usize>(
        &mut self,
        name: &str,
        works: [&mut dyn FnMut() -> Result<f64, Failure>; N],
    ) -> Rounds<N> {
        let errors = [const { RefCell::new(None) }; N];
        let mut at = errors.iter();
        let mut works = works.map(|work| {
            let error = at.next();
            move || -> Result<f64, Infallible> {
                let Some(mut error) = error.map(RefCell::borrow_mut) else {
                    return Ok(f64::NAN);
                };
                if error.is_some() {
                    return Ok(f64::NAN);
                }
                Ok(work().unwrap_or_else(|failure| {
                    *error = Some(failure.wrong());
                    f64::NAN
                }))
            }
        });
        let turns = works.each_mut().map(|work| work as &mut dyn FnMut() -> _);
        let Ok(values) = self.schedule.in_turns(name, turns);
        let errors = errors.map(RefCell::into_inner);
        Rounds { values, errors }
    }

    /// Adds a figure and writes it to the output at once.
    fn add(&mut self, figure: Figure) {
        if let Some(out) = &mut self.out {
            let line = serde_json::to_string(&figure).unwrap_or_default();
            if let Err(error) = writeln!(out, "{line}") {
                self.notes.push(format!("--out: {error}"));
                self.out = None;
            }
        }
        self.figures.push(figure);
    }
}

impl<const N: usize> Rounds<N> {
    /// Returns the figure of one measurement with another one as its baseline.
    fn figure(
        &self,
        name: impl Into<String>,
        unit: &'static str,
        baseline: impl Into<String>,
        which: [usize; 2],
    ) -> Figure {
        let errors = which.iter().find_map(|at| self.errors[*at].clone());
        Figure::new(name, unit, baseline, &self.values, which).because(errors)
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        Self::no(
            format!("cannot measure the GPU: {}", chain(&error)),
            "check whether other processes use the GPU; lower `--mib` for less memory, or choose another GPU with \
             `--device`",
        )
    }
}
