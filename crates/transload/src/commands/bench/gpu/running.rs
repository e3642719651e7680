//! The running bench of a GPU, whose cases may fail one by one.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fs::File;
use std::io::Write;

use transload::transfer::device::DeviceError;
use transload::transfer::plan::program::Program;

use super::buffers::{Buffers, Method};
use crate::commands::bench::measure::Figure;
use crate::commands::bench::schedule::Schedule;
use crate::failure::{Failure, chain};

/// The default size in MiB: the working set exceeds 1 GiB, and blocks of 128 MiB divide it.
pub(super) const FULL: u64 = 640;

/// A running bench. Each figure is written at once, and a failed case does not stop the others.
pub(super) struct Bench {
    pub(super) schedule: Schedule,
    pub(super) out: Option<File>,
    pub(super) figures: Vec<Figure>,
    pub(super) notes: Vec<String>,
}

/// The values of an interleaved measurement, and the errors of functions that failed.
pub(super) struct Rounds<const N: usize> {
    pub(super) values: Vec<[f64; N]>,
    pub(super) errors: [Option<String>; N],
}

impl Bench {
    /// Runs a case. A failure becomes a figure with the case's name and an error.
    pub(super) fn case(&mut self, name: &str, measure: impl FnOnce(&mut Self) -> Result<(), Failure>) {
        self.schedule.prepare(name);
        if let Err(failure) = measure(self) {
            self.add(Figure::failed(name, failure.wrong()));
        }
    }

    /// Returns a program with this run length that these ways execute correctly. Each way that fails becomes a figure
    /// with an error.
    pub(super) fn verified(&mut self, buffers: &mut Buffers, run: u64, methods: &[Method]) -> Result<Program, Failure> {
        buffers.verified(run, methods, |method, why| {
            let name = format!("runs of {run} B, {}", method.name());
            self.add(Figure::failed(name, why.to_owned()));
        })
    }

    /// Measures several functions in alternation. One that fails is not called again.
    pub(super) fn in_turns<const N: usize>(
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
    pub(super) fn add(&mut self, figure: Figure) {
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
    pub(super) fn figure(
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
