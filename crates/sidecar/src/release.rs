//! Releases blocks that a prefill server holds for a client that has left.
//!
//! A prefill server keeps a request's blocks until a decode server has fetched them or a lease expires. If the
//! parameters contain a Transload ticket and we have a certificate of its cluster, the lease can be ended at once. The
//! parameters of others cannot be interpreted, so their leases expire.

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

/// The member of a prefill server's parameters that contains the ticket, as our connector for vLLM writes it.
const TICKET: &str = "transload_ticket";

/// The most tickets that are being released concurrently. Beyond these, leases expire.
const AT_A_TIME: usize = 64;

/// The time limit for a prefill server's answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The agent whose certificate is used if a folder has several.
const USUAL_NAME: &str = "decode";

/// Releases tickets of one cluster.
pub(crate) struct Tickets {
    agent: Agent,
    permits: Arc<Semaphore>,
    /// A runtime that outlives the threads serving clients.
    runtime: Handle,
}

/// A reason why tickets cannot be released.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TicketsError {
    /// The folder of certificates cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityFileError),
    /// The agent that releases tickets cannot be created.
    #[error("no agent can be made to give up tickets: {0}")]
    Agent(#[from] BindAgentError),
    /// The deployment of an agent without memory is invalid.
    #[error("an agent without memory cannot be described: {0}")]
    Deployment(String),
}

impl Tickets {
    /// Loads the certificate of the only agent in a folder, or of the agent called `decode`. Must be called within a
    /// tokio runtime.
    pub(crate) fn load(certs: &Path) -> Result<Self, TicketsError> {
        let identity = match (Identity::load(certs), USUAL_NAME.parse::<ServiceName>()) {
            (Err(IdentityFileError::WhichAgent { .. }), Ok(name)) => Identity::load_agent(certs, &name)?,
            (loaded, _) => loaded?,
        };
        let agent = Agent::builder(identity, nothing()?).bind(([0, 0, 0, 0], 0).into())?;
        Ok(Self { agent, permits: Arc::new(Semaphore::new(AT_A_TIME)), runtime: Handle::current() })
    }

    /// Releases the blocks behind these parameters in the background, if they contain a ticket.
    pub(crate) fn give_up(&self, params: Bytes) {
        let text = Object::parse(params).ok().and_then(|params| params.read::<String>(TICKET));
        let Some(Ok(ticket)) = text.map(|text| Ticket::from_text(&text)) else {
            return;
        };
        let (Ok(permit), agent) = (self.permits.clone().try_acquire_owned(), self.agent.clone()) else {
            return;
        };
        self.runtime.spawn(async move {
            let _permit = permit;
            match tokio::time::timeout(PATIENCE, agent.cancel(ticket, None)).await {
                Ok(Ok(_)) => tracing::debug!("the blocks of a client that has left are given up"),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "blocks cannot be given up; their lease expires")
                }
                Err(_) => tracing::debug!("a prefill server does not answer; the lease expires"),
            }
        });
    }

    pub(crate) async fn settle(&self) {
        let _ = self.permits.acquire_many(AT_A_TIME as u32).await;
    }
}

/// Returns a minimal deployment, since this agent neither holds nor fetches blocks.
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
