//! The fence of a ring: it ends every wait for the peer, from any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::doorbell::Doorbell;

/// Stops one end of a ring from any thread.
///
/// [`raise`](Self::raise) hangs up: every wait of either side ends, and no further window is given
/// out here. A window that is out at this moment stays valid until it is given back; whoever has it is inside of
/// the fence of a transfer, which waits for that.
#[derive(Clone, Debug)]
pub struct Fence {
    gate: Arc<Gate>,
}

impl Fence {
    pub(super) fn new(gate: Arc<Gate>) -> Self {
        Self { gate }
    }

    /// Ends the use of this ring for good. Idempotent; returns at once.
    pub fn raise(&self) {
        self.gate.fenced.store(true, Ordering::SeqCst);
        self.gate.doorbell.hang_up();
    }

    /// Whether it was raised.
    pub fn is_raised(&self) -> bool {
        self.gate.is_fenced()
    }
}

/// The state that an end of a ring shares with its fences.
#[derive(Debug)]
pub(super) struct Gate {
    fenced: AtomicBool,
    pub(super) doorbell: Doorbell,
}

impl Gate {
    pub(super) fn new(doorbell: Doorbell) -> Self {
        Self {
            fenced: AtomicBool::new(false),
            doorbell,
        }
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::SeqCst)
    }
}
