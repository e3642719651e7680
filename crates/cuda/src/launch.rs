//! Converts programs to launches of the kernel, `cuda/walk.cu`: the tables that are uploaded once, and the parameters
//! of each launch.
//!
//! A launch runs one nest at consecutive places, so places are sorted by nest. A range of a stream becomes consecutive
//! places of each nest, of which the first and the last may be cut: the launch moves the whole units in between, and
//! the bytes at the two edges one by one.

use std::ffi::CStr;
use std::mem;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use thiserror::Error;

use transload_plan::program::{Nest, Placed, Program};

/// The number of multiprocessors that work at a time for bytes that cross the bus: enough to be faster than the bus,
/// and few enough for the engine not to notice.
pub const DEFAULT_MULTIPROCESSORS: u32 = 16;

/// The most loops of a nest that the kernel runs.
pub const MAX_LOOPS: usize = 8;

/// The most units of a launch: the kernel counts them in 31 bits.
const MAX_UNITS: u64 = (1 << 31) - 1;

/// The longest unit in bytes: what one thread moves at a time.
pub(crate) const LONGEST_UNIT: u64 = 16;

/// Units that a warp moves together if runs are at least that long: `SPAN` in `cuda/walk.cu`.
const SPAN: u64 = 128;

const WARP: u64 = 32;

/// Units that a thread has in flight: `AHEAD` in `cuda/walk.cu`.
const AHEAD: u64 = 2;

/// The reason why the kernel cannot run a program.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum LaunchError {
    /// A nest is too deep.
    #[error("nest {nest} has {loops} loops, and a GPU runs {MAX_LOOPS} at most")]
    TooDeep { nest: usize, loops: usize },
    /// A nest has more bytes at one place than the kernel can count.
    #[error("nest {nest} moves {bytes} bytes at a place, and a GPU {most} at most in units of {unit} B", most = MAX_UNITS * unit)]
    TooLong { nest: usize, bytes: u64, unit: u64 },
}

/// The start of a nest on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Place {
    src: u64,
    dst: u64,
}

/// A divisor, stored as the multiplication and the shift that divide a number below 2^31 by it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Division {
    divisor: u32,
    multiplier: u32,
    shift: u32,
}

impl Division {
    /// Prepares division by `divisor`, which is between 1 and [`MAX_UNITS`].
    fn by(divisor: u64) -> Self {
        // With the least s of 2^s >= divisor, m = ceil(2^(31 + s) / divisor) fits into 32 bits, and is too large
        // by less than one part in 2^31 (Granlund and Montgomery, 1994).
        let shift = divisor.next_power_of_two().trailing_zeros();
        let multiplier = (1u64 << (31 + shift)).div_ceil(divisor);
        Self { divisor: divisor as u32, multiplier: multiplier as u32, shift }
    }
}

/// A loop of the kernel. Its strides are relative to the address after all steps of the next inner loop, and may wrap
/// around 0.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct KernelLoop {
    src: u64,
    dst: u64,
    /// The step count of the next inner loop.
    inner: Division,
    unused: u32,
}

/// A unit, or a span, of which only some bytes are moved.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Edge {
    number: u32,
    skip: u16,
    bytes: u16,
}

/// The destination side of a launch.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct End {
    /// Address of the table of a memory's bases; 0 for a buffer.
    bases: u64,
    /// Address at which a buffer would have byte 0 of the program. It wraps around 0 if that would be a negative
    /// address.
    buffer: u64,
}

impl End {
    pub(crate) fn memory(bases: u64) -> Self {
        Self { bases, buffer: 0 }
    }

    /// Returns the side of a buffer whose first byte is byte `position` of the program. Units are longest if `start`
    /// and `position` are equal modulo [`LONGEST_UNIT`].
    pub(crate) fn buffer(start: u64, position: u64) -> Self {
        Self { bases: 0, buffer: start.wrapping_sub(position) }
    }
}

/// The parameter of the kernel: `struct launch` in `cuda/walk.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Parameters {
    places: u64,
    src_bases: u64,
    dst: End,
    edges: [Edge; 2],
    first: u32,
    count: u32,
    place: Division,
    reverse: u32,
    loops: u32,
    run: u32,
    skip: u32,
    stop: u32,
    loop_: [KernelLoop; MAX_LOOPS],
}

/// The kernel's entry points: one for each length of a unit, and two for dense buffers with the longest units.
pub(crate) const ENTRIES: [&CStr; 7] =
    [c"walk_1", c"walk_2", c"walk_4", c"walk_8", c"walk_16", c"stream_16", c"runs_16"];
const STREAM: usize = 5;
const RUNS: usize = 6;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub(crate) entry: usize,
    pub(crate) parameters: Parameters,
}

