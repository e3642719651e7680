//! The GPUs of this process. `no_cuda` has the same functions, for a package that is built without them.

use std::any::Any;
use std::collections::BTreeMap;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use transload::archive::{Cache, RankArchive};
use transload::transfer::device::{self, DeviceError, Gpu, Place};
pub(crate) use transload::transfer::device::{DeviceMemory as Memory, Mark};
use transload::transfer::memory::Access;
use transload::transfer::memory::copy::CopyOptions;
use transload::transfer::plan::program::Program;
use transload::transfer::{After, Region};

use crate::errors::chain;
use crate::kind;

pub(crate) type Kind = kind::Kind<Memory>;

/// The opened GPUs by ordinal. They stay open, since further memory or marks are likely to need them.
static OPENED: Mutex<Opened> = Mutex::new(Opened { process: 0, gpus: BTreeMap::new() });

/// Whether any GPU was opened. It is separate from [`OPENED`], whose lock is held for long while one is opened.
static IN_USE: AtomicBool = AtomicBool::new(false);

struct Opened {
    process: u32,
    gpus: BTreeMap<u32, Gpu>,
}

impl Opened {
    fn lock() -> MutexGuard<'static, Self> {
        OPENED.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails in a forked child, which can use neither its parent's GPUs nor any others.
    fn check_process(&self) -> Result<(), DeviceError> {
        match self.gpus.first_key_value() {
            Some((&ordinal, _)) if self.process != process::id() => Err(DeviceError::Forked { ordinal }),
            _ => Ok(()),
        }
    }
}

pub(crate) fn available() -> Result<(), String> {
    device::available().map_err(message)
}

pub(crate) fn in_use() -> bool {
    IN_USE.load(Relaxed)
}

/// Returns the GPU of an ordinal, opening it the first time.
fn gpu(ordinal: u32) -> Result<Gpu, DeviceError> {
    let mut opened = Opened::lock();
    opened.check_process()?;
    if let Some(gpu) = opened.gpus.get(&ordinal) {
        return Ok(gpu.clone());
    }
    let gpu = Gpu::open(ordinal)?;
    opened.process = process::id();
    opened.gpus.insert(ordinal, gpu.clone());
    IN_USE.store(true, Relaxed);
    Ok(gpu)
}

/// Returns the ordinal of the GPU with the first of these allocations.
pub(crate) fn ordinal_of(parts: &[(u64, usize)]) -> Result<u32, String> {
    let checked = Opened::lock().check_process();
    checked.and_then(|()| Memory::ordinal_of(parts)).map_err(message)
}

/// # Safety
/// The caller keeps the promises of [`DeviceMemory::from_raw_parts`](Memory::from_raw_parts).
pub(crate) unsafe fn register(
    ordinal: u32,
    parts: &[(u64, usize)],
    access: Access,
    keeper: Arc<dyn Any + Send + Sync>,
) -> Result<Memory, String> {
    let registered = gpu(ordinal).and_then(|gpu| {
        // SAFETY: the caller's.
        unsafe { Memory::from_raw_parts(&gpu, parts, access, Some(keeper)) }
    });
    registered.map_err(message)
}

pub(crate) fn allocate(ordinal: u32, lengths: &[usize]) -> Result<Memory, String> {
    gpu(ordinal).and_then(|gpu| Memory::allocate(&gpu, lengths)).map_err(message)
}

pub(crate) fn ordinal(memory: &Memory) -> u32 {
    memory.gpu().ordinal()
}

/// Returns the address and length of each allocation.
pub(crate) fn allocations(memory: &Memory) -> Vec<(u64, u64)> {
    let parts = (0..memory.allocations()).filter_map(|number| memory.allocation(number));
    parts.collect()
}

pub(crate) fn cache(memory: &Memory) -> Cache {
    memory.clone().into()
}

pub(crate) fn region(memory: &Memory) -> Region {
    memory.into()
}

pub(crate) fn copy(program: &Program, source: &Kind, destination: &Kind) -> Result<(), String> {
    let copied = device::copy(program, source, destination, &CopyOptions::default());
    copied.map(drop).map_err(message)
}

impl<'a> From<&'a Kind> for Place<'a> {
    fn from(kind: &'a Kind) -> Self {
        match kind {
            Kind::Host(memory) => Self::Host(memory),
            Kind::Device(memory) => Self::Device(memory),
        }
    }
}

/// Marks the current end of a GPU's stream. Without an ordinal the GPU is that of the current context of this thread;
/// returns `None` if there is no context.
///
/// # Safety
/// The stream has to be valid for [`Mark::new`].
pub(crate) unsafe fn mark(stream: u64, ordinal: Option<u32>) -> Result<Option<Mark>, String> {
    let marked = || {
        let Some(ordinal) = ordinal.map_or_else(Gpu::current_ordinal, |given| Ok(Some(given)))? else {
            return Ok(None);
        };
        // SAFETY: the caller's.
        unsafe { Mark::new(&gpu(ordinal)?, stream) }.map(Some)
    };
    marked().map_err(message)
}

pub(crate) fn is_done(mark: &Mark) -> Result<bool, String> {
    mark.is_done().map_err(message)
}

pub(crate) fn archive_after(rank: RankArchive, mark: &Mark) -> RankArchive {
    rank.with_mark(mark.clone())
}

pub(crate) fn after(mark: &Mark) -> After {
    mark.clone().into()
}

fn message<E: std::error::Error + 'static>(error: E) -> String {
    chain(&error)
}
