//! Starting and joining the threads of GPUs.

use std::cell::Cell;
#[cfg(target_os = "linux")]
use std::num::NonZeroU64;
use std::thread::{self, JoinHandle};

use crate::error::DeviceError;

/// A callback for the outcome of an operation. It runs on one of the GPU's threads, or at once on the caller's, in any
/// order.
pub type Told<T> = Box<dyn FnOnce(Result<T, DeviceError>) + Send>;

thread_local! {
    static OURS: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, DeviceError> {
    let work = move || {
        OURS.set(true);
        work();
    };
    let spawned = thread::Builder::new().name(name).spawn(work);
    spawned.map_err(|error| DeviceError::NoThread { why: error.to_string() })
}

pub(crate) fn is_ours() -> bool {
    OURS.get()
}

/// Joins a thread of a GPU, unless the caller is such a thread itself.
pub(crate) fn join(thread: JoinHandle<()>) {
    if !is_ours() {
        // A panic there is noticed by those whose callbacks were dropped.
        let _ = thread.join();
    }
}

/// Makes this thread's waits end on time. Linux delays each by up to 50 us, to end several at once. A new thread
/// inherits the setting from its parent. This thread starts none, except where the driver does so in a call.
pub(crate) fn on_time() {
    // On failure the thread polls less often, which is harmless.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}
