//! The fence of a ring: it ends every wait for the peer, from any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::doorbell::Doorbell;

/// Stops one end of a ring from any thread. Clones are the same fence.
///
/// [`raise`](Self::raise) hangs up: every wait of either side ends, and no further window is given
/// out here. A window that is out at this moment stays valid until it is given back; whoever has it is inside of
/// the fence of a transfer, which waits for that.
#[derive(Clone, Debug)]
pub struct Fence {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    raised: AtomicBool,
    doorbell: Doorbell,
}

impl Fence {
    pub(super) fn new(doorbell: Doorbell) -> Self {
        let raised = AtomicBool::new(false);
        Self {
            state: Arc::new(State { raised, doorbell }),
        }
    }

    /// Ends the use of this ring for good. Idempotent; returns at once.
    pub fn raise(&self) {
        self.state.raised.store(true, Ordering::SeqCst);
        self.state.doorbell.hang_up();
    }

    /// Whether it was raised.
    pub fn is_raised(&self) -> bool {
        self.state.raised.load(Ordering::SeqCst)
    }

    pub(super) fn doorbell(&self) -> &Doorbell {
        &self.state.doorbell
    }
}
