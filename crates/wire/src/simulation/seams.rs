//! The places where worlds break rules around their machines: in what agents report, and what is sent.

use transload_plan::ids::TransferId;

use super::faults::Fault;
use super::state::Reading;
use super::world::World;
use crate::event::Why;
use crate::message::{Ask, Message, NoticeKind};
use crate::refusal::Failure;
use crate::{BlocksOf, ConnId};

impl World {
    /// Returns whether the fence of a transfer is reported although its streams continue.
    pub(super) fn fences_at_once(&self, n: usize, transfer: TransferId) -> bool {
        let machine = self.nodes[n].machine.as_ref();
        let Some(t) = machine.and_then(|machine| machine.flows.get(transfer)) else {
            return false;
        };
        let of_lease = matches!(t.flow.blocks, BlocksOf::Lease(_));
        let ends = match t.why() {
            Some(Why::Failed(failure)) => failure.is_final(),
            _ => true,
        };
        match self.fault {
            Some(Fault::EndLeaseBeforeFence) => of_lease && ends,
            Some(Fault::GiveBackBeforeFence) => !of_lease && ends,
            Some(Fault::RetryBeforeFence) => !ends,
            _ => false,
        }
    }

    pub(super) fn tamper(&mut self, n: usize, message: Message) -> Option<Message> {
        match (self.fault, message) {
            (Some(Fault::CommitWithoutLease), Message::Abort { transfer, failure: Failure::LeaseEnded { .. } })
                if self.is_gathered(n, transfer) =>
            {
                Some(self.commit_of(n, transfer)?)
            }
            (Some(Fault::AnyContent), Message::Pull(ask)) => Some(Message::Pull(self.agree(ask))),
            (Some(Fault::AnyContent), Message::Push(ask)) => Some(Message::Push(self.agree(ask))),
            (Some(Fault::NoticeOnlyFirst), Message::Notice(notice))
                if matches!(notice.says, NoticeKind::Done { .. }) =>
            {
                let first = self.told.0.insert((n, notice.id));
                first.then_some(Message::Notice(notice))
            }
            (_, message) => Some(message),
        }
    }

    fn agree(&self, ask: Ask) -> Ask {
        let request = self.requests.iter().find(|r| r.ticket == ask.ticket);
        let content = request.map_or(ask.content, |r| r.content);
        Ask { content, ..ask }
    }

    fn is_gathered(&self, n: usize, transfer: TransferId) -> bool {
        let reading = self.nodes[n].reading.get(&transfer);
        reading.is_some_and(Reading::is_gathered)
    }

    fn commit_of(&self, n: usize, transfer: TransferId) -> Option<Message> {
        let (streams, bytes) = self.nodes[n].reading.get(&transfer)?.counts();
        Some(Message::Commit { transfer, streams, bytes })
    }

    /// Sends the commit before the bytes, when a node begins to read.
    pub(super) fn commit_early(&mut self, n: usize, conn: ConnId, transfer: TransferId) {
        if self.fault == Some(Fault::SucceedWithoutCommit)
            && let Some(commit) = self.commit_of(n, transfer)
        {
            self.forge(n, conn, commit);
        }
    }
}
