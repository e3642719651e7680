//! Which lanes belong to which control connection.

use std::{
    collections::HashMap,
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::mpsc;

use super::lane::Lane;
use crate::identity::PeerIdentity;
use crate::ids::AgentId;

/// 16 random bytes that a peer proves with that its lane belongs to a control connection. They are
/// a secret between the two: send them over that connection only. `Debug` does not show them.
#[derive(Clone)]
pub struct SessionToken([u8; Self::BYTES]);

impl SessionToken {
    /// Its length.
    pub const BYTES: usize = 16;

    fn random() -> io::Result<Self> {
        let mut token = [0; Self::BYTES];
        getrandom::fill(&mut token)?;
        Ok(Self(token))
    }

    /// The token, to be sent over the control connection.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// Compares in constant time.
    fn is(&self, other: &Self) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl From<[u8; Self::BYTES]> for SessionToken {
    fn from(token: [u8; Self::BYTES]) -> Self {
        Self(token)
    }
}

impl fmt::Debug for SessionToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionToken(..)")
    }
}

/// The lanes that one peer may open to us. Dropping it turns further ones away; the lanes that came
/// stay open for as long as they are held.
#[derive(Debug)]
pub struct LaneSession {
    token: SessionToken,
    id: u64,
    lanes: mpsc::Receiver<Lane>,
    registry: Arc<Registry>,
}

impl LaneSession {
    /// The token that the peer's lanes must begin with.
    #[must_use]
    pub fn token(&self) -> &SessionToken {
        &self.token
    }

    /// The next lane of this peer. `None` only after the endpoints were closed. Cancel-safe.
    pub async fn accept(&mut self) -> Option<Lane> {
        self.lanes.recv().await
    }
}

impl Drop for LaneSession {
    fn drop(&mut self) {
        self.registry.sessions().remove(&self.id);
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
    token: SessionToken,
    peer: AgentId,
    lanes: mpsc::Sender<Lane>,
    left: usize,
}

impl Sessions {
    fn remove(&mut self, id: &u64) {
        self.open.remove(id);
    }
}

impl Registry {
    /// Opens a session for up to `lanes` lanes of `peer`.
    pub(super) fn open(self: &Arc<Self>, peer: AgentId, lanes: usize) -> io::Result<LaneSession> {
        let token = SessionToken::random()?;
        let (sender, receiver) = mpsc::channel(lanes.max(1));
        let mut sessions = self.sessions();
        let id = sessions.next_id;
        sessions.next_id += 1;
        if !sessions.closed {
            let entry = Entry {
                token: token.clone(),
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
        token: &SessionToken,
        peer: &PeerIdentity,
    ) -> Option<(mpsc::Sender<Lane>, AgentId)> {
        let mut sessions = self.sessions();
        let mut admitted = None;
        for entry in sessions.open.values_mut() {
            let same = entry.peer.service() == peer.service.as_str();
            if entry.token.is(token) && same && entry.left > 0 {
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
