use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::*;
use crate::path::ring::carrier::{drive, memfd};

mod lent;

const SMALL: RingShape = match RingShape::new(4, 8192) {
    Ok(shape) => shape,
    Err(_) => panic!(),
};

fn sockets() -> (OwnedFd, OwnedFd) {
    rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .unwrap()
}

/// Makes both ends of a ring in this process.
fn ends(shape: RingShape) -> (Producer, Consumer) {
    let producer = Mapped::create(shape).unwrap();
    memfd::check(producer.memory(), shape.bytes()).unwrap();
    let memory = producer.memory().try_clone_to_owned().unwrap();
    let consumer = Mapped::new(memory, shape).unwrap();
    let (a, b) = sockets();
    (Producer::new(producer.keep(a).unwrap()), Consumer::new(consumer.keep(b).unwrap()))
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(30))
}

fn shortly() -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(2))
}

fn publish(producer: &mut Producer, tag: u64, offset: u64, bytes: &[u8]) -> Result<(), RingError> {
    let mut window = producer.reserve(soon())?;
    window.put(0, bytes).unwrap();
    window.publish(tag, offset, bytes.len())
}

/// Publishes until that fails, and returns the error.
fn fill(producer: &mut Producer) -> RingError {
    loop {
        if let Err(error) = publish(producer, 0, 0, b"x") {
            return error;
        }
    }
}

#[test]
fn bytes_arrive_once_and_in_order() {
    let (mut producer, mut consumer) = ends(SMALL);
    let total = 5_000_000u64;
    let byte = |at: u64| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
    thread::scope(|s| {
        s.spawn(move || {
            let mut at = 0;
            while at < total {
                let len = (1 + at * 7 % 8192).min(total - at);
                let bytes: Vec<u8> = (at..at + len).map(byte).collect();
                publish(&mut producer, 7, at, &bytes).unwrap();
                at += len;
                if at % 11 == 0 {
                    // So that the consumer sleeps now and then.
                    thread::sleep(Duration::from_micros(300));
                }
            }
        });
        let mut at = 0;
        while at < total {
            let window = consumer.receive(soon()).unwrap();
            assert_eq!((window.tag(), window.offset()), (7, at));
            let mut bytes = vec![0; window.len()];
            window.get(0, &mut bytes).unwrap();
            drop(window);
            let expected: Vec<u8> = (at..).map(byte).take(bytes.len()).collect();
            assert!(bytes == expected, "wrong bytes after {at}");
            at += bytes.len() as u64;
            if at % 13 == 0 {
                thread::sleep(Duration::from_micros(300));
            }
        }
    });
}

#[test]
fn a_window_has_bounds() {
    let (mut producer, mut consumer) = ends(SMALL);
    let mut window = producer.reserve(soon()).unwrap();
    assert_eq!(window.capacity(), 8192);
    assert_eq!(window.put(8190, b"ab"), Some(()));
    assert_eq!(window.put(8190, b"abc"), None);
    assert_eq!(window.put(usize::MAX, b"abc"), None);
    window.publish(1, 2, 8192).unwrap();
    for len in [0, 8193, usize::MAX] {
        let refused = producer.reserve(soon()).unwrap().publish(0, 0, len);
        assert!(matches!(refused, Err(RingError::Length { .. })));
    }
    let window = consumer.receive(soon()).unwrap();
    let mut two = [0; 2];
    assert_eq!(window.get(8190, &mut two), Some(()));
    assert_eq!(&two, b"ab");
    assert_eq!(window.get(8191, &mut two), None);
    drop(window);
    // None of the three above was delivered.
    assert!(matches!(consumer.receive(shortly()), Err(RingError::TimedOut)));
}

#[test]
fn a_full_ring_makes_the_producer_wait() {
    let (mut producer, mut consumer) = ends(SMALL);
    for i in 0..4 {
        publish(&mut producer, 0, i, b"x").unwrap();
    }
    assert!(matches!(producer.reserve(shortly()), Err(RingError::TimedOut)));
    drop(consumer.receive(soon()).unwrap());
    producer.reserve(soon()).unwrap().publish(0, 4, 1).unwrap();
    assert!(matches!(producer.reserve(shortly()), Err(RingError::TimedOut)));
    for i in 1..5 {
        assert_eq!(consumer.receive(soon()).unwrap().offset(), i);
    }
    for i in 5..9 {
        publish(&mut producer, 0, i, b"x").unwrap();
    }
}

#[test]
fn what_was_published_arrives_before_the_hang_up() {
    let (mut producer, mut consumer) = ends(SMALL);
    publish(&mut producer, 1, 0, b"abc").unwrap();
    publish(&mut producer, 1, 3, b"def").unwrap();
    drop(producer);
    assert_eq!(consumer.receive(soon()).unwrap().offset(), 0);
    assert_eq!(consumer.receive(soon()).unwrap().offset(), 3);
    assert!(matches!(consumer.receive(None), Err(RingError::PeerGone)));
}

