//! The owner's handle of one lease.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::after::After;
use super::client::Client;
use super::driver::Driver;
use super::error::{AgentGone, LeaseEndError, LeaseUseError};
use super::promise::{CancelOnDrop, Handle};
#[cfg(doc)]
use super::request::LeaseRequest;
use transload_plan::Tables;
use transload_wire::{LeaseEnd, LeaseError, LeaseKey};

/// How a lease ended: why, and the blocks, which nothing touches any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseOutcome {
    /// Why it ended.
    pub end: LeaseEnd,
    /// The blocks that it held.
    pub tables: Tables,
}

pub(super) type LeaseEnded = Result<LeaseOutcome, LeaseEndError>;

/// A promise to keep blocks as they are, until it has [`ended`](Self::ended).
///
/// Dropping it cancels the lease; the blocks must not be used again before it has ended, so call
/// [`ended`](Self::ended) where they will be, or lease them with a [`keeper`](LeaseRequest::keeper).
/// What can be told of it is on [`LeaseControl`], which it derefs to.
#[derive(Debug)]
#[must_use = "dropping a lease cancels it"]
pub struct Lease {
    pub(super) control: LeaseControl,
    pub(super) outcome: CancelOnDrop<LeaseEnded>,
}

/// What an owner tells of its lease, also while somebody waits for the [end](Lease::ended) of it.
///
/// Cheap to clone. Dropping it does nothing.
#[derive(Clone, Debug)]
pub struct LeaseControl {
    pub(super) key: LeaseKey,
    pub(super) claimed: Arc<AtomicBool>,
    pub(super) client: Client,
}

impl Deref for Lease {
    type Target = LeaseControl;

    fn deref(&self) -> &LeaseControl {
        &self.control
    }
}

impl Lease {
    /// A handle that outlives this one.
    pub fn control(&self) -> LeaseControl {
        self.control.clone()
    }

    /// Waits until the lease has ended, for whatever reason, and nothing touches its blocks any more; or until it is known
    /// that memory is not done with them.
    /// Dropping the future drops the lease, and so cancels it.
    ///
    /// # Errors
    /// [`LeaseEndError`].
    pub async fn ended(self) -> Result<LeaseOutcome, LeaseEndError> {
        self.outcome.end().await?
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
        self.ask(move |driver, key| driver.machine.ready(key, layer, tokens)).await
    }

    /// Reports so once something else is done. This does not wait for that, and nobody hears of a lease that has ended by then.
    /// Where it will never be done, the lease is cancelled.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn ready_after(&self, after: After, layer: u32, tokens: u64) -> Result<(), AgentGone> {
        let (key, later) = (self.key, self.client.later());
        let ready = move |driver: &mut Driver| drop(driver.machine.ready(key, layer, tokens));
        self.client.tell(move |_| Driver::tell_after(Handle::Lease(key), &after, later, ready)).await
    }

    /// Reports that the prefill is over: everything may be read, and commits may be made.
    ///
    /// # Errors
    /// [`LeaseUseError`]: where it has ended already.
    pub async fn finish_prefill(&self) -> Result<(), LeaseUseError> {
        self.ask(move |driver, key| driver.machine.finish_prefill(driver.now(), key)).await
    }

    /// Reports so once something else is done, as [`ready_after`](Self::ready_after) does.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn finish_prefill_after(&self, after: After) -> Result<(), AgentGone> {
        let (lease, later) = (Handle::Lease(self.key), self.client.later());
        self.client.tell(move |_| Driver::prefill_after(lease, &after, later)).await
    }

    /// Lets the lease live for `ttl` from now at least.
    ///
    /// # Errors
    /// [`LeaseUseError`]: where it has ended already.
    pub async fn renew(&self, ttl: Duration) -> Result<(), LeaseUseError> {
        self.ask(move |driver, key| driver.machine.renew(driver.now(), key, ttl)).await
    }

    /// Gives the lease up. Transfers under way fail; wait for [`ended`](Lease::ended).
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn cancel(&self) -> Result<(), AgentGone> {
        let lease = Handle::Lease(self.key);
        self.client.tell(move |driver| driver.cancel(lease)).await
    }

    async fn ask(
        &self,
        wish: impl FnOnce(&mut Driver, LeaseKey) -> Result<(), LeaseError> + Send + 'static,
    ) -> Result<(), LeaseUseError> {
        let key = self.key;
        Ok(self.client.ask(move |driver| wish(driver, key)).await??)
    }
}
