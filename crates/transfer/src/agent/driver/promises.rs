//! The users that wait for the end of leases, jobs and notices.

use std::collections::{BTreeSet, HashMap};
use std::mem::{ManuallyDrop, take};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime;
use tokio::sync::{mpsc, oneshot};

use crate::agent::error::LeaseEndError;
use crate::agent::outcome::{JobLabel, JobResult, LeaseEnded};
use crate::agent::promise::{CancelOnDrop, Handle, Promise, promise};
use crate::agent::request::Keeper;
use crate::data::Fence;
use transload_plan::ids::AgentId;
use transload_wire::{JobId, LeaseKey, NoticeId, NoticeOutcome};

pub(super) struct Promises {
    leases: HashMap<LeaseKey, Leased>,
    jobs: HashMap<JobId, (Promise<JobResult>, JobLabel)>,
    notices: HashMap<NoticeId, oneshot::Sender<NoticeOutcome>>,
    dropped: mpsc::UnboundedSender<Handle>,
}

struct Leased {
    promise: Promise<LeaseEnded>,
    /// Whether a ticket holder has claimed the lease; shared with the owner's handle.
    claimed: Arc<AtomicBool>,
    /// The agents that have used it. Their connections must stay open, or they would count as lost.
    users: BTreeSet<AgentId>,
}

impl Promises {
    pub(super) fn new(dropped: mpsc::UnboundedSender<Handle>) -> Self {
        Self { leases: HashMap::new(), jobs: HashMap::new(), notices: HashMap::new(), dropped }
    }

    pub(super) fn lease(
        &mut self,
        key: LeaseKey,
        keeper: Option<Keeper>,
        claimed: Arc<AtomicBool>,
    ) -> CancelOnDrop<LeaseEnded> {
        let (promise, outcome) = promise(Handle::Lease(key), keeper, self.dropped.clone());
        let leased = Leased { promise, claimed, users: BTreeSet::new() };
        self.leases.insert(key, leased);
        outcome
    }

    pub(super) fn lease_claimed(&self, key: &LeaseKey) {
        if let Some(leased) = self.leases.get(key) {
            leased.claimed.store(true, Ordering::Relaxed);
        }
    }

    /// Records that a peer uses a lease. Write leases that a pull has opened itself are not recorded here: the machine
    /// wants the pull's agents connected as long as it lasts.
    pub(super) fn lease_used(&mut self, key: &LeaseKey, agent: &AgentId) {
        if let Some(leased) = self.leases.get_mut(key) {
            leased.users.insert(agent.clone());
        }
    }

    pub(super) fn is_user(&self, agent: &AgentId) -> bool {
        let mut leases = self.leases.values();
        leases.any(|leased| leased.users.contains(agent))
    }

    /// Reports that a lease has failed, while its blocks stay held.
    pub(super) fn lease_stalled(&mut self, key: &LeaseKey) {
        if let Some(leased) = self.leases.get_mut(key) {
            leased.promise.tell(Err(LeaseEndError::Stalled));
        }
    }

    pub(super) fn lease_ended(&mut self, key: &LeaseKey) -> Option<Promise<LeaseEnded>> {
        self.leases.remove(key).map(|leased| leased.promise)
    }

    pub(super) fn job(&mut self, id: JobId, keeper: Option<Keeper>, label: JobLabel) -> CancelOnDrop<JobResult> {
        let (promise, result) = promise(Handle::Job(id), keeper, self.dropped.clone());
        self.jobs.insert(id, (promise, label));
        result
    }

    /// Returns the promise of a job that has failed, while its blocks stay held.
    pub(super) fn job_stalled(&mut self, id: JobId) -> Option<&mut (Promise<JobResult>, JobLabel)> {
        self.jobs.get_mut(&id)
    }

    pub(super) fn job_done(&mut self, id: JobId) -> Option<(Promise<JobResult>, JobLabel)> {
        self.jobs.remove(&id)
    }

    pub(super) fn notice(&mut self, notice: NoticeId) -> oneshot::Receiver<NoticeOutcome> {
        let (sender, outcome) = oneshot::channel();
        self.notices.insert(notice, sender);
        outcome
    }

    pub(super) fn notice_done(&mut self, notice: NoticeId, outcome: NoticeOutcome) {
        if let Some(waiting) = self.notices.remove(&notice) {
            // The user may have stopped waiting.
            let _ = waiting.send(outcome);
        }
    }

    /// Fences everything that touches blocks, and then drops the promises, which tells the users that the agent is
    /// gone. They are dropped only when nothing touches the blocks any more. If that cannot be awaited, the promises
    /// are leaked and the users are not told.
    pub(super) fn abandon(&mut self, touching: Vec<Fence>) {
        if touching.is_empty() {
            return;
        }
        touching.iter().for_each(Fence::raise);
        // Leaked if the future below does not run to its end.
        let promises = ManuallyDrop::new((take(&mut self.leases), take(&mut self.jobs)));
        let breaking = async move {
            for fence in touching {
                fence.quiet().await;
            }
            drop(ManuallyDrop::into_inner(promises));
        };
        if let Ok(runtime) = runtime::Handle::try_current() {
            runtime.spawn(breaking);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;
    use crate::data::{Landing, RouteBytes};
    use transload_layout::Rank;
    use transload_plan::RouteStream;
    use transload_plan::ids::LeaseSetId;

    fn landing() -> Landing {
        let nothing = RouteStream::default();
        Landing::new(RouteBytes::new(nothing, |_| None).unwrap())
    }

    fn promised(keeper: Option<Keeper>) -> (Promises, CancelOnDrop<LeaseEnded>) {
        let mut promises = Promises::new(mpsc::unbounded_channel().0);
        let (set, rank) = (LeaseSetId([1; 16]), Rank(0));
        let outcome = promises.lease(LeaseKey { set, rank }, keeper, Arc::default());
        (promises, outcome)
    }

    #[tokio::test]
    async fn are_not_broken_while_blocks_are_touched() {
        let landings = [landing(), landing()];
        let inside = landings.each_ref().map(|landing| landing.enter().unwrap());
        let keeper: Keeper = Arc::new(());
        let weak = Arc::downgrade(&keeper);
        let (mut promises, outcome) = promised(Some(keeper));
        let end = tokio::spawn(outcome.end());
        promises.abandon(landings.map(|landing| landing.own_fence().clone()).into());
        for inside in inside {
            let interrupted = inside.unless_raised(std::future::pending::<()>());
            assert_eq!(interrupted.await, None, "all are told to stop at once");
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            assert!(!end.is_finished());
            assert!(weak.upgrade().is_some());
        }
        end.await.unwrap().unwrap_err();
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn are_never_broken_where_nobody_can_wait() {
        let landing = landing();
        let _inside = landing.enter().unwrap();
        let (mut promises, outcome) = promised(None);
        promises.abandon(vec![landing.own_fence().clone()]);
        let mut end = pin!(outcome.end());
        let mut context = Context::from_waker(Waker::noop());
        assert!(end.as_mut().poll(&mut context).is_pending());
    }
}
