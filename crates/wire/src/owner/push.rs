//! Pushes that were invited.

use transload_plan::ids::AgentId;

use crate::ids::JobId;

/// A push that was invited.
#[derive(Debug)]
pub(super) struct InvitedPush {
    pub(super) job: JobId,
    /// Whose invitation came first.
    pub(super) by: AgentId,
    /// The most places that binding all its routes takes.
    pub(super) places: u64,
}
