//! One control connection: its two tasks, and what waits between the driver and the one that sends.

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

/// Most bytes that wait to be sent to one peer. All that 1,024 transfers of one peer say at a time is
/// less; one that asks and does not read the answers is given up.
const UNREAD: usize = 16 << 20;

/// Frames on their way to the task that sends them. Dropping it hangs up.
#[derive(Debug)]
pub(super) struct Outbox {
    frames: mpsc::UnboundedSender<Bytes>,
    waiting: Arc<AtomicUsize>,
    /// Only dropped.
    _open: oneshot::Sender<()>,
}

/// The other end of an [`Outbox`].
#[derive(Debug)]
pub(super) struct Unsent {
    frames: mpsc::UnboundedReceiver<Bytes>,
    waiting: Arc<AtomicUsize>,
    /// Ends when the outbox is dropped, however many frames there are still.
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

/// Sends frames in order until the outbox or the connection is gone. What is left when the driver hangs
/// up, a refusal mostly, still arrives if the peer takes all of it within `patience`: the connection does
/// not count any more, so a peer that reads slowly must not keep it.
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
                // The driver is gone where this fails.
                let _ = events.send(ControlEvent::Lost { conn, why }).await;
                return;
            }
            waiting.fetch_sub(bytes, Ordering::Relaxed);
        }
        connection.finish().await;
    };
    let given_up = async {
        // It ends with an error, always: nothing is ever sent.
        let _ = hung_up.await;
        sleep(patience).await;
    };
    tokio::select! {
        () = written => {}
        // The connection goes with the future that had it.
        () = given_up => tracing::debug!("the peer was too slow for what was said last"),
    }
}

/// Hands every message that comes to the driver, until the connection ends.
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
    // The driver is gone where this fails.
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

    /// Puts `count` frames, hangs up at once, and says how many arrive at a peer that takes each of them
    /// well within any timeout of a frame. The driver reads no events meanwhile, as at its farewell.
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
        // As when the driver closes a connection.
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
