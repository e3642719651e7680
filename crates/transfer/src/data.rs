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
//! It knows nothing of tickets, leases or the meaning of plans. The control plane tells it what to do, and gets
//! reports:
//! - [`RouteBytes`] is one side's half of a route's byte stream, bound to memory and proved to lie in it.
//! - [`Outgoing`] is a transfer at its source. It is cut into parts, one stream each. [`Outgoing::open`] says which
//!   bytes may be read already, since a prefill may still compute the rest. The carriers of the paths
//!   ([`path`](crate::path)) send the parts, and [`SendEvents`] report their progress.
//! - [`Receiver`] accepts streams. It asks [`Arrivals`] for the [`Landing`] of a stream, places the bytes straight out
//!   of the network's buffers, and reports complete and broken streams.
//!
//! **What a peer can do.** A stream's header says which bytes it carries. That is checked against the route before the
//! first byte is placed; a wrong number of bytes or a wrong CRC32C fails the transfer. No address comes from a peer:
//! this side's own binding places each byte.
//!
//! **Fences.** [`Outgoing::fence`] and [`Landing::fence`] may be called at any moment. When they return, no byte of the
//! memory is touched on behalf of that transfer any more, whatever the peer does.
//!
//! **Threads.** A lane's streams are filled and emptied on the thread that drives its socket. With two cores, one for
//! each end, chunks of 512 B move at 0.9 of the speed of plain QUIC, including gather, scatter and checksums (2.2
//! instead of 2.5 GB/s); longer chunks at 0.93 or more. Each end of a ring has its own thread, since it waits for its
//! peer, and nothing else should. A transfer that waits for its turn on a ring leaves as soon as it is fenced.
//!
//! **Memory.** A lane for sending has [`DataOptions::buffers`] buffers of [`DataOptions::buffer_bytes`]. A transfer
//! takes about 300 bytes, 32 for each of its at most 2,048 parts, and 2 KiB for each lane that carries it. A received
//! stream takes 6 KiB, what QUIC buffers for it within the lane's receive window, and with a codec twice a piece. No
//! task waits for a buffer while it holds one that is not being sent, and arriving streams are left unread only until
//! their route is bound; so transfers cannot block each other for good.

mod async_cursor;
mod async_memory;
mod coded;
#[cfg(test)]
pub(crate) mod delayed;
#[cfg(feature = "cuda")]
mod device;
mod error;
mod fence;
mod intake;
mod landing;
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
