use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::moment::Moment;

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const KEY: LeaseKey = LeaseKey { set: LeaseSetId([1; 16]), rank: Rank(0) };
const CONTENT: ContentDigest = ContentDigest([2; 32]);
const PULL: Direction = Direction::Pull;

fn agent(name: &str) -> AgentId {
    AgentId::new(name).unwrap()
}

fn holder(life: u64) -> Holder {
    Holder { deployment: DeploymentDigest([3; 32]), incarnation: Incarnation::new(life, 0), ranks: 2 }
}

fn transfer(n: u8) -> TransferId {
    TransferId([n; 16])
}

fn spec(direction: Direction) -> LeaseSpec {
    LeaseSpec {
        key: KEY,
        direction,
        content: CONTENT,
        start: 0,
        valid_tokens: 100,
        ttl: secs(10),
        hard_bound: secs(60),
        prefilled: true,
    }
}

fn open(table: &mut LeaseTable<&'static str>, now: Moment, spec: LeaseSpec) -> Result<(), OpenFault> {
    table.check_open(now, &spec)?;
    table.insert(now, spec, "blocks");
    Ok(())
}

fn admit<B>(table: &mut LeaseTable<B>, now: Moment, wanted: &LeaseUse<'_>) -> Result<(), UseError> {
    table.check(now, KEY, PULL, wanted)?;
    table.admit(now, KEY, wanted, BTreeSet::new);
    Ok(())
}

struct Fixture {
    table: LeaseTable<&'static str>,
    decode: AgentId,
}

fn fixture(direction: Direction) -> Fixture {
    let mut table = LeaseTable::new(LeaseLimits::default());
    open(&mut table, at(0), spec(direction)).unwrap();
    let decode = agent("decode");
    Fixture { table, decode }
}

fn range(start: u64, tokens: u64) -> Request {
    Request { start, ..Request::tokens(tokens) }
}

fn wanted(agent: &AgentId, rank: u32, attempt: u32) -> LeaseUse<'_> {
    LeaseUse {
        agent,
        holder: holder(1),
        rank: Rank(rank),
        attempt,
        transfer: transfer(rank as u8),
        content: CONTENT,
        request: Request::tokens(100),
    }
}

impl Fixture {
    fn admit(&mut self, now: Moment, rank: u32, attempt: u32) -> Result<(), UseError> {
        let wanted = wanted(&self.decode, rank, attempt);
        admit(&mut self.table, now, &wanted)
    }

    fn check(&mut self, direction: Direction, wanted: &LeaseUse<'_>) -> Result<(), UseError> {
        self.table.check(at(1), KEY, direction, wanted)
    }

    fn done(&mut self, now: Moment, direction: Direction, ranks: &[u32]) -> Result<(), UseError> {
        let ranks: Vec<_> = ranks.iter().map(|&r| Rank(r)).collect();
        let needed = match direction {
            Direction::Pull => BTreeSet::new(),
            Direction::Push => BTreeSet::from([Rank(0)]),
        };
        let said =
            LeaseDone { agent: &self.decode, holder: holder(1), ranks: &ranks, content: &CONTENT, needed: &needed };
        self.table.done(now, KEY, direction, &said)
    }

    fn ended(&mut self) -> LeaseEnd {
        match self.event() {
            Some(LeaseEvent::Ended { key, end, blocks }) => {
                assert_eq!((key, blocks), (KEY, "blocks"));
                assert!(self.event().is_none() && self.table.len() == 0);
                assert_eq!(self.table.next_deadline(), None);
                end
            }
            other => panic!("{other:?}"),
        }
    }

    /// Returns the table's events, except for claims, which have their own test.
    fn event(&mut self) -> Option<LeaseEvent<&'static str>> {
        loop {
            match self.table.poll_event() {
                Some(LeaseEvent::Claimed { .. }) => {}
                other => return other,
            }
        }
    }

    fn is_quiet(&mut self) -> bool {
        self.event().is_none()
    }
}

#[test]
fn an_unused_lease_expires_unless_renewed() {
    let mut f = fixture(PULL);
    f.table.on_deadline(at(9));
    f.table.renew(at(9), KEY, secs(10)).unwrap();
    f.table.on_deadline(at(18));
    assert!(f.is_quiet());
    assert_eq!(f.table.next_deadline(), Some(at(19)));
    f.table.on_deadline(at(19));
    assert_eq!(f.ended(), LeaseEnd::Expired);
    assert!(f.table.renew(at(19), KEY, secs(10)).is_err());
}

