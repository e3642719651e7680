//! The slots that copies to other GPUs pass through.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::context::Context;
use crate::driver;
use crate::error::DeviceError;
use crate::resources::{Buffer, Event, Stream};

/// The most bytes of a piece. NVLink carries them in about 10 us, which is also the time to submit a piece.
pub(crate) const PIECE: u64 = 4 << 20;

/// The number of pieces in flight: 16 MiB on each GPU.
pub(crate) const SLOTS: usize = 4;

/// Slots for copies from a GPU to others, by the ordinal of the other GPU.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<BTreeMap<u32, Arc<Mutex<Direction>>>>);

#[derive(Debug, Default)]
pub(crate) enum Direction {
    #[default]
    Nothing,
    Free(Box<Slots>),
    /// A copy did not finish within this time and still uses the slots. No further slots are made meanwhile, to bound
    /// memory.
    Stalled(Duration),
}

#[derive(Debug)]
pub(crate) struct Slots(pub(crate) [Slot; SLOTS]);

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) source: End,
    pub(crate) destination: End,
}

#[derive(Debug)]
pub(crate) struct End {
    context: Arc<Context>,
    pub(crate) stream: Stream,
    pub(crate) buffer: Buffer,
    /// Recorded after the copy between the devices on the source's side, or after the scatter on the destination's.
    pub(crate) done: Event,
}

impl Peers {
    pub(crate) fn slots(&self, to: u32) -> Arc<Mutex<Direction>> {
        lock(&self.0).entry(to).or_default().clone()
    }
}

impl Slots {
    pub(crate) fn new(source: &Arc<Context>, destination: &Arc<Context>) -> Result<Self, DeviceError> {
        let slot = || Ok::<_, DeviceError>(Slot { source: End::new(source)?, destination: End::new(destination)? });
        Ok(Self([slot()?, slot()?, slot()?, slot()?]))
    }

    /// Waits until all submitted work is done, for `within` at most. Reports a lost device only if the other device is
    /// done.
    pub(crate) fn settle(&self, within: Duration) -> Result<(), DeviceError> {
        let ends = self.0.iter().flat_map(|slot| [&slot.source, &slot.destination]);
        let (mut outcome, begun) = (Ok(()), Instant::now());
        for end in ends {
            // A failed call does not say whether the work is done, and doubtful slots are never used again. So the call
            // is retried once.
            let wait = || end.stream.finish(within.saturating_sub(begun.elapsed()));
            let done = wait().or_else(|_| wait());
            if outcome.is_ok() || done.as_ref().is_err_and(|error| !error.is_lost()) {
                outcome = done;
            }
        }
        outcome
    }
}

impl End {
    fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        Ok(Self {
            context: context.clone(),
            stream: Stream::new(context)?,
            buffer: Buffer::new(context, PIECE as usize)?,
            done: Event::new(context)?,
        })
    }

    pub(crate) fn carry(&self, to: &Self, len: usize) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        // SAFETY: both buffers are long enough and belong to their contexts; they are kept until `settle` has waited.
        let carried = unsafe {
            driver::cuMemcpyPeerAsync(
                to.buffer.address,
                to.context.raw(),
                self.buffer.address,
                self.context.raw(),
                len,
                self.stream.raw,
            )
        };
        self.context.check("cuMemcpyPeerAsync", carried)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
