//! The parts that leases and jobs build on: peers, transfers and paths.

use crate::context::Context;
use crate::flows::Flows;
use crate::paths::Paths;
use crate::peers::Peers;
use crate::planner::Planner;

/// Access to the parts below leases and jobs, for the duration of a call.
pub(crate) struct Ground<'a, P: Planner> {
    pub(crate) cx: &'a mut Context<P>,
    pub(crate) peers: &'a mut Peers,
    pub(crate) flows: &'a mut Flows<P>,
    pub(crate) paths: &'a mut Paths,
}