#[test]
fn a_producer_notices_that_its_consumer_is_gone() {
    let (mut producer, consumer) = ends(SMALL);
    thread::scope(|s| {
        let waiting = s.spawn(move || fill(&mut producer));
        thread::sleep(Duration::from_millis(20));
        drop(consumer);
        assert!(matches!(waiting.join().unwrap(), RingError::PeerGone));
    });
}

#[test]
fn a_hang_up_ends_a_wait_on_both_sides() {
    let (mut producer, mut consumer) = ends(SMALL);
    let doorbell = consumer.doorbell();
    thread::scope(|s| {
        let receiving = s.spawn(move || {
            let e = consumer.receive(None).map(drop).unwrap_err();
            (e, consumer)
        });
        thread::sleep(Duration::from_millis(20));
        assert!(!doorbell.is_hung_up());
        doorbell.hang_up();
        doorbell.hang_up();
        let (e, _consumer) = receiving.join().unwrap();
        assert!(matches!(e, RingError::HungUp));
        assert!(matches!(fill(&mut producer), RingError::PeerGone));
    });
}

#[test]
fn nothing_is_delivered_after_a_hang_up() {
    let (mut producer, mut consumer) = ends(SMALL);
    publish(&mut producer, 0, 0, b"x").unwrap();
    publish(&mut producer, 0, 1, b"y").unwrap();
    let doorbell = consumer.doorbell();
    let window = consumer.receive(soon()).unwrap();
    doorbell.hang_up();
    drop(window);
    assert!(matches!(consumer.receive(soon()), Err(RingError::HungUp)));

    let doorbell = producer.doorbell();
    let window = producer.reserve(soon());
    doorbell.hang_up();
    assert!(matches!(window.and_then(|w| w.publish(0, 2, 1)), Err(RingError::HungUp)));
}

#[tokio::test]
async fn work_that_is_dropped_hangs_up() {
    let (mut producer, mut consumer) = ends(SMALL);
    let doorbell = consumer.doorbell();
    let work = move || consumer.receive(None).map(|w| w.offset());
    let work = drive(doorbell.clone(), work).unwrap();
    let outcome = tokio::time::timeout(Duration::from_millis(20), work.result()).await;
    assert!(outcome.is_err());
    assert!(doorbell.is_hung_up());

    let working = drive(producer.doorbell(), move || {
        producer.reserve(soon()).map(drop).unwrap();
        fill(&mut producer)
    });
    let ended = working.unwrap().result().await.unwrap();
    assert!(matches!(ended, RingError::PeerGone));

    let (_producer, consumer) = ends(SMALL);
    let panicking = drive(consumer.doorbell(), move || -> u8 {
        let _consumer = consumer;
        panic!("as meant")
    });
    assert_eq!(panicking.unwrap().result().await, None);
}

#[test]
fn waiting_costs_no_processor() {
    /// Returns the processor time of this thread in nanoseconds.
    fn ran() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        stat.split_whitespace().next().unwrap().parse().unwrap()
    }
    let (_producer, mut consumer) = ends(SMALL);
    let before = ran();
    let deadline = Instant::now() + Duration::from_millis(300);
    assert!(consumer.receive(Some(deadline)).is_err());
    let ran = Duration::from_nanos(ran() - before);
    assert!(ran < Duration::from_millis(100), "{ran:?} of 300 ms");
}

#[test]
fn shapes_have_bounds() {
    assert!(RingShape::new(1, 4096).is_err());
    assert!(RingShape::new(33, 4096).is_err());
    assert!(RingShape::new(2, 0).is_err());
    assert!(RingShape::new(2, 4097).is_err());
    assert!(RingShape::new(2, (4 << 20) + 4096).is_err());
    assert!(RingShape::new(u32::MAX, u32::MAX).is_err());
    let d = RingShape::DEFAULT;
    assert_eq!(RingShape::new(d.slots(), d.slot_bytes()), Ok(d));
    let largest = RingShape::new(32, 4 << 20).unwrap();
    assert_eq!(largest.bytes(), (128 << 20) + 8192);
    let last = largest.slot_offset(31) as u64;
    assert_eq!(last + u64::from(largest.slot_bytes()), largest.bytes());
}

/// A change that a peer can make to the shared words.
#[derive(Clone, Debug)]
enum Spoil {
    Head(u64),
    Tail(u64),
    Header { slot: u64, tag: u64, offset: u64, len: u32 },
    Sleeps(u32),
    Publish,
    Ring,
}

