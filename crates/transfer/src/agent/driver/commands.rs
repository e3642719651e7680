//! What users of the agent want.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use tokio::sync::oneshot;

use super::promises::Promise;
use super::{Driver, NEVER};
use crate::agent::NoticeOutcome;
use crate::agent::event::Command;
use crate::agent::lease::Lease;
use crate::agent::transfer::Transfer;
use crate::wire::NoticeId;

/// The agent is shutting down.
pub(super) struct Stopping {
    /// Who waits for the end.
    pub(super) waiting: Vec<oneshot::Sender<()>>,
    /// Until when what is under way may go on; `None` when that is past.
    pub(super) until: Option<Instant>,
}

impl Driver {
    pub(super) fn on_command(&mut self, command: Command) {
        let now = self.now();
        // An answer that nobody waits for is dropped: the asker has gone away. What cancels when it is
        // dropped, a lease or a transfer, is made here, so that it does so wherever the asker gives up.
        match command {
            Command::Lease {
                spec,
                keeper,
                opened,
            } => {
                let key = spec.key;
                let answer = self.machine.lease(now, spec).map(|()| {
                    self.counters.lease_opened();
                    let (sender, outcome) = oneshot::channel();
                    let claimed = Arc::new(AtomicBool::new(false));
                    let promise = Promise::new(sender, keeper);
                    self.leases.insert(key, (promise, claimed.clone()));
                    Lease::new(key, claimed, self.events.clone(), self.urgent(), outcome)
                });
                let _ = opened.send(answer);
            }
            Command::Ready {
                key,
                layer,
                tokens,
                answer,
            } => {
                let _ = answer.send(self.machine.ready(key, layer, tokens));
            }
            Command::FinishPrefill { key, answer } => {
                let _ = answer.send(self.machine.finish_prefill(now, key));
            }
            Command::Renew { key, ttl, answer } => {
                let _ = answer.send(self.machine.renew(now, key, ttl));
            }
            Command::CancelLease { key } => {
                // One that has ended already is no error.
                let _ = self.machine.cancel_lease(now, key);
            }
            Command::Start {
                spec,
                job,
                keeper,
                started,
            } => {
                let answer = match self.machine.start(now, spec) {
                    Ok(id) => {
                        self.counters.job_begun(id, job);
                        let (sender, result) = oneshot::channel();
                        self.jobs.insert(id, Promise::new(sender, keeper));
                        let (events, urgent) = (self.events.clone(), self.urgent());
                        Ok(Transfer::new(id, result, events, urgent))
                    }
                    Err(refused) => Err(*refused.error),
                };
                let _ = started.send(answer);
            }
            Command::JobReady {
                job,
                rank,
                layer,
                tokens,
            } => self.machine.job_ready(job, rank, layer, tokens),
            Command::JobPrefilled { job } => self.machine.job_prefilled(now, job),
            Command::CancelJob { job } => self.machine.cancel_job(now, job),
            Command::CancelTicket {
                ticket,
                content,
                answer,
            } => {
                let notice = self.machine.cancel_ticket(now, &ticket, content);
                let _ = answer.send(notice.map(|notice| self.expect_notice(notice)));
            }
            Command::RenewTicket {
                ticket,
                ttl,
                answer,
            } => {
                let notice = self.machine.renew_ticket(now, &ticket, ttl);
                let _ = answer.send(notice.map(|notice| self.expect_notice(notice)));
            }
            Command::Gauges { answer } => {
                let _ = answer.send(self.machine.gauges());
            }
            Command::Metrics { answer } => {
                let _ = answer.send(Box::new(self.counters.read()));
            }
            Command::Shutdown { patience, done } => {
                let until = Instant::now() + patience.min(NEVER);
                match &mut self.stopping {
                    Some(stopping) => {
                        stopping.waiting.push(done);
                        stopping.until = stopping.until.map(|already| already.min(until));
                    }
                    None => {
                        self.stopping = Some(Stopping {
                            waiting: vec![done],
                            until: Some(until),
                        });
                    }
                }
                self.machine.drain(now);
            }
        }
    }

    fn expect_notice(&mut self, notice: NoticeId) -> oneshot::Receiver<NoticeOutcome> {
        let (sender, outcome) = oneshot::channel();
        self.notices.insert(notice, sender);
        outcome
    }
}
