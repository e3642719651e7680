//! Invited pushes.

use transload_plan::ids::AgentId;

use crate::ids::JobId;

#[derive(Debug)]
pub(super) struct InvitedPush {
    pub(super) job: JobId,
    pub(super) by: AgentId,
    /// The most places that binding all of its routes takes.
    pub(super) places: u64,
}
