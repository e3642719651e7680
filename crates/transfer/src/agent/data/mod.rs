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
mod route_bytes;
mod stop;

pub use landing::Landing;
pub use lane_out::LaneOut;
pub use options::DataOptions;
pub use outgoing::{Outgoing, SendError, SendEvent, SendEvents};
pub use receive::{Arrivals, ReceiveError, Receiver};
pub use route_bytes::{RouteBytes, RouteCursor, RouteError};
