//! The data plane.

mod fence;
mod intake;
mod landing;
mod lane_out;
mod options;
mod outgoing;
mod part;
mod pool;
mod ranges;
mod receive;
#[cfg(feature = "local")]
mod ring_in;
#[cfg(feature = "local")]
mod ring_out;
mod route_bytes;
#[cfg(feature = "local")]
mod shared;
mod stop;

pub use landing::Landing;
pub use lane_out::LaneOut;
pub use options::DataOptions;
pub use outgoing::{Outgoing, SendError, SendEvent, SendEvents};
pub use receive::{Arrivals, ReceiveError, Receiver};
#[cfg(feature = "local")]
pub use ring_in::RingIn;
#[cfg(feature = "local")]
pub use ring_out::RingOut;
pub use route_bytes::{RouteBytes, RouteCursor, RouteError};
#[cfg(feature = "local")]
pub use shared::{SharedCopy, SharedCopyError, SharedRoute};
