//! The rings of a connection: one for sending, one for receiving.

use std::sync::Arc;

use tokio::task::JoinHandle;

use super::RingOut;
use crate::data::Outgoing;
use crate::path::carrier::Reporter;
use crate::path::sending::Sending;
use transload_wire::internal::negotiation::{Ending, Way};

/// The tasks of both rings. Dropping this stops them.
pub(in crate::path) struct Ends {
    reporter: Reporter,
    sending: Arc<Sending<RingOut>>,
    handing: Option<JoinHandle<()>>,
    receiving: Option<JoinHandle<()>>,
}

impl Ends {
    pub(in crate::path) fn new(reporter: Reporter) -> Self {
        Self { reporter, sending: Arc::new(Sending::new(Some(1))), handing: None, receiving: None }
    }

    /// Sends the peer a word about a ring, and hands the ring over when the peer comes. Waiting transfers use it then.
    pub(in crate::path) fn hand_over(
        &mut self,
        word: Vec<u8>,
        handing: impl Future<Output = Result<RingOut, Ending>> + Send + 'static,
    ) {
        let (sending, reporter) = (self.sending.clone(), self.reporter.clone());
        self.handing = Some(tokio::spawn(async move {
            match handing.await {
                Ok(ring) => drop(sending.add(ring)),
                Err(ending) => reporter.ended(Way::Out, ending),
            }
        }));
        self.reporter.offered(word);
    }

    /// Reports that no ring could be prepared.
    pub(in crate::path) fn not_offered(&self, why: String) {
        self.reporter.ended(Way::Out, Ending::Failed(why));
    }

    /// Receives from the peer's ring until it ends.
    pub(in crate::path) fn receive(
        &mut self,
        receiving: impl Future<Output = Result<Ending, Ending>> + Send + 'static,
    ) {
        let reporter = self.reporter.clone();
        self.receiving = Some(tokio::spawn(async move {
            let (Ok(ending) | Err(ending)) = receiving.await;
            reporter.ended(Way::In, ending);
        }));
    }

    pub(in crate::path) fn carry(&self, outgoing: &Outgoing) {
        self.sending.carry(outgoing);
    }

    pub(in crate::path) fn forget(&self, outgoing: &Outgoing) {
        self.sending.forget(outgoing);
    }

    pub(in crate::path) fn is_torn(&self) -> bool {
        self.sending.remove(RingOut::is_closed)
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        for task in self.handing.iter().chain(&self.receiving) {
            task.abort();
        }
        self.sending.close();
    }
}
