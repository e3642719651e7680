//! Data streams, and the buffers that are queued in them.

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::*;

/// Buffers that report when QUIC has released them.
#[derive(Clone)]
struct Buffers(Arc<Semaphore>);

struct Buffer {
    bytes: Vec<u8>,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Buffers {
    const MOST: usize = 1000;

    fn new() -> Self {
        Self(Arc::new(Semaphore::new(Self::MOST)))
    }

    fn of(&self, bytes: Vec<u8>) -> Bytes {
        let _permit = self.0.clone().try_acquire_owned().unwrap();
        Bytes::from_owner(Buffer { bytes, _permit })
    }

    /// Waits until all of them were dropped.
    async fn back(&self) {
        let all = self.0.acquire_many(Self::MOST as u32);
        let _all = timeout(PATIENCE, all).await.expect("buffers are kept").unwrap();
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 9)) as u8).collect()
}

async fn collect(mut stream: DataReceiver) -> Result<Vec<u8>, StreamError> {
    let mut got = Vec::new();
    while let Some(chunk) = next_piece(&mut stream).await? {
        got.extend_from_slice(&chunk);
    }
    Ok(got)
}

#[tokio::test]
async fn bytes_get_across_and_buffers_come_back() {
    let pair = Pair::new().await;
    let (lane, other) = pair.lane().await;
    let sent = pattern(5 << 20);
    let buffers = Buffers::new();
    let receiving = other.clone().spawn({
        let other = other.clone();
        async move { collect(other.accept_stream().await?).await }
    });
    let mut sender = lane.open_stream().await.unwrap();
    sender.send_all(b"head").await.unwrap();
    sender.send_chunk(buffers.of(sent.clone())).await.unwrap();
    let more = buffers.of(vec![9; 1000]);
    let pieces = [more.slice(..10), Bytes::new(), more.slice(10..)];
    drop(more);
    for piece in pieces {
        sender.send_chunk(piece).await.unwrap();
    }
    sender.finish().unwrap().await.unwrap();
    buffers.back().await;
    let got = receiving.await.unwrap().unwrap();
    assert_eq!(got.len(), sent.len() + 1004);
    assert!(got.starts_with(b"head") && got[4..].starts_with(&sent));
    let stats = lane.stats();
    assert!(stats.sent_packets > 0 && stats.send_calls > 0);
}

#[tokio::test]
async fn both_sides_open_streams() {
    let pair = Pair::new().await;
    let (lane, other) = pair.lane().await;
    let mut sender = other.open_stream().await.unwrap();
    sender.send_all(b"from the accepting side").await.unwrap();
    drop(sender.finish().unwrap());
    let mut stream = lane.accept_stream().await.unwrap();
    let mut head = [0; 4];
    stream.recv_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"from");
    let mut pieces = vec![Bytes::new(); 4];
    let count = stream.recv_chunks(&mut pieces).await.unwrap().unwrap();
    let rest: Vec<u8> = pieces[..count].concat();
    assert!(rest.starts_with(b" the"));
    assert_eq!(stream.recv_exact(&mut [0; 99]).await.unwrap_err(), StreamError::Ended { missing: 99 });
    assert_eq!(lane.peer().service(), "b");
    assert_eq!(other.peer().service(), "a");
}

#[tokio::test]
async fn a_dropped_sender_is_never_taken_for_a_complete_stream() {
    let pair = Pair::new().await;
    let (lane, other) = pair.lane().await;
    let buffers = Buffers::new();
    let mut sender = lane.open_stream().await.unwrap();
    sender.send_chunk(buffers.of(pattern(100_000))).await.unwrap();
    drop(sender);
    buffers.back().await;
    let stream = other.accept_stream().await.unwrap();
    assert_eq!(collect(stream).await.unwrap_err(), StreamError::Reset(StreamCode::CANCELLED));
}

#[tokio::test]
async fn a_stopped_sender_knows_and_its_buffers_come_back() {
    let pair = Pair::new().await;
    let (lane, other) = pair.lane().await;
    let buffers = Buffers::new();
    let mut sender = lane.open_stream().await.unwrap();
    sender.send_all(b"x").await.unwrap();
    other.accept_stream().await.unwrap().stop(StreamCode(7));
    let error = loop {
        if let Err(error) = sender.send_chunk(buffers.of(vec![0; 1 << 20])).await {
            break error;
        }
    };
    assert_eq!(error, StreamError::Stopped(StreamCode(7)));
    drop(sender);
    buffers.back().await;
}

