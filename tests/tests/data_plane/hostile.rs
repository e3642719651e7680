//! Peers whose streams are malformed.

use std::time::Duration;

use transload_tests::sums::crc32c;
use transload_transfer::internal::data::ReceiveError;
use transload_transfer::internal::quic::StreamError;
use transload_transfer::plan::ids::{Nonce, TransferId};
use transload_transfer::wire::internal::stream::{StreamHeader, StreamTrailer};
use transload_transfer::{DataOptions, QuicOptions};

use crate::support::{Arrival, CANARY, Pair, Sample, Transfer, bytes_of, is_all, runtime, soon};

/// A stream as a peer may write it.
struct Forged {
    header: StreamHeader,
    body: Vec<u8>,
    trailer: Vec<u8>,
}

impl Forged {
    /// Makes a good one: `length` bytes of 7 at `offset`.
    fn of(pair: &Pair, transfer: &Transfer, offset: u64, length: u64) -> Self {
        let body = vec![7; length as usize];
        let trailer = StreamTrailer { length, crc: crc32c(&body) };
        Self {
            header: StreamHeader {
                transfer: transfer.id,
                nonce: pair.desk.nonce(transfer.id),
                stream: 0,
                offset,
                length,
            },
            body,
            trailer: trailer.encode().to_vec(),
        }
    }

    async fn send(&self, pair: &Pair) -> Result<(), StreamError> {
        let mut stream = pair.lane().open_stream().await?;
        stream.send_all(&self.header.encode()).await?;
        stream.send_all(&self.body).await?;
        stream.send_all(&self.trailer).await?;
        stream.finish()?.await
    }
}