#[test]
fn what_is_due_is_over_even_where_no_timer_fired() {
    let mut f = fixture(PULL);
    let wanted = f.admit(at(10), 0, 1);
    let end = LeaseEnd::Expired;
    assert_eq!(wanted, Err(UseError::Ended { end }));
    assert_eq!(f.ended(), LeaseEnd::Expired);
}

#[test]
fn a_running_transfer_pins_up_to_the_hard_bound() {
    let mut f = fixture(PULL);
    f.admit(at(5), 0, 1).unwrap();
    assert!(f.table.is_alive(at(59), KEY));
    assert!(!f.table.is_alive(at(60), KEY));
    let fence = f.event();
    assert!(
        matches!(&fence, Some(LeaseEvent::Fence { end: LeaseEnd::Expired, transfers, .. })
            if transfers.contains(&transfer(0))),
        "{fence:?}"
    );
    assert!(f.is_quiet() && f.table.next_deadline().is_none(), "it waits for the fence");
    f.table.unpin(at(61), KEY, transfer(0));
    assert_eq!(f.ended(), LeaseEnd::Expired);
}

#[test]
fn a_transfer_that_outlived_the_ttl_leaves_time_to_say_so() {
    let mut f = fixture(PULL);
    f.admit(at(5), 0, 1).unwrap();
    f.table.unpin(at(40), KEY, transfer(0));
    assert!(f.is_quiet());
    assert_eq!(f.table.next_deadline(), Some(at(50)));
    f.table.unpin(at(41), KEY, transfer(0));
    assert_eq!(f.table.next_deadline(), Some(at(50)), "a second unpin renews nothing");
}

#[test]
fn completes_when_every_rank_of_the_holder_is_done() {
    let mut f = fixture(PULL);
    f.admit(at(1), 0, 1).unwrap();
    f.table.unpin(at(2), KEY, transfer(0));
    f.table.landed(KEY, Rank(0));
    f.done(at(3), PULL, &[0]).unwrap();
    f.done(at(3), PULL, &[0]).unwrap();
    assert!(f.is_quiet());
    f.done(at(4), PULL, &[1]).unwrap();
    assert_eq!(f.ended(), LeaseEnd::Completed);
    let end = LeaseEnd::Completed;
    assert_eq!(f.done(at(5), PULL, &[1]), Err(UseError::Ended { end }));
    assert_eq!(open(&mut f.table, at(6), spec(PULL)).unwrap_err(), OpenFault::Ended { end });
}

#[test]
fn a_done_while_a_transfer_runs_waits_for_its_fence() {
    let mut f = fixture(PULL);
    f.admit(at(1), 0, 1).unwrap();
    f.done(at(2), PULL, &[0, 1]).unwrap();
    assert!(matches!(f.event(), Some(LeaseEvent::Fence { .. })));
    assert!(f.is_quiet());
    assert!(!f.table.is_alive(at(2), KEY));
    f.table.unpin(at(3), KEY, transfer(0));
    assert_eq!(f.ended(), LeaseEnd::Completed);
}

#[test]
fn a_write_lease_completes_only_with_what_had_to_land() {
    let push = Direction::Push;
    let mut f = fixture(push);
    f.done(at(1), push, &[1]).unwrap();
    f.table.landed(KEY, Rank(0));
    f.done(at(1), push, &[0]).unwrap();
    assert_eq!(f.ended(), LeaseEnd::Completed);

    let mut f = fixture(push);
    f.done(at(1), push, &[0, 1]).unwrap();
    assert_eq!(f.ended(), LeaseEnd::Cancelled, "rank 0 has written nothing");
}

#[test]
fn first_use_binds() {
    let mut f = fixture(PULL);
    f.admit(at(1), 0, 1).unwrap();
    let (decode, intruder) = (f.decode.clone(), agent("intruder"));
    let restarted = LeaseUse { holder: holder(2), ..wanted(&decode, 1, 1) };
    assert_eq!(f.check(PULL, &restarted), Err(UseError::Holder));
    let rank = Rank(0);
    assert_eq!(f.check(PULL, &wanted(&intruder, 0, 2)), Err(UseError::Rank { rank }), "rank 0 is another agent's");
    assert_eq!(f.check(PULL, &wanted(&intruder, 1, 1)), Ok(()));
    let stranger = f.table.cancel_by(at(1), KEY, PULL, &holder(2), None);
    assert_eq!(stranger, Err(UseError::Holder));
    f.table.cancel_by(at(1), KEY, PULL, &holder(1), None).unwrap();
    f.table.unpin(at(2), KEY, transfer(0));
    assert!(matches!(f.event(), Some(LeaseEvent::Fence { .. })));
    assert_eq!(f.ended(), LeaseEnd::Cancelled);
}

