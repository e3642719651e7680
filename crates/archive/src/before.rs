//! Waiting for the work that an engine has submitted, before its blocks are touched.

use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use transload_cuda::{DeviceError, Mark};

use crate::{ArchiveError, Permit};

const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The longest wait for a mark. It exceeds any step of an engine and any lease.
const TIMEOUT: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(crate) struct Before {
    mark: Mark,
    done: OnceLock<()>,
}

impl Before {
    pub(crate) fn new(mark: Mark) -> Self {
        Self { mark, done: OnceLock::new() }
    }

    /// Waits until the mark is reached. Fails after an hour, or when the permit is revoked.
    pub(crate) fn wait(&self, permit: &Permit) -> Result<(), ArchiveError> {
        if self.done.get().is_some() {
            return Ok(());
        }
        let (begun, (sender, receiver)) = (Instant::now(), channel());
        // The receiver may be gone, because the permit was revoked.
        self.mark.when_done(move |done| drop(sender.send(done)));
        loop {
            match receiver.recv_timeout(CHECK_INTERVAL) {
                Ok(done) => {
                    done?;
                    let _ = self.done.set(());
                    return Ok(());
                }
                Err(RecvTimeoutError::Timeout) if begun.elapsed() > TIMEOUT => {
                    return Err(ArchiveError::NoMark { within: TIMEOUT });
                }
                Err(RecvTimeoutError::Timeout) => permit.during(|| Ok(()))?,
                Err(RecvTimeoutError::Disconnected) => return Err(DeviceError::ThreadGone.into()),
            }
        }
    }
}