impl Launch {
    pub(crate) fn nothing(entry: usize) -> Self {
        let parameters = Parameters::zeroed();
        Self { entry, parameters }
    }

    /// Returns the number of threads that have work. It is at least one, since the edges need a thread.
    pub(crate) fn threads(&self) -> u32 {
        let count = u64::from(self.parameters.count);
        let threads = match self.entry {
            RUNS => count * WARP,
            _ => count.div_ceil(AHEAD),
        };
        threads.clamp(1, MAX_UNITS) as u32
    }
}

/// The current addresses of both sides of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) places: u64,
    pub(crate) src_bases: u64,
    pub(crate) dst: End,
    /// All base addresses of both sides, combined by OR: their common alignment.
    pub(crate) bases: u64,
    /// Whether bytes go from the destination side to the source side, as in a scatter.
    pub(crate) reverse: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Launches {
    nests: Vec<SortedNest>,
    /// All places, sorted by nest and then in the program's order.
    places: Vec<Place>,
}

#[derive(Clone, Debug)]
struct SortedNest {
    /// The nest's index in the program, for errors.
    nest: usize,
    /// The nest's places, as a range of `Launches::places`.
    places: Range<usize>,
    run: u64,
    bytes: u64,
    loops: usize,
    /// Whether the destination side has no gaps.
    dense: bool,
    loop_: [KernelLoop; MAX_LOOPS],
    /// All numbers that must be multiples of the unit, combined by OR.
    multiples: u64,
}

impl Launches {
    /// Prepares a program that was checked against its memories.
    pub(crate) fn new(program: &Program) -> Result<Self, LaunchError> {
        let mut of_nest: Vec<Vec<Place>> = vec![Vec::new(); program.nests.len()];
        for Placed { nest, src, dst } in &program.placed {
            of_nest[*nest as usize].push(Place { src: *src, dst: *dst });
        }
        let mut sorted = Self { nests: Vec::new(), places: Vec::with_capacity(program.placed.len()) };
        for (index, (nest, places)) in program.nests.iter().zip(of_nest).enumerate() {
            if !places.is_empty() {
                let first = sorted.places.len();
                sorted.places.extend(places);
                let places = first..sorted.places.len();
                sorted.nests.push(SortedNest::new(index, nest, places.clone(), &sorted.places[places])?);
            }
        }
        Ok(sorted)
    }

    /// Checks that [`range`](Self::range) works for every range. A range that begins at an odd byte moves in units of
    /// one byte, of which there are the most.
    pub(crate) fn check_ranges(&self) -> Result<(), LaunchError> {
        self.nests.iter().try_for_each(|nest| nest.check(1))
    }

    pub(crate) fn places(&self) -> &[Place] {
        &self.places
    }

    pub(crate) fn all(&self, ends: &Ends) -> Result<Vec<Launch>, LaunchError> {
        let mut launches = Vec::new();
        for nest in &self.nests {
            let bytes = nest.places.len() as u64 * nest.bytes;
            nest.launch(ends, nest.places.start, 0..bytes, &mut launches)?;
        }
        Ok(launches)
    }

    /// Returns the launches that move a range of a program whose destination side is a dense stream.
    pub(crate) fn range(&self, ends: &Ends, range: Range<u64>) -> Result<Vec<Launch>, LaunchError> {
        let mut launches = Vec::new();
        for nest in &self.nests {
            let places = &self.places[nest.places.clone()];
            let first = places.partition_point(|place| place.dst + nest.bytes <= range.start);
            let behind = places.partition_point(|place| place.dst < range.end);
            let Some(last) = places[first..behind].last() else {
                continue;
            };
            let begin = range.start.saturating_sub(places[first].dst);
            let before_last = (behind - first - 1) as u64 * nest.bytes;
            let end = before_last + (range.end - last.dst).min(nest.bytes);
            nest.launch(ends, nest.places.start + first, begin..end, &mut launches)?;
        }
        Ok(launches)
    }
}

