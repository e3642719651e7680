//! Host memory of a path that another process has mapped, too.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};
use std::thread;

use memmap2::MmapRaw;

/// Memory of a path. If it is registered with a device's driver, the device gathers into it and scatters from it
/// directly.
///
/// The other process can read and write it at any time, so its bytes are accessed through pointers only.
pub(crate) struct SharedMemory {
    pub(super) start: NonNull<u8>,
    len: usize,
    /// `None` only while this is being dropped.
    pub(super) mapping: Option<Mapping>,
}

/// A registration, which lets a device access memory while it exists.
pub(crate) type Registration = Box<dyn Any + Send + Sync>;

pub(super) struct Mapping {
    pub(super) registration: OnceLock<Registration>,
    /// Kept by a registration as well.
    pub(super) map: Arc<MmapRaw>,
}

// SAFETY: any thread may use the address while the mapping exists, which this value owns.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; the bytes are accessed through pointers only.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    pub(crate) fn new(map: MmapRaw) -> Arc<Self> {
        let (start, len) = (map.as_mut_ptr(), map.len());
        Arc::new(Self {
            // A mapping never begins at 0.
            start: NonNull::new(start).unwrap_or(NonNull::dangling()),
            len,
            mapping: Some(Mapping { registration: OnceLock::new(), map: Arc::new(map) }),
        })
    }

    /// Returns the address of the first byte. All [`len`](Self::len) bytes are mapped for as long as this exists.
    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn is_registered(&self) -> bool {
        let registration = self.mapping.as_ref().map(|it| &it.registration);
        registration.is_some_and(|registration| registration.get().is_some())
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let registered = self.is_registered();
        let mapping = self.mapping.take();
        if registered {
            // A driver unregisters memory only when everything submitted to the device is done. The last owner of this
            // may be the device's own thread, which must not wait for that. If no thread can be started, it must.
            let unpin = thread::Builder::new().name("transload-unpin".to_owned());
            let _ = unpin.spawn(move || drop(mapping));
        }
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMemory")
            .field("len", &self.len)
            .field("registered", &self.is_registered())
            .finish_non_exhaustive()
    }
}

/// Bytes of shared memory that are lent to an operation, until it drops this.
#[derive(Debug)]
pub(crate) struct Stretch {
    memory: Arc<SharedMemory>,
    range: Range<usize>,
    /// A clone of the lender's token, by which it knows that the bytes are lent.
    lent: Arc<()>,
}

impl Stretch {
    /// Lends bytes. They count as lent while the returned value, and with it a clone of `lent`, exists.
    ///
    /// # Safety
    /// Until then nothing else in this process writes to them, nor reads them if the operation writes to them.
    ///
    /// # Panics
    /// If they do not lie in the memory.
    pub(crate) unsafe fn new(memory: &Arc<SharedMemory>, range: Range<usize>, lent: &Arc<()>) -> Self {
        assert!(range.start <= range.end && range.end <= memory.len());
        Self { memory: memory.clone(), range, lent: lent.clone() }
    }

    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Splits off the first bytes, at most `most`.
    pub(crate) fn split_front(&mut self, most: usize) -> Self {
        let (start, middle) = (self.range.start, self.range.start + self.len().min(most));
        self.range.start = middle;
        Self { memory: self.memory.clone(), range: start..middle, lent: self.lent.clone() }
    }

    /// Returns the address of the first byte. All [`len`](Self::len) bytes may be read and written while this exists.
    pub(crate) fn start(&self) -> NonNull<u8> {
        // SAFETY: the range lies in the mapping.
        unsafe { self.memory.start.add(self.range.start) }
    }

    /// Returns whether a device can access these bytes directly.
    pub(crate) fn is_registered(&self) -> bool {
        self.memory.is_registered()
    }

    /// Copies `bytes` to here, as far as they fit.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let len = self.len().min(bytes.len());
        // SAFETY: the range lies in the mapping, and its lender leaves it alone; `bytes` is private memory.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start().as_ptr(), len) };
    }

    /// Copies bytes from here, as far as they fit. The other process may write to them meanwhile.
    pub(crate) fn get(&self, into: &mut [u8]) {
        let len = self.len().min(into.len());
        // SAFETY: as in `put`.
        unsafe { ptr::copy_nonoverlapping(self.start().as_ptr(), into.as_mut_ptr(), len) };
    }
}
