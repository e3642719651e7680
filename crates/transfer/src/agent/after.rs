//! Work of an engine that a lease or a transfer waits for before it touches its blocks.

use std::future::Future;

use tokio::sync::watch;

/// A condition for a lease or a transfer: work that must be done before it reads or writes its blocks. By default there
/// is none.
///
/// An engine hands over its blocks when it has *submitted* the work that computes them, or that reads them for the last
/// time; a GPU does that work later. Until it is done, a lease or a transfer with this condition does not touch the
/// blocks. Other leases and transfers do not wait for it. Meanwhile the lease may expire, and a pull may be cancelled.
///
/// ```
/// use transload_transfer::After;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let (after, tell) = After::told();
/// std::thread::spawn(move || tell(Ok(())));
/// assert_eq!(after.done().await, Ok(()));
/// # });
/// ```
#[derive(Clone, Debug, Default)]
pub struct After(Option<watch::Receiver<Option<Outcome>>>);

/// Success, or the reason why the end of the work cannot be known.
type Outcome = Result<(), String>;

impl After {
    /// Returns a condition that is met when the returned function is called with `Ok`, on any thread. If the function
    /// is dropped instead, whatever waits for it fails.
    pub fn told() -> (Self, impl FnOnce(Result<(), String>) + Send + 'static) {
        let (sender, receiver) = watch::channel(None);
        let tell = move |outcome| {
            sender.send_replace(Some(outcome));
        };
        (Self(Some(receiver)), tell)
    }

    /// Returns whether the condition is met, or there is none.
    pub fn is_done(&self) -> bool {
        self.0.as_ref().is_none_or(|told| *told.borrow() == Some(Ok(())))
    }

    /// Waits until the condition is met.
    ///
    /// # Errors
    /// The reason why it never will be.
    pub fn done(&self) -> impl Future<Output = Result<(), String>> + Send + 'static {
        let receiver = self.0.clone();
        async move {
            let Some(mut receiver) = receiver else {
                return Ok(());
            };
            let told = receiver.wait_for(Option::is_some).await;
            let lost = || Err("the sender was dropped that would report when the memory may be touched".to_owned());
            told.ok().and_then(|outcome| outcome.clone()).unwrap_or_else(lost)
        }
    }
}

#[cfg(feature = "cuda")]
impl From<transload_cuda::Mark> for After {
    fn from(mark: transload_cuda::Mark) -> Self {
        let (after, tell) = Self::told();
        mark.when_done(move |done| tell(done.map_err(|error| error.to_string())));
        after
    }
}
