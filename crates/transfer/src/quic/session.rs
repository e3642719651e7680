//! Which lanes belong to which control connection.

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::mpsc;

use super::lane::Lane;
use crate::identity::PeerIdentity;
use transload_plan::ids::{AgentId, Nonce};

/// The lanes that one peer may open to us. Dropping it turns further ones away; the lanes that came
/// stay open for as long as they are held.
#[derive(Debug)]
pub struct LaneSession {
    token: Nonce,
    lanes: mpsc::Receiver<Lane>,
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

/// All sessions of one agent's endpoints; `None` once these are closed.
#[derive(Debug)]
pub(super) struct Registry(Mutex<Option<Vec<Session>>>);

#[derive(Debug)]
struct Session {
    token: Nonce,
    peer: AgentId,
    lanes: mpsc::Sender<Lane>,
    left: usize,
}

impl Registry {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }

    /// Opens a session for up to `lanes` lanes of `peer`.
    pub(super) fn open(&self, peer: AgentId, lanes: usize) -> io::Result<LaneSession> {
        let mut token = [0; 16];
        getrandom::fill(&mut token)?;
        let token = Nonce(token);
        let (sender, receiver) = mpsc::channel(lanes.max(1));
        if let Some(sessions) = self.sessions().as_mut() {
            sessions.push(Session { token, peer, lanes: sender, left: lanes });
        }
        Ok(LaneSession { token, lanes: receiver })
    }

    /// Takes one of the places of the session that `token` belongs to, if it is of `peer`'s service. The token
    /// was told to one instance of it; that the certificate is the very same is not asked, since it may have been
    /// renewed since.
    ///
    /// Looks at every session, so the time tells nothing about which token was nearly right.
    pub(super) fn admit(&self, token: &Nonce, peer: &PeerIdentity) -> Option<(mpsc::Sender<Lane>, AgentId)> {
        let mut admitted = None;
        for session in self.sessions().iter_mut().flatten() {
            let same = session.peer.service() == peer.service.as_str();
            if session.token == *token && same && session.left > 0 {
                session.left -= 1;
                admitted = Some((session.lanes.clone(), session.peer.clone()));
            }
        }
        admitted
    }

    /// Ends all sessions, and those opened later.
    pub(super) fn close(&self) {
        *self.sessions() = None;
    }

    /// Those that were not dropped.
    fn sessions(&self) -> MutexGuard<'_, Option<Vec<Session>>> {
        // Nothing panics while it is held, and each change is one step.
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sessions) = sessions.as_mut() {
            sessions.retain(|session| !session.lanes.is_closed());
        }
        sessions
    }
}