fn spoil() -> impl Strategy<Value = Spoil> {
    let count = prop_oneof![0u64..10, any::<u64>(), Just(u64::MAX)];
    let len = prop_oneof![0u32..10, Just(8192), Just(8193), any::<u32>()];
    prop_oneof![
        count.clone().prop_map(Spoil::Head),
        count.clone().prop_map(Spoil::Tail),
        (0u64..4, any::<u64>(), prop_oneof![count, any::<u64>()], len)
            .prop_map(|(slot, tag, offset, len)| Spoil::Header { slot, tag, offset, len }),
        any::<u32>().prop_map(Spoil::Sleeps),
        Just(Spoil::Publish),
        Just(Spoil::Ring),
    ]
}

fn apply(ring: &Ring, spoil: &Spoil) {
    match *spoil {
        Spoil::Head(to) => ring.head().store(to, Ordering::SeqCst),
        Spoil::Tail(to) => ring.tail().store(to, Ordering::SeqCst),
        Spoil::Header { slot, tag, offset, len } => {
            let header = ring.header(slot);
            header.tag.store(tag, Ordering::SeqCst);
            header.offset.store(offset, Ordering::SeqCst);
            header.len.store(len, Ordering::SeqCst);
        }
        Spoil::Sleeps(to) => {
            ring.producer_sleeps().store(to, Ordering::SeqCst);
            ring.consumer_sleeps().store(to, Ordering::SeqCst);
        }
        Spoil::Publish => {
            ring.head().fetch_add(1, Ordering::SeqCst);
        }
        Spoil::Ring => {
            let _ = ring.doorbell.ring();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever the peer writes, the result is a window inside the ring, or a typed error by the deadline.
    #[test]
    fn a_consumer_survives_its_producer(spoils in prop::collection::vec(spoil(), 1..12)) {
        let (producer, mut consumer) = ends(SMALL);
        let base = consumer.ring_bytes();
        for spoil in &spoils {
            apply(producer.ring(), spoil);
            match consumer.receive(Some(Instant::now())) {
                Ok(window) => {
                    let start = window.as_ptr() as usize;
                    prop_assert!(base.contains(&start));
                    prop_assert!(base.contains(&(start + window.len() - 1)));
                    prop_assert!((1..=8192).contains(&window.len()));
                    prop_assert!(window.offset().checked_add(window.len() as u64).is_some());
                    let mut bytes = vec![0; window.len()];
                    prop_assert!(window.get(0, &mut bytes).is_some());
                }
                Err(RingError::TimedOut | RingError::Corrupt { .. }) => {}
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }

    #[test]
    fn a_producer_survives_its_consumer(spoils in prop::collection::vec(spoil(), 1..12)) {
        let (mut producer, consumer) = ends(SMALL);
        let base = producer.ring_bytes();
        for spoil in &spoils {
            apply(consumer.ring(), spoil);
            match producer.reserve(Some(Instant::now())) {
                Ok(mut window) => {
                    let start = window.as_mut_ptr() as usize;
                    prop_assert!(base.contains(&start));
                    prop_assert!(base.contains(&(start + window.capacity() - 1)));
                    window.publish(0, 0, 1).unwrap();
                }
                Err(RingError::TimedOut | RingError::Corrupt { .. }) => {}
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }
}

/// Tests the same with a peer that writes and rings all the time.
#[test]
fn a_storm_of_garbage_does_no_harm() {
    let (producer, mut consumer) = ends(SMALL);
    let base = consumer.ring_bytes();
    let stop = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            let ring = producer.ring();
            let mut state = 1u64;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state >> 33
            };
            while !stop.load(Ordering::Relaxed) {
                let head = ring.tail().load(Ordering::Relaxed).wrapping_add(next() % 6);
                apply(ring, &Spoil::Head(head));
                let (slot, offset) = (next(), next() << (next() % 33));
                let len = (next() % 9000) as u32;
                apply(ring, &Spoil::Header { slot, tag: 0, offset, len });
                apply(ring, &Spoil::Ring);
            }
        });
        let (mut windows, mut refused) = (0, 0);
        let end = Instant::now() + Duration::from_millis(500);
        while Instant::now() < end {
            match consumer.receive(shortly()) {
                Ok(window) => {
                    let start = window.as_ptr() as usize;
                    assert!(base.contains(&start));
                    assert!(base.contains(&(start + window.len() - 1)));
                    windows += 1;
                }
                Err(RingError::TimedOut | RingError::Corrupt { .. }) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(windows > 0 && refused > 0, "{windows} windows, {refused} refused");
    });
}

impl Producer {
    fn ring(&self) -> &Ring {
        &self.ring
    }
    fn ring_bytes(&self) -> std::ops::Range<usize> {
        self.ring.slots_range()
    }
}

impl Consumer {
    fn ring(&self) -> &Ring {
        &self.ring
    }
    fn ring_bytes(&self) -> std::ops::Range<usize> {
        self.ring.slots_range()
    }
}

impl Ring {
    /// Returns the addresses of all slots.
    fn slots_range(&self) -> std::ops::Range<usize> {
        let start = self.slot(0) as usize;
        start..start + (self.shape.slots() * self.shape.slot_bytes()) as usize
    }
}
