//! The source process, as seen by the process that started it.

use std::process::Stdio;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::messages::{Answer, Order};
use crate::failure::{Failure, chain};
use crate::program::ThisProgram;

/// The time that the process gets to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// A second process of this program, killed when this is dropped.
pub(super) struct SourceProcess {
    child: Child,
    stdin: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

#[derive(Debug, Error)]
pub(super) enum ChildError {
    #[error("the source process could not be started: {0}")]
    Start(#[source] std::io::Error),
    #[error("the source process ended too early ({0})")]
    Ended(String),
    #[error("the source process sent an unexpected answer: {0}")]
    Nonsense(String),
}

impl From<ChildError> for Failure {
    fn from(error: ChildError) -> Self {
        let right = match error {
            ChildError::Ended(_) => "see its message above; if there is none, it was killed: run the command again",
            _ => "the program starts itself a second time; check that its file still exists and is executable",
        };
        Self::no(chain(&error), right)
    }
}

impl SourceProcess {
    pub(super) fn start() -> Result<Self, ChildError> {
        let this_program = ThisProgram::find().map_err(ChildError::Start)?;
        let mut child = Command::from(this_program.command())
            .arg(super::SOURCE_PROCESS)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(ChildError::Start)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(ChildError::Nonsense("no pipes".to_owned()));
        };
        Ok(Self { child, stdin, answers: BufReader::new(stdout).lines() })
    }

    pub(super) async fn order(&mut self, order: &Order) -> Result<(), ChildError> {
        let line = serde_json::to_string(order);
        let line = line.map_err(|error| ChildError::Nonsense(error.to_string()))?;
        let line = format!("{line}\n");
        match self.stdin.write_all(line.as_bytes()).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.ended().await),
        }
    }

    pub(super) async fn answer(&mut self) -> Result<Answer, ChildError> {
        match self.answers.next_line().await {
            Ok(Some(line)) => serde_json::from_str(&line).map_err(|error| ChildError::Nonsense(error.to_string())),
            Ok(None) | Err(_) => Err(self.ended().await),
        }
    }

    /// Returns the error for closed pipes, with the process's exit status if it ends in time.
    async fn ended(&mut self) -> ChildError {
        ChildError::Ended(match timeout(PATIENCE, self.child.wait()).await {
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "its pipes are closed, but it is still running".to_owned(),
        })
    }

    /// Closes its stdin, which ends it, and waits for that.
    pub(super) async fn finish(self) -> Result<(), ChildError> {
        let Self { mut child, stdin, .. } = self;
        drop(stdin);
        match timeout(PATIENCE, child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(ChildError::Ended(status.to_string())),
            // Dropping the child kills it.
            Ok(Err(_)) | Err(_) => Ok(()),
        }
    }
}