#[test]
fn refusals_bind_nothing() {
    let mut f = fixture(PULL);
    let decode = f.decode.clone();
    let other = LeaseUse { content: ContentDigest([9; 32]), ..wanted(&decode, 0, 1) };
    let refused = admit(&mut f.table, at(1), &other);
    assert_eq!(refused, Err(UseError::Content));
    let greedy = LeaseUse { request: range(50, 51), ..wanted(&decode, 0, 1) };
    let (start, valid_tokens, asked) = (0, 100, 101);
    assert_eq!(admit(&mut f.table, at(1), &greedy), Err(UseError::Tokens { start, valid_tokens, asked }));
    let endless = LeaseUse { request: range(u64::MAX, 51), ..greedy };
    assert!(admit(&mut f.table, at(1), &endless).is_err());
    let leased = PULL;
    assert_eq!(f.check(Direction::Push, &wanted(&decode, 0, 1)), Err(UseError::Direction { leased }));
    assert!(f.table.cancel_by(at(1), KEY, PULL, &holder(7), Some(&other.content)).is_err());
    let stranger = LeaseUse { holder: holder(2), ..wanted(&decode, 0, 1) };
    assert_eq!(admit(&mut f.table, at(1), &stranger), Ok(()), "nobody holds it yet");
}

#[test]
fn a_pull_may_start_late_and_a_push_moves_exactly_what_was_opened() {
    let decode = agent("decode");
    let part = LeaseUse { request: range(30, 20), ..wanted(&decode, 0, 1) };
    assert_eq!(fixture(PULL).check(PULL, &part), Ok(()));
    let (start, valid_tokens, asked) = (0, 100, 50);
    assert_eq!(
        fixture(Direction::Push).check(Direction::Push, &part),
        Err(UseError::Tokens { start, valid_tokens, asked })
    );
}

#[test]
fn attempts_count_up_and_landing_consumes() {
    let mut f = fixture(PULL);
    f.admit(at(1), 0, 1).unwrap();
    assert_eq!(f.admit(at(1), 0, 1), Err(UseError::Superseded { latest: 1 }));
    f.admit(at(1), 0, 3).unwrap();
    assert_eq!(f.admit(at(1), 0, 2), Err(UseError::Superseded { latest: 3 }));
    f.table.landed(KEY, Rank(0));
    let rank = Rank(0);
    assert_eq!(f.admit(at(1), 0, 4), Err(UseError::Consumed { rank }));
    f.admit(at(1), 1, 1).unwrap();
}

#[test]
fn a_holder_that_stays_away_loses_the_lease() {
    let mut f = fixture(PULL);
    let decode = f.decode.clone();
    f.admit(at(1), 0, 1).unwrap();
    f.table.agent_lost(at(2), &decode);
    f.table.agent_lost(at(4), &decode);
    assert_eq!(f.table.next_deadline(), Some(at(12)), "the grace does not begin again");
    f.table.agent_up(at(5), &decode, holder(1).incarnation);
    assert_eq!(f.table.next_deadline(), Some(at(60)));
    f.table.agent_lost(at(6), &decode);
    f.table.unpin(at(7), KEY, transfer(0));
    f.table.on_deadline(at(16));
    assert_eq!(f.ended(), LeaseEnd::PeerLost);
}

#[test]
fn one_that_is_done_may_leave() {
    let mut f = fixture(PULL);
    let decode = f.decode.clone();
    f.done(at(1), PULL, &[0]).unwrap();
    f.table.agent_lost(at(2), &decode);
    f.table.on_deadline(at(11));
    assert_eq!(f.ended(), LeaseEnd::Expired);
}

