//! How the handles that users hold have the driver do something.

use tokio::sync::{mpsc, oneshot};

use super::driver::Driver;
use super::error::AgentGone;

/// Most commands that wait for the driver. Users block while there are so many (back-pressure).
const WAITING: usize = 1024;

/// One thing that a user has the driver do, on the driver's own task.
pub(super) type Command = Box<dyn FnOnce(&mut Driver) + Send>;

/// Sends commands to the driver.
#[derive(Clone, Debug)]
pub(super) struct Client(mpsc::Sender<Command>);

/// Tells the driver something later. The agent need not live for it.
pub(super) struct Later(mpsc::WeakSender<Command>);

impl Later {
    pub(super) async fn tell(self, command: impl FnOnce(&mut Driver) + Send + 'static) {
        if let Some(commands) = self.0.upgrade() {
            // The driver has stopped where this fails.
            let _ = commands.send(Box::new(command)).await;
        }
    }
}

impl Client {
    /// A client, and where its commands arrive.
    pub(super) fn new() -> (Self, mpsc::Receiver<Command>) {
        let (sender, commands) = mpsc::channel(WAITING);
        (Self(sender), commands)
    }

    /// Sends a command whose outcome nobody waits for.
    pub(super) async fn tell(&self, command: impl FnOnce(&mut Driver) + Send + 'static) -> Result<(), AgentGone> {
        let sent = self.0.send(Box::new(command)).await;
        sent.map_err(|_| AgentGone)
    }

    /// Gives a sender for commands that are sent much later. It does not keep the agent alive until then.
    pub(super) fn later(&self) -> Later {
        Later(self.0.downgrade())
    }

    /// Sends a command and waits for its answer. One that nobody waits for any more is dropped, and with it what cancels a
    /// lease or a transfer.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        command: impl FnOnce(&mut Driver) -> T + Send + 'static,
    ) -> Result<T, AgentGone> {
        let (sender, answer) = oneshot::channel();
        self.tell(|driver| drop(sender.send(command(driver)))).await?;
        answer.await.map_err(|_| AgentGone)
    }
}
