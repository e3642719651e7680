//! From programs to launches of the kernel, `cuda/walk.cu`: what is uploaded once, and the parameters of each launch.
//!
//! A launch runs one nest at a row of its places, so places are sorted by nest. A range of a stream is then a row of
//! places of each nest, of which the first and the last may be cut; the launch says so in bytes of the stream, and
//! the kernel leaves out what is not in the range.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use thiserror::Error;

use crate::plan::program::{Nest, Placed, Program};

/// The most loops of a nest that the kernel runs.
pub const MAX_LOOPS: usize = 8;

/// The kernel counts units of a launch with 31 bits.
const MAX_UNITS: u64 = (1 << 31) - 1;

/// The longest unit in bytes: what one thread moves at a time.
pub(super) const LONGEST_UNIT: u64 = 16;

/// Why the kernel cannot run a program.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum LaunchError {
    /// A nest is too deep.
    #[error("nest {nest} has {loops} loops, and a GPU runs {MAX_LOOPS} at most")]
    TooDeep { nest: usize, loops: usize },
    /// A nest has more at one place than 31 bits can count.
    #[error("nest {nest} moves {bytes} bytes at a place, and a GPU {most} at most in units of {unit} B", most = MAX_UNITS * unit)]
    TooLong { nest: usize, bytes: u64, unit: u64 },
}

/// Where a nest starts, on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Place {
    src: u64,
    dst: u64,
}

/// A divisor, as the multiplication and the shift that divide a number below 2^31 by it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Division {
    divisor: u32,
    multiplier: u32,
    shift: u32,
}

impl Division {
    /// A division by at most [`MAX_UNITS`], and not by 0.
    fn by(divisor: u64) -> Self {
        // With the least s of 2^s >= divisor, m = ceil(2^(31 + s) / divisor) fits into 32 bits, and is too large
        // by less than one part in 2^31 (Granlund and Montgomery, 1994).
        let bits = divisor.next_power_of_two().trailing_zeros();
        let multiplier = (1u64 << (31 + bits)).div_ceil(divisor);
        Self {
            divisor: divisor as u32,
            multiplier: if divisor == 1 { 0 } else { multiplier as u32 },
            shift: bits.saturating_sub(1),
        }
    }
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct KernelLoop {
    src: u64,
    dst: u64,
    count: Division,
    unused: u32,
}

/// One side of a launch.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct End {
    /// Address of the table of a memory's bases; 0 for a buffer.
    bases: u64,
    /// Where a buffer would have byte 0 of the program; wraps around 0 if that is before all memory.
    buffer: u64,
}

impl End {
    /// A memory, by the address of the table of its bases.
    pub(super) fn memory(bases: u64) -> Self {
        Self { bases, buffer: 0 }
    }

    /// A buffer whose first byte is byte `position` of the program. Units are as long as the two are alike, modulo [`LONGEST_UNIT`].
    pub(super) fn buffer(start: u64, position: u64) -> Self {
        Self {
            bases: 0,
            buffer: start.wrapping_sub(position),
        }
    }
}

/// The parameter of the kernel: `struct launch` in `cuda/walk.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Parameters {
    places: u64,
    src: End,
    dst: End,
    begin: u64,
    end: u64,
    first: u32,
    units: u32,
    place_units: Division,
    run_units: Division,
    reverse: u32,
    loops: u32,
    loop_: [KernelLoop; MAX_LOOPS],
}

/// One launch: the unit says which entry of the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launch {
    /// Bytes of a unit: 1, 2, 4, 8 or 16.
    pub(super) unit: u64,
    pub(super) parameters: Parameters,
}

impl Launch {
    pub(super) fn units(&self) -> u32 {
        self.parameters.units
    }
}

/// Where the two sides of a program are for now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    /// Address of the uploaded places.
    pub(super) places: u64,
    pub(super) src: End,
    pub(super) dst: End,
    /// All bases of both sides, or-ed: how far they are aligned.
    pub(super) bases: u64,
    /// Whether bytes go from the destination side to the source side, as in a scatter.
    pub(super) reverse: bool,
}

/// A program as the kernel takes it.
#[derive(Clone, Debug)]
pub(super) struct Launches {
    nests: Vec<SortedNest>,
    /// Sorted by nest, and inside of a nest as in the program.
    places: Vec<Place>,
}

#[derive(Clone, Debug)]
struct SortedNest {
    /// Index in the program, for errors.
    nest: usize,
    /// Its places, in `Launches::places`.
    places: Range<usize>,
    run: u64,
    bytes: u64,
    loops: usize,
    loop_: [KernelLoop; MAX_LOOPS],
    /// Everything that has to be a multiple of the unit, or-ed.
    multiples: u64,
}

impl Launches {
    /// Sorts a program that was checked against its memories.
    pub(super) fn new(program: &Program) -> Result<Self, LaunchError> {
        let mut of_nest: Vec<Vec<Place>> = vec![Vec::new(); program.nests.len()];
        for Placed { nest, src, dst } in &program.placed {
            of_nest[*nest as usize].push(Place {
                src: *src,
                dst: *dst,
            });
        }
        let mut sorted = Self {
            nests: Vec::new(),
            places: Vec::with_capacity(program.placed.len()),
        };
        for (index, (nest, places)) in program.nests.iter().zip(of_nest).enumerate() {
            if !places.is_empty() {
                let first = sorted.places.len();
                sorted.places.extend(places);
                let places = first..sorted.places.len();
                sorted.nests.push(SortedNest::new(
                    index,
                    nest,
                    places.clone(),
                    &sorted.places[places],
                )?);
            }
        }
        Ok(sorted)
    }

