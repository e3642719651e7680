//! What the machine wants done.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Driver;
use super::connections::dial;
use super::logs::{log_invited_push_failed, log_lease_ended};
use crate::agent::error::{LeaseEndError, TransferError};
use crate::agent::lease::LeaseOutcome;
use crate::agent::{Blocks, NoticeOutcome, own_tables};
use crate::plan::Side;
use crate::wire::message::Message;
use crate::wire::{Action, JobError};

impl Driver {
    pub(super) fn act(&mut self, action: Action<Blocks>) {
        match action {
            Action::Connect { agent, host, port } => {
                let dialling = dial(
                    self.endpoints.clone(),
                    self.lookups.clone(),
                    agent,
                    host,
                    port,
                    self.events.clone(),
                );
                self.endpoints.spawn_control(dialling);
            }
            Action::Close { conn, reason } => {
                self.log_close(conn, &reason);
                self.hang_up(conn, &reason);
            }
            Action::Send { conn, envelope } => {
                match &envelope.message {
                    Message::Refused { transfer, refusal } => {
                        self.log_refused(conn, *transfer, refusal);
                    }
                    Message::Invited {
                        outcome: Err(refusal),
                        ..
                    } => self.log_not_pushed(conn, refusal),
                    _ => {}
                }
                let Some(connection) = self.connections.get_mut(&conn) else {
                    return;
                };
                connection.talked = Instant::now();
                if let Err(why) = connection.outbox.put(&envelope) {
                    connection.writer.abort();
                    self.lost(conn, &why);
                }
            }
            Action::Path { conn, path, order } => self.obey(conn, path, order),
            Action::Compile(ask) => self.compile(ask),
            Action::Read(flow) => self.begin(flow, Side::Source),
            Action::Readable {
                transfer,
                layer,
                tokens,
            } => self.readable(transfer, layer, tokens),
            Action::AllReadable { transfer } => self.all_readable(transfer),
            Action::Receive(flow) => self.begin(flow, Side::Destination),
            Action::Flowing { transfer, path } => self.carry(transfer, path),
            Action::Fence { transfer } => {
                self.counters.route_failed(transfer);
                self.fence(transfer);
            }
            Action::Finished { transfer } => {
                let under = self.forget(transfer);
                self.counters.route_landed(transfer, under.as_ref());
            }
            Action::OtherContent { key, held, stated } => {
                self.log_other_content(key, &held, &stated);
            }
            Action::LeaseClaimed { key } => {
                if let Some((_, claimed)) = self.leases.get(&key) {
                    claimed.store(true, Ordering::Relaxed);
                }
            }
            Action::LeaseEnded { key, end, blocks } => {
                self.counters.lease_ended(end);
                log_lease_ended(key, end);
                self.users.remove(&key);
                if let Some((promise, _)) = self.leases.remove(&key) {
                    let tables = own_tables(blocks);
                    promise.keep(Ok(LeaseOutcome { end, tables }));
                }
            }
            Action::LeaseStalled { key } => {
                tracing::error!(%key, "memory is not done with the blocks of a lease: they stay held");
                if let Some((promise, _)) = self.leases.get_mut(&key) {
                    promise.tell(Err(LeaseEndError::Stalled));
                }
            }
            Action::JobStalled { job, rank } => {
                let error = TransferError::from(JobError::MemoryStalled { rank });
                tracing::error!(%error, "a transfer has failed: its blocks stay held");
                if let Some(promise) = self.jobs.get_mut(&job) {
                    promise.tell(Err(error));
                }
            }
            Action::JobDone { job, result, .. } => {
                let result = result.map_err(TransferError::from);
                let done = self.counters.job_done(job, &result);
                if let (Some(done), Err(error)) = (done, &result) {
                    self.log_job_failed(done, error);
                }
                if let Some(promise) = self.jobs.remove(&job) {
                    promise.keep(result);
                }
            }
            Action::Pushed { key, result } => {
                if let Err(error) = result {
                    log_invited_push_failed(key, &error.into());
                }
            }
            Action::NoticeDone {
                notice,
                heard,
                left,
                refusal,
            } => {
                if let Some(waiting) = self.notices.remove(&notice) {
                    // Whoever asked may be gone.
                    let _ = waiting.send(NoticeOutcome {
                        heard,
                        left,
                        refusal,
                    });
                }
            }
        }
    }
}
