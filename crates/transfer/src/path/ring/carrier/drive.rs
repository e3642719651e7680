//! Blocking work on one end of a ring, besides async code.

use std::io;
use std::thread;

use tokio::sync::oneshot;

use super::doorbell::Doorbell;

/// Runs blocking work that owns one end of a ring, on a thread of its own, and hangs up when it is done. `doorbell`
/// is that end's.
///
/// A thread of its own, since the work waits for the peer, for as long as the ring lives: from a pool it
/// would take a place away from somebody else, and that somebody may be what the peer waits for.
///
/// # Errors
/// Where no thread is to be had. The end is dropped then, which hangs up.
pub fn drive<R: Send + 'static>(
    doorbell: Doorbell,
    work: impl FnOnce() -> R + Send + 'static,
) -> io::Result<Driven<R>> {
    let (sender, result) = oneshot::channel();
    let work = move || {
        // Nobody may wait for it.
        let _ = sender.send(work());
    };
    thread::Builder::new().name("transload-ring".to_owned()).spawn(work)?;
    Ok(Driven { doorbell, result })
}

/// Work that goes on. When it is dropped, the ring is hung up: the work then ends by its next call on it.
#[derive(Debug)]
#[must_use = "dropped, the work is given up"]
pub struct Driven<R> {
    doorbell: Doorbell,
    result: oneshot::Receiver<R>,
}

impl<R> Driven<R> {
    /// Waits for the result; `None` if the work has panicked. Dropping the future gives the work up.
    pub async fn result(mut self) -> Option<R> {
        (&mut self.result).await.ok()
    }
}

impl<R> Drop for Driven<R> {
    fn drop(&mut self) {
        self.doorbell.hang_up();
    }
}
