//! Copies and fills of memory, executed by streams.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::board::{Handle, board};
use crate::code::*;
use crate::faults;
use crate::memory::{self, Kind, OFFSET, User};
use crate::stream;

static REGISTERED: AtomicU64 = AtomicU64::new(0);

/// Returns the number of bytes copied to or from registered host memory.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_registered_bytes() -> u64 {
    REGISTERED.load(Relaxed)
}

#[derive(Clone)]
enum Side {
    /// Memory that the driver knows, which is checked again when the copy starts.
    Known(u64),
    /// Pageable host memory, which is valid during the call.
    Pageable(usize),
    /// The bytes that were in pageable memory at the time of the call.
    Staged(Box<[u8]>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Return {
    Early,
    /// The call returns when the copy is done. For pageable memory, it returns when those bytes were read, as the
    /// driver's documentation of synchronous behavior allows.
    Late,
}

/// Checks the address of device or pinned memory.
fn known(address: u64, size: usize, writes: bool) -> Result<Side> {
    let found = memory::read().find(address, size as u64, &User::Copy, writes);
    found.map(|_| Side::Known(address)).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Checks host memory, which has to be completely pinned or completely pageable.
fn host(address: usize, size: usize, writes: bool) -> Result<Side> {
    let end = address.checked_add(size).filter(|end| *end as u64 <= OFFSET && address != 0);
    end.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if memory::read().overlapping(address as u64, size as u64).is_some() {
        return known(address as u64, size, writes);
    }
    Ok(Side::Pageable(address))
}

pub(crate) fn to_device(device: usize, to: u64, from: usize, size: usize, on: Handle, how: Return) -> Result {
    if size == 0 {
        return Ok(());
    }
    let to = known(to, size, true)?;
    let from = host(from, size, false)?;
    let Side::Pageable(bytes) = from else {
        return submit(device, to, from, size, on, how == Return::Late);
    };
    if how == Return::Late {
        let line = stream::resolve(&mut board(), device, on)?;
        let before = stream::pending(&board(), line);
        stream::wait(device, &before)?;
    }
    // SAFETY: the caller of the driver says that these bytes can be read, during the call.
    let staged = unsafe { std::slice::from_raw_parts(bytes as *const u8, size) };
    submit(device, to, Side::Staged(staged.into()), size, on, false)
}

pub(crate) fn to_host(device: usize, to: usize, from: u64, size: usize, on: Handle, how: Return) -> Result {
    if size == 0 {
        return Ok(());
    }
    let from = known(from, size, false)?;
    let to = host(to, size, true)?;
    let waits = how == Return::Late || matches!(to, Side::Pageable(_));
    submit(device, to, from, size, on, waits)
}

pub(crate) fn between(device: usize, to: u64, from: u64, size: usize, on: Handle) -> Result {
    if size == 0 {
        return Ok(());
    }
    submit(device, known(to, size, true)?, known(from, size, false)?, size, on, false)
}

pub(crate) fn fill(device: usize, to: u64, byte: u8, size: usize, on: Handle, waits: bool) -> Result {
    if size == 0 {
        return Ok(());
    }
    let to = known(to, size, true)?;
    let work = move || {
        let memory = memory::read();
        let to = place(&memory, &to, size, true)?;
        // SAFETY: the memory is the device's or pinned, and stays while `memory` is locked.
        unsafe { ptr::write_bytes(to, byte, size) };
        Ok(())
    };
    queue(device, on, work, waits)
}

fn submit(device: usize, to: Side, from: Side, size: usize, on: Handle, waits: bool) -> Result {
    let work = move || {
        let memory = memory::read();
        let to = place(&memory, &to, size, true)?;
        let from = place(&memory, &from, size, false)?;
        // SAFETY: both are as long as `size`: device or pinned memory, which stays while `memory` is locked, staged
        // bytes, or pageable memory of a caller that waits for this.
        unsafe { ptr::copy(from, to, size) };
        // Counted so that a test can tell how many copies are still running.
        faults::count("copy done")
    };
    queue(device, on, work, waits)
}

fn queue(device: usize, on: Handle, work: impl FnOnce() -> Result + Send + 'static, waits: bool) -> Result {
    let mut board = board();
    let line = stream::resolve(&mut board, device, on)?;
    let device = board.lines[&line].device;
    let mark = stream::enqueue(&mut board, line, Vec::new(), Box::new(move |_| work()));
    drop(board);
    if waits { stream::wait(device, &[mark]) } else { Ok(()) }
}

fn place(memory: &memory::Memory, side: &Side, size: usize, writes: bool) -> Result<*mut u8> {
    match side {
        Side::Known(address) => {
            let region = memory.at(*address).map(|(_, region)| &region.kind);
            if let Some(Kind::HostRegistered { .. }) = region {
                REGISTERED.fetch_add(size as u64, Relaxed);
                faults::count("registered copy").expect("no test fails it");
            }
            let found = memory.find(*address, size as u64, &User::Copy, writes);
            found.ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)
        }
        Side::Pageable(address) => Ok(*address as *mut u8),
        Side::Staged(bytes) => Ok(bytes.as_ptr().cast_mut()),
    }
}
