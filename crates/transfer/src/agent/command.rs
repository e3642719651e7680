//! Commands: how the handles that users hold ask the driver for something.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::error::{AgentGone, TransferError};
use super::metrics::AgentMetrics;
use super::outcome::{LeaseEnded, PullReport};
use super::promise::{CancelOnDrop, Handle};
use super::request::{Blocks, Keeper};
use crate::content::ContentDigest;
use crate::ids::{Direction, LeaseSetId, Rank};
use crate::lease::{LeaseError, LeaseKey, LeaseSpec, OpenError};
use crate::ticket::Ticket;
use crate::wire::{Gauges, JobError, JobId, JobSpec, NoticeOutcome};

/// Most commands that wait for the driver. Users block while there are so many (back-pressure).
const WAITING: usize = 1024;

/// One thing that a user asks of the driver.
pub(super) enum Command {
    Lease {
        spec: LeaseSpec,
        blocks: Blocks,
        claimed: Arc<AtomicBool>,
        keeper: Option<Keeper>,
        opened: oneshot::Sender<Result<CancelOnDrop<LeaseEnded>, OpenError<Blocks>>>,
    },
    OfLease {
        key: LeaseKey,
        wish: LeaseWish,
        answer: oneshot::Sender<Result<(), LeaseError>>,
    },
    Start {
        spec: JobSpec<Blocks>,
        label: JobLabel,
        keeper: Option<Keeper>,
        started: oneshot::Sender<Result<Started, JobError>>,
    },
    JobReady {
        job: JobId,
        rank: Rank,
        layer: u32,
        tokens: u64,
    },
    JobPrefilled {
        job: JobId,
    },
    Cancel(Handle),
    Notify {
        ticket: Ticket,
        notice: Notice,
        answer: oneshot::Sender<NoticeBegun>,
    },
    Gauges {
        answer: oneshot::Sender<Gauges>,
    },
    Metrics {
        answer: oneshot::Sender<Box<AgentMetrics>>,
    },
    /// Take nothing new; answer once idle or after the patience, then stop.
    Shutdown {
        patience: Duration,
        done: oneshot::Sender<()>,
    },
}

/// One thing that the owner of a lease asks for.
pub(super) enum LeaseWish {
    Ready { layer: u32, tokens: u64 },
    FinishPrefill,
    Renew { ttl: Duration },
}

/// One thing that the driver tells the agents of a ticket for a user.
pub(super) enum Notice {
    Cancel { content: Option<ContentDigest> },
    Renew { ttl: Duration },
}

/// Names a pull or a push in counters and logs.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobLabel {
    pub(super) direction: Direction,
    pub(super) set: LeaseSetId,
    pub(super) content: ContentDigest,
}

/// How a pull or push ends.
pub(super) type JobResult = Result<PullReport, TransferError>;

/// A pull or push that has begun.
pub(super) type Started = (JobId, CancelOnDrop<JobResult>);

/// Where the outcome of a notice will be, or why there is none.
pub(super) type NoticeBegun = Result<oneshot::Receiver<NoticeOutcome>, JobError>;

/// Sends commands to the driver.
#[derive(Clone, Debug)]
pub(super) struct Client(mpsc::Sender<Command>);

impl Client {
    /// A client, and where its commands arrive.
    pub(super) fn new() -> (Self, mpsc::Receiver<Command>) {
        let (sender, commands) = mpsc::channel(WAITING);
        (Self(sender), commands)
    }

    pub(super) async fn send(&self, command: Command) -> Result<(), AgentGone> {
        self.0.send(command).await.map_err(|_| AgentGone)
    }

    /// Sends a command and waits for its answer.
    pub(super) async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, AgentGone> {
        let (sender, answer) = oneshot::channel();
        self.send(command(sender)).await?;
        answer.await.map_err(|_| AgentGone)
    }
}
