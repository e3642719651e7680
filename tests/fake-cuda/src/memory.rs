//! The addresses that a device can use, and the location of their bytes in this process.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::board::Handle;
use crate::view::View;

/// The offset from the host's view to a device address. No user space of Linux has such addresses unless a program asks
/// for them, so they fault in host code. Pinned host memory and managed memory have the same address on both sides.
pub(crate) const OFFSET: u64 = 1 << 48;

pub(crate) const TOTAL: u64 = 16 << 30;

pub(crate) enum Kind {
    Allocated(#[expect(dead_code, reason = "it unmaps the memory at its end")] View),
    /// Memory that host code can access at the same address.
    Managed(#[expect(dead_code, reason = "it unmaps the memory at its end")] View),
    /// A part of a reservation, with the devices that may access it and whether they may write.
    Mapped(HashMap<usize, bool>),
    HostAllocated(#[expect(dead_code, reason = "it unmaps the memory at its end")] View),
    HostRegistered {
        read_only: bool,
    },
}

pub(crate) struct Region {
    pub(crate) size: u64,
    pub(crate) device: usize,
    pub(crate) kind: Kind,
}

/// Memory created by `cuMemCreate` or imported from a descriptor.
pub(crate) struct Shared {
    pub(crate) memory: OwnedFd,
    pub(crate) size: u64,
    pub(crate) device: usize,
    pub(crate) exportable: bool,
}

pub(crate) struct Reservation {
    pub(crate) size: u64,
    pub(crate) view: View,
}

#[derive(Default)]
pub(crate) struct Memory {
    /// The regions by their first device address; they do not overlap.
    pub(crate) regions: BTreeMap<u64, Region>,
    pub(crate) reservations: BTreeMap<u64, Reservation>,
    pub(crate) shared: BTreeMap<Handle, Shared>,
}

pub(crate) enum User {
    /// A copy engine, which can access every device.
    Copy,
    /// A kernel, which can access its device and the peers that it has enabled.
    Kernel { device: usize, peers: HashSet<usize> },
}

static MEMORY: RwLock<Memory> =
    RwLock::new(Memory { regions: BTreeMap::new(), reservations: BTreeMap::new(), shared: BTreeMap::new() });

/// Locks memory for reading, which keeps all of it in place. Operations hold this lock while they run.
pub(crate) fn read() -> RwLockReadGuard<'static, Memory> {
    MEMORY.read().unwrap()
}

/// Locks memory for changes, after running operations have ended.
pub(crate) fn write() -> RwLockWriteGuard<'static, Memory> {
    MEMORY.write().unwrap()
}

impl Region {
    pub(crate) fn is_host(&self) -> bool {
        matches!(self.kind, Kind::HostAllocated(_) | Kind::HostRegistered { .. })
    }

    fn allows(&self, user: &User, writes: bool) -> bool {
        match (&self.kind, user) {
            (Kind::Allocated(_), User::Copy) => true,
            (Kind::Allocated(_), User::Kernel { device, peers }) => {
                self.device == *device || peers.contains(&self.device)
            }
            (Kind::Mapped(access), User::Copy) => access.values().any(|may| *may || !writes),
            (Kind::Mapped(access), User::Kernel { device, .. }) => {
                access.get(device).is_some_and(|may| *may || !writes)
            }
            (Kind::Managed(_) | Kind::HostAllocated(_), _) => true,
            (Kind::HostRegistered { read_only }, _) => !(writes && *read_only),
        }
    }
}

impl Memory {
    /// Returns the region with this byte, and its first address.
    pub(crate) fn at(&self, address: u64) -> Option<(u64, &Region)> {
        let (&start, region) = self.regions.range(..=address).next_back()?;
        (address - start < region.size).then_some((start, region))
    }

    /// Returns the bounds of the region with this byte, if the user may access it.
    pub(crate) fn range(&self, address: u64, user: &User, writes: bool) -> Option<(u64, u64)> {
        let (start, region) = self.at(address)?;
        let allowed = region.allows(user, writes);
        allowed.then_some((start, start + region.size))
    }

    /// Returns the location of the bytes, if the user may access all of them. They may be in consecutive mappings.
    pub(crate) fn find(&self, address: u64, size: u64, user: &User, writes: bool) -> Option<*mut u8> {
        let end = address.checked_add(size)?;
        let (_, mut covered) = self.range(address, user, writes)?;
        while covered < end {
            let next = &self.at(covered)?.1.kind;
            matches!(next, Kind::Mapped(_)).then_some(())?;
            covered = self.range(covered, user, writes)?.1;
        }
        Some(view(address))
    }

    pub(crate) fn overlapping(&self, address: u64, size: u64) -> Option<(u64, &Region)> {
        let before = self.at(address);
        before.or_else(|| {
            let end = address.saturating_add(size);
            let next = self.regions.range(address..end).next();
            next.map(|(&start, region)| (start, region))
        })
    }

    pub(crate) fn used(&self, device: usize) -> u64 {
        let allocated = self.regions.values().filter(|region| matches!(region.kind, Kind::Allocated(_)));
        let allocated = allocated.filter(|region| region.device == device).map(|region| region.size);
        let shared = self.shared.values().filter(|shared| shared.device == device);
        allocated.chain(shared.map(|shared| shared.size)).sum()
    }

    pub(crate) fn live(&self) -> usize {
        self.regions.len() + self.reservations.len() + self.shared.len()
    }

    pub(crate) fn clear(&mut self, device: usize) {
        let stays = |region: &Region| region.device != device || matches!(region.kind, Kind::Mapped(_));
        self.regions.retain(|_, region| stays(region));
    }
}

pub(crate) fn view(address: u64) -> *mut u8 {
    let host = address.checked_sub(OFFSET).unwrap_or(address);
    host as *mut u8
}
