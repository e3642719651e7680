//! The kinds of memory.

use transload::transfer::memory::Memory;

/// Memory of the host, or of a device, of which this file knows nothing.
#[derive(Clone)]
pub(crate) enum Kind<D> {
    Host(Memory),
    Device(D),
}
