//! One control connection: its two tasks.

use tokio::sync::mpsc;

use super::event::Event;
use crate::transport::quic::{ControlReceiver, ControlSender};
use crate::wire::ConnId;
use crate::wire::frame;
use crate::wire::message::Envelope;

/// Sends messages in order until the sender or the connection is gone. What waits here is bounded by
/// what the machine has under way; a peer that does not read is given up by the transport.
pub(super) async fn write(
    mut connection: ControlSender,
    mut messages: mpsc::Receiver<Envelope>,
    conn: ConnId,
    events: mpsc::Sender<Event>,
) {
    while let Some(envelope) = messages.recv().await {
        let sent = match frame::payload(&envelope) {
            Ok((version, payload)) => connection
                .send(version, &payload)
                .await
                .map_err(|e| e.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(why) = sent {
            // The driver is gone where this fails.
            let _ = events.send(Event::Lost { conn, why }).await;
            return;
        }
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
            Ok(frame) => frame::message(frame.version, &frame.payload),
            Err(error) => break error.to_string(),
        };
        let envelope = match envelope {
            Ok(envelope) => envelope,
            Err(error) => break error.to_string(),
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
