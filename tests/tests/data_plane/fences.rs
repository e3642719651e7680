//! Transfers that are stopped at any moment. Afterwards nothing touches their memory.

use std::time::Duration;

use transload_transfer::internal::data::{SendError, SendEvent};
use transload_transfer::internal::quic::{CloseCode, StreamError};
use transload_transfer::internal::ring::{RingIn, RingOut};
use transload_transfer::internal::slots::{RingError, RingShape};
use transload_transfer::{AgentId, DataOptions, QuicOptions};

use crate::support::{
    Arrival, CANARY, Chance, PATIENCE, POISON, Pair, Sample, Transfer, Wire, bytes_of, has, is_all, paint, ring,
    runtime, soon,
};

/// Returns the failure of a ring that an error is.
fn by_ring(error: &SendError) -> Option<&RingError> {
    match error {
        SendError::Path(error) => error.downcast_ref(),
        _ => None,
    }
}

/// The number of attempts for each way to stop a transfer.
const ROUNDS: u64 = 30;

struct Ways {
    pair: Pair,
    ring: RingOut,
    _ring: RingIn,
}

impl Ways {
    async fn open() -> Self {
        let pair = Pair::connect(2, QuicOptions::default(), &DataOptions::default()).await;
        let (producer, consumer) = ring(RingShape::new(2, 64 << 10).unwrap()).await;
        let _ring = RingIn::serve(&pair.receiver, consumer, pair.sender()).unwrap();
        let ring = RingOut::new(producer, PATIENCE).unwrap();
        Self { pair, ring, _ring }
    }

    /// Begins a transfer by one of the ways.
    fn begin(&self, sample: &Sample, way: u64) -> Transfer {
        let to = sample.dst.1.clone();
        let transfer = match way % 2 {
            0 => self.pair.begin(sample.src.1.clone(), to),
            _ => {
                let transfer = self.pair.desk.expect(sample.src.1.clone(), to, 1);
                self.ring.carry(&transfer.out);
                transfer
            }
        };
        transfer.out.open_all();
        transfer
    }
}

/// Waits until this many bytes have landed.
async fn until_moved(transfer: &Transfer, bytes: u64) {
    let moved = async {
        while transfer.landing.placed() < bytes {
            tokio::time::sleep(Duration::from_micros(50)).await;
        }
    };
    soon(moved).await;
}

#[test]
fn a_ring_whose_thread_panics_hangs_up_and_says_so() {
    runtime().block_on(async {
        let pair = Pair::connect(1, QuicOptions::default(), &DataOptions::default()).await;
        let (producer, consumer) = ring(RingShape::DEFAULT).await;
        let stranger = AgentId::new("nobody").unwrap();
        // The desk takes streams of one agent, and panics over those of any other.
        let receiving = RingIn::serve(&pair.receiver, consumer, stranger).unwrap();
        let ring = RingOut::new(producer, PATIENCE).unwrap();
        let sample = Sample::new(400, false, ("LBSHC", "BLSHC"));
        let before = bytes_of(&sample.dst.0);
        let (from, to) = (sample.src.1.clone(), sample.dst.1.clone());
        let transfer = pair.desk.expect(from, to, 1);
        ring.carry(&transfer.out);
        transfer.out.open_all();
        assert!(matches!(soon(receiving.closed()).await, RingError::Panicked));
        soon(transfer.landing.fence()).await;
        assert!(bytes_of(&sample.dst.0) == before);
    });
}

#[test]
fn after_the_destinations_fence_no_byte_is_written() {
    runtime().block_on(async {
        let ways = Ways::open().await;
        let mut chance = Chance(5);
        let sample = Sample::new(400, false, ("LBSHC", "BLSHC"));
        let mut midway = 0;
        for round in 0..ROUNDS {
            let transfer = ways.begin(&sample, round);
            until_moved(&transfer, chance.below(sample.dst.1.bytes() * 3 / 4)).await;
            soon(transfer.landing.fence()).await;
            let placed = transfer.landing.placed();
            midway += u64::from(placed > 0 && placed < sample.dst.1.bytes());
            paint(&sample.dst.0, CANARY);
            // The source does not know yet, and goes on.
            tokio::time::sleep(Duration::from_millis(2)).await;
            assert_eq!(transfer.landing.placed(), placed);
            soon(transfer.out.fence()).await;
            assert!(is_all(&sample.dst.0, CANARY));
            ways.pair.desk.forget(transfer.id);
        }
        assert!(midway > 0, "all were over before the fence came");
        let mut last = ways.begin(&sample, 0);
        last.done().await;
        assert!(bytes_of(&sample.dst.0) == sample.expected());
    });
}

#[test]
fn after_the_sources_fence_no_byte_is_read() {
    runtime().block_on(async {
        let ways = Ways::open().await;
        let mut chance = Chance(6);
        let original = Sample::new(400, false, ("BLSHC", "BLHSC"));
        let content = bytes_of(&original.src.0);
        let mut midway = 0;
        for round in 0..ROUNDS {
            let transfer = ways.begin(&original, round);
            until_moved(&transfer, chance.below(original.src.1.bytes() * 3 / 4)).await;
            soon(transfer.out.fence()).await;
            let read = transfer.out.read();
            midway += u64::from(read > 0 && read < original.src.1.bytes());
            paint(&original.src.0, POISON);
            tokio::time::sleep(Duration::from_millis(2)).await;
            assert_eq!(transfer.out.read(), read);
            soon(transfer.landing.fence()).await;
            assert!(!has(&original.dst.0, POISON));
            original.src.0.write(0, &content[0]).unwrap();
            ways.pair.desk.forget(transfer.id);
        }
        assert!(midway > 0, "all were over before the fence came");
        let mut last = ways.begin(&original, 1);
        last.done().await;
        assert!(bytes_of(&original.dst.0) == original.expected());
    });
}

