//! The source process, which computes a request and leases its blocks.

use std::io::{BufRead, Write};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::mpsc;
use transload::layout::{Deployment, Rank};
use transload::transfer::wire::MintError;
use transload::transfer::{
    Agent, Claims, Content, ContentDigest, Direction, IdentityError, Lease, LeaseEndError, LeaseOpenError,
    LeaseRequest, LeaseSetId, Ticket,
};

use super::engine::{Engine, Party};
use super::messages::{Answer, Order};
use crate::failure::{Failure, chain};

/// The time that an agent gets for pending work at the end.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// The time that blocks stay leased if they are not pulled.
const LEASE: Duration = Duration::from_secs(60);

#[derive(Debug, Error)]
pub(super) enum SourceError {
    #[error("the other process sent an invalid order: {0}")]
    Order(String),
    #[error("the other process could not be answered: {0}")]
    Answer(#[from] std::io::Error),
    #[error("the certificate from the other process cannot be used")]
    Credentials(#[from] IdentityError),
    #[error("the blocks could not be leased: {0}")]
    Lease(#[from] LeaseOpenError),
    #[error(transparent)]
    Ended(#[from] LeaseEndError),
    #[error(transparent)]
    Ticket(#[from] MintError),
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        match error {
            // The other process has ended: it has reported why, or the user has stopped it.
            SourceError::Answer(error) => Self::Output(error),
            error => Self::no(
                format!("the source process: {}", chain(&error)),
                "this process is started by `transload demo` and `transload bench`; run those",
            ),
        }
    }
}

/// Runs until stdin ends, which the other process causes when it is done or dies.
pub(in crate::commands) async fn run() -> Result<(), Failure> {
    let mut orders = orders();
    let Some(first) = orders.recv().await else {
        return Ok(());
    };
    let Order::Prefill { credentials, document, tokens, seed, gpu } = first.map_err(SourceError::Order)? else {
        return Err(SourceError::Order("not introduced".to_owned()).into());
    };
    let deployment = Deployment::from_document(*document).map_err(super::broken)?;
    let gpu = gpu.map(super::gpu::open).transpose()?;
    let side = Engine::new(deployment, tokens, seed, Party::Source, gpu.as_ref())?;
    side.fill(|_| {}).map_err(super::broken)?;
    let identity = credentials.into_identity().map_err(SourceError::from)?;
    let agent = side.agent(identity)?;
    answer(&Answer::Ready)?;

    while let Some(order) = orders.recv().await {
        let Order::Lease { set } = order.map_err(SourceError::Order)? else {
            return Err(SourceError::Order("introduced twice".to_owned()).into());
        };
        let leases = lease(&agent, &side, LeaseSetId(set)).await?;
        let ticket = ticket(&agent, &side, LeaseSetId(set))?;
        answer(&Answer::Leased { ticket: ticket.expose().to_owned() })?;
        tokio::select! {
            ends = ended(leases) => answer(&Answer::Ended { ends: ends? })?,
            // No order comes before the leases have ended, so this is the end of stdin: the other process has ended.
            _ = orders.recv() => break,
        }
    }
    agent.shutdown(PATIENCE).await;
    Ok(())
}

/// Returns the lines of stdin. A thread reads them, since a blocking read cannot be cancelled.
fn orders() -> mpsc::UnboundedReceiver<Result<Order, String>> {
    let (sender, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let order = line.map_err(|error| error.to_string());
            let order = order.and_then(|line| {
                // The line is not shown, since it may contain a key.
                serde_json::from_str(&line).map_err(|_| "not an order".to_owned())
            });
            if sender.send(order).is_err() {
                return;
            }
        }
    });
    orders
}

fn answer(answer: &Answer) -> Result<(), SourceError> {
    let mut line = serde_json::to_string(answer).map_err(std::io::Error::from)?;
    line.push('\n');
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(line.as_bytes())?;
    Ok(stdout.flush()?)
}

/// Returns the digest of the request's content. The destination knows the prompt as well and computes the same digest.
pub(super) fn content(tokens: u64) -> Result<ContentDigest, Failure> {
    let prompt: Vec<u32> = (0..tokens as u32).collect();
    let content = Content::first(tokens, &prompt).map_err(super::broken)?;
    Ok(content.digest())
}

pub(super) async fn lease(agent: &Agent, side: &Engine, set: LeaseSetId) -> Result<Vec<Lease>, Failure> {
    let tokens = side.contents.tokens;
    let content = content(tokens)?;
    let mut leases = Vec::new();
    for (rank, _) in side.ranks() {
        let mut request = LeaseRequest::new(set, rank, side.tables.clone(), content, tokens);
        request.ttl = LEASE;
        leases.push(agent.lease(request).await.map_err(SourceError::from)?);
    }
    Ok(leases)
}

/// Mints a ticket for the leases. It is sealed with the cluster's key and has the address of each rank.
pub(super) fn ticket(agent: &Agent, side: &Engine, set: LeaseSetId) -> Result<Ticket, SourceError> {
    let host = agent.control_addr().ip().to_string();
    let claims = Claims {
        cluster: agent.endpoints().identity().peer().cluster.clone(),
        set,
        direction: Direction::Pull,
        owner: agent.deployment_digest(),
        incarnation: agent.incarnation(),
        start: 0,
        valid_tokens: side.contents.tokens,
        ranks: side.ranks().map(|_: (Rank, _)| agent.address(&host)).collect(),
        time_left: LEASE,
        audience: None,
    };
    Ok(Ticket::mint(&agent.ticket_key(), &claims)?)
}

/// Waits until all leases have ended, and returns the ways in which they ended.
pub(super) async fn ended(leases: Vec<Lease>) -> Result<Vec<String>, SourceError> {
    let mut ends = Vec::new();
    for lease in leases {
        ends.push(lease.ended().await?.end.to_string());
    }
    Ok(ends)
}
