//! Errors of device memory.

use std::time::Duration;

use thiserror::Error;

use crate::launch::LaunchError;
use transload_memory::copy::StreamError;
use transload_memory::{CheckError, MemoryError};

/// The reason why CUDA cannot be used on this machine.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum NoCuda {
    /// The system is not Linux, or is one where this was never tested.
    #[error("no CUDA here: caches in device memory are moved on Linux only, and this is {system}")]
    Elsewhere { system: &'static str },
    /// No driver was found, or its library cannot be loaded.
    #[error("no CUDA here: the driver's library (libcuda.so.1) could not be loaded: {why}")]
    NoDriver { why: String },
    /// The driver is older than R525, or its library is not the driver's.
    #[error("no CUDA here: the driver's library has no {name}, so it is older than R525 or a stub")]
    NoFunction { name: &'static str },
    /// The library is a toolkit's stub, which exists only for linking.
    #[error(
        "no CUDA here: {file} is a toolkit's stub of the driver: take its folder out of LD_LIBRARY_PATH, and the driver's own libcuda.so.1 is found"
    )]
    Stub { file: String },
    /// There is a driver, but no device that this process may use.
    #[error("no CUDA here: the driver knows no device")]
    NoDevice,
    /// The driver failed to initialise.
    #[error("no CUDA here: {0}")]
    Refused(#[from] CallError),
}

/// A call of the driver that failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{call} gives {name} ({code})")]
pub struct CallError {
    /// The driver's function.
    pub call: &'static str,
    /// The driver's error code.
    pub code: u32,
    /// The driver's name for the error.
    pub name: String,
}

impl CallError {
    /// Returns whether the context is unusable from now on, for the engine too: every later call returns this error as
    /// well. That includes code 4, a driver that has been shut down, as happens while a process ends.
    pub(crate) fn is_sticky(&self) -> bool {
        matches!(self.code, 4 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 810)
    }
}

/// An error of allocating, mapping or moving device memory.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum DeviceError {
    /// CUDA cannot be used on this machine.
    #[error(transparent)]
    NoCuda(#[from] NoCuda),
    /// There are devices, but not this one.
    #[error("no device {ordinal}: this process sees {devices}")]
    NoDevice { ordinal: u32, devices: u32 },
    /// The process was forked after the device was opened. The driver does not work in such a child.
    #[error(
        "device {ordinal} was opened before this process was forked: open it after that, or start processes by `spawn`"
    )]
    Forked { ordinal: u32 },
    /// The thread that drives a device could not be started.
    #[error("cannot start the device's thread: {why}")]
    NoThread { why: String },
    /// The thread that drives a device has panicked.
    #[error("the thread that drives the device is gone")]
    ThreadGone,
    /// A call of the driver failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// An earlier operation left the device's context unusable, for every part of the process.
    #[error("device {ordinal} is lost: {why}")]
    Lost { ordinal: u32, why: CallError },
    /// Submitted work did not finish in time. It may finish later: until then its memory is kept, and may still be
    /// accessed.
    #[error("device {ordinal} did not finish its work within {within:?}")]
    Stalled { ordinal: u32, within: Duration },
    /// An allocation is memory of another kind.
    #[error("allocation {allocation} is {kind}, not memory of a CUDA device")]
    NotDevice { allocation: usize, kind: &'static str },
    /// An allocation is on another device.
    #[error("allocation {allocation} is memory of device {found}, not of device {expected}")]
    OtherDevice { allocation: usize, found: u32, expected: u32 },
    /// An allocation reaches beyond what the driver has mapped there.
    #[error("allocation {allocation} of {len} bytes has only {available} mapped from its start on")]
    PastEnd { allocation: usize, len: u64, available: u64 },
    /// The stream belongs to another device or context, or was destroyed.
    #[error("the stream does not belong to device {ordinal}, or was destroyed: {why}")]
    NotItsStream { ordinal: u32, why: CallError },
    /// The stream is being captured into a graph. A mark would become part of the graph and never be reached.
    #[error("the stream is captured into a graph: mark it before the capture begins, or after it ends")]
    Capturing,
    /// The shared memory is neither on this device nor on one whose memory this device can access.
    #[error("the shared memory is not on device {expected}, nor on one that it reaches")]
    SharedElsewhere { expected: u32 },
    /// The lengths or the number of allocations are not possible for any memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The program does not fit its memories.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The kernel cannot run the program.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A checksum was asked for, but the bytes never reach the host.
    #[error("a copy from device memory to device memory has no checksum")]
    NoSum,
    /// The GPU has as many rings as allowed. Each takes memory on behalf of another agent.
    #[error("device {ordinal} has {most} rings already, and no memory for more is taken from the engine")]
    TooManyRings { ordinal: u32, most: usize },
    /// The host's side of a copy failed.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

impl DeviceError {
    /// Returns whether the device is lost: nothing that was submitted to it accesses any memory from now on.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }
}
