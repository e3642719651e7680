//! Tests what may be read, and when; and transfers that share lanes.

use std::time::Duration;

use transload_transfer::internal::ring::{RingIn, RingOut};
use transload_transfer::internal::slots::RingShape;
use transload_transfer::{DataOptions, QuicOptions};

use crate::support::{Chance, PATIENCE, POISON, Pair, Sample, bytes_of, content, paint, ring, runtime};

#[test]
fn nothing_is_read_before_it_is_open() {
    runtime().block_on(async {
        let data = DataOptions::default();
        let pair = Pair::connect(2, QuicOptions::default(), &data).await;
        let (producer, consumer) = ring(RingShape::DEFAULT).await;
        let _receiving = RingIn::serve(&pair.receiver, consumer, pair.sender()).unwrap();
        let ring = RingOut::new(producer, PATIENCE).unwrap();
        for path in ["lanes", "ring"] {
            let sample = Sample::new(600, true, ("LBSHC", "LBHSC"));
            let expected = sample.expected();
            paint(&sample.src.0, POISON);
            let from = sample.src.1.clone();
            let mut transfer = match path {
                "ring" => pair.desk.expect(from, sample.dst.1.clone(), 1),
                _ => pair.begin(from, sample.dst.1.clone()),
            };
            if path == "ring" {
                ring.carry(&transfer.out);
            }
            // Layer after layer is computed, in an order that is not the stream's.
            let whole = sample.src.0.bytes() as usize;
            for layer in [3, 0, 1, 7, 6, 2, 5, 4] {
                let (start, len) = (layer * whole / 8, whole / 8);
                let bytes: Vec<u8> = (start..start + len).map(|at| content(0, at)).collect();
                sample.src.0.write(start as u64, &bytes).unwrap();
                transfer.out.open(transfer.out.route().layer(layer as u32));
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            transfer.done().await;
            assert!(bytes_of(&sample.dst.0) == expected, "{path}");
        }
    });
}

/// With one buffer for all, half-open transfers do not block the others.
#[test]
fn transfers_that_wait_are_not_in_the_way() {
    runtime().block_on(async {
        let mut data = DataOptions::default();
        (data.buffers, data.buffer_bytes) = (1, 8192);
        let mut quic = QuicOptions::default();
        (quic.receive_window, quic.send_window) = (64 << 10, 64 << 10);
        let pair = Pair::connect(1, quic, &data).await;
        let samples: Vec<_> = (0..12).map(|_| Sample::new(100, true, ("BLHSC", "LBSHC"))).collect();
        let begin = |sample: &Sample| pair.begin(sample.src.1.clone(), sample.dst.1.clone());
        let mut transfers: Vec<_> = samples.iter().map(begin).collect();
        for transfer in &transfers {
            transfer.out.open(0..transfer.out.route().bytes() / 3);
        }
        let mut chance = Chance(77);
        let mut order: Vec<usize> = (0..transfers.len()).collect();
        while !order.is_empty() {
            let at = order.swap_remove(chance.below(order.len() as u64) as usize);
            transfers[at].out.open_all();
            transfers[at].done().await;
            assert!(bytes_of(&samples[at].dst.0) == samples[at].expected());
        }
    });
}

#[test]
fn a_route_is_spread_over_lanes() {
    runtime().block_on(async {
        let data = DataOptions::default();
        let pair = Pair::connect(3, QuicOptions::default(), &data).await;
        for orders in [("LBSHC", "LBHSC"), ("BLSHC", "BLSHC")] {
            let sample = Sample::new(2000, false, orders);
            let mut transfer = pair.begin(sample.src.1.clone(), sample.dst.1.clone());
            transfer.out.open_all();
            transfer.done().await;
            assert!(bytes_of(&sample.dst.0) == sample.expected());
        }
        let sent: Vec<_> = pair.lanes.iter().map(|lane| lane.lane().stats().sent_packets).collect();
        assert!(sent.iter().all(|packets| *packets > 30), "{sent:?}");
    });
}