impl SortedNest {
    fn new(index: usize, nest: &Nest, places: Range<usize>, placed: &[Place]) -> Result<Self, LaunchError> {
        let loops = nest.loops.len();
        if loops > MAX_LOOPS {
            return Err(LaunchError::TooDeep { nest: index, loops });
        }
        let mut multiples = placed.iter().fold(nest.run, |or, place| or | place.src | place.dst);
        let mut loop_ = [KernelLoop::zeroed(); MAX_LOOPS];
        // The step count of the loop inside of the next one, and the address offset after all of its steps.
        let (mut inner, mut added) = (1, (nest.run, nest.run));
        for (kernel, l) in loop_.iter_mut().zip(nest.loops.iter().rev()) {
            multiples |= l.src | l.dst;
            if l.count > MAX_UNITS {
                let bytes = nest.bytes();
                return Err(LaunchError::TooLong { nest: index, bytes, unit: 1 });
            }
            *kernel = KernelLoop {
                src: l.src.wrapping_sub(added.0),
                dst: l.dst.wrapping_sub(added.1),
                inner: Division::by(inner),
                unused: 0,
            };
            inner = l.count;
            added = (l.src.wrapping_mul(inner), l.dst.wrapping_mul(inner));
        }
        Ok(Self {
            nest: index,
            places,
            run: nest.run,
            bytes: nest.bytes(),
            loops,
            dense: loop_.iter().all(|l| l.dst == 0),
            loop_,
            multiples,
        })
    }

    fn unit(&self, ends: &Ends) -> Result<u64, LaunchError> {
        let multiples = self.multiples | ends.bases | ends.dst.buffer | LONGEST_UNIT;
        let unit = 1 << multiples.trailing_zeros();
        self.check(unit).map(|()| unit)
    }

    fn check(&self, unit: u64) -> Result<(), LaunchError> {
        match self.bytes / unit > MAX_UNITS {
            true => Err(LaunchError::TooLong { nest: self.nest, bytes: self.bytes, unit }),
            false => Ok(()),
        }
    }

    /// Adds the launches for a range of bytes, counted from the start of a place. There are as few as the kernel's
    /// counters allow.
    fn launch(
        &self,
        ends: &Ends,
        place: usize,
        bytes: Range<u64>,
        launches: &mut Vec<Launch>,
    ) -> Result<(), LaunchError> {
        let unit = self.unit(ends)?;
        let dense = self.dense && ends.dst.bases == 0 && unit == LONGEST_UNIT;
        let (entry, step) = match dense {
            true if self.run >= SPAN * unit => (RUNS, SPAN * unit),
            true => (STREAM, unit),
            false => (unit.trailing_zeros() as usize, unit),
        };
        // A run is divided into steps, of which the last may be shorter.
        let steps = self.run.div_ceil(step);
        let of_place = self.bytes / self.run * steps;
        let number = |at: u64| at / self.run * steps + at % self.run / step;
        let within = |at: u64| at % self.run % step;

        // A range has cut bytes at both ends and whole units between them. A range inside one unit has only cut bytes.
        let first = bytes.start.next_multiple_of(unit).min(bytes.end);
        let last = (bytes.end / unit * unit).max(first);
        let (mut head, tail) = (bytes.start..first, last..bytes.end);
        let (mut skip, stop, units_end) = match first < last {
            true => (within(first) / unit, within(last - unit) / unit + 1, number(last - unit) + 1),
            false => (0, 0, number(first)),
        };

        let mut loop_ = self.loop_;
        loop_[0].inner = Division::by(steps);
        if self.loops > 0 {
            // The last step of a run may be shorter but is counted as a whole one, so the stride is corrected by the
            // difference.
            let longer = steps * step - self.run;
            loop_[0].src = loop_[0].src.wrapping_sub(longer);
            loop_[0].dst = loop_[0].dst.wrapping_sub(longer);
        }
        let most = MAX_UNITS / of_place * of_place;
        let (mut begun, mut done) = (number(bytes.start), number(first));
        loop {
            // The kernel numbers edges from the first place that this launch touches.
            let base = begun / of_place * of_place;
            let edge = |cut: Range<u64>| match cut.is_empty() {
                true => Edge::zeroed(),
                false => Edge {
                    number: (number(cut.start) - base) as u32,
                    skip: within(cut.start) as u16,
                    bytes: (cut.end - cut.start) as u16,
                },
            };
            let count = (units_end - done).min(most - (done - base));
            let is_last = done + count == units_end;
            launches.push(Launch {
                entry,
                parameters: Parameters {
                    places: ends.places + (place as u64 + base / of_place) * size_of::<Place>() as u64,
                    src_bases: ends.src_bases,
                    dst: ends.dst,
                    edges: [edge(mem::take(&mut head)), edge(if is_last { tail.clone() } else { 0..0 })],
                    first: (done - base) as u32,
                    count: count as u32,
                    place: Division::by(of_place),
                    reverse: u32::from(ends.reverse),
                    loops: self.loops as u32,
                    run: (self.run / unit) as u32,
                    skip: mem::take(&mut skip) as u32,
                    stop: if is_last { stop } else { SPAN } as u32,
                    loop_,
                },
            });
            if is_last {
                return Ok(());
            }
            done += count;
            begun = done;
        }
    }
}
