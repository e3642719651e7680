//! The kernels `walk.cu` and `crc32c.cu`, compiled as C. Their threads run one after the other in a random order, and
//! each access is checked.

use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::board::board;
use crate::code::*;
use crate::memory::{self, Memory, User};
use crate::settings::Random;

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Entry {
    /// An entry of `walk.cu`, by its number.
    Walk(u32),
    /// The entry of `crc32c.cu`, which folds bytes.
    Fold,
    /// Blocks its stream for the microseconds in its parameter.
    Spin,
    /// Blocks its stream until the word of pinned memory at this address is no longer 0, for at most `HELD`.
    Hold,
}

/// The limit is longer than on a GPU, since other processes may be slow here.
const HELD: Duration = Duration::from_secs(60);

/// A copy of a launch's parameter, aligned like the C structure.
pub(crate) struct Parameter(Box<[u64]>);

/// `struct machine` of `c/machine.h`.
#[repr(C)]
struct Machine {
    running: *const c_void,
    load: unsafe extern "C" fn(*const c_void, u64, *mut u8, u32),
    store: unsafe extern "C" fn(*const c_void, u64, *const u8, u32),
}

unsafe extern "C" {
    safe fn fake_walk_size() -> u64;
    safe fn fake_fold_size() -> u64;
    fn fake_fold_thread(machine: *const Machine, fold: *const u64, thread: u32, threads: u32);
    fn fake_walk_thread(machine: *const Machine, entry: u32, launch: *const u64, thread: u32, threads: u32);
}

impl Entry {
    const NAMED: [(&str, Self); 10] = [
        ("walk_1", Self::Walk(0)),
        ("walk_2", Self::Walk(1)),
        ("walk_4", Self::Walk(2)),
        ("walk_8", Self::Walk(3)),
        ("walk_16", Self::Walk(4)),
        ("stream_16", Self::Walk(5)),
        ("runs_16", Self::Walk(6)),
        ("fold", Self::Fold),
        ("spin", Self::Spin),
        ("hold", Self::Hold),
    ];

    pub(crate) fn named(name: &str) -> Option<Self> {
        let mut named = Self::NAMED.into_iter();
        named.find(|(its, _)| *its == name).map(|(_, entry)| entry)
    }

    pub(crate) fn name(self) -> &'static str {
        let mut named = Self::NAMED.into_iter();
        let (name, _) = named.find(|(_, entry)| *entry == self).expect("it has one");
        name
    }

    /// # Safety
    /// The pointer has to refer to a parameter of the entry's type.
    pub(crate) unsafe fn parameter(self, at: *const u8) -> Parameter {
        let size = match self {
            Self::Walk(_) => fake_walk_size() as usize,
            Self::Fold => fake_fold_size() as usize,
            Self::Spin => size_of::<u32>(),
            Self::Hold => size_of::<u64>(),
        };
        let mut words = vec![0u64; size.div_ceil(8)].into_boxed_slice();
        // SAFETY: the caller says that there are `size` bytes; `words` has room for them.
        unsafe { ptr::copy_nonoverlapping(at, words.as_mut_ptr().cast(), size) };
        Parameter(words)
    }

    /// Runs a launch. An error is the kernel's, and loses the context.
    pub(crate) fn run(self, device: usize, parameter: Parameter, threads: u32, random: &mut Random) -> Result {
        match self {
            Self::Walk(entry) => run_threads(device, threads, random, |machine, thread| {
                // SAFETY: the parameter is a `struct launch`.
                unsafe { fake_walk_thread(machine, entry, parameter.0.as_ptr(), thread, threads) }
            }),
            Self::Fold => run_threads(device, threads, random, |machine, thread| {
                // SAFETY: the parameter is a `struct fold`.
                unsafe { fake_fold_thread(machine, parameter.0.as_ptr(), thread, threads) }
            }),
            Self::Spin => {
                thread::sleep(Duration::from_micros(parameter.0[0]));
                Ok(())
            }
            Self::Hold => hold(device, parameter.0[0]),
        }
    }
}

