//! The pieces that bytes cross the bus through: made when a GPU is opened, lent to one at a time, and never more of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::context::Context;
use crate::error::DeviceError;
use crate::queue::{Task, hand};
use crate::staging::Piece;

/// The most bytes of one piece.
pub const PIECE: usize = 1 << 20;

/// How many pieces are under way at a time: 32 MiB of device memory, and as much pinned memory.
const PIECES: usize = 32;

/// Where pieces come from and go back to. Clones are the same place.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    free: Arc<Mutex<Free>>,
    /// Whoever waits for one hears there that one is free.
    tasks: Sender<Task>,
}

/// The pieces that nobody uses.
#[derive(Debug, Default)]
struct Free {
    /// By their numbers.
    pieces: BTreeMap<usize, Piece>,
    /// Behind the one that was taken last.
    next: usize,
    /// Whether somebody has asked the worker for one, and has none yet.
    awaited: bool,
}

/// A piece that nobody else uses: pinned memory, and device memory behind it. Free for others once it is dropped.
///
/// Whoever holds one must not wait for another, nor for a peer.
#[derive(Debug)]
pub struct Held {
    piece: Option<Piece>,
    pool: Pool,
}

impl Pool {
    pub(crate) fn new(context: &Arc<Context>, tasks: Sender<Task>) -> Result<Self, DeviceError> {
        let pieces = Piece::several(context, PIECES, PIECE)?.into_iter();
        let free = Free { pieces: pieces.map(|piece| (piece.number(), piece)).collect(), ..Free::default() };
        Ok(Self { free: Arc::new(Mutex::new(free)), tasks })
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a piece at once, unless others wait for one.
    pub(crate) fn take(&self) -> Option<Held> {
        let mut free = self.free();
        let piece = (!free.awaited).then(|| free.take()).flatten();
        drop(free);
        piece.map(|piece| self.hold(piece))
    }

    /// Takes the first of those who wait for a piece, if there is one for it.
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
    /// Takes the next neighbour of the one that was taken last if it is there, so that who takes several has neighbours.
    fn take(&mut self) -> Option<Piece> {
        let next = self.pieces.range(self.next..).next();
        let number = *next.or_else(|| self.pieces.iter().next())?.0;
        self.next = number + 1;
        self.pieces.remove(&number)
    }
}

impl Held {
    /// The pinned memory.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.piece.as_mut().map_or(&mut [], Piece::bytes)
    }

    /// Takes the piece, which [`Pool::hold`] makes one of the pool's again.
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
            hand(&self.pool.tasks, Task::Freed);
        }
    }
}
