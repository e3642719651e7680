//! Measures concurrent streams: the delay of their events, the number that break, and the memory of silent ones.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use memchr::memmem;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Scale, quantile};
use crate::client::{Client, PATIENCE, body, post};
use crate::fakes;
use crate::peers::Running;
use crate::wire::Head;

/// The number of streams that are opened concurrently.
const OPENING: usize = 64;

/// The silence after which an active stream counts as broken.
const SILENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Opening,
    Measuring,
    Over,
}

/// Returns the median and 99th percentile of the time from a fake's sending of an event until a client has it, in
/// milliseconds; the proxy's processor time for an event; and the number of broken streams.
pub(super) async fn delays(peer: &Running, scale: &Scale) -> io::Result<Vec<f64>> {
    let phase = Rc::new(Cell::new(Phase::Opening));
    let mut streams = JoinSet::new();
    let mut broken = 0;
    open(peer.at, "events=1000000 every=200", scale.streams, |stream| match stream {
        Ok((client, head)) => {
            streams.spawn_local(follow(client, head, phase.clone()));
        }
        Err(_) => broken += 1,
    })
    .await;
    // Warms up with a few events of each stream.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let busy = peer.busy();
    phase.set(Phase::Measuring);
    // Shorter measurements may miss busy moments.
    tokio::time::sleep(scale.time.max(Duration::from_secs(2))).await;
    phase.set(Phase::Over);
    let busy = peer.busy() - busy;
    let mut delays = Vec::new();
    while let Some(stream) = streams.join_next().await {
        let (whole, taken) = stream?;
        broken += usize::from(!whole);
        delays.extend(taken);
    }
    if delays.is_empty() {
        return Err(io::Error::other("not one event"));
    }
    delays.sort();
    let ms = |of| quantile(&delays, of).as_secs_f64() * 1e3;
    Ok(vec![ms(0.5), ms(0.99), busy.as_secs_f64() * 1e6 / delays.len() as f64, broken as f64])
}

/// Reads a stream until the measurement is over. Returns whether the stream has lasted that long, and the delays of its
/// events.
async fn follow(mut client: Client, mut head: Head, phase: Rc<Cell<Phase>>) -> (bool, Vec<Duration>) {
    let mut delays = Vec::new();
    let mut event = Vec::new();
    while phase.get() != Phase::Over {
        let Ok(Ok(Some(piece))) = tokio::time::timeout(SILENCE, client.piece(&mut head)).await else {
            return (false, delays);
        };
        event.extend_from_slice(piece);
        while let Some(length) = memmem::find(&event, b"\n\n") {
            if phase.get() == Phase::Measuring {
                delays.extend(fakes::age(&event[..length]));
            }
            event.drain(..length + 2);
        }
    }
    (true, delays)
}

/// Returns the memory of a silent stream in KiB.
pub(super) async fn memory(peer: &Running, scale: &Scale) -> io::Result<Vec<f64>> {
    const SILENT: &str = "events=2 every=3600000";
    const SETTLED: Duration = Duration::from_secs(1);
    let mut kept = Vec::new();
    // The first streams also allocate shared state, which is not counted.
    open(peer.at, SILENT, OPENING, |stream| kept.push(stream)).await;
    kept.clear();
    tokio::time::sleep(SETTLED).await;
    let before = peer.resident();
    open(peer.at, SILENT, scale.streams, |stream| kept.push(stream)).await;
    tokio::time::sleep(SETTLED).await;
    let after = peer.resident();
    let streams: io::Result<Vec<_>> = kept.into_iter().collect();
    let streams = streams?.len();
    Ok(vec![after.saturating_sub(before) as f64 / 1024.0 / streams as f64])
}

/// Opens streams and waits for the first event of each.
async fn open(at: SocketAddr, events: &str, count: usize, mut opened: impl FnMut(io::Result<(Client, Head)>)) {
    let members = format!("\"stream\":true,\"user\":\"{events}\",");
    let request: Rc<[u8]> = post("/v1/completions", None, &body(&members)).into();
    let permits = Rc::new(Semaphore::new(OPENING));
    let mut opening = JoinSet::new();
    for _ in 0..count {
        let (request, permits) = (request.clone(), permits.clone());
        opening.spawn_local(async move {
            let _permit = permits.acquire().await;
            let first = async {
                let mut client = Client::connect(at).await?;
                let mut head = client.begin(&request).await?;
                client.piece(&mut head).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
                Ok((client, head))
            };
            tokio::time::timeout(PATIENCE, first).await?
        });
        // Streams are reported one by one as they open, so that they do not all send at the same moment.
        while let Some(done) = opening.try_join_next() {
            opened(done.unwrap_or_else(|error| Err(error.into())));
        }
    }
    while let Some(done) = opening.join_next().await {
        opened(done.unwrap_or_else(|error| Err(error.into())));
    }
}
