//! Binding routes to memory.

use crate::agent::metrics::Chunks;
use crate::agent::request::Blocks;
use crate::data::{Region, RegionError, RouteBytes, RouteError};
use transload_layout::Side;
use transload_plan::Plan;
use transload_wire::Flow;

pub(super) type BoundRoute = Result<(RouteBytes, Chunks), Unbound>;

/// The reason why a route could not be bound.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unbound {
    pub(super) why: String,
    /// Whether a stalled device is the reason.
    pub(super) device_stalled: bool,
}

impl<E: ToString> From<E> for Unbound {
    fn from(why: E) -> Self {
        let (why, device_stalled) = (why.to_string(), false);
        Self { why, device_stalled }
    }
}

/// Binds a transfer's bytes to the memory of its rank.
pub(super) fn bind(flow: &Flow, plan: &Plan, side: Side, blocks: &Blocks, memory: &[Region]) -> BoundRoute {
    let (src, dst) = match side {
        Side::Source => (flow.rank, flow.peer_rank),
        Side::Destination => (flow.peer_rank, flow.rank),
    };
    let route = plan.route(src, dst).ok_or_else(|| format!("ranks {src} and {dst} share nothing"))?;
    let tables = plan.arrange(side, blocks)?;
    let stream = plan.bind_stream(route, side, &tables)?;
    let chunks = Chunks::of(&stream);
    let bound = RouteBytes::new(stream, |group| memory.get(plan.group_of(side, group)).cloned());
    let bound = bound.map_err(|error| Unbound {
        device_stalled: matches!(error, RouteError::Region { source: RegionError::Stalled { .. }, .. }),
        ..error.into()
    })?;
    if bound.bytes() != flow.bytes {
        let (found, planned) = (bound.bytes(), flow.bytes);
        return Err(format!("{found} bytes are bound, {planned} were planned").into());
    }
    Ok((bound, chunks))
}
