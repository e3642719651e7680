//! A peer that says whatever comes to its mind, in good frames and with good tickets.

use super::*;
use crate::wire::simulation::rng::Rng;

#[test]
fn a_peer_that_talks_nonsense_breaks_nothing() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let options = Options {
            early: 5,
            early_per_agent: 5,
            transfers_per_agent: 4,
            ..Options::default()
        };
        let mut t = Table::owner_with(if rng.chance(0.3) { "near" } else { "holder" }, options);
        let mut fences = Vec::new();
        for _ in 0..120 {
            let message = nonsense(&mut rng);
            t.hear(message);
            if rng.chance(0.1) {
                open(&mut t, &mut rng);
            }
            let header = StreamHeader {
                transfer: transfer(rng.below(80) as u8),
                nonce: Nonce([rng.below(4) as u8; 16]),
                stream: rng.below(3) as u32,
                offset: rng.below(20),
                length: rng.below(40),
            };
            let from = agent(if rng.chance(0.5) { "near" } else { "holder" });
            if t.do_(|machine, now, _| machine.admit(now, &from, &header))
                .is_ok()
            {
                let trailer = StreamTrailer {
                    length: header.length,
                    crc: rng.below(2) as u32,
                };
                t.do_(|machine, now, _| machine.stream_arrived(now, &header, &trailer, 0));
            }
            for action in t.took() {
                match action {
                    Action::Fence { transfer } => fences.push(transfer),
                    Action::Close { .. } => {
                        t.greet("holder", Permits::ALL, hello("holder"));
                    }
                    _ => {}
                }
            }
            if rng.chance(0.3)
                && let Some(fence) = fences.pop()
            {
                t.do_(|machine, now, _| machine.fenced(now, fence));
            }
            if rng.chance(0.1) {
                let time = Duration::from_millis(rng.below(4000));
                t.wait(time);
            }
            let gauges = t.machine.gauges();
            assert!(
                gauges.early <= 5 && gauges.queued + gauges.transfers <= 12,
                "{gauges:?}"
            );
            assert!(gauges.leases <= 6 && gauges.timers <= 40, "{gauges:?}");
        }
        t.do_(|machine, now, conn| machine.disconnected(now, conn));
        for _ in 0..10 {
            for action in t.took() {
                if let Action::Fence { transfer } = action {
                    fences.push(transfer);
                }
            }
            for fence in fences.drain(..) {
                t.do_(|machine, now, _| machine.fenced(now, fence));
            }
            t.wait(secs(60));
        }
        assert!(t.machine.is_idle(), "seed {seed}: {:?}", t.machine.gauges());
    }
}

/// Opens a lease, which may have been asked for before, unless it is there or was.
fn open(t: &mut Table, rng: &mut Rng) {
    let direction = if rng.chance(0.5) {
        Direction::Pull
    } else {
        Direction::Push
    };
    let (n, rank, prefilled) = (rng.within(1, 3) as u8, rng.below(2) as u32, rng.chance(0.7));
    let spec = spec(n, rank, direction, prefilled);
    // Refused where there is one already.
    let _ = t.do_(|machine, now, _| machine.lease(now, spec));
}

fn nonsense(rng: &mut Rng) -> Message {
    let n = rng.within(1, 4) as u8;
    let attempt = rng.within(1, 3) as u32;
    let mut an_ask = if rng.chance(0.5) {
        ask(n, attempt)
    } else {
        push_ask(n, attempt)
    };
    if rng.chance(0.2) {
        an_ask.source = Rank(rng.below(3) as u32);
        an_ask.destination = Rank(rng.below(3) as u32);
    }
    if rng.chance(0.1) {
        an_ask.start = rng.next();
        an_ask.tokens = rng.next();
    }
    if rng.chance(0.3) {
        an_ask.transfer = self::transfer(rng.below(3) as u8);
        an_ask.source = Rank(rng.below(2) as u32);
    }
    an_ask.by_layer = rng.chance(0.2);
    let transfer = transfer(rng.below(80) as u8);
    match rng.below(14) {
        0..4 => Message::Pull(an_ask),
        4..7 => Message::Push(an_ask),
        7 => Message::Commit {
            transfer,
            streams: rng.below(3) as u32,
            bytes: rng.below(40),
        },
        8 => Message::Landed { transfer },
        9 => Message::Taken { transfer },
        10 => Message::Abort {
            transfer,
            failure: Failure::Stalled,
        },
        11 => Message::Accepted {
            transfer,
            path: Path::Shared,
        },
        12 => Message::Lent { transfer },
        _ => {
            let says = match rng.below(6) {
                0 => NoticeKind::Cancel { content: None },
                1 | 2 => NoticeKind::Done {
                    ranks: vec![Rank(rng.below(3) as u32)],
                    content: CONTENT,
                },
                _ => NoticeKind::Renew {
                    ttl_ms: rng.below(30_000),
                },
            };
            let direction = if rng.chance(0.5) {
                Direction::Pull
            } else {
                Direction::Push
            };
            Message::Notice(Notice {
                id: rng.next(),
                ticket: mint(&claims(n, direction)),
                says,
            })
        }
    }
}
