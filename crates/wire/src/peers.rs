//! Connections and the agents at their other ends: greetings, lives, and dialling.
//!
//! Both sides may have connected at the same time. Any connection that is up can be used.

mod dial;
mod dialling;
mod greeting;

use std::collections::{BTreeSet, HashMap};

use transload_plan::codec::Codec;
use transload_plan::ids::{AgentId, DeploymentDigest, Incarnation, Rank, ServiceName};

use crate::action::{Action, CloseReason};
use crate::context::{Context, Timer};
use crate::deployments::KnownDeployments;
use crate::event::Event;
use crate::ids::ConnId;
use crate::lease::Holder;
use crate::message::{Envelope, Hello, Message, VERSIONS};
use crate::moment::Moment;
use crate::outcome::JobError;
use crate::refusal::Refusal;
use crate::roles::{Role, Roles};
use crate::ticket::{Claims, RankAddress, Ticket};

pub(crate) use dial::NoConnection;

use dial::Dial;

#[derive(Debug, Default)]
pub(crate) struct Peers {
    sessions: HashMap<ConnId, Session>,
    agents: HashMap<AgentId, Known>,
}

#[derive(Debug)]
struct Session {
    /// The service in the peer's certificate.
    service: ServiceName,
    /// The peer's instance: the one that was dialled, or else the one that its hello names.
    agent: Option<AgentId>,
    dialled: bool,
    /// The address that was dialled, if this agent dialled.
    address: Option<RankAddress>,
    /// The roles in the peer's certificate.
    roles: Roles,
    seen: u64,
    /// The peer's hello, while its document is awaited.
    hello: Option<Hello>,
    /// The peer, once this agent accepts it.
    peer: Option<Peer>,
    /// Whether the peer accepts this agent.
    welcome: bool,
    document_sent: bool,
    /// The time since both sides accept each other.
    up_since: Option<Moment>,
}

/// A peer's own statements.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) holder: Holder,
    pub(crate) ranks: BTreeSet<Rank>,
    pub(crate) codecs: Vec<Codec>,
}

impl Session {
    fn is_up(&self) -> bool {
        self.welcome && self.peer.is_some()
    }
}

#[derive(Debug, Default)]
struct Known {
    /// Connections that are up, all of one life.
    up: BTreeSet<ConnId>,
    dial: Option<Dial>,
}

impl Peers {
    /// Returns the number of connections, welcome or not, and the number of agents.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.sessions.len(), self.agents.len())
    }

    pub(crate) fn connection(&self, agent: &AgentId) -> Option<ConnId> {
        self.agents.get(agent)?.up.first().copied()
    }

    /// Returns where the agent is connected, or was last dialled. `None` for an agent that has connected by itself.
    pub(crate) fn address(&self, agent: &AgentId) -> Option<&RankAddress> {
        match self.connection(agent) {
            Some(conn) => self.sessions.get(&conn)?.address.as_ref(),
            None => self.agents.get(agent)?.dial.as_ref()?.tried.as_ref(),
        }
    }

    /// Returns the peer's own statements, if the connection is up.
    pub(crate) fn peer(&self, conn: ConnId) -> Option<&Peer> {
        let session = self.sessions.get(&conn).filter(|session| session.is_up())?;
        session.peer.as_ref()
    }

    /// Returns the agent at the other end of a connection, once that is known.
    pub(crate) fn agent(&self, conn: ConnId) -> Option<&AgentId> {
        self.sessions.get(&conn)?.agent.as_ref()
    }

    /// Returns the agent at the other end of a connection that is up, with its own statements.
    pub(crate) fn asker(&self, conn: ConnId) -> Result<(AgentId, &Peer), Refusal> {
        let asker = self.agent(conn).cloned().zip(self.peer(conn));
        asker.ok_or(Refusal::WrongPeer)
    }

    pub(crate) fn permit(&self, conn: ConnId, role: Role) -> Result<(), Refusal> {
        let session = self.sessions.get(&conn);
        match session.is_some_and(|session| session.roles.contains(role)) {
            true => Ok(()),
            false => Err(Refusal::RoleMissing { role }),
        }
    }

    /// Checks that a ticket is authentic, and meant for this agent in this life and for this peer.
    pub(crate) fn authenticate(
        &self,
        cx: &Context<impl KnownDeployments>,
        conn: ConnId,
        ticket: &Ticket,
    ) -> Result<Claims, Refusal> {
        let claims = cx.read_ticket(ticket)?;
        if claims.owner != cx.deployment {
            let ours = cx.deployment;
            return Err(Refusal::WrongDeployment { ours });
        }
        if claims.incarnation != cx.me.incarnation {
            let ours = cx.me.incarnation;
            return Err(Refusal::WrongIncarnation { ours });
        }
        let (agent, peer) = self.asker(conn)?;
        match claims.is_for(&agent, &peer.holder.deployment) {
            true => Ok(claims),
            false => Err(Refusal::WrongPeer),
        }
    }

    /// Checks that the agent at the other end is still the one that a ticket means, and may own its leases.
    pub(crate) fn check_owner(&self, conn: ConnId, agent: &AgentId, claims: &Claims) -> Result<(), JobError> {
        let Some(peer) = self.peer(conn) else {
            return Ok(());
        };
        if self.permit(conn, Role::Serve).is_err() {
            let agent = agent.clone();
            return Err(JobError::MayNotServe { agent });
        }
        let found = (peer.holder.deployment, peer.holder.incarnation);
        check_life(agent, found, claims)
    }

    pub(crate) fn check_codec(&self, conn: ConnId, agent: &AgentId, codec: Codec) -> Result<(), JobError> {
        let sends = |peer: &Peer| codec.is_exact() || peer.codecs.contains(&codec);
        match self.peer(conn).is_none_or(sends) {
            true => Ok(()),
            false => {
                let why = format!("agent {agent} does not send so: it must have it among its codecs");
                let why = why.into();
                Err(JobError::Codec { codec, why })
            }
        }
    }

    fn life(&self, agent: &AgentId) -> Option<Incarnation> {
        let peer = self.peer(self.connection(agent)?)?;
        Some(peer.holder.incarnation)
    }

    #[cfg(test)]
    pub(crate) fn lives(&self) -> impl Iterator<Item = (&AgentId, Incarnation)> {
        let agents = self.agents.keys();
        agents.filter_map(|agent| Some((agent, self.life(agent)?)))
    }
}

