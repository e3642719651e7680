//! Copies in which a GPU takes part.

use std::ops::Range;

use super::error::DeviceError;
use super::gpu::DEFAULT_MULTIPROCESSORS;
use super::launch::{Ends, Launches};
use super::memory::{DeviceMemory, upload};
use super::staging::{PIECE, Staging};
use super::stream::{DeviceStream, Way};
use crate::copy::{CopyOptions, CopyReport, Crc32c, Cursor, MemoryStream, settle};
use crate::memory::{Memory, Side};
use crate::plan::program::Program;

/// One side of a copy.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// Memory of the host.
    Host(&'a Memory),
    /// Memory of a GPU.
    Device(&'a DeviceMemory),
}

impl<'a> From<&'a Memory> for Place<'a> {
    fn from(memory: &'a Memory) -> Self {
        Self::Host(memory)
    }
}

impl<'a> From<&'a DeviceMemory> for Place<'a> {
    fn from(memory: &'a DeviceMemory) -> Self {
        Self::Device(memory)
    }
}

/// Runs a program as [`copy`](crate::copy::copy()) does, from and to memory of the host or of a GPU.
///
/// It returns when all bytes are in their place, and waits for no work of the engine: what the source holds has to be
/// complete, and nobody may still use what is overwritten. On one GPU all of its multiprocessors copy; over the
/// bus [`DEFAULT_MULTIPROCESSORS`] gather or scatter, and a copy engine carries. Bytes are summed on the host, so
/// there is no sum of a copy between two memories of a GPU.
///
/// # Errors
/// [`DeviceError`]. What does not fit is found before the first byte is moved; after an error of the driver the
/// destination's bytes may be old or new.
///
/// ```no_run
/// use smallvec::smallvec;
/// use transload_transfer::copy::CopyOptions;
/// use transload_transfer::device::{DeviceMemory, Gpu, copy};
/// use transload_transfer::memory::Memory;
/// use transload_transfer::plan::program::{Nest, Placed, Program};
///
/// let gpu = Gpu::open(0)?;
/// let (host, device) = (Memory::allocate(&[4096])?, DeviceMemory::allocate(&gpu, &[4096])?);
/// host.write(0, b"a cache")?;
/// let whole = Program {
///     nests: vec![Nest { loops: smallvec![], run: 4096 }],
///     placed: vec![Placed { nest: 0, src: 0, dst: 0 }],
/// };
/// let report = copy(&whole, &host, &device, &CopyOptions::new())?;
/// assert_eq!(report.bytes, 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn copy<'a>(
    program: &Program,
    source: impl Into<Place<'a>>,
    destination: impl Into<Place<'a>>,
    options: &CopyOptions,
) -> Result<CopyReport, DeviceError> {
    let checksum = match (source.into(), destination.into()) {
        (Place::Host(source), Place::Host(destination)) => {
            return Ok(crate::copy::copy(program, source, destination, options)?);
        }
        (Place::Device(source), Place::Device(destination)) => {
            if options.checksum() {
                return Err(DeviceError::NoSum);
            }
            within_a_gpu(program, source, destination)?;
            None
        }
        (Place::Device(source), Place::Host(destination)) => {
            source.check(program, Side::Source)?;
            destination.check(program, Side::Destination)?;
            let from = DeviceStream::new(&program.stream(Side::Source), source)?;
            let to = MemoryStream::new(program.stream(Side::Destination), destination.clone())?;
            Some(over_the_bus(&from, |staging, sum| {
                to_host(&from, to.cursor(0)?, staging, sum)
            })?)
        }
        (Place::Host(source), Place::Device(destination)) => {
            source.check(program, Side::Source)?;
            destination.check(program, Side::Destination)?;
            let from = MemoryStream::new(program.stream(Side::Source), source.clone())?;
            let to = DeviceStream::new(&program.stream(Side::Destination), destination)?;
            Some(over_the_bus(&to, |staging, sum| {
                to_device(from.cursor(0)?, &to, staging, sum)
            })?)
        }
    };
    Ok(CopyReport {
        bytes: program.bytes(),
        chunks: program.chunks(),
        threads: 1,
        kernel: "cuda",
        checksum: checksum.filter(|_| options.checksum()),
    })
}

