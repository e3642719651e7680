//! A peer that sends arbitrary messages, in valid frames and with valid tickets.

use super::invitations::{into, invitation};
use super::*;
use crate::simulation::rng::Rng;

#[test]
fn a_peer_that_talks_nonsense_breaks_nothing() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let options = Options { early: 5, early_per_agent: 5, transfers_per_agent: 4, jobs: 4, ..Options::default() };
        let mut t = Table::owner_with(if rng.chance(0.3) { "near" } else { "holder" }, options);
        let mut fences = Vec::new();
        if rng.chance(0.5) {
            t.do_(|machine, now, _| machine.start(now, pull(), BLOCKS)).unwrap();
        }
        for _ in 0..120 {
            let message = nonsense(&mut rng, &pushes(&t));
            t.hear(message);
            if rng.chance(0.1) {
                open(&mut t, &mut rng);
            }
            let header = StreamHeader {
                transfer: transfer(rng.below(96) as u8),
                nonce: Nonce([rng.below(4) as u8; 16]),
                stream: rng.below(3) as u32,
                offset: rng.below(20),
                length: rng.below(40),
            };
            let from = agent(if rng.chance(0.5) { "near" } else { "holder" });
            if t.do_(|machine, now, _| machine.admit(now, &from, &header)).is_ok() {
                let trailer = StreamTrailer { length: header.length, crc: rng.below(2) as u32 };
                t.do_(|machine, now, _| machine.stream_arrived(now, &header, &trailer, 0));
            }
            for action in t.took() {
                match action {
                    Action::Fence(transfer) => fences.push(transfer),
                    Action::Read(Flow { transfer, bytes, .. }) if rng.chance(0.5) => {
                        t.do_(|machine, now, _| machine.stream_sent(now, transfer, bytes));
                    }
                    Action::Connect(RankAddress { agent, .. }) => {
                        t.do_(|machine, now, _| machine.connect_failed(now, &agent, "nobody answers"));
                    }
                    Action::Close { .. } => {
                        t.greet("holder", Roles::all(), hello("holder"));
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
            assert!(gauges.early <= 5 && gauges.queued + gauges.transfers <= 20, "{gauges:?}");
            assert!(gauges.leases <= 7 && gauges.timers <= 60, "{gauges:?}");
            assert!(gauges.jobs <= 4, "{gauges:?}");
        }
        t.do_(|machine, now, conn| machine.disconnected(now, conn));
        for _ in 0..10 {
            for action in t.took() {
                match action {
                    Action::Fence(transfer) => fences.push(transfer),
                    Action::Connect(RankAddress { agent, .. }) => {
                        t.do_(|machine, now, _| machine.connect_failed(now, &agent, "nobody answers"));
                    }
                    _ => {}
                }
            }
            for fence in fences.drain(..) {
                t.do_(|machine, now, _| machine.fenced(now, fence));
            }
            t.wait(secs(60));
        }
        let left = t.machine.gauges();
        assert_eq!(left, Gauges::default(), "seed {seed}");
        assert!(t.machine.owner.pushes() == 0, "seed {seed}");
    }
}

/// Returns a pull whose owner must push into set 5, if the owner accepts.
fn pull() -> JobSpec {
    let ticket = mint(&Claims { direction: Direction::Pull, ..into(6) });
    JobSpec {
        ranks: BTreeSet::from([Rank(0)]),
        ticket,
        into: Some(mint(&claims(5, Direction::Push))),
        ..super::jobs::job(6, Direction::Pull)
    }
}

fn pushes(t: &Table) -> Vec<TransferId> {
    let asks = t.said.iter().filter_map(|said| match said {
        Message::Push(ask) => Some(ask.transfer),
        _ => None,
    });
    asks.collect()
}

fn an_invitation(rng: &mut Rng, n: u8) -> Invitation {
    let mut into = into(100 + rng.within(1, 3) as u8);
    let elsewhere = RankAddress { agent: agent("near"), host: "elsewhere.example".into(), port: 7600 };
    match rng.below(20) {
        0 => into.incarnation = life(2),
        1 => into.owner = OWNER.digest(),
        2 => into.direction = Direction::Pull,
        3 => into.valid_tokens += 1,
        4 => into.ranks = vec![elsewhere.clone(), elsewhere],
        5 | 6 => into.ranks[1] = elsewhere,
        7 => into.cluster = ClusterName::new("east").unwrap(),
        8 => into.audience = Some(Audience::Agent(agent("third"))),
        _ => {}
    }
    let direction = match rng.chance(0.1) {
        true => Direction::Push,
        false => Direction::Pull,
    };
    let content = match rng.chance(0.1) {
        true => ContentDigest([9; 32]),
        false => CONTENT,
    };
    Invitation {
        id: rng.below(4),
        ticket: mint(&claims(n, direction)),
        into: mint(&into),
        content,
        by_layer: rng.chance(0.2),
        ..invitation(n)
    }
}

/// Opens a lease, which may have been asked for before, unless it is or was open.
fn open(t: &mut Table, rng: &mut Rng) {
    let direction = if rng.chance(0.5) { Direction::Pull } else { Direction::Push };
    let (n, rank, prefilled) = (rng.within(1, 3) as u8, rng.below(2) as u32, rng.chance(0.7));
    let spec = spec(n, rank, direction, prefilled);
    // Fails if the lease exists already.
    let _ = t.do_(|machine, now, _| machine.lease(now, spec, "blocks"));
}

fn nonsense(rng: &mut Rng, pushes: &[TransferId]) -> Message {
    let n = rng.within(1, 5) as u8;
    let attempt = rng.within(1, 3) as u32;
    let mut an_ask = if rng.chance(0.5) { ask(n, attempt) } else { push_ask(n, attempt) };
    if rng.chance(0.2) {
        an_ask.source = Rank(rng.below(3) as u32);
        an_ask.destination = Rank(rng.below(3) as u32);
    }
    if rng.chance(0.1) {
        an_ask.request.start = rng.next();
        an_ask.request.tokens = rng.next();
    }
    if rng.chance(0.3) {
        an_ask.transfer = self::transfer(rng.below(3) as u8);
        an_ask.source = Rank(rng.below(2) as u32);
    }
    an_ask.request.by_layer = rng.chance(0.2);
    let transfer = match pushes.len() as u64 {
        some if some > 0 && rng.chance(0.5) => pushes[rng.below(some) as usize],
        _ => transfer(rng.below(96) as u8),
    };
    match rng.below(18) {
        0..4 => Message::Pull(an_ask),
        4..7 => Message::Push(an_ask),
        7 => Message::Commit { transfer, streams: rng.below(3) as u32, bytes: rng.below(40) },
        8 => Message::Landed { transfer },
        9 => Message::Abort { transfer, failure: Failure::Disconnected },
        10 => Message::Accepted { transfer, path: if rng.chance(0.5) { Path::RING } else { Path::QUIC } },
        11..15 => Message::Invite(an_invitation(rng, n)),
        15 => Message::Invited {
            id: rng.below(4),
            outcome: match rng.below(3) {
                0 => Ok(()),
                1 => Err(Refusal::Busy { limit: 1 }),
                _ => Err(Refusal::Consumed),
            },
        },
        16 => Message::Refused {
            transfer,
            refusal: match rng.chance(0.5) {
                true => Refusal::Busy { limit: 1 },
                false => Refusal::Consumed,
            },
        },
        _ => {
            let says = match rng.below(6) {
                0 => NoticeKind::Cancel { content: None },
                1 | 2 => NoticeKind::Done { ranks: vec![Rank(rng.below(3) as u32)], content: CONTENT },
                _ => NoticeKind::Renew { ttl_ms: rng.below(30_000) },
            };
            let direction = if rng.chance(0.5) { Direction::Pull } else { Direction::Push };
            Message::Notice(Notice { id: rng.next(), ticket: mint(&claims(n, direction)), says })
        }
    }
}