async fn broken(transfer: &mut Transfer) -> ReceiveError {
    match soon(transfer.arriving.recv()).await {
        Some(Arrival::Broken(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn streams_that_are_not_as_announced_fail_with_their_fault() {
    runtime().block_on(async {
        let pair = Pair::connect(1, QuicOptions::default(), &DataOptions::default()).await;
        let sample = Sample::new(100, false, ("LBSHC", "LBHSC"));
        let mut transfer = pair.desk.expect(sample.src.1.clone(), sample.dst.1.clone(), 1);
        let total = sample.dst.1.bytes();

        let good = Forged::of(&pair, &transfer, 100, 70_000);
        good.send(&pair).await.unwrap();
        let arrival = soon(transfer.arriving.recv()).await;
        assert!(matches!(arrival, Some(Arrival::Whole(header)) if header == good.header));

        let mut short = Forged::of(&pair, &transfer, 0, 70_000);
        short.body.truncate(5000);
        short.trailer.clear();
        let _ = short.send(&pair).await;
        let error = broken(&mut transfer).await;
        assert!(matches!(error, ReceiveError::TooShort { planned: 70_000, found: 5000 }), "{error}");

        let mut headless = Forged::of(&pair, &transfer, 0, 70_000);
        headless.trailer.truncate(11);
        let _ = headless.send(&pair).await;
        assert!(matches!(broken(&mut transfer).await, ReceiveError::TooShort { .. }));

        let mut long = Forged::of(&pair, &transfer, 0, 70_000);
        long.trailer.push(0);
        let _ = long.send(&pair).await;
        let error = broken(&mut transfer).await;
        assert!(matches!(error, ReceiveError::TooLong { planned: 70_000 }), "{error}");

        let mut much_too_long = Forged::of(&pair, &transfer, total - 1000, 1000);
        much_too_long.body = vec![9; 500_000];
        let _ = much_too_long.send(&pair).await;
        assert!(matches!(broken(&mut transfer).await, ReceiveError::TooLong { planned: 1000 }));

        let mut damaged = Forged::of(&pair, &transfer, 0, 70_000);
        damaged.body[33_333] ^= 1;
        let _ = damaged.send(&pair).await;
        assert!(matches!(broken(&mut transfer).await, ReceiveError::Checksum { .. }));

        let mut contradictory = Forged::of(&pair, &transfer, 0, 70_000);
        contradictory.trailer[0] ^= 1;
        let _ = contradictory.send(&pair).await;
        assert!(matches!(broken(&mut transfer).await, ReceiveError::Length { .. }));

        for (offset, length) in [(total, 1), (total - 1, 2), (u64::MAX, 2), (5, u64::MAX)] {
            let mut outside = Forged::of(&pair, &transfer, 0, 1000);
            (outside.header.offset, outside.header.length) = (offset, length);
            let _ = outside.send(&pair).await;
            let error = broken(&mut transfer).await;
            assert!(matches!(error, ReceiveError::Outside { .. }), "{error}");
        }

        let mut reset = pair.lane().open_stream().await.unwrap();
        let header = Forged::of(&pair, &transfer, 0, 70_000).header;
        reset.send_all(&header.encode()).await.unwrap();
        reset.send_all(&[1; 10_000]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(reset);
        let error = broken(&mut transfer).await;
        assert!(matches!(error, ReceiveError::Lane(StreamError::Reset(_))), "{error}");

        // Only bytes of the route have been touched by all that.
        let (placed, route) = (bytes_of(&sample.dst.0), sample.expected());
        let pairs = placed[0].iter().zip(&route[0]);
        assert!(pairs.clone().all(|(found, planned)| *planned != CANARY || *found == CANARY));
        transfer.landing.fence().await;

        // And the next transfer goes as ever.
        let sample = Sample::new(100, false, ("LBSHC", "LBHSC"));
        let mut next = pair.begin(sample.src.1.clone(), sample.dst.1.clone());
        next.out.open_all();
        next.done().await;
        assert!(bytes_of(&sample.dst.0) == sample.expected());
    });
}

#[test]
fn strangers_are_stopped_and_write_nothing() {
    runtime().block_on(async {
        let data = DataOptions { header_timeout: Duration::from_millis(200), ..DataOptions::default() };
        let pair = Pair::connect(1, QuicOptions::default(), &data).await;
        let sample = Sample::new(100, false, ("LBSHC", "LBHSC"));
        let mut transfer = pair.desk.expect(sample.src.1.clone(), sample.dst.1.clone(), 1);

        let mut unknown = Forged::of(&pair, &transfer, 0, 3_000_000);
        unknown.body = vec![7; 30 << 20];
        unknown.header.nonce = Nonce([0; 16]);
        let stopped = soon(unknown.send(&pair)).await;
        assert!(matches!(stopped, Err(StreamError::Stopped(_))), "{stopped:?}");
        unknown.header.transfer = TransferId([0; 16]);
        assert!(matches!(soon(unknown.send(&pair)).await, Err(StreamError::Stopped(_))));

        // A bad header, one that is cut off, and ones that never come to their end.
        for (bytes, ends) in [(56, true), (20, true), (20, false), (1, false)] {
            let mut stream = pair.lane().open_stream().await.unwrap();
            let header = b"TLD\x02 is another version, or is it none at all? Who can tell?";
            stream.send_all(&header[..bytes]).await.unwrap();
            if ends {
                let _ = soon(stream.finish().unwrap()).await;
                continue;
            }
            tokio::time::sleep(data.header_timeout).await;
            let stopped = async {
                while stream.send_all(b"T").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            soon(stopped).await;
        }
        let mut garbage = pair.lane().open_stream().await.unwrap();
        let sent = async { while garbage.send_all(&[0x55; 4096]).await.is_ok() {} };
        soon(sent).await;

        transfer.landing.fence().await;
        assert!(is_all(&sample.dst.0, CANARY));
        assert!(transfer.arriving.try_recv().is_err());
    });
}

/// Streams above the limit for all peers, or for one, are stopped.
#[test]
fn no_more_streams_are_let_in_than_allowed() {
    type Bound = fn(&mut DataOptions);
    let bounds: [Bound; 2] = [|data| data.streams = 8, |data| data.streams_of_peer = 8];
    for bound in bounds {
        runtime().block_on(async {
            let mut data = DataOptions::default();
            bound(&mut data);
            let pair = Pair::connect(1, QuicOptions::default(), &data).await;
            // Each holds its place until its header is there or overdue.
            let mut open = Vec::new();
            for _ in 0..20 {
                let mut stream = pair.lane().open_stream().await.unwrap();
                stream.send_all(&[0]).await.unwrap();
                open.push(stream);
            }
            let stopped = async {
                while open.len() > 8 {
                    let mut kept = Vec::new();
                    for mut stream in open.drain(..) {
                        if stream.send_all(&[0]).await.is_ok() {
                            kept.push(stream);
                        }
                    }
                    open = kept;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            soon(stopped).await;
            assert_eq!(open.len(), 8);
        });
    }
}

/// Streams above the limit are stopped. After the others end, new ones are accepted.
#[test]
fn a_flood_of_streams_is_bounded() {
    runtime().block_on(async {
        let data = DataOptions { streams: 8, ..DataOptions::default() };
        let pair = Pair::connect(1, QuicOptions::default(), &data).await;
        let sample = Sample::new(100, false, ("LBSHC", "LBHSC"));
        let transfer = pair.desk.expect(sample.src.1.clone(), sample.dst.1.clone(), 1);
        let header = Forged::of(&pair, &transfer, 0, 1000).header.encode();
        let mut open = Vec::new();
        for _ in 0..2000 {
            let mut stream = pair.lane().open_stream().await.unwrap();
            if stream.send_all(&header).await.is_ok() {
                open.push(stream);
            }
            if open.len() > 100 {
                // Stopped ones among them do not count against the lane's own bound.
                drop(open.remove(0));
            }
        }
        drop(open);
        pair.desk.forget(transfer.id);
        let mut next = pair.begin(sample.src.1.clone(), sample.dst.1.clone());
        // Until the receiver has noticed the resets, it is still full.
        tokio::time::sleep(Duration::from_millis(100)).await;
        next.out.open_all();
        next.done().await;
        assert!(bytes_of(&sample.dst.0) == sample.expected());
    });
}