#[tokio::test]
async fn a_receiver_that_does_not_read_stalls_the_sender_and_no_more() {
    let options = QuicOptions { receive_window: 256 << 10, ..impatient() };
    let pair = Pair::with(impatient(), options).await;
    let (lane, other) = pair.lane().await;
    let buffers = Buffers::new();
    let mut sender = lane.open_stream().await.unwrap();
    let after = impatient().stall_timeout;
    let error = loop {
        if let Err(error) = sender.send_chunk(buffers.of(vec![0; 1 << 20])).await {
            break error;
        }
    };
    assert_eq!(error, StreamError::Stalled { after });
    drop(sender);
    buffers.back().await;
    // The lane goes on with other streams.
    let mut unread = other.accept_stream().await.unwrap();
    let mut next = lane.open_stream().await.unwrap();
    next.send_all(b"next").await.unwrap();
    let acknowledged = next.finish().unwrap();
    assert_eq!(collect(other.accept_stream().await.unwrap()).await.unwrap(), b"next");
    acknowledged.await.unwrap();
    let error = loop {
        if let Err(error) = next_piece(&mut unread).await {
            break error;
        }
    };
    assert_eq!(error, StreamError::Reset(StreamCode::CANCELLED));
    // A receiver that waits for nothing gives up too.
    let mut silent = lane.open_stream().await.unwrap();
    silent.send_all(b"x").await.unwrap();
    let mut stream = other.accept_stream().await.unwrap();
    next_piece(&mut stream).await.unwrap();
    assert_eq!(next_piece(&mut stream).await.unwrap_err(), StreamError::Stalled { after });
}

#[tokio::test]
async fn a_finished_stream_that_nobody_reads_gives_its_buffers_back() {
    let options = QuicOptions { receive_window: 64 << 10, ..impatient() };
    let pair = Pair::with(impatient(), options).await;
    let (lane, _other) = pair.lane().await;
    let buffers = Buffers::new();
    let mut sender = lane.open_stream().await.unwrap();
    // More than the receiver's window and within the sender's: queued, and not read.
    sender.send_chunk(buffers.of(vec![0; 60 << 10])).await.unwrap();
    sender.send_chunk(buffers.of(vec![0; 4 << 10])).await.unwrap();
    let acknowledged = sender.finish().unwrap();
    let outcome = acknowledged.await;
    assert!(matches!(outcome, Ok(()) | Err(StreamError::Stalled { .. })), "{outcome:?}");
    buffers.back().await;
}

#[tokio::test]
async fn losing_the_peer_gives_buffers_back() {
    // Held at every stage: unsent for lack of window, sent, and finished.
    let Pair { a, b, at_a, at_b } =
        Pair::with(impatient(), QuicOptions { receive_window: 64 << 10, ..impatient() }).await;
    let mut session = b.expect_lanes(&id(at_b.peer()), 1).unwrap();
    let addr = loopback(b.lane_ports()[0]);
    let lane = a.connect_lane(0, addr, &id(at_a.peer()), session.token()).await.unwrap();
    let other = session.accept().await.unwrap();
    let buffers = Buffers::new();
    let mut sender = lane.open_stream().await.unwrap();
    sender.send_chunk(buffers.of(vec![0; 32 << 10])).await.unwrap();
    let mut finished = lane.open_stream().await.unwrap();
    finished.send_chunk(buffers.of(vec![0; 32 << 10])).await.unwrap();
    let acknowledgement = finished.finish().unwrap();
    let sending = tokio::spawn({
        let buffers = buffers.clone();
        async move {
            loop {
                if let Err(error) = sender.send_chunk(buffers.of(vec![0; 1 << 20])).await {
                    return error;
                }
            }
        }
    });
    drop((session, other, at_b, b));
    let error = sending.await.unwrap();
    assert!(matches!(error, StreamError::Lost(_)), "{error:?}");
    let _ = acknowledgement.await;
    // Although the lane itself is still held.
    buffers.back().await;
    assert!(matches!(lane.closed().await, ConnectionLost::ClosedByPeer { .. }));
    assert!(lane.open_stream().await.is_err());
    assert!(lane.accept_stream().await.is_err());
}

#[tokio::test]
async fn many_streams_at_once_share_a_lane() {
    let pair = Pair::new().await;
    let (lane, other) = pair.lane().await;
    let receiving = tokio::spawn(async move {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..300 {
            let stream = other.accept_stream().await.unwrap();
            tasks.spawn(async move { collect(stream).await.unwrap().len() });
        }
        tasks.join_all().await.into_iter().sum::<usize>()
    });
    let mut sent = 0;
    for i in 0..300 {
        let mut sender = lane.open_stream().await.unwrap();
        let bytes = pattern(1 + i * 97);
        sent += bytes.len();
        sender.send_chunk(bytes.into()).await.unwrap();
        drop(sender.finish().unwrap());
    }
    assert_eq!(receiving.await.unwrap(), sent);
}