#[test]
fn a_restarted_holder_ends_its_past_at_once() {
    let mut f = fixture(PULL);
    let decode = f.decode.clone();
    f.done(at(1), PULL, &[0]).unwrap();
    f.table.agent_up(at(2), &agent("other"), holder(2).incarnation);
    assert!(f.is_quiet());
    f.table.agent_up(at(2), &decode, holder(2).incarnation);
    assert_eq!(f.ended(), LeaseEnd::PeerLost);

    // An agent that claims the life of others, and then another one, ends none of their leases.
    let mut f = fixture(PULL);
    f.done(at(1), PULL, &[0]).unwrap();
    for life in [1, 2] {
        let life = holder(life).incarnation;
        f.table.agent_up(at(2), &agent("impostor"), life);
    }
    assert!(f.is_quiet());
}

#[test]
fn a_prefill_tells_how_far_it_is() {
    let mut table = LeaseTable::new(LeaseLimits::default());
    let unfinished = LeaseSpec { prefilled: false, ..spec(PULL) };
    open(&mut table, at(0), unfinished).unwrap();
    assert_eq!(table.ready(KEY, 0, 40), Ok(true));
    assert_eq!(table.ready(KEY, 0, 30), Ok(false), "no way back");
    assert_eq!(table.ready(KEY, 3, 40), Ok(true));
    let (layer, tokens, valid_tokens) = (0, 101, 100);
    assert_eq!(table.ready(KEY, 0, 101), Err(LeaseError::Tokens { layer, tokens, valid_tokens }));
    assert!(matches!(table.ready(KEY, u32::MAX, 1), Err(LeaseError::Layer { .. })));
    assert_eq!(table.progress(&KEY), (vec![(0, 40), (3, 40)], false));
    assert_eq!(table.finish_prefill(KEY), Ok(true));
    assert_eq!(table.finish_prefill(KEY), Ok(false));
}

#[test]
fn limits_hold() {
    let limits = LeaseLimits { leases: 1, ended: 1, ..LeaseLimits::default() };
    let mut table = LeaseTable::new(limits);
    let spec = |rank| LeaseSpec { key: LeaseKey { rank: Rank(rank), ..KEY }, ..spec(PULL) };
    open(&mut table, at(0), spec(0)).unwrap();
    assert_eq!(open(&mut table, at(0), spec(0)).unwrap_err(), OpenFault::Open);
    let error = open(&mut table, at(0), spec(1)).unwrap_err();
    assert_eq!(error, OpenFault::TooMany { limit: 1 });
    table.cancel(at(0), KEY).unwrap();
    open(&mut table, at(0), spec(1)).unwrap();
    table.cancel(at(0), spec(1).key).unwrap();
    assert!(table.knows(&spec(1).key) && !table.knows(&KEY), "only the latest is remembered");
}

#[test]
fn is_claimed_once_by_whoever_asks_or_renews() {
    let claims = |f: &mut Fixture| {
        let mut claimed = 0;
        while let Some(event) = f.table.poll_event() {
            claimed += usize::from(matches!(event, LeaseEvent::Claimed { key } if key == KEY));
        }
        claimed
    };
    let decode = agent("decode");
    let (mut asked, mut pushed, mut renewed) = (fixture(PULL), fixture(PULL), fixture(PULL));
    for _ in 0..2 {
        let first = asked.table.check(at(1), KEY, PULL, &wanted(&decode, 0, 1));
        assert_eq!(first, Ok(()));
        pushed.table.check_push(at(1), KEY, &push_of(&decode, 1)).unwrap();
        let by = holder(1);
        renewed.table.renew_by(at(1), KEY, PULL, &by, secs(1)).unwrap();
    }
    for f in [&mut asked, &mut pushed, &mut renewed] {
        assert_eq!(claims(f), 1);
    }
    let mut refused = fixture(PULL);
    let other = LeaseUse { content: ContentDigest([9; 32]), ..wanted(&decode, 0, 1) };
    refused.table.check(at(1), KEY, PULL, &other).unwrap_err();
    refused.table.renew(at(1), KEY, secs(1)).unwrap();
    assert_eq!(claims(&mut refused), 0, "nor by who may not have it, or by its owner");
}

#[test]
fn a_peer_renews_within_the_hard_bound_only() {
    let mut f = fixture(PULL);
    let left = f.table.renew_by(at(1), KEY, PULL, &holder(1), secs(30)).unwrap();
    assert_eq!(left, secs(30));
    let left = f.table.renew_by(at(2), KEY, PULL, &holder(1), secs(1_000_000)).unwrap();
    assert_eq!(left, secs(58));
    let left = f.table.renew_by(at(3), KEY, PULL, &holder(1), secs(1)).unwrap();
    assert_eq!(left, secs(57), "it never shortens");
    f.table.renew(at(4), KEY, secs(100)).unwrap();
    assert_eq!(f.table.next_deadline(), Some(at(104)), "its owner may go beyond");
}

