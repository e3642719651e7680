//! Sessions, which assign lanes to control connections.

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::mpsc;

use super::lane::Lane;
use crate::identity::PeerIdentity;
use transload_plan::ids::{AgentId, Nonce};

/// The lanes that one peer may open to this agent. Dropping it rejects further ones; accepted lanes stay open for as
/// long as they are held.
#[derive(Debug)]
pub struct LaneSession {
    token: Nonce,
    lanes: mpsc::Receiver<Lane>,
}

impl LaneSession {
    /// Returns the token with which the peer's lanes must begin.
    #[must_use]
    pub fn token(&self) -> &Nonce {
        &self.token
    }

    /// Returns the next lane of this peer, or `None` after the endpoints were closed. Cancel-safe.
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

    /// Admits a lane to the session with this `token`, if `peer` is of the session's service and a place is left. The
    /// token was given to one instance of the service. The certificate need not be the very same, since it may have
    /// been renewed.
    ///
    /// Every session is compared, so the time does not reveal which token was nearly right.
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

    /// Ends all sessions, and later ones at once.
    pub(super) fn close(&self) {
        *self.sessions() = None;
    }

    /// Returns the sessions that were not dropped.
    fn sessions(&self) -> MutexGuard<'_, Option<Vec<Session>>> {
        // Nothing panics while it is held, and each change is one step.
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sessions) = sessions.as_mut() {
            sessions.retain(|session| !session.lanes.is_closed());
        }
        sessions
    }
}
