//! Setting up the memory of a ring, at both ends.

use std::os::fd::AsFd;
use std::time::Duration;

use tokio::time::timeout;

use super::{receive, send};
use crate::data::{Receiver, SendError};
use crate::path::ring::carrier::handover::{Connection, HandoverError, in_driver};
use crate::path::ring::carrier::slots::{RingShape, ShapeError};
use crate::path::ring::carrier::{RingIn, RingOut};
use transload_cuda::Gpu;
use transload_cuda::internal::shuttle::{Shuttle, Slots};
use transload_plan::ids::AgentId;

/// The time limit for the driver to make a ring's memory: as long as a peer has for a step.
const MADE_WITHIN: Duration = Duration::from_secs(2);

/// The most device memory of a ring that is accepted from a peer.
const MOST_BYTES: u64 = 64 << 20;

/// Returns the shape of its host memory: a page for the record of each slot.
const fn shape(slots: u32) -> Result<RingShape, ShapeError> {
    RingShape::new(slots, 4096)
}

/// Makes a ring on a GPU, hands it over, and returns the sending end. If a peer empties no slot for `stall`, the
/// waiting transfer and the ring fail.
///
/// # Errors
/// [`SendError::Path`].
pub async fn offer(connection: Connection, gpu: &Gpu, stall: Duration) -> Result<RingOut, SendError> {
    let gpu = gpu.clone();
    let making = in_driver(move || Shuttle::create(&gpu, Slots::OF_A_RING));
    let made = timeout(MADE_WITHIN, making).await.map_err(path)?;
    let (shuttle, descriptor) = made.map_err(path)?.map_err(path)?;
    let shape = shape(Slots::OF_A_RING.count).map_err(path)?;
    let producer = connection.offer_with(shape, Some(descriptor)).await;
    send::start(producer.map_err(path)?, shuttle, stall).map_err(path)
}

/// Accepts a ring that `peer` offers on this GPU, with slots of `slot_bytes` bytes, and receives from it. Must be
/// called inside a tokio runtime.
///
/// # Errors
/// [`HandoverError::More`] if its memory is not the GPU's, is too small, or is larger than allowed.
pub async fn accept(
    connection: Connection,
    gpu: &Gpu,
    slot_bytes: u32,
    receiver: Receiver,
    peer: AgentId,
) -> Result<RingIn, HandoverError> {
    let gpu = gpu.clone();
    let taking = connection.accept_with(move |shape, descriptor| {
        let slots = check(shape, slot_bytes)?;
        Shuttle::import(&gpu, slots, descriptor.as_fd()).map_err(|error| error.to_string())
    });
    let (consumer, shuttle) = taking.await?;
    receive::serve(receiver, consumer, shuttle, slot_bytes, peer).map_err(HandoverError::Map)
}

fn path(why: impl std::error::Error + Send + Sync + 'static) -> SendError {
    SendError::Path(why.into())
}

/// Checks the shape that a peer states.
fn check(of: RingShape, slot_bytes: u32) -> Result<Slots, String> {
    let (count, bytes) = (of.slots(), slot_bytes);
    let total = u64::from(count) * u64::from(bytes);
    if shape(count) != Ok(of) || bytes == 0 || !bytes.is_multiple_of(4096) || total > MOST_BYTES {
        return Err(format!("{count} slots of {bytes} bytes: a ring has multiples of 4096, and {MOST_BYTES} at most"));
    }
    Ok(Slots { count, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_of_peers_are_bounded() {
        let of = |slots| shape(slots).unwrap();
        let ours = Slots::OF_A_RING;
        assert_eq!(check(of(ours.count), ours.bytes), Ok(ours));
        for (of, bytes) in [
            (of(4), 0),
            (of(4), 4095),
            (of(4), 4097),
            (of(4), u32::MAX),
            (of(17), 4 << 20),
            (RingShape::DEFAULT, 4 << 20),
        ] {
            assert!(check(of, bytes).is_err(), "{of:?}, {bytes}");
        }
    }
}
