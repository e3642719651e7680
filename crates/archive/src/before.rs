//! The wait for what an engine has submitted, before its blocks are touched.

use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use transload_cuda::{DeviceError, Mark};

use crate::{ArchiveError, Permit};

/// How often it is looked whether the permission still stands.
const LOOK: Duration = Duration::from_millis(10);

/// How long a mark is waited for: longer than any step of an engine, and than what a lease may last.
const MOST: Duration = Duration::from_secs(3600);

/// A mark that has to be done before blocks are touched.
#[derive(Debug)]
pub(crate) struct Before {
    mark: Mark,
    done: OnceLock<()>,
}

impl Before {
    pub(crate) fn new(mark: Mark) -> Self {
        Self { mark, done: OnceLock::new() }
    }

    /// Waits until the mark is done, for an hour at most, or the permission is revoked.
    pub(crate) fn wait(&self, permit: &Permit) -> Result<(), ArchiveError> {
        if self.done.get().is_some() {
            return Ok(());
        }
        let (begun, (tell, told)) = (Instant::now(), channel());
        // Nobody listens any more where the permission was revoked.
        self.mark.when_done(move |done| drop(tell.send(done)));
        loop {
            match told.recv_timeout(LOOK) {
                Ok(done) => {
                    done?;
                    let _ = self.done.set(());
                    return Ok(());
                }
                Err(RecvTimeoutError::Timeout) if begun.elapsed() > MOST => {
                    return Err(ArchiveError::NoMark { within: MOST });
                }
                Err(RecvTimeoutError::Timeout) => permit.during(|| Ok(()))?,
                Err(RecvTimeoutError::Disconnected) => return Err(DeviceError::ThreadGone.into()),
            }
        }
    }
}
