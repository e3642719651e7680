//! A fixed set of pieces, made when a GPU is opened. Bytes cross the bus through them; each is lent to one user at a
//! time.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::context::Context;
use crate::error::DeviceError;
use crate::piece::Piece;

/// The most bytes of one piece.
pub const PIECE: usize = 1 << 20;

/// The number of pieces of a GPU: 32 MiB of device memory, and as much pinned memory.
const PIECES: usize = 32;

/// Is notified when a piece becomes free while a request waits for one.
pub(crate) trait Freed: Debug + Send + Sync {
    fn freed(&self);
}

#[derive(Clone, Debug)]
pub(crate) struct Pool {
    free: Arc<Mutex<Free>>,
    worker: Arc<dyn Freed>,
}

#[derive(Debug, Default)]
struct Free {
    pieces: BTreeMap<usize, Piece>,
    /// The number after that of the piece that was taken last.
    next: usize,
    /// Whether a request at the worker waits for a piece.
    awaited: bool,
}

/// A piece in exclusive use: pinned memory, and device memory behind it. Dropping it returns the piece to the pool.
///
/// Its holder must neither wait for another piece nor for a peer.
#[derive(Debug)]
pub struct Held {
    piece: Option<Piece>,
    pool: Pool,
}

impl Pool {
    pub(crate) fn new(context: &Arc<Context>, worker: Arc<dyn Freed>) -> Result<Self, DeviceError> {
        let pieces = Piece::several(context, PIECES, PIECE)?.into_iter();
        let free = Free { pieces: pieces.map(|piece| (piece.number(), piece)).collect(), ..Free::default() };
        Ok(Self { free: Arc::new(Mutex::new(free)), worker })
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free piece at once, unless requests wait for one.
    pub(crate) fn take(&self) -> Option<Held> {
        let mut free = self.free();
        let piece = (!free.awaited).then(|| free.take()).flatten();
        drop(free);
        piece.map(|piece| self.hold(piece))
    }

    /// Takes the first waiting request together with a free piece for it.
    pub(crate) fn serve<W>(&self, waiting: &mut VecDeque<W>) -> Option<(W, Piece)> {
        let mut free = self.free();
        let piece = (!waiting.is_empty()).then(|| free.take()).flatten();
        let served = piece.and_then(|piece| Some((waiting.pop_front()?, piece)));
        free.awaited = !waiting.is_empty();
        served
    }

    pub(crate) fn hold(&self, piece: Piece) -> Held {
        Held { piece: Some(piece), pool: self.clone() }
    }
}

impl Free {
    /// Takes the piece after the one that was taken last, if it is free, so that consecutive requests get neighbours.
    fn take(&mut self) -> Option<Piece> {
        let next = self.pieces.range(self.next..).next();
        let number = *next.or_else(|| self.pieces.iter().next())?.0;
        self.next = number + 1;
        self.pieces.remove(&number)
    }
}

impl Held {
    /// Returns the pinned memory.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.piece.as_mut().map_or(&mut [], Piece::bytes)
    }

    /// Takes the piece out. [`Pool::hold`] puts it under the pool's care again.
    pub(crate) fn take(mut self) -> Option<Piece> {
        self.piece.take()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(piece) = self.piece.take() else {
            return;
        };
        let mut free = self.pool.free();
        free.pieces.insert(piece.number(), piece);
        if free.awaited {
            self.pool.worker.freed();
        }
    }
}