fn within_a_gpu(
    program: &Program,
    source: &DeviceMemory,
    destination: &DeviceMemory,
) -> Result<(), DeviceError> {
    let gpu = source.gpu();
    let ordinals = (gpu.ordinal(), destination.gpu().ordinal());
    if ordinals.0 != ordinals.1 {
        let (source_device, destination_device) = ordinals;
        return Err(DeviceError::TwoDevices {
            source_device,
            destination_device,
        });
    }
    source.check(program, Side::Source)?;
    destination.check(program, Side::Destination)?;
    let launches = Launches::new(program)?;
    let places = upload(gpu, launches.places())?;
    let ends = Ends {
        places: places.address,
        src: source.end(),
        dst: destination.end(),
        bases: source.alignment() | destination.alignment(),
        reverse: false,
    };
    let launched = gpu.launch(&launches.all(&ends)?, None);
    // What was submitted reads `places`, whatever became of the rest.
    gpu.stream().synchronize().and(launched)
}

/// Has `carry` use the staging buffers of the GPU, and waits until the GPU does not use them any more.
fn over_the_bus(
    stream: &DeviceStream,
    carry: impl FnOnce(&mut Staging, &mut Crc32c) -> Result<(), DeviceError>,
) -> Result<Crc32c, DeviceError> {
    let gpu = stream.gpu();
    let mut staging = gpu.staging();
    let staging = match &mut *staging {
        Some(made) => made,
        none => none.insert(Staging::new(gpu.context())?),
    };
    let mut sum = Crc32c::new();
    let carried = carry(staging, &mut sum);
    gpu.stream().synchronize().and(carried)?;
    Ok(sum)
}

/// Gathers piece by piece. While one crosses the bus, the host scatters the one before.
fn to_host(
    from: &DeviceStream,
    mut to: Cursor,
    staging: &mut Staging,
    sum: &mut Crc32c,
) -> Result<(), DeviceError> {
    let gpu = from.gpu();
    let mut on_the_bus = None;
    for (number, range) in pieces(from.bytes()) {
        let (piece, len) = (staging.piece(number), len(&range));
        gpu.launch(
            &from.launches(Way::Gather, range, &piece.device)?,
            Some(DEFAULT_MULTIPROCESSORS),
        )?;
        piece.fetch(gpu.context(), gpu.stream(), len)?;
        if let Some((number, len)) = on_the_bus.replace((number, len)) {
            to.scatter(&staging.piece(number).host()?[..len], sum)?;
        }
    }
    if let Some((number, len)) = on_the_bus {
        to.scatter(&staging.piece(number).host()?[..len], sum)?;
    }
    settle();
    Ok(())
}

/// Scatters piece by piece. While one crosses the bus, the host gathers the next.
fn to_device(
    mut from: Cursor,
    to: &DeviceStream,
    staging: &mut Staging,
    sum: &mut Crc32c,
) -> Result<(), DeviceError> {
    let gpu = to.gpu();
    for (number, range) in pieces(to.bytes()) {
        let (piece, len) = (staging.piece(number), len(&range));
        from.gather(&mut piece.host()?[..len], sum)?;
        piece.send(gpu.context(), gpu.stream(), len)?;
        gpu.launch(
            &to.launches(Way::Scatter, range, &piece.device)?,
            Some(DEFAULT_MULTIPROCESSORS),
        )?;
        piece.submitted(gpu.stream())?;
    }
    Ok(())
}

/// Cuts a stream.
fn pieces(bytes: u64) -> impl Iterator<Item = (u64, Range<u64>)> {
    let step = PIECE as u64;
    (0..bytes.div_ceil(step)).map(move |n| (n, n * step..((n + 1) * step).min(bytes)))
}

fn len(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}
