//! The owner's handle of a lease.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::after::After;
use super::client::Client;
use super::driver::Driver;
use super::error::{AgentGone, LeaseEndError, LeaseUseError};
use super::outcome::{LeaseEnded, LeaseOutcome};
use super::promise::{CancelOnDrop, Handle};
#[cfg(doc)]
use super::request::LeaseRequest;
use transload_wire::{LeaseError, LeaseKey};

/// A lease: the promise to keep blocks unchanged until it has [`ended`](Self::ended).
///
/// Dropping it cancels the lease. The blocks must not be reused before the lease has ended, so wait for
/// [`ended`](Self::ended), or lease them with a [`keeper`](LeaseRequest::keeper). Further operations are on
/// [`LeaseControl`], to which it dereferences.
#[derive(Debug)]
#[must_use = "dropping a lease cancels it"]
pub struct Lease {
    pub(super) control: LeaseControl,
    pub(super) outcome: CancelOnDrop<LeaseEnded>,
}

/// An owner's operations on its lease, which can be used while another task waits for its [end](Lease::ended).
///
/// It is cheap to clone. Dropping it does nothing.
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
    /// Returns a handle that can outlive this one.
    pub fn control(&self) -> LeaseControl {
        self.control.clone()
    }

    /// Waits until the lease has ended, for any reason, and nothing touches its blocks any more; or until it is known
    /// that memory does not finish its work on them. Dropping the future drops the lease, and so cancels it.
    ///
    /// # Errors
    /// [`LeaseEndError`].
    pub async fn ended(self) -> Result<LeaseOutcome, LeaseEndError> {
        self.outcome.end().await?
    }
}

impl LeaseControl {
    /// Returns the set and the rank.
    pub fn key(&self) -> LeaseKey {
        self.key
    }

    /// Returns whether a ticket holder has used or renewed the lease. As long as it is unclaimed, it may hold its
    /// blocks in vain.
    pub fn is_claimed(&self) -> bool {
        self.claimed.load(Ordering::Relaxed)
    }

    /// Reports that the first `tokens` tokens of a layer (counted over the whole model) are computed. Transfers by
    /// layer may read them from now on.
    ///
    /// # Errors
    /// [`LeaseUseError`] if the lease has ended, or covers fewer tokens.
    pub async fn ready(&self, layer: u32, tokens: u64) -> Result<(), LeaseUseError> {
        self.ask(move |driver, key| driver.machine.ready(key, layer, tokens)).await
    }

    /// Reports tokens as [`ready`](Self::ready) does, once a condition is met. This call does not wait for that, and
    /// there is no error if the lease has ended by then. If the condition becomes impossible, the lease is cancelled.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn ready_after(&self, after: After, layer: u32, tokens: u64) -> Result<(), AgentGone> {
        let (key, later) = (self.key, self.client.later());
        let ready = move |driver: &mut Driver| drop(driver.machine.ready(key, layer, tokens));
        self.client.tell(move |_| later.tell_after(Handle::Lease(key), &after, ready)).await
    }

    /// Reports that the prefill is over: everything may be read and committed.
    ///
    /// # Errors
    /// [`LeaseUseError`] if the lease has ended.
    pub async fn finish_prefill(&self) -> Result<(), LeaseUseError> {
        self.ask(move |driver, key| driver.machine.finish_prefill(driver.now(), key)).await
    }

    /// Reports the end of the prefill once a condition is met, as [`ready_after`](Self::ready_after) does for tokens.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn finish_prefill_after(&self, after: After) -> Result<(), AgentGone> {
        let (lease, later) = (Handle::Lease(self.key), self.client.later());
        self.client.tell(move |_| later.prefill_after(lease, &after)).await
    }

    /// Extends the lease to at least `ttl` from now.
    ///
    /// # Errors
    /// [`LeaseUseError`] if the lease has ended.
    pub async fn renew(&self, ttl: Duration) -> Result<(), LeaseUseError> {
        self.ask(move |driver, key| driver.machine.renew(driver.now(), key, ttl)).await
    }

    /// Cancels the lease. Its transfers fail; wait for [`ended`](Lease::ended).
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
