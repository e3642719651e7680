//! Replaces `cuda` in a package built without that feature. Every use of a GPU is an error that says so.

use std::any::Any;
use std::sync::Arc;

use transload::archive::{Cache, RankArchive};
use transload::transfer::memory::copy::{CopyOptions, copy as copy_on_host};
use transload::transfer::memory::{self, Access};
use transload::transfer::plan::program::Program;
use transload::transfer::{After, Region};

use crate::errors::chain;
use crate::kind;

pub(crate) type Kind = kind::Kind<Memory>;

const WHY: &str = "no CUDA here: this package was built without its feature `cuda`";

/// An uninhabited type, since there is no GPU memory.
#[derive(Clone)]
pub(crate) enum Memory {}

pub(crate) enum Mark {}

pub(crate) fn available() -> Result<(), String> {
    Err(WHY.to_owned())
}

pub(crate) fn in_use() -> bool {
    false
}

pub(crate) fn ordinal_of(_: &[(u64, usize)]) -> Result<u32, String> {
    Err(WHY.to_owned())
}

/// # Safety
/// There are no requirements.
pub(crate) unsafe fn register(
    _: u32,
    _: &[(u64, usize)],
    _: Access,
    _: Arc<dyn Any + Send + Sync>,
) -> Result<Memory, String> {
    Err(WHY.to_owned())
}

pub(crate) fn allocate(_: u32, _: &[usize]) -> Result<Memory, String> {
    Err(WHY.to_owned())
}

pub(crate) fn ordinal(memory: &Memory) -> u32 {
    match *memory {}
}

pub(crate) fn allocations(memory: &Memory) -> Vec<(u64, u64)> {
    match *memory {}
}

pub(crate) fn cache(memory: &Memory) -> Cache {
    match *memory {}
}

pub(crate) fn region(memory: &Memory) -> Region {
    match *memory {}
}

pub(crate) fn copy(program: &Program, source: &Kind, destination: &Kind) -> Result<(), String> {
    let options = CopyOptions::default();
    let copied = copy_on_host(program, host(source), host(destination), &options);
    copied.map(drop).map_err(|error| chain(&error))
}

fn host(kind: &Kind) -> &memory::Memory {
    match kind {
        Kind::Host(memory) => memory,
        Kind::Device(memory) => match *memory {},
    }
}

/// # Safety
/// There are no requirements.
pub(crate) unsafe fn mark(_: u64, _: Option<u32>) -> Result<Option<Mark>, String> {
    Err(WHY.to_owned())
}

pub(crate) fn is_done(mark: &Mark) -> Result<bool, String> {
    match *mark {}
}

pub(crate) fn archive_after(_: RankArchive, mark: &Mark) -> RankArchive {
    match *mark {}
}

pub(crate) fn after(mark: &Mark) -> After {
    match *mark {}
}
