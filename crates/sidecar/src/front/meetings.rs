//! The last answers of prefill servers, which requests need that are sent to both servers at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::exchange::Earlier;
use crate::target::ServerUrl;

/// The most prefill servers that are remembered. Clients of a sidecar may name any number. A forgotten server is asked
/// first the next time.
const MOST: usize = 1024;

/// The last answer of each prefill server, as far as later requests need it.
#[derive(Debug, Default)]
pub(crate) struct Meetings(Mutex<HashMap<ServerUrl, Arc<Earlier>>>);

impl Meetings {
    pub(super) fn with(&self, prefill: &ServerUrl) -> Option<Arc<Earlier>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(prefill).cloned()
    }

    pub(super) fn learn(&self, prefill: &ServerUrl, earlier: Earlier) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST && !known.contains_key(prefill) {
            known.clear();
        }
        known.insert(prefill.clone(), Arc::new(earlier));
    }
}
