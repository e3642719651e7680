//! Blocking work on one end of a ring, controlled from async code.

use std::io;
use std::thread;

use tokio::sync::oneshot;

use super::doorbell::Doorbell;

/// Runs blocking work that owns one end of a ring, on a separate thread, and hangs up when it is done. `doorbell`
/// belongs to that end.
///
/// The work waits for the peer for as long as the ring exists. On a thread pool it would take the place of other work,
/// for which the peer may in turn be waiting.
///
/// # Errors
/// No thread could be started. The end is dropped then, which hangs up.
pub fn drive<R: Send + 'static>(
    doorbell: Doorbell,
    work: impl FnOnce() -> R + Send + 'static,
) -> io::Result<Driven<R>> {
    let (sender, result) = oneshot::channel();
    let work = move || {
        // The result may not be wanted.
        let _ = sender.send(work());
    };
    thread::Builder::new().name("transload-ring".to_owned()).spawn(work)?;
    Ok(Driven { doorbell, result })
}

/// Work in progress. Dropping this hangs up the ring, and the work ends at its next call on it.
#[derive(Debug)]
#[must_use = "dropped, the work is given up"]
pub struct Driven<R> {
    doorbell: Doorbell,
    result: oneshot::Receiver<R>,
}

impl<R> Driven<R> {
    /// Waits for the result. Returns `None` if the work has panicked. Dropping the future gives the work up.
    pub async fn result(mut self) -> Option<R> {
        (&mut self.result).await.ok()
    }
}

impl<R> Drop for Driven<R> {
    fn drop(&mut self) {
        self.doorbell.hang_up();
    }
}
