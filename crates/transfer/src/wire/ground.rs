//! What leases and jobs stand on: peers, transfers and paths.

use super::context::Context;
use super::flows::Flows;
use super::paths::Paths;
use super::peers::Peers;
use super::planner::Planner;

/// The parts below leases and jobs, for as long as one of those works with them.
pub(super) struct Ground<'a, P: Planner> {
    pub(super) cx: &'a mut Context<P>,
    pub(super) peers: &'a mut Peers,
    pub(super) flows: &'a mut Flows<P>,
    pub(super) paths: &'a mut Paths,
}
