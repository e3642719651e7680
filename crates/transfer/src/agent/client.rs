//! The channel through which users' handles send commands to the driver.

use tokio::sync::{mpsc, oneshot};

use super::after::After;
use super::driver::{Command, Driver, Setup};
use super::error::AgentGone;
use super::promise::Handle;

/// The most commands that wait for the driver. Senders wait while the queue is full (back-pressure).
const WAITING: usize = 1024;

/// Starts a driver on the control thread. Returns a client for commands, and a sender for dropped handles.
pub(super) fn start(setup: Setup) -> (Client, mpsc::UnboundedSender<Handle>) {
    let (client, commands) = mpsc::channel(WAITING);
    let (handles, dropped) = mpsc::unbounded_channel();
    let (control, driving) = (setup.endpoints.clone(), handles.clone());
    control.spawn_control(async move {
        let (driver, inbox) = Driver::new(setup, driving, commands, dropped);
        driver.run(inbox).await;
    });
    (Client(client), handles)
}

#[derive(Clone, Debug)]
pub(super) struct Client(mpsc::Sender<Command>);

/// Sends one command to the driver later. It does not keep the agent alive.
pub(super) struct Later(mpsc::WeakSender<Command>);

impl Later {
    async fn tell(self, command: impl FnOnce(&mut Driver) + Send + 'static) {
        if let Some(commands) = self.0.upgrade() {
            // An error means that the driver has stopped.
            let _ = commands.send(Box::new(command)).await;
        }
    }

    /// Runs `tell` for a lease or a push once a condition is met. If that becomes impossible, cancels the lease or the
    /// push. It must be called inside a command, since it starts a task on the control thread.
    pub(super) fn tell_after(self, of: Handle, after: &After, tell: impl FnOnce(&mut Driver) + Send + 'static) {
        let done = after.done();
        tokio::spawn(async move {
            let done = done.await;
            let command = move |driver: &mut Driver| match done {
                Ok(()) => tell(driver),
                Err(why) => {
                    // Lost memory may be the cause, and is reported first.
                    driver.look_for_losses();
                    tracing::warn!(?of, why, "cancelled what can never be read");
                    driver.cancel(of);
                }
            };
            self.tell(command).await;
        });
    }

    /// Finishes the prefill of a lease or a push once a condition is met.
    pub(super) fn prefill_after(self, of: Handle, after: &After) {
        self.tell_after(of, after, move |driver| {
            let now = driver.now();
            match of {
                // An error means that the lease is over.
                Handle::Lease(key) => drop(driver.machine.finish_prefill(now, key)),
                Handle::Job(job) => driver.machine.job_prefilled(now, job),
                Handle::Agent => {}
            }
        });
    }
}

impl Client {
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
