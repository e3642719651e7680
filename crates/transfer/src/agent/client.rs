//! The channel through which users' handles send commands to the driver.

use tokio::sync::{mpsc, oneshot};

use super::driver::Driver;
use super::error::AgentGone;

/// The most commands that wait for the driver. Senders wait while there are so many (back-pressure).
const WAITING: usize = 1024;

/// A command of a user, which runs on the driver's own task.
pub(super) type Command = Box<dyn FnOnce(&mut Driver) + Send>;

#[derive(Clone, Debug)]
pub(super) struct Client(mpsc::Sender<Command>);

/// Sends one command to the driver later. It does not keep the agent alive.
pub(super) struct Later(mpsc::WeakSender<Command>);

impl Later {
    pub(super) async fn tell(self, command: impl FnOnce(&mut Driver) + Send + 'static) {
        if let Some(commands) = self.0.upgrade() {
            // An error means that the driver has stopped.
            let _ = commands.send(Box::new(command)).await;
        }
    }
}

impl Client {
    pub(super) fn new() -> (Self, mpsc::Receiver<Command>) {
        let (sender, commands) = mpsc::channel(WAITING);
        (Self(sender), commands)
    }

    /// Sends a command without waiting for its outcome.
    pub(super) async fn tell(&self, command: impl FnOnce(&mut Driver) + Send + 'static) -> Result<(), AgentGone> {
        let sent = self.0.send(Box::new(command)).await;
        sent.map_err(|_| AgentGone)
    }

    /// Returns a sender for a command that is sent much later. It does not keep the agent alive until then.
    pub(super) fn later(&self) -> Later {
        Later(self.0.downgrade())
    }

    /// Sends a command and waits for its answer. If the caller stops waiting, the answer is dropped, and the lease or
    /// transfer in it is cancelled with that.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        command: impl FnOnce(&mut Driver) -> T + Send + 'static,
    ) -> Result<T, AgentGone> {
        let (sender, answer) = oneshot::channel();
        self.tell(|driver| drop(sender.send(command(driver)))).await?;
        answer.await.map_err(|_| AgentGone)
    }
}
