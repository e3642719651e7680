//! What goes wrong with device memory.

use std::time::Duration;

use thiserror::Error;

use crate::launch::LaunchError;
use transload_memory::copy::StreamError;
use transload_memory::{CheckError, MemoryError};

/// Why there is no CUDA on this machine.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum NoCuda {
    /// Another system than Linux, or one that was not tried.
    #[error("no CUDA here: caches in device memory are moved on Linux only, and this is {system}")]
    Elsewhere { system: &'static str },
    /// No driver was found, or its library cannot be loaded.
    #[error("no CUDA here: the driver's library (libcuda.so.1) could not be loaded: {why}")]
    NoDriver { why: String },
    /// The driver is older than R525, or its library is not the driver's.
    #[error("no CUDA here: the driver's library has no {name}, so it is older than R525 or a stub")]
    NoFunction { name: &'static str },
    /// A toolkit's library of the driver's name, which is there to link programs with.
    #[error(
        "no CUDA here: {file} is a toolkit's stub of the driver: take its folder out of LD_LIBRARY_PATH, and the driver's own libcuda.so.1 is found"
    )]
    Stub { file: String },
    /// A driver, but no device that this process may use.
    #[error("no CUDA here: the driver knows no device")]
    NoDevice,
    /// The driver does not start.
    #[error("no CUDA here: {0}")]
    Refused(#[from] CallError),
}

/// A call of the driver that failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{call} gives {name} ({code})")]
pub struct CallError {
    /// The driver's function.
    pub call: &'static str,
    /// The driver's number of the error.
    pub code: u32,
    /// The driver's name of it.
    pub name: String,
}

impl CallError {
    /// Whether the context is of no use any more, for the engine neither: every later call gives this error as well. So it is where the
    /// driver has been shut down (4), as while a process ends.
    pub(crate) fn is_sticky(&self) -> bool {
        matches!(self.code, 4 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 810)
    }
}

/// Why memory of a device could not be had or moved.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum DeviceError {
    /// There is no CUDA.
    #[error(transparent)]
    NoCuda(#[from] NoCuda),
    /// There are devices, but not this one.
    #[error("no device {ordinal}: this process sees {devices}")]
    NoDevice { ordinal: u32, devices: u32 },
    /// A process that was forked off after the device was opened: the driver is of no use in it.
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
    /// An earlier operation left the device's context unusable, for everybody in the process.
    #[error("device {ordinal} is lost: {why}")]
    Lost { ordinal: u32, why: CallError },
    /// What was submitted is not done in time. It may be done later: until then its memory is kept, and may still be touched.
    #[error("device {ordinal} has not done within {within:?} what it was asked to")]
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
    /// A stream of another device or context, or one that was destroyed.
    #[error("the stream is none of device {ordinal}, or was destroyed: {why}")]
    NotItsStream { ordinal: u32, why: CallError },
    /// A stream whose work goes into a graph, where a mark would be a part of that and never be come to.
    #[error("the stream is captured into a graph: mark it before the capture begins, or after it ends")]
    Capturing,
    /// A descriptor of memory that is not on this device, nor on one that it reaches.
    #[error("the shared memory is not on device {expected}, nor on one that it reaches")]
    SharedElsewhere { expected: u32 },
    /// Lengths or numbers that no memory has.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A program that does not fit its memories.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// A program that the kernel cannot run.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A sum of bytes that never come to the host.
    #[error("a copy from device memory to device memory has no checksum")]
    NoSum,
    /// Rings of a GPU's memory, each of which other agents have a part in.
    #[error("device {ordinal} has {most} rings already, and no memory for more is taken from the engine")]
    TooManyRings { ordinal: u32, most: usize },
    /// The host's side of a copy.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

impl DeviceError {
    /// Whether the device does nothing any more: what was submitted to it touches no memory from now on.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }
}
