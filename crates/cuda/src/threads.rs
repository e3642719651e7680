//! How the threads of a GPU begin and end.

use std::cell::Cell;
#[cfg(target_os = "linux")]
use std::num::NonZeroU64;
use std::thread::{self, JoinHandle};

use crate::error::DeviceError;

thread_local! {
    /// Whether this thread is one of a GPU's.
    static OURS: Cell<bool> = const { Cell::new(false) };
}

/// Starts a thread of a GPU.
pub(crate) fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, DeviceError> {
    let work = move || {
        OURS.set(true);
        work();
    };
    let spawned = thread::Builder::new().name(name).spawn(work);
    spawned.map_err(|error| DeviceError::NoThread { why: error.to_string() })
}

/// Whether this thread is one of a GPU's, of whichever.
pub(crate) fn is_ours() -> bool {
    OURS.get()
}

/// Waits for the end of a thread of a GPU, unless it is one of them that asks.
pub(crate) fn join(thread: JoinHandle<()>) {
    if !is_ours() {
        // Whoever waits for one that has panicked hears of that.
        let _ = thread.join();
    }
}

/// Has this thread's waits end when they are to. Linux adds 50 us to each, so that it can end several at once. Threads inherit that
/// from the one that starts them: this one starts none, but a driver that did so in a call would have its threads' waits end so, too.
pub(crate) fn on_time() {
    // Without that it is asked less often, which harms nothing.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}
