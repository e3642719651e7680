//! The owner's handle of one lease.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::Blocks;
use super::error::{AgentGone, LeaseEndError, LeaseUseError};
use super::event::{Command, Event};
#[cfg(doc)]
use super::request::LeaseRequest;
use crate::lease::{LeaseEnd, LeaseError, LeaseKey, OpenError};
use crate::plan::Tables;

/// Why a lease was not opened. The blocks are still the caller's.
pub(super) type OpenRefused = OpenError<Blocks>;

/// How a lease ended: why, and the blocks, which nothing touches any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseOutcome {
    /// Why it ended.
    pub end: LeaseEnd,
    /// The blocks that it held.
    pub tables: Tables,
}

/// A promise to keep blocks as they are, until it has [`ended`](Self::ended).
///
/// Dropping it cancels the lease; the blocks must not be used again before it has ended, so call
/// [`ended`](Self::ended) where they will be, or lease them with a [`keeper`](LeaseRequest::keeper).
/// What can be told of it is on [`LeaseControl`], which it derefs to.
#[derive(Debug)]
#[must_use = "dropping a lease cancels it"]
pub struct Lease {
    control: LeaseControl,
    urgent: mpsc::UnboundedSender<Event>,
    outcome: Option<oneshot::Receiver<Ended>>,
}

/// What whoever waits for the end of a lease is told.
pub(super) type Ended = Result<LeaseOutcome, LeaseEndError>;

/// What an owner tells of its lease, also while somebody waits for the [end](Lease::ended) of it.
///
/// Cheap to clone. Dropping it does nothing.
#[derive(Clone, Debug)]
pub struct LeaseControl {
    key: LeaseKey,
    claimed: Arc<AtomicBool>,
    events: mpsc::Sender<Event>,
}

impl Deref for Lease {
    type Target = LeaseControl;

    fn deref(&self) -> &LeaseControl {
        &self.control
    }
}

impl Lease {
    pub(super) fn new(
        key: LeaseKey,
        claimed: Arc<AtomicBool>,
        events: mpsc::Sender<Event>,
        urgent: mpsc::UnboundedSender<Event>,
        outcome: oneshot::Receiver<Ended>,
    ) -> Self {
        Self {
            control: LeaseControl {
                key,
                claimed,
                events,
            },
            urgent,
            outcome: Some(outcome),
        }
    }

    /// A handle that outlives this one.
    pub fn control(&self) -> LeaseControl {
        self.control.clone()
    }

    /// Waits until the lease has ended, for whatever reason, and nothing touches its blocks any more.
    /// Dropping the future drops the lease, and so cancels it.
    ///
    /// # Errors
    /// [`LeaseEndError`].
    pub async fn ended(mut self) -> Result<LeaseOutcome, LeaseEndError> {
        // It stays here while it is waited for: whoever stops waiting drops the lease.
        let Some(outcome) = &mut self.outcome else {
            return Err(AgentGone.into());
        };
        let ended = outcome.await.unwrap_or(Err(AgentGone.into()));
        self.outcome = None;
        ended
    }
}

impl LeaseControl {
    /// Set and rank.
    pub fn key(&self) -> LeaseKey {
        self.key
    }

    /// Whether somebody with a ticket has asked for the blocks yet, or has renewed the lease. One that stays unclaimed
    /// holds its blocks for nobody.
    pub fn is_claimed(&self) -> bool {
        self.claimed.load(Ordering::Relaxed)
    }

    /// Reports that the first `tokens` tokens of a global layer are computed: transfers by layer may
    /// read them from here on.
    ///
    /// # Errors
    /// [`LeaseUseError`]: where it has ended already, and where there are more tokens than it is for.
    pub async fn ready(&self, layer: u32, tokens: u64) -> Result<(), LeaseUseError> {
        let key = self.key;
        self.ask(|answer| Command::Ready {
            key,
            layer,
            tokens,
            answer,
        })
        .await
    }

    /// Reports that the prefill is over: everything may be read, and commits may be made.
    ///
    /// # Errors
    /// [`LeaseUseError`]: where it has ended already.
    pub async fn finish_prefill(&self) -> Result<(), LeaseUseError> {
        let key = self.key;
        self.ask(|answer| Command::FinishPrefill { key, answer })
            .await
    }

    /// Lets the lease live for `ttl` from now at least.
    ///
    /// # Errors
    /// [`LeaseUseError`]: where it has ended already.
    pub async fn renew(&self, ttl: Duration) -> Result<(), LeaseUseError> {
        let key = self.key;
        self.ask(|answer| Command::Renew { key, ttl, answer }).await
    }

    /// Gives the lease up. Transfers under way fail; wait for [`ended`](Lease::ended).
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn cancel(&self) -> Result<(), AgentGone> {
        let key = self.key;
        self.send(Command::CancelLease { key }).await
    }

    async fn ask(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<(), LeaseError>>) -> Command,
    ) -> Result<(), LeaseUseError> {
        let (answer, done) = oneshot::channel();
        self.send(command(answer)).await?;
        Ok(done.await.map_err(|_| AgentGone)??)
    }

    async fn send(&self, command: Command) -> Result<(), AgentGone> {
        let sent = self.events.send(Event::Command(command)).await;
        sent.map_err(|_| AgentGone)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // `ended` has had the outcome where there is none here.
        let Some(mut outcome) = self.outcome.take() else {
            return;
        };
        if outcome.try_recv().is_err() {
            let cancel = Event::Command(Command::CancelLease {
                key: self.control.key,
            });
            // The agent is gone where this fails, and its leases with it.
            let _ = self.urgent.send(cancel);
        }
    }
}
