use super::*;
use crate::data::Stretch;
use transload_memory::copy::Crc32c;

/// Lends bytes 100 to 150 of the slot after `ahead` ones that are being filled.
fn lend(producer: &mut Producer, ahead: usize) -> Stretch {
    let slot = producer.reserve_ahead(ahead, soon()).unwrap();
    // SAFETY: the slot is published without them, or when they came back.
    unsafe { slot.lend(100, 50) }.unwrap()
}

/// Takes a slot, and returns the number of its stream.
fn receive(consumer: &mut Consumer) -> (u64, u64, usize) {
    let slot = consumer.receive(soon()).unwrap();
    (slot.tag(), slot.offset(), slot.len())
}

#[test]
fn slots_are_filled_at_a_time_and_published_in_order() {
    let (mut producer, mut consumer) = ends(SMALL);
    let mut lent = [0, 1, 2, 3].map(|ahead| lend(&mut producer, ahead));
    assert!(matches!(producer.reserve_ahead(4, shortly()), Err(RingError::TimedOut)));
    for (byte, lent) in (1..).zip(&mut lent) {
        lent.put(&[byte; 50]);
    }
    drop(lent);
    for byte in 1..=4 {
        let mut slot = producer.reserve(shortly()).unwrap();
        let mut sum = Crc32c::new();
        slot.add_to(&mut sum, 100, 50).unwrap();
        assert_eq!(sum, Crc32c::of(&[byte; 50]));
        assert!(slot.add_to(&mut sum, 8190, 3).is_err());
        slot.publish(7, byte.into(), 150).unwrap();
    }
    for byte in 1..=4 {
        let slot = consumer.receive(soon()).unwrap();
        let mut bytes = [0; 50];
        slot.get(100, &mut bytes).unwrap();
        assert_eq!((slot.offset(), bytes), (byte.into(), [byte; 50]));
    }
}

/// A cancelled transfer leaves slots that a device may still write to.
#[test]
fn a_slot_that_has_not_come_back_is_passed_over() {
    let (mut producer, mut consumer) = ends(SMALL);
    let mut lent = [0, 1].map(|ahead| lend(&mut producer, ahead));
    let mut passed = 0;
    for n in 1..=20 {
        publish(&mut producer, 7, n, b"x").unwrap();
        loop {
            match receive(&mut consumer) {
                (7, offset, 1) => break assert_eq!(offset, n),
                (tag, offset, 1) => {
                    assert!(tag == u64::MAX && offset > 0, "it is of no stream");
                    passed += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        for lent in &mut lent {
            lent.put(&[9; 50]);
        }
    }
    assert_eq!(passed, 20, "two for every two that were published");
    drop(lent);
    for n in 21..=40 {
        publish(&mut producer, 7, n, b"x").unwrap();
        assert_eq!(receive(&mut consumer), (7, n, 1));
    }
}

#[test]
fn a_producer_waits_where_no_slot_has_come_back() {
    let (mut producer, mut consumer) = ends(SMALL);
    let [first, others @ ..] = [0, 1, 2, 3].map(|ahead| lend(&mut producer, ahead));
    let none = producer.reserve(shortly()).map(drop);
    assert!(matches!(none, Err(RingError::TimedOut)));
    drop(others);
    publish(&mut producer, 7, 0, b"x").unwrap();
    assert_eq!(receive(&mut consumer).0, u64::MAX);
    assert_eq!(receive(&mut consumer), (7, 0, 1));
    drop(first);
}

#[test]
fn slots_are_released_in_order_when_they_came_back() {
    let (mut producer, mut consumer) = ends(SMALL);
    let all_but = |out: usize, consumer: &mut Consumer| {
        let mut lent = None;
        for n in 0..4 {
            let slot = consumer.receive(soon()).unwrap();
            if n == out {
                // SAFETY: it is only read.
                lent = Some(unsafe { slot.lend(0, 1) }.unwrap());
                // SAFETY: as above.
                assert!(unsafe { slot.lend(0, 2) }.is_err(), "of one byte");
            }
        }
        lent.unwrap()
    };
    for out in [0, 2] {
        for n in 0..4 {
            publish(&mut producer, 7, n, b"x").unwrap();
        }
        let lent = all_but(out, &mut consumer);
        for n in 0..out as u64 {
            publish(&mut producer, 7, n, b"y").unwrap();
        }
        let full = producer.reserve(shortly()).map(drop);
        assert!(matches!(full, Err(RingError::TimedOut)));
        let mut byte = [0];
        lent.get(&mut byte);
        assert_eq!(byte, *b"x");
        drop(lent);
        for _ in 0..out {
            receive(&mut consumer);
        }
        let none = consumer.receive(shortly()).map(drop);
        assert!(matches!(none, Err(RingError::TimedOut)));
        for n in 0..4 {
            publish(&mut producer, 7, n, b"z").unwrap();
            assert_eq!(receive(&mut consumer), (7, n, 1));
        }
    }
}

/// The borrower may be a device that cannot be stopped.
#[test]
fn the_memory_stays_for_as_long_as_something_is_lent() {
    let (mut producer, consumer) = ends(SMALL);
    let mut lent = lend(&mut producer, 0);
    drop((producer, consumer));
    lent.put(&[5; 50]);
    let mut bytes = [0; 50];
    lent.get(&mut bytes);
    assert_eq!(bytes, [5; 50]);
}
