//! The source: the second process, which has computed a request and leases its blocks.

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
use super::pair::PATIENCE;
use crate::failure::{Failure, chain};

/// How long blocks stay leased if nobody pulls them.
const LEASE: Duration = Duration::from_secs(60);

/// Why the source gave up.
#[derive(Debug, Error)]
pub(super) enum SourceError {
    #[error("the other process sent no orders that make sense: {0}")]
    Order(String),
    #[error("the other process could not be answered: {0}")]
    Answer(#[from] std::io::Error),
    #[error("the certificate that was handed over is of no use")]
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
            // The process that gave the orders is gone: it has said why, or the user has ended it.
            SourceError::Answer(error) => Self::Output(error),
            error => Self::no(
                format!("the source process: {}", chain(&error)),
                "this process is started by `transload demo` and `transload bench`; run those",
            ),
        }
    }
}

/// Runs until stdin ends, be it because all is done or because the other process is gone.
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
            // Nothing is asked before the leases have ended: the other process is gone.
            _ = orders.recv() => break,
        }
    }
    agent.shutdown(PATIENCE).await;
    Ok(())
}

/// Every line of stdin. A thread reads it, since a read that waits cannot be given up.
fn orders() -> mpsc::UnboundedReceiver<Result<Order, String>> {
    let (sender, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let order = line.map_err(|error| error.to_string());
            let order = order.and_then(|line| {
                // Nothing of the line is told, which may hold a key.
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

/// What the request's blocks hold. The destination knows the prompt too, and says the same.
pub(super) fn content(tokens: u64) -> Result<ContentDigest, Failure> {
    let prompt: Vec<u32> = (0..tokens as u32).collect();
    let content = Content::first(tokens, &prompt).map_err(super::broken)?;
    Ok(content.digest())
}

/// Leases the request's blocks on every rank.
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

/// A ticket for them. It is sealed with the cluster's key, and says where each rank is reached.
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

/// Waits for the end of every lease.
pub(super) async fn ended(leases: Vec<Lease>) -> Result<Vec<String>, SourceError> {
    let mut ends = Vec::new();
    for lease in leases {
        ends.push(lease.ended().await?.end.to_string());
    }
    Ok(ends)
}
