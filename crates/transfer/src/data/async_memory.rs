//! Memory that works asynchronously: it returns an [`Operation`], which holds up the fence of its transfer until it is
//! done.

use std::{any::Any, fmt::Debug, ops::Range, ptr::NonNull, sync::Arc};

use tokio::sync::watch;

use super::{
    fence::Inside,
    operation::{Operation, RegionError},
    shared::{Registration, Stretch},
};
use transload_plan::program::StreamProgram;

/// Memory that works asynchronously: operations continue after the call returns.
pub(crate) trait AsyncMemory: Any + Debug + Send + Sync {
    /// Returns the length of each allocation in bytes.
    fn extents(&self) -> Vec<u64>;

    /// Returns the ordinal of the GPU that holds it, if any.
    fn device(&self) -> Option<u32> {
        None
    }

    /// Lays a program over it.
    fn bind(&self, program: StreamProgram) -> Result<Arc<dyn AsyncStream>, RegionError>;

    /// Returns a channel that becomes true, for good, when the memory is lost.
    fn lost(&self) -> watch::Receiver<bool>;

    /// Registers host memory so that its device can access it, until the result is dropped.
    ///
    /// # Safety
    /// The bytes stay valid for as long as `mapping` exists.
    unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        mapping: Arc<dyn Any + Send + Sync>,
    ) -> Result<Registration, RegionError>;
}

/// A program laid over such memory. Ranges are positions in the program's stream.
pub(crate) trait AsyncStream: Any + Debug + Send + Sync {
    fn bytes(&self) -> u64;

    /// Gathers at most [`WINDOW`](super::async_cursor::WINDOW) bytes. The returned buffer is `into`, and contains just them.
    fn gather(&self, range: Range<u64>, into: Vec<u8>, inside: &Inside) -> Operation<Vec<u8>>;

    /// Requests room for bytes that are to be scattered. Rooms are few, so its holder must wait neither for another one
    /// nor for a peer.
    fn room(&self, inside: &Inside) -> Operation<Box<dyn Room>>;

    /// Gathers bytes from a position on until the shared memory is full. The memory is released before the operation is
    /// done.
    fn gather_into(&self, position: u64, into: Stretch, inside: &Inside) -> Operation<()>;

    /// Scatters the bytes of shared memory from a position on. The memory is released before the operation is done.
    fn scatter_from(&self, position: u64, from: Stretch, inside: &Inside) -> Operation<()>;
}

/// Host memory through which bytes pass on their way to a stream.
pub(crate) trait Room: Debug + Send {
    fn bytes(&mut self) -> &mut [u8];

    /// Scatters its first `len` bytes from a position on.
    fn scatter(self: Box<Self>, position: u64, len: usize, inside: &Inside) -> Operation<()>;
}