    /// Proves that [`range`](Self::range) can give every range of it: one that begins anywhere moves in units of a byte.
    pub(super) fn check_ranges(&self) -> Result<(), LaunchError> {
        self.nests.iter().try_for_each(|nest| nest.check(1))
    }

    /// What is uploaded.
    pub(super) fn places(&self) -> &[Place] {
        &self.places
    }

    /// The launches that move all bytes of the program.
    pub(super) fn all(&self, ends: &Ends) -> Result<Vec<Launch>, LaunchError> {
        let mut launches = Vec::new();
        for nest in &self.nests {
            let unit = nest.unit(ends)?;
            let units = nest.places.len() as u64 * (nest.bytes / unit);
            nest.launch(
                ends,
                unit,
                0..u64::MAX,
                nest.places.start,
                0..units,
                &mut launches,
            );
        }
        Ok(launches)
    }

    /// The launches that move some bytes of a program whose destination side is a dense stream.
    pub(super) fn range(&self, ends: &Ends, range: Range<u64>) -> Result<Vec<Launch>, LaunchError> {
        let mut launches = Vec::new();
        for nest in &self.nests {
            let places = &self.places[nest.places.clone()];
            let first = places.partition_point(|place| place.dst + nest.bytes <= range.start);
            let behind = places.partition_point(|place| place.dst < range.end);
            let Some(last) = places[first..behind].last() else {
                continue;
            };
            let unit = nest.unit(ends)?;
            let skipped = range.start.saturating_sub(places[first].dst) / unit;
            let kept = (range.end - last.dst).min(nest.bytes).div_ceil(unit);
            let units = (behind - first - 1) as u64 * (nest.bytes / unit) + kept;
            let place = nest.places.start + first;
            nest.launch(
                ends,
                unit,
                range.clone(),
                place,
                skipped..units,
                &mut launches,
            );
        }
        Ok(launches)
    }
}

impl SortedNest {
    fn new(
        index: usize,
        nest: &Nest,
        places: Range<usize>,
        placed: &[Place],
    ) -> Result<Self, LaunchError> {
        let loops = nest.loops.len();
        if loops > MAX_LOOPS {
            return Err(LaunchError::TooDeep { nest: index, loops });
        }
        let mut multiples = placed
            .iter()
            .fold(nest.run, |or, place| or | place.src | place.dst);
        let mut loop_ = [KernelLoop::zeroed(); MAX_LOOPS];
        for (kernel, l) in loop_.iter_mut().zip(nest.loops.iter().rev()) {
            multiples |= l.src | l.dst;
            if l.count > MAX_UNITS {
                let bytes = nest.bytes();
                return Err(LaunchError::TooLong {
                    nest: index,
                    bytes,
                    unit: 1,
                });
            }
            *kernel = KernelLoop {
                src: l.src,
                dst: l.dst,
                count: Division::by(l.count),
                unused: 0,
            };
        }
        Ok(Self {
            nest: index,
            places,
            run: nest.run,
            bytes: nest.bytes(),
            loops,
            loop_,
            multiples,
        })
    }

    /// The longest unit that everything is a multiple of.
    fn unit(&self, ends: &Ends) -> Result<u64, LaunchError> {
        let multiples =
            self.multiples | ends.bases | ends.src.buffer | ends.dst.buffer | LONGEST_UNIT;
        let unit = 1 << multiples.trailing_zeros();
        self.check(unit).map(|()| unit)
    }

    /// Whether the kernel can count the units of a place.
    fn check(&self, unit: u64) -> Result<(), LaunchError> {
        match self.bytes / unit > MAX_UNITS {
            true => Err(LaunchError::TooLong {
                nest: self.nest,
                bytes: self.bytes,
                unit,
            }),
            false => Ok(()),
        }
    }

    /// Launches some units, counted from the start of a place, in as few launches as can count them.
    fn launch(
        &self,
        ends: &Ends,
        unit: u64,
        bytes: Range<u64>,
        place: usize,
        units: Range<u64>,
        launches: &mut Vec<Launch>,
    ) {
        let of_place = self.bytes / unit;
        let most = MAX_UNITS / of_place * of_place;
        let mut done = units.start;
        while done < units.end {
            let places_before = done / of_place;
            let first = done % of_place;
            let count = (units.end - done).min(most - first);
            launches.push(Launch {
                unit,
                parameters: Parameters {
                    places: ends.places
                        + (place as u64 + places_before) * size_of::<Place>() as u64,
                    src: ends.src,
                    dst: ends.dst,
                    begin: bytes.start,
                    end: bytes.end,
                    first: first as u32,
                    units: count as u32,
                    place_units: Division::by(of_place),
                    run_units: Division::by(self.run / unit),
                    reverse: u32::from(ends.reverse),
                    loops: self.loops as u32,
                    loop_: self.loop_,
                },
            });
            done += count;
        }
    }
}
