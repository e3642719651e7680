//! Blocking work on one end of a ring, beside async code.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::thread;

use tokio::sync::oneshot;

use super::fence::Fence;
use super::staging::End;

/// Runs blocking work on one end of a ring, on a thread of its own, and gives the end back beside the
/// result.
///
/// A thread of its own, since the work waits for the peer, for as long as the ring lives: from a pool it
/// would take a place away from somebody else, and that somebody may be what the peer waits for.
///
/// # Errors
/// Where no thread is to be had. The end is dropped then, which hangs up.
pub fn drive<E, R>(
    mut end: E,
    work: impl FnOnce(&mut E) -> R + Send + 'static,
) -> io::Result<Driven<E, R>>
where
    E: End + Send + 'static,
    R: Send + 'static,
{
    let fence = end.fence();
    let (sender, done) = oneshot::channel();
    let work = move || {
        let result = work(&mut end);
        // The end goes here where nobody waits for it.
        let _ = sender.send((end, result));
    };
    let thread = thread::Builder::new()
        .name("transload-ring".to_owned())
        .spawn(work)?;
    Ok(Driven {
        fence,
        done,
        thread: Some(thread),
    })
}

/// Work that goes on. Await it for the end and the result; panics of the work go on there.
///
/// When it is dropped before, the fence is raised: the work then ends by its next call on the ring.
#[must_use = "dropped, the work is given up"]
pub struct Driven<E, R> {
    fence: Fence,
    done: oneshot::Receiver<(E, R)>,
    /// `None` once it has ended.
    thread: Option<thread::JoinHandle<()>>,
}

impl<E, R> Future for Driven<E, R> {
    type Output = (E, R);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(E, R)> {
        let done = ready!(Pin::new(&mut self.done).poll(cx));
        // Either way there is nothing left for it to do, so this does not wait.
        let ended = self.thread.take().map(thread::JoinHandle::join);
        match (done, ended) {
            (Ok(done), _) => Poll::Ready(done),
            (Err(_), Some(Err(panic))) => std::panic::resume_unwind(panic),
            // Cannot be: it sends before it ends.
            (Err(_), _) => Poll::Pending,
        }
    }
}

impl<E, R> fmt::Debug for Driven<E, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driven")
            .field("fence", &self.fence)
            .field("thread", &self.thread)
            .finish_non_exhaustive()
    }
}

impl<E, R> Drop for Driven<E, R> {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.fence.raise();
        }
    }
}