fn hold(device: usize, flag: u64) -> Result {
    let end = Instant::now() + HELD;
    let peers = HashSet::new();
    let user = User::Kernel { device, peers };
    let is_set = || -> Result<bool> {
        // The lock is not held while blocking: allocations wait for readers of memory.
        let memory = memory::read();
        let found = memory.find(flag, 4, &user, false);
        let found = found.filter(|_| flag.is_multiple_of(4)).ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)?;
        // SAFETY: memory that stays while `memory` is locked, and is aligned; others may write it meanwhile.
        Ok(unsafe { AtomicU32::from_ptr(found.cast()) }.load(Relaxed) != 0)
    };
    while !is_set()? && Instant::now() < end {
        thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

fn run_threads(device: usize, threads: u32, random: &mut Random, run: impl Fn(&Machine, u32)) -> Result {
    let peers = board().contexts[device].peers.clone();
    let running = Running {
        memory: &memory::read(),
        user: User::Kernel { device, peers },
        fault: Cell::new(CUDA_SUCCESS),
        loads: Cell::new((0, 0)),
        stores: Cell::new((0, 0)),
    };
    let machine = Machine { running: (&raw const running).cast(), load, store };
    let mut order: Vec<u32> = (0..threads).collect();
    random.shuffle(&mut order);
    for thread in order {
        running.outcome()?;
        run(&machine, thread);
    }
    running.outcome()
}

struct Running<'memory> {
    memory: &'memory Memory,
    user: User,
    /// The error of the first invalid access. Later accesses do nothing.
    fault: Cell<Code>,
    /// The address ranges in which the last load and the last store were found.
    loads: Cell<(u64, u64)>,
    stores: Cell<(u64, u64)>,
}

impl Running<'_> {
    fn outcome(&self) -> Result {
        match self.fault.get() {
            CUDA_SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    fn fail(&self, code: Code) {
        if self.fault.get() == CUDA_SUCCESS {
            self.fault.set(code);
        }
    }

    /// Returns the address of the bytes, if the device may access them and there was no fault yet.
    fn access(&self, address: u64, size: u64, alignment: u64, writes: bool) -> Option<*mut u8> {
        if !address.is_multiple_of(alignment) {
            self.fail(CUDA_ERROR_MISALIGNED_ADDRESS);
        }
        let last = if writes { &self.stores } else { &self.loads };
        let (from, to) = last.get();
        if address < from || address >= to || size > to - address {
            match self.memory.find(address, size, &self.user, writes) {
                None => self.fail(CUDA_ERROR_ILLEGAL_ADDRESS),
                Some(_) => last.set(self.memory.range(address, &self.user, writes).unwrap_or_default()),
            }
        }
        (self.fault.get() == CUDA_SUCCESS).then(|| memory::view(address))
    }
}

/// # Safety
/// `running` is a `Running`, and `to` has room for `size` bytes.
unsafe extern "C" fn load(running: *const c_void, address: u64, to: *mut u8, size: u32) {
    // SAFETY: the caller keeps it.
    let running = unsafe { &*running.cast::<Running>() };
    match running.access(address, size.into(), size.into(), false) {
        // SAFETY: `access` says that the bytes are there; memory is locked while the launch runs.
        Some(from) => unsafe { ptr::copy_nonoverlapping(from, to, size as usize) },
        // SAFETY: the caller keeps it. No kernel may go on with bytes that are not initialized.
        None => unsafe { ptr::write_bytes(to, 0, size as usize) },
    }
}

/// # Safety
/// `running` is a `Running`, and `from` has `size` bytes.
unsafe extern "C" fn store(running: *const c_void, address: u64, from: *const u8, size: u32) {
    // SAFETY: the caller keeps it.
    let running = unsafe { &*running.cast::<Running>() };
    if let Some(to) = running.access(address, size.into(), size.into(), true) {
        // SAFETY: as in `load`.
        unsafe { ptr::copy_nonoverlapping(from, to, size as usize) };
    }
}