#[test]
fn a_peer_that_is_gone_fails_transfers_and_frees_memory() {
    runtime().block_on(async {
        for gone in ["source", "destination"] {
            let ways = Ways::open().await;
            let sample = Sample::new(2000, false, ("BLSHC", "BLSHC"));
            let mut transfer = ways.begin(&sample, 0);
            while transfer.landing.placed() == 0 {
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
            let pair = &ways.pair;
            match gone {
                "source" => pair.source.close(CloseCode::SHUTTING_DOWN, "").await,
                _ => pair.destination.close(CloseCode::SHUTTING_DOWN, "").await,
            }
            soon(transfer.out.fence()).await;
            soon(transfer.landing.fence()).await;
            let failed = async {
                loop {
                    match transfer.sending.next().await.unwrap() {
                        SendEvent::Failed { error, .. } => return Some(error),
                        SendEvent::Written { .. } => {}
                        other => panic!("{other:?}"),
                    }
                }
            };
            // Unless our own fence was faster than the news.
            let quick = Duration::from_millis(50);
            match tokio::time::timeout(quick, failed).await.unwrap_or(None) {
                None | Some(SendError::Lane(StreamError::Lost(_) | StreamError::ClosedHere)) => {}
                Some(other) => panic!("{other}"),
            }
            while let Ok(arrival) = transfer.arriving.try_recv() {
                assert!(matches!(arrival, Arrival::Whole(_) | Arrival::Broken(..)));
            }
        }
    });
}

/// The peer has vanished, and no buffer comes back: the fence does not wait until that is noticed.
#[test]
fn a_lane_that_stands_still_holds_nobody() {
    runtime().block_on(async {
        let day = Duration::from_secs(24 * 60 * 60);
        let quic =
            QuicOptions { udp_payload: Some(1200), stall_timeout: day, idle_timeout: day, ..QuicOptions::default() };
        let wire = Wire::default();
        let data = DataOptions::default();
        let pair = Pair::connect_by(Some(&wire), 1, quic, &data).await;
        let sample = Sample::new(600, false, ("BLSHC", "BLSHC"));
        let buffers = (data.buffers * data.buffer_bytes) as u64;
        assert!(buffers < sample.src.1.bytes());

        wire.cut();
        let transfer = pair.begin(sample.src.1.clone(), sample.dst.1.clone());
        transfer.out.open_all();
        while transfer.out.read() < buffers {
            tokio::task::yield_now().await;
        }
        soon(transfer.out.fence()).await;
        soon(transfer.landing.fence()).await;
        assert_eq!(transfer.out.read(), buffers);
        assert!(is_all(&sample.dst.0, CANARY));
    });
}

/// With a full ring that no reader empties, a fence ends all the same; without one the transfer fails in time.
#[test]
fn a_ring_that_stands_still_holds_nobody() {
    runtime().block_on(async {
        let pair = Pair::connect(1, QuicOptions::default(), &DataOptions::default()).await;
        let sample = Sample::new(400, false, ("LBSHC", "LBSHC"));
        let day = Duration::from_secs(24 * 60 * 60);
        for stall_timeout in [day, Duration::from_millis(50)] {
            let (producer, _consumer) = ring(RingShape::new(2, 64 << 10).unwrap()).await;
            let ring = RingOut::new(producer, stall_timeout).unwrap();
            let mut transfer = pair.desk.expect(sample.src.1.clone(), sample.dst.1.clone(), 1);
            ring.carry(&transfer.out);
            transfer.out.open_all();
            while transfer.out.read() < 100 << 10 {
                tokio::task::yield_now().await;
            }
            if stall_timeout < day {
                let error = match soon(transfer.sending.next()).await {
                    Some(SendEvent::Failed { error, .. }) => error,
                    other => panic!("{other:?}"),
                };
                assert!(matches!(by_ring(&error), Some(RingError::NoneReleased { .. })), "{error}");
                assert!(ring.is_closed(), "others need not try it");
            }
            soon(transfer.out.fence()).await;
            assert!(transfer.out.read() < 200 << 10);
        }
    });
}

#[test]
fn a_ring_that_is_hung_up_fails_its_transfers() {
    runtime().block_on(async {
        let Ways { pair, ring, _ring } = Ways::open().await;
        let sample = Sample::new(2000, false, ("LBSHC", "LBSHC"));
        let mut transfer = pair.desk.expect(sample.src.1.clone(), sample.dst.1.clone(), 1);
        ring.carry(&transfer.out);
        transfer.out.open_all();
        while transfer.landing.placed() == 0 {
            tokio::task::yield_now().await;
        }
        drop(_ring);
        let error = match soon(transfer.sending.next()).await {
            Some(SendEvent::Failed { error, .. }) => error,
            other => panic!("{other:?}"),
        };
        assert!(matches!(by_ring(&error), Some(RingError::PeerGone)), "{error}");
        soon(transfer.out.fence()).await;
        soon(transfer.landing.fence()).await;
        let mut next = pair.desk.expect(sample.src.1.clone(), sample.dst.1.clone(), 1);
        ring.carry(&next.out);
        next.out.open_all();
        assert!(matches!(soon(next.sending.next()).await, Some(SendEvent::Failed { .. })));
    });
}
