//! One control connection: its two tasks, and what waits between the driver and the one that sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::event::Event;
use crate::transport::quic::{ControlReceiver, ControlSender};
use crate::wire::ConnId;
use crate::wire::frame;
use crate::wire::message::Envelope;

/// Most bytes that wait to be sent to one peer. All that 1,024 transfers of one peer say at a time is
/// less; one that asks and does not read the answers is given up.
const UNREAD: usize = 16 << 20;

/// Frames on their way to the task that sends them.
#[derive(Debug)]
pub(super) struct Outbox {
    frames: mpsc::UnboundedSender<Bytes>,
    waiting: Arc<AtomicUsize>,
}

/// The other end of an [`Outbox`].
#[derive(Debug)]
pub(super) struct Outgoing {
    frames: mpsc::UnboundedReceiver<Bytes>,
    waiting: Arc<AtomicUsize>,
}

pub(super) fn outbox() -> (Outbox, Outgoing) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let outbox = Outbox {
        frames: sender,
        waiting: waiting.clone(),
    };
    let outgoing = Outgoing {
        frames: receiver,
        waiting,
    };
    (outbox, outgoing)
}

impl Outbox {
    /// Hands a message over to be sent, or says why the connection is of no use any more.
    pub(super) fn put(&self, envelope: &Envelope) -> Result<(), String> {
        let frame = frame::encode(envelope).map_err(|error| error.to_string())?;
        let waiting = self.waiting.fetch_add(frame.len(), Ordering::Relaxed);
        if waiting + frame.len() > UNREAD {
            return Err("the peer asks, and does not read the answers".to_owned());
        }
        // The task that sends tells of a loss by itself.
        let _ = self.frames.send(frame);
        Ok(())
    }
}

/// Sends frames in order until the outbox or the connection is gone.
pub(super) async fn write(
    mut connection: ControlSender,
    mut outgoing: Outgoing,
    conn: ConnId,
    events: mpsc::Sender<Event>,
) {
    while let Some(frame) = outgoing.frames.recv().await {
        let bytes = frame.len();
        if let Err(error) = connection.send(frame).await {
            let why = error.to_string();
            // The driver is gone where this fails.
            let _ = events.send(Event::Lost { conn, why }).await;
            return;
        }
        outgoing.waiting.fetch_sub(bytes, Ordering::Relaxed);
    }
    // The driver has closed the connection: what was said last, a refusal mostly, still arrives.
    connection.finish().await;
}

/// Hands every message that comes to the driver, until the connection ends.
pub(super) async fn read(
    mut connection: ControlReceiver,
    conn: ConnId,
    events: mpsc::Sender<Event>,
) {
    let why = loop {
        let envelope = match connection.recv().await {
            Ok(body) => frame::decode(&body).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let envelope = match envelope {
            Ok(envelope) => envelope,
            Err(why) => break why,
        };
        if events
            .send(Event::Received { conn, envelope })
            .await
            .is_err()
        {
            return;
        }
    };
    // As above.
    let _ = events.send(Event::Lost { conn, why }).await;
}