/// Checks that an agent has the deployment and the life that a ticket means.
pub(crate) fn check_life(
    agent: &AgentId,
    found: (DeploymentDigest, Incarnation),
    claims: &Claims,
) -> Result<(), JobError> {
    let agent = agent.clone();
    match found {
        (found, _) if found != claims.owner => Err(JobError::Deployment { agent, found, ticket: claims.owner }),
        (_, found) if found != claims.incarnation => {
            Err(JobError::Restarted { agent, found, ticket: claims.incarnation })
        }
        _ => Ok(()),
    }
}

impl Peers {
    /// Adds a control connection. `service` and `roles` are from the peer's certificate. `dialled` names the agent that
    /// was dialled, unless the peer has connected. Returns whether there is room for the connection.
    pub(crate) fn connected(
        &mut self,
        cx: &mut Context<impl KnownDeployments>,
        conn: ConnId,
        service: ServiceName,
        dialled: Option<AgentId>,
        roles: Roles,
    ) -> bool {
        cx.opened(conn);
        if dialled.is_none()
            && let Err(refusal) = self.check_crowd(cx, &service)
        {
            cx.send(conn, Message::Unwelcome(refusal.clone()));
            cx.closed(conn);
            let reason = CloseReason::Refused(refusal);
            cx.act(Action::Close(conn, reason));
            return false;
        }
        let known = dialled.as_ref().and_then(|agent| self.agents.get(agent));
        let dial = known.and_then(|known| known.dial.as_ref());
        let session = Session {
            service,
            dialled: dialled.is_some(),
            address: dial.and_then(|dial| dial.tried.clone()),
            agent: dialled,
            roles,
            seen: 0,
            hello: None,
            peer: None,
            welcome: false,
            document_sent: false,
            up_since: None,
        };
        self.sessions.insert(conn, session);
        cx.after(cx.options.hello_wait, Timer::Hello(conn));
        cx.send(conn, Message::Hello(hello(cx)));
        true
    }

    /// Handles a message as far as it is a greeting. Returns any other message of a peer that is welcome.
    /// `wanted` says whether anything here waits for the agent that a hello names.
    pub(crate) fn hear(
        &mut self,
        cx: &mut Context<impl KnownDeployments>,
        conn: ConnId,
        envelope: Envelope,
        wanted: bool,
    ) -> Option<Message> {
        let session = self.sessions.get_mut(&conn)?;
        if envelope.sequence <= session.seen {
            return None;
        }
        if envelope.sequence != session.seen + 1 {
            self.close(cx, conn, CloseReason::Violation("a message is missing"));
            return None;
        }
        session.seen = envelope.sequence;
        match (session.is_up(), envelope.message.is_greeting()) {
            (true, false) => return Some(envelope.message),
            (true, true) => {
                let reason = CloseReason::Violation("a greeting after the welcome");
                self.close(cx, conn, reason);
            }
            (false, _) => self.on_greeting(cx, conn, envelope.message, wanted),
        }
        None
    }

    pub(crate) fn close(&mut self, cx: &mut Context<impl KnownDeployments>, conn: ConnId, reason: CloseReason) {
        if self.sessions.contains_key(&conn) {
            cx.act(Action::Close(conn, reason));
            self.lost(cx, conn);
        }
    }

    pub(crate) fn lost(&mut self, cx: &mut Context<impl KnownDeployments>, conn: ConnId) {
        let Some(session) = self.sessions.remove(&conn) else {
            return;
        };
        cx.closed(conn);
        cx.timers.clear(&Timer::Hello(conn));
        if let Some(peer) = &session.peer
            && cx.me.moves_bytes(peer.ranks.is_empty())
        {
            cx.deployments.release(&peer.holder.deployment);
        }
        let known = session.agent.as_ref();
        let known = known.and_then(|agent| self.agents.get_mut(agent));
        let was_up = known.is_some_and(|known| known.up.remove(&conn));
        let agent = session.agent;
        cx.emit(Event::Lost { conn, agent, was_up });
    }
}

fn hello(cx: &Context<impl KnownDeployments>) -> Hello {
    let me = &cx.me;
    Hello {
        versions: VERSIONS,
        cluster: me.cluster.clone(),
        agent: me.agent.clone(),
        incarnation: me.incarnation,
        deployment: cx.deployment,
        ranks: me.ranks.iter().copied().collect(),
        codecs: cx.options.codecs.clone(),
    }
}
