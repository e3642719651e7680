//! The data plane: bytes from the memory of one agent to that of another.
//!
//! ```text
//!        source                                                     destination
//!  ┌────────────────┐                                            ┌────────────────┐
//!  │ Outgoing       │   LaneOut ═══ QUIC, one stream a part ═══► │ Receiver       │
//!  │  RouteBytes    │   RingOut ═══ staging ring ═══════════════►│  Arrivals      │
//!  │  open, fence   │                                            │   └► Landing   │
//!  └────────────────┘                                            │      fence     │
//!                                                                └────────────────┘
//! ```
//!
//! It knows nothing of tickets, leases or plans' meaning; the control plane tells it what to do and
//! hears what became of it:
//! - [`RouteBytes`] is one side's half of a route's byte stream, bound to memory and proved to lie in it.
//! - [`Outgoing`] is one transfer at its source. It is cut into parts, one stream each;
//!   [`Outgoing::open`] says which bytes may be read already (a prefill may still compute the rest),
//!   the carriers of the paths ([`path`](crate::path)) send them, [`SendEvents`] tell how that goes.
//! - [`Receiver`] takes streams in. It asks [`Arrivals`] where their bytes go, which gives a
//!   [`Landing`], places them straight out of the network's buffers, and reports whole streams and
//!   broken ones.
//!
//! **What a peer can do.** A stream's header says which bytes it carries, and that is checked against
//! the route before the first is placed; more or fewer bytes than it says, or another CRC32C, fail it.
//! No address comes from a peer. Each byte is placed by this side's own binding.
//!
//! **Fences.** [`Outgoing::fence`] and [`Landing::fence`] may be called at any moment. When they return, no byte of the memory is touched any more on behalf of that transfer, nor
//! ever will be, whatever the peer does.
//!
//! **Threads.** A lane's streams are filled and emptied on the thread that drives its socket: with two
//! cores, one for each end, 512 B chunks move at 0.9 of what bare QUIC does, gather, scatter and
//! checksums included (2.2 against 2.5 GB/s), longer ones at 0.93 and more. Each end of a ring has a thread
//! of its own, since it waits for its peer: so nobody else waits for that peer too. Whoever waits for a turn on a
//! ring leaves as soon as it is fenced.
//!
//! **Memory.** A lane that is sent over has [`DataOptions::buffers`] buffers of
//! [`DataOptions::buffer_bytes`]; a transfer about 300 bytes, 32 for each part, of which there are 2,048
//! at most, and 2 KiB for each lane that carries it; a stream that is received 6 KiB, and with a codec twice a piece besides, and what QUIC
//! keeps for it within the lane's receive window. Nothing waits for a buffer while it holds one that is
//! not on its way, and streams that arrive are left unread only until their route is bound; so transfers cannot block
//! each other for good.

mod ahead;
mod coded;
#[cfg(feature = "cuda")]
mod device;
mod error;
mod fence;
mod intake;
mod landing;
#[cfg(test)]
pub(crate) mod late;
#[cfg_attr(not(any(test, feature = "cuda")), expect(dead_code, reason = "host memory is done when a call returns"))]
mod operation;
mod options;
mod outgoing;
mod part;
mod pool;
mod ranges;
mod receive;
mod region;
mod route_bytes;
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only devices reach it themselves"))]
mod shared;
mod stream;

pub(crate) use coded::Encoder;
pub(crate) use error::BoxError;
pub use error::{ReceiveError, SendError};
pub(crate) use fence::{Fence, Inside};
pub(crate) use intake::Intake;
pub use landing::Landing;
pub(crate) use operation::RegionError;
pub(crate) use operation::{Operation, Operations};
pub use options::DataOptions;
pub use outgoing::{Outgoing, SendEvent, SendEvents};
pub(crate) use part::Part;
pub(crate) use pool::BufferPool;
pub use receive::{Admitted, Arrivals, Receiver};
pub use region::Region;
pub(crate) use region::RegionCursor;
pub use route_bytes::RouteBytes;
pub(crate) use route_bytes::{RouteCursor, RouteError};
pub(crate) use shared::{SharedMemory, Stretch};
pub use stream::InStream;
