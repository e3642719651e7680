//! Blocking work on one end of a ring, besides async code.

use std::io;
use std::thread;

use tokio::sync::oneshot;

use super::fence::Fence;
use super::staging::End;

/// Runs blocking work on one end of a ring, on a thread of its own, and hangs up when it is done.
///
/// A thread of its own, since the work waits for the peer, for as long as the ring lives: from a pool it
/// would take a place away from somebody else, and that somebody may be what the peer waits for.
///
/// # Errors
/// Where no thread is to be had. The end is dropped then, which hangs up.
pub fn drive<E, R>(
    mut end: E,
    work: impl FnOnce(&mut E) -> R + Send + 'static,
) -> io::Result<Driven<R>>
where
    E: End + Send + 'static,
    R: Send + 'static,
{
    let fence = end.fence();
    let (sender, result) = oneshot::channel();
    let work = move || {
        let result = work(&mut end);
        drop(end);
        // Nobody may wait for it.
        let _ = sender.send(result);
    };
    thread::Builder::new()
        .name("transload-ring".to_owned())
        .spawn(work)?;
    Ok(Driven { fence, result })
}

/// Work that goes on. When it is dropped, the fence is raised: the work then ends by its next call on the ring.
#[derive(Debug)]
#[must_use = "dropped, the work is given up"]
pub struct Driven<R> {
    fence: Fence,
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
        self.fence.raise();
    }
}
