//! A control connection: its two tasks, and the queue between the driver and the one that sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::event::ControlEvent;
use crate::data::BoxError;
use crate::quic::{ControlReceiver, ControlSender};
use transload_wire::ConnId;
use transload_wire::internal::frame;
use transload_wire::message::Envelope;

/// The most bytes that wait to be sent to one peer, more than all messages of 1,024 transfers at a time. The connection
/// of a peer that asks and does not read the answers is closed.
const UNREAD: usize = 16 << 20;

/// The frames that wait to be sent. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Outbox {
    frames: mpsc::UnboundedSender<Bytes>,
    waiting: Arc<AtomicUsize>,
    /// Dropping this signals the task.
    _open: oneshot::Sender<()>,
}

/// The receiving end of an [`Outbox`].
#[derive(Debug)]
pub(super) struct Unsent {
    frames: mpsc::UnboundedReceiver<Bytes>,
    waiting: Arc<AtomicUsize>,
    /// Resolves when the outbox is dropped, even if frames are left.
    hung_up: oneshot::Receiver<()>,
}

pub(super) fn outbox() -> (Outbox, Unsent) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let (open, hung_up) = oneshot::channel();
    let outbox = Outbox { frames: sender, waiting: waiting.clone(), _open: open };
    let unsent = Unsent { frames: receiver, waiting, hung_up };
    (outbox, unsent)
}

impl Outbox {
    /// Queues a message. An error says why the connection cannot be used further.
    pub(super) fn put(&self, envelope: &Envelope) -> Result<(), String> {
        let frame = frame::encode(envelope).map_err(|error| error.to_string())?;
        let waiting = self.waiting.fetch_add(frame.len(), Ordering::Relaxed);
        if waiting + frame.len() > UNREAD {
            return Err("the peer asks, and does not read the answers".to_owned());
        }
        // The task that sends reports a loss itself.
        let _ = self.frames.send(frame);
        Ok(())
    }
}

/// Sends frames in order until the outbox is dropped or the connection is lost. After the driver has closed the
/// connection, the remaining frames, usually a refusal, still arrive if the peer takes all of them within `patience`.
/// Such a connection is no longer counted, so a slow reader must not keep it open.
pub(super) async fn write(
    mut connection: ControlSender,
    unsent: Unsent,
    patience: Duration,
    conn: ConnId,
    events: mpsc::Sender<ControlEvent>,
) {
    let Unsent { mut frames, waiting, hung_up } = unsent;
    let written = async move {
        while let Some(frame) = frames.recv().await {
            let bytes = frame.len();
            if let Err(error) = connection.send(frame).await {
                let why = error.to_string();
                // An error means that the driver has stopped.
                let _ = events.send(ControlEvent::Lost { conn, why }).await;
                return;
            }
            waiting.fetch_sub(bytes, Ordering::Relaxed);
        }
        connection.finish().await;
    };
    let given_up = async {
        // The sender is only dropped, so this always ends with an error.
        let _ = hung_up.await;
        sleep(patience).await;
    };
    tokio::select! {
        () = written => {}
        // Dropping the other future drops the connection.
        () = given_up => tracing::debug!("the peer was too slow for what was said last"),
    }
}

/// Passes every message to the driver, until the connection ends.
pub(super) async fn read(mut connection: ControlReceiver, conn: ConnId, events: mpsc::Sender<ControlEvent>) {
    let why = loop {
        let envelope = match next(&mut connection).await {
            Ok(envelope) => envelope,
            Err(why) => break why.to_string(),
        };
        let received = ControlEvent::Received { conn, envelope };
        if events.send(received).await.is_err() {
            return;
        }
    };
    // An error means that the driver has stopped.
    let _ = events.send(ControlEvent::Lost { conn, why }).await;
}

async fn next(connection: &mut ControlReceiver) -> Result<Envelope, BoxError> {
    Ok(frame::decode(&connection.recv().await?)?)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::identity::Authority;
    use crate::quic::{ControlConnection, Endpoints, QuicOptions};
    use transload_wire::Roles;

    fn bind(authority: &Authority, name: &str) -> Endpoints {
        let identity = authority.issue(&name.parse().unwrap(), Roles::all()).unwrap();
        let options = QuicOptions { lanes: 1, ..QuicOptions::default() };
        Endpoints::bind(identity, options, (Ipv4Addr::LOCALHOST, 0).into()).unwrap()
    }

    /// Queues `count` frames, closes at once, and returns how many arrive at a peer that takes each of them well within
    /// the timeout of a frame. The driver reads no events meanwhile, as during its own shutdown.
    async fn arrived(count: usize, patience: Duration) -> usize {
        let authority = Authority::new("test".parse().unwrap()).unwrap();
        let (a, b) = (bind(&authority, "a"), bind(&authority, "b"));
        let (at_a, at_b) = tokio::join!(a.connect(b.control_addr(), None), b.accept());
        let ControlConnection { sender, receiver, .. } = at_a.unwrap();
        let (outbox, unsent) = outbox();
        let body = vec![0_u8; 60_000];
        let frame: Bytes = [&(body.len() as u32).to_le_bytes(), &body[..]].concat().into();
        for _ in 0..count {
            outbox.frames.send(frame.clone()).unwrap();
        }
        // As the driver does when it closes a connection.
        drop((outbox, receiver));
        let conn = ConnId(1);
        let (events, _unread) = mpsc::channel(1);
        let full = ControlEvent::Lost { conn, why: String::new() };
        assert!(events.try_send(full).is_ok());
        let writing = write(sender, unsent, patience, conn, events);
        let writing = tokio::spawn(writing);
        let mut at_b = at_b.unwrap();
        let mut arrived = 0;
        while at_b.receiver.recv().await.is_ok() {
            arrived += 1;
            sleep(Duration::from_millis(20)).await;
        }
        writing.await.unwrap();
        arrived
    }

    #[tokio::test]
    async fn last_words_arrive() {
        assert_eq!(arrived(8, Duration::from_secs(60)).await, 8);
    }

    #[tokio::test]
    async fn a_trickling_reader_does_not_keep_a_closed_connection() {
        let (count, patience) = (400, Duration::from_millis(100));
        assert!(arrived(count, patience).await < count);
    }
}
