//! Host memory that another process has mapped too, where a path has bytes on their way.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};
use std::thread;

use memmap2::MmapRaw;

use super::operation::RegionError;
use super::region::Region;

/// Memory of a path, which a device may gather into and scatter from where it is registered with the device's driver.
///
/// The other process can read and write it at any time, so its bytes are reached by pointers only.
pub(crate) struct SharedMemory {
    start: NonNull<u8>,
    len: usize,
    /// `None` only while this is being dropped.
    mapping: Option<Mapping>,
}

/// What a device needs to reach memory, for as long as it is there.
pub(crate) type Registration = Box<dyn Any + Send + Sync>;

struct Mapping {
    registration: OnceLock<Registration>,
    /// A registration keeps it as well.
    map: Arc<MmapRaw>,
}

// SAFETY: an address that any thread may use while the mapping is there, which is this one's.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; what is there is reached by pointers only.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    pub(crate) fn new(map: MmapRaw) -> Arc<Self> {
        let (start, len) = (map.as_mut_ptr(), map.len());
        Arc::new(Self {
            // No mapping begins at 0.
            start: NonNull::new(start).unwrap_or(NonNull::dangling()),
            len,
            mapping: Some(Mapping { registration: OnceLock::new(), map: Arc::new(map) }),
        })
    }

    /// The first byte. All [`len`](Self::len) are mapped for as long as this is there.
    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Has it registered with the driver of the first of these regions that lies on a device and whose driver takes it: once,
    /// for all devices. Takes as long as it takes to pin every page.
    ///
    /// # Errors
    /// The first driver's, where none takes it. Bytes then go through buffers of the device's own.
    pub(crate) fn register(&self, regions: &[Region]) -> Result<(), RegionError> {
        let Some(mapping) = &self.mapping else {
            return Ok(());
        };
        let mut refused = Ok(());
        for region in regions {
            // SAFETY: the bytes are the mapping's.
            match unsafe { region.register(self.start, self.len, mapping.map.clone()) } {
                Some(Ok(registration)) => {
                    let _ = mapping.registration.set(registration);
                    return Ok(());
                }
                Some(Err(error)) => refused = refused.and(Err(error)),
                None => {}
            }
        }
        refused
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
            // A driver may take it back only when all is done that was submitted to the device. The last who had this may be
            // the device's own thread, which must not wait for that. Where there is no thread, it has to.
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

/// Bytes of such memory that are lent to an operation, until it drops this.
#[derive(Debug)]
pub(crate) struct Stretch {
    memory: Arc<SharedMemory>,
    range: Range<usize>,
    /// Tells who has lent it that it is out.
    lent: Arc<()>,
}

impl Stretch {
    /// Lends bytes; they are out for as long as there is a clone of `lent` more than there was.
    ///
    /// # Safety
    /// Until then nothing else in this process writes to them, nor reads them if this is to be written to.
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

    /// Takes the first bytes off, so many at most.
    pub(crate) fn split_front(&mut self, most: usize) -> Self {
        let (start, middle) = (self.range.start, self.range.start + self.len().min(most));
        self.range.start = middle;
        Self { memory: self.memory.clone(), range: start..middle, lent: self.lent.clone() }
    }

    /// The first byte. All [`len`](Self::len) may be read and written while this is there.
    pub(crate) fn start(&self) -> NonNull<u8> {
        // SAFETY: the range lies in the mapping.
        unsafe { self.memory.start.add(self.range.start) }
    }

    /// Whether a device reaches these bytes itself.
    pub(crate) fn is_registered(&self) -> bool {
        self.memory.is_registered()
    }

    /// Copies as many bytes to here.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let len = self.len().min(bytes.len());
        // SAFETY: they lie in the mapping, and are left alone by whoever has lent them; `bytes` is private memory.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start().as_ptr(), len) };
    }

    /// Copies as many bytes from here. The other process may write to them meanwhile.
    pub(crate) fn get(&self, into: &mut [u8]) {
        let len = self.len().min(into.len());
        // SAFETY: as in `put`.
        unsafe { ptr::copy_nonoverlapping(self.start().as_ptr(), into.as_mut_ptr(), len) };
    }
}