fn push_of(agent: &AgentId, into: u8) -> LeasePush<'_> {
    LeasePush {
        agent,
        holder: holder(1),
        pin: transfer(90 + into),
        into: LeaseSetId([into; 16]),
        content: CONTENT,
        request: range(20, 80),
    }
}

#[test]
fn a_push_pins_its_lease_and_ends_it() {
    for (landed, end) in [(true, LeaseEnd::Completed), (false, LeaseEnd::Cancelled)] {
        let mut f = fixture(PULL);
        let decode = f.decode.clone();
        let wanted = push_of(&decode, 1);
        assert_eq!(f.table.check_push(at(1), KEY, &wanted), Ok(true));
        f.table.begin_push(KEY, &wanted);
        f.table.on_deadline(at(30));
        assert_eq!(f.table.check_push(at(30), KEY, &wanted), Ok(false));
        let elsewhere = push_of(&decode, 2);
        let pushed = Err(UseError::Pushed);
        assert_eq!(f.table.check_push(at(30), KEY, &elsewhere), pushed);
        assert_eq!(f.admit(at(30), 0, 1), Err(UseError::Pushed));
        assert!(f.event().is_none());
        assert_eq!(f.table.push_over(KEY, landed), Some(wanted.pin));
        assert!(matches!(
            f.event(),
            Some(LeaseEvent::Ended { end: found, .. }) if found == end
        ));
        assert_eq!(f.table.push_over(KEY, landed), None);
        // Another agent of the same holder hears of it late.
        let late = f.table.check_push(at(31), KEY, &wanted);
        match landed {
            true => assert_eq!(late, Ok(false)),
            false => assert_eq!(late, Err(UseError::Ended { end })),
        }
        let ended = Err(UseError::Ended { end });
        assert_eq!(f.table.check_push(at(31), KEY, &elsewhere), ended);
    }
}

#[test]
fn a_push_is_of_what_the_lease_holds_and_of_nobody_elses() {
    let mut f = fixture(PULL);
    let decode = f.decode.clone();
    let wanted = push_of(&decode, 1);
    let other = LeasePush { content: ContentDigest([9; 32]), ..wanted.clone() };
    let refused = Err(UseError::Content);
    assert_eq!(f.table.check_push(at(1), KEY, &other), refused);
    let more = LeasePush { request: range(20, 81), ..wanted.clone() };
    let refused = f.table.check_push(at(1), KEY, &more);
    assert!(matches!(refused, Err(UseError::Tokens { asked: 101, .. })));
    f.table.begin_push(KEY, &wanted);
    let rival = LeasePush { holder: holder(2), ..wanted };
    let refused = Err(UseError::Holder);
    assert_eq!(f.table.check_push(at(1), KEY, &rival), refused);

    let mut pulled = fixture(PULL);
    pulled.admit(at(1), 0, 1).unwrap();
    let rank = Rank(0);
    let refused = Err(UseError::Consumed { rank });
    let wanted = push_of(&decode, 1);
    assert_eq!(pulled.table.check_push(at(1), KEY, &wanted), refused);
    let mut write_lease = fixture(Direction::Push);
    let leased = Direction::Push;
    let refused = Err(UseError::Direction { leased });
    assert_eq!(write_lease.table.check_push(at(1), KEY, &wanted), refused);
}

/// However the lease ends, the blocks are returned once, after the push has released them.
#[test]
fn a_lease_that_ends_waits_for_its_push() {
    let mut f = fixture(PULL);
    let decode = f.decode.clone();
    let wanted = push_of(&decode, 1);
    f.table.begin_push(KEY, &wanted);
    f.table.on_deadline(at(60));
    assert!(matches!(
        f.event(),
        Some(LeaseEvent::Fence { transfers, .. }) if transfers == BTreeSet::from([wanted.pin])
    ));
    assert!(f.event().is_none());
    f.table.push_over(KEY, true);
    assert!(matches!(f.event(), Some(LeaseEvent::Ended { end: LeaseEnd::Expired, .. })));
    assert!(f.event().is_none());
}
