//! The fence: after it no further slot is handed out, and one can wait for the last to come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;

use super::doorbell::Doorbell;

/// Stops one end of a ring from any thread.
///
/// [`raise`](Self::raise) hangs up: every wait of either side ends, and no further window is given
/// out here. A window that is out at this moment stays valid until it is given back: only when
/// [`quiet`](Self::quiet) has returned can no late byte land in a destination's blocks any more.
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
        self.gate.raise();
    }

    /// Whether it was raised.
    pub fn is_raised(&self) -> bool {
        self.gate.is_fenced()
    }

    /// Raises the fence and waits until no window is out, which then holds for good.
    ///
    /// A window that was leaked counts as out for ever.
    pub async fn quiet(&self) {
        self.raise();
        loop {
            let changed = self.gate.returned.notified();
            if self.gate.state.load(Ordering::SeqCst) & BUSY == 0 {
                return;
            }
            changed.await;
        }
    }
}

const FENCED: u8 = 1;
const BUSY: u8 = 2;

/// The state that an end of a ring shares with its fences.
#[derive(Debug)]
pub(super) struct Gate {
    state: AtomicU8,
    returned: Notify,
    pub(super) doorbell: Doorbell,
}

impl Gate {
    pub(super) fn new(doorbell: Doorbell) -> Self {
        Self {
            state: AtomicU8::new(0),
            returned: Notify::new(),
            doorbell,
        }
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.state.load(Ordering::SeqCst) & FENCED != 0
    }

    pub(super) fn raise(&self) {
        self.state.fetch_or(FENCED, Ordering::SeqCst);
        self.doorbell.hang_up();
    }

    /// Marks a window as out, unless the fence is up.
    pub(super) fn enter(&self) -> bool {
        let before = self.state.fetch_or(BUSY, Ordering::SeqCst);
        if before & FENCED != 0 {
            self.leave();
            return false;
        }
        true
    }

    /// Marks it as back.
    pub(super) fn leave(&self) {
        if self.state.fetch_and(!BUSY, Ordering::SeqCst) & FENCED != 0 {
            self.returned.notify_waiters();
        }
    }
}
