//! Which lanes belong to which control connection.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::mpsc;

use super::lane::Lane;
use crate::identity::PeerIdentity;
use crate::ids::{AgentId, Nonce};

/// The lanes that one peer may open to us. Dropping it turns further ones away; the lanes that came
/// stay open for as long as they are held.
#[derive(Debug)]
pub struct LaneSession {
    token: Nonce,
    id: u64,
    lanes: mpsc::Receiver<Lane>,
    registry: Arc<Registry>,
}

impl LaneSession {
    /// The token that the peer's lanes must begin with.
    #[must_use]
    pub fn token(&self) -> &Nonce {
        &self.token
    }

    /// The next lane of this peer. `None` only after the endpoints were closed. Cancel-safe.
    pub async fn accept(&mut self) -> Option<Lane> {
        self.lanes.recv().await
    }
}

impl Drop for LaneSession {
    fn drop(&mut self) {
        self.registry.sessions().open.remove(&self.id);
    }
}

/// All sessions of one agent's endpoints.
#[derive(Debug, Default)]
pub(super) struct Registry {
    sessions: Mutex<Sessions>,
}

#[derive(Debug, Default)]
struct Sessions {
    next_id: u64,
    closed: bool,
    open: HashMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    token: Nonce,
    peer: AgentId,
    lanes: mpsc::Sender<Lane>,
    left: usize,
}

impl Registry {
    /// Opens a session for up to `lanes` lanes of `peer`.
    pub(super) fn open(self: &Arc<Self>, peer: AgentId, lanes: usize) -> io::Result<LaneSession> {
        let mut token = [0; 16];
        getrandom::fill(&mut token)?;
        let token = Nonce(token);
        let (sender, receiver) = mpsc::channel(lanes.max(1));
        let mut sessions = self.sessions();
        let id = sessions.next_id;
        sessions.next_id += 1;
        if !sessions.closed {
            let entry = Entry {
                token,
                peer,
                lanes: sender,
                left: lanes,
            };
            sessions.open.insert(id, entry);
        }
        drop(sessions);
        Ok(LaneSession {
            token,
            id,
            lanes: receiver,
            registry: self.clone(),
        })
    }

    /// Takes one of the places of the session that `token` belongs to, if it is of `peer`'s service. The token
    /// was told to one instance of it; that the certificate is the very same is not asked, since it may have been
    /// renewed since.
    ///
    /// Looks at every session, so the time tells nothing about which token was nearly right.
    pub(super) fn admit(
        &self,
        token: &Nonce,
        peer: &PeerIdentity,
    ) -> Option<(mpsc::Sender<Lane>, AgentId)> {
        let mut sessions = self.sessions();
        let mut admitted = None;
        for entry in sessions.open.values_mut() {
            let same = entry.peer.service() == peer.service.as_str();
            if entry.token == *token && same && entry.left > 0 {
                entry.left -= 1;
                admitted = Some((entry.lanes.clone(), entry.peer.clone()));
            }
        }
        admitted
    }

    /// Ends all sessions, and those opened later.
    pub(super) fn close(&self) {
        let mut sessions = self.sessions();
        sessions.closed = true;
        sessions.open.clear();
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        // Nothing panics while it is held, and each change is one step.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
