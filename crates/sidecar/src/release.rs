//! Gives up blocks that a prefill server holds for a client that has left.
//!
//! A prefill server keeps a request's blocks until a decode server has fetched them, or until a lease expires. Where the
//! parameters hold a ticket of Transload and we hold a certificate of its cluster, the lease can be ended at once. Of others'
//! parameters nothing is known, and their leases expire.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use transload_layout::spec::Opaque;
use transload_layout::{Deployment, Group, Spec};
use transload_transfer::{Agent, BindAgentError, Identity, IdentityFileError, ServiceName, Ticket};

use crate::json::Object;

/// The member of a prefill server's parameters that holds a ticket, as our connector for vLLM writes it.
const TICKET: &str = "transload_ticket";

/// Tickets that are being given up at a time. Beyond these, leases expire.
const AT_A_TIME: usize = 64;

/// How long a prefill server is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// The agent whose certificate a sidecar shows, where a folder has several.
const USUAL_NAME: &str = "decode";

/// Gives up tickets of one cluster.
pub(crate) struct Tickets {
    agent: Agent,
    places: Arc<Semaphore>,
    /// It outlives the threads that serve clients.
    runtime: Handle,
}

/// Why tickets cannot be given up.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TicketsError {
    /// The folder of certificates cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityFileError),
    /// No agent can be made.
    #[error("no agent can be made to give up tickets: {0}")]
    Agent(#[from] BindAgentError),
    /// The document of an agent without memory is not one any more.
    #[error("an agent without memory cannot be described: {0}")]
    Deployment(String),
}

impl Tickets {
    /// Reads the certificate of a folder: of the only agent in it, or of the one called `decode`. To be called within a tokio
    /// runtime.
    pub(crate) fn load(certs: &Path) -> Result<Self, TicketsError> {
        let identity = match (Identity::load(certs), USUAL_NAME.parse::<ServiceName>()) {
            (Err(IdentityFileError::WhichAgent { .. }), Ok(name)) => Identity::load_agent(certs, &name)?,
            (loaded, _) => loaded?,
        };
        let agent = Agent::builder(identity, nothing()?).bind(([0, 0, 0, 0], 0).into())?;
        Ok(Self { agent, places: Arc::new(Semaphore::new(AT_A_TIME)), runtime: Handle::current() })
    }

    /// Gives up what these parameters stand for, if it is ours, without waiting for it.
    pub(crate) fn give_up(&self, params: Bytes) {
        let text = Object::parse(params).ok().and_then(|params| params.read::<String>(TICKET));
        let Some(Ok(ticket)) = text.map(|text| Ticket::from_text(&text)) else {
            return;
        };
        let (Ok(place), agent) = (self.places.clone().try_acquire_owned(), self.agent.clone()) else {
            return;
        };
        self.runtime.spawn(async move {
            let _place = place;
            match tokio::time::timeout(PATIENCE, agent.cancel(ticket, None)).await {
                Ok(Ok(_)) => tracing::debug!("the blocks of a client that has left are given up"),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "blocks cannot be given up; their lease expires")
                }
                Err(_) => tracing::debug!("a prefill server does not answer; the lease expires"),
            }
        });
    }

    /// Waits for the tickets that are being given up.
    pub(crate) async fn settle(&self) {
        let _ = self.places.acquire_many(AT_A_TIME as u32).await;
    }
}

/// A deployment without memory: this agent neither holds nor fetches anything.
fn nothing() -> Result<Deployment, TicketsError> {
    let spec = Spec::Opaque(Opaque { heads: 1, entry_bytes: 1, tokens_per_state: 1, packed_heads: None });
    Deployment::builder()
        .name("sidecar")
        .block_size(1)
        .num_blocks(1)
        .group(Group::builder("none", "0", spec))
        .build()
        .map_err(|wrong| TicketsError::Deployment(wrong.to_string()))
}
