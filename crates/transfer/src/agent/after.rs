//! A lease or a transfer may have to wait for somebody else before it touches its blocks.

use std::future::Future;

use tokio::sync::watch;

/// A lease or a transfer waits for this before it reads or writes its blocks: for nothing, or for work whose end somebody else
/// tells.
///
/// An engine hands its blocks over when it has *submitted* what computes them, or what reads them for the last time; a GPU does
/// that later. Until it is done, nothing of a lease or a transfer that is given this touches the blocks. Nobody else waits for
/// it; a lease may expire and a pull be cancelled meanwhile.
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

/// Whether it was done, or why that will never be known.
type Outcome = Result<(), String>;

impl After {
    /// Something that is done when a function is called, on any thread. If that is dropped instead, what waits fails.
    pub fn told() -> (Self, impl FnOnce(Result<(), String>) + Send + 'static) {
        let (sender, receiver) = watch::channel(None);
        let tell = move |outcome| {
            sender.send_replace(Some(outcome));
        };
        (Self(Some(receiver)), tell)
    }

    /// Whether it is done already, or nothing at all.
    pub fn is_done(&self) -> bool {
        self.0.as_ref().is_none_or(|told| *told.borrow() == Some(Ok(())))
    }

    /// Waits until it is done.
    ///
    /// # Errors
    /// Why it will never be done, or nobody can tell.
    pub fn done(&self) -> impl Future<Output = Result<(), String>> + Send + 'static {
        let receiver = self.0.clone();
        async move {
            let Some(mut receiver) = receiver else {
                return Ok(());
            };
            let told = receiver.wait_for(Option::is_some).await;
            let lost = || Err("nobody tells any more whether its memory may be touched".to_owned());
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
