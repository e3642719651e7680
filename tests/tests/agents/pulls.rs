//! Agents that pull and push over QUIC, in one process.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use transload_layout::Rank;
use transload_tests::cluster::all_end;
use transload_tests::pair::{Pair, contents, deployment, fill};
use transload_transfer::wire::{LeaseError, OpenFault, Refusal};
use transload_transfer::{
    After, AgentGone, AgentOptions, Content, Direction, JobError, Keeper, Lease, LeaseEnd, LeaseOpenError,
    LeaseRequest, LeaseSetId, LeaseUseError, Path, PathSet, TransferError,
};

#[tokio::test]
async fn a_pull_brings_every_byte_and_ends_the_leases() {
    let pair = Pair::default();
    let expected = pair.expected();
    let set = LeaseSetId([1; 16]);
    let leases = pair.leases(&pair.src, set, false).await;
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let report = pair.dst.agent.pull(pair.request(ticket, &pair.dst)).await.unwrap();
    assert_eq!(report.bytes, 100 * 4 * 4 * 64);
    assert_eq!(pair.found(), expected);
    assert!(report.routes.len() > 2, "{report:?}");
    for side in [&pair.src, &pair.dst] {
        let metrics = side.agent.metrics().await.unwrap();
        assert_eq!(metrics.plans, 1, "one for all routes");
    }
    all_end(leases, LeaseEnd::Completed).await;
    pair.dst.agent.shutdown(Duration::from_secs(5)).await;
    pair.src.agent.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn the_path_is_the_one_that_was_required() {
    let pair = Pair::default();
    let expected = pair.expected();
    for (set, paths, path) in [
        (LeaseSetId([11; 16]), PathSet::QUIC, Path::QUIC),
        (LeaseSetId([12; 16]), PathSet::LOCAL, Path::RING),
        (LeaseSetId([13; 16]), PathSet::ANY, Path::RING),
    ] {
        for (seed, memory) in (1..).zip(&pair.dst.memories) {
            fill(memory, seed);
        }
        let leases = pair.leases(&pair.src, set, false).await;
        let ticket = pair.ticket(&pair.src, set, Direction::Pull);
        let mut request = pair.request(ticket, &pair.dst);
        request.paths = paths;
        let report = pair.dst.agent.pull(request).await.unwrap();
        assert!(report.routes.iter().all(|route| route.path == path), "{report:?}");
        assert_eq!(pair.found(), expected);
        all_end(leases, LeaseEnd::Completed).await;
    }
}

#[tokio::test]
async fn a_push_brings_every_byte_and_ends_the_openings() {
    let pair = Pair::default();
    let expected = pair.expected();
    let set = LeaseSetId([2; 16]);
    let openings = pair.leases(&pair.dst, set, true).await;
    let ticket = pair.ticket(&pair.dst, set, Direction::Push);
    pair.src.agent.push(pair.push_request(ticket)).await.unwrap();
    all_end(openings, LeaseEnd::Completed).await;
    assert_eq!(pair.found(), expected);
}

#[tokio::test]
async fn replicas_share_what_they_have_alike() {
    // Ranks 2h and 2h + 1 of the source have head h.
    let pair = Pair::of([deployment(8, 4, "NHD"), deployment(2, 6, "HND")]);
    for (rank, memory) in (0..).zip(&pair.src.memories) {
        fill(memory, 100 + rank / 2);
    }
    let alone: Vec<_> = pair.src.memories.iter().step_by(2).cloned().collect();
    let expected = pair.expected_from(&deployment(4, 4, "NHD"), &alone);
    let set = LeaseSetId([4; 16]);
    let leases = pair.leases(&pair.src, set, false).await;
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let request = pair.request(ticket, &pair.dst);
    let report = pair.dst.agent.pull(request).await.unwrap();
    assert_eq!(pair.found(), expected);
    assert_eq!(report.bytes, 100 * 4 * 4 * 64);
    let mut moved = [0; 8];
    for route in &report.routes {
        moved[route.peer_rank.0 as usize] += route.bytes;
    }
    assert_eq!(moved, [report.bytes / 8; 8], "every rank sends its share");
    all_end(leases, LeaseEnd::Completed).await;
}

#[tokio::test]
async fn layers_leave_as_they_are_ready() {
    let pair = Pair::default();
    let expected = pair.expected();
    let set = LeaseSetId([3; 16]);
    let leases = [unfinished(&pair, set, Rank(0), None).await, unfinished(&pair, set, Rank(1), None).await];
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let mut request = pair.request(ticket, &pair.dst);
    request.request.by_layer = true;
    let pull = pair.dst.agent.start_pull(request).await.unwrap();
    for layer in 0..4 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        for lease in &leases {
            lease.ready(layer, pair.tokens).await.unwrap();
        }
    }
    for lease in &leases {
        lease.finish_prefill().await.unwrap();
    }
    pull.finish().await.unwrap();
    assert_eq!(pair.found(), expected);
}

#[tokio::test]
async fn a_pull_of_other_content_is_refused() {
    let pair = Pair::default();
    let before = pair.found();
    let set = LeaseSetId([4; 16]);
    let leases = pair.leases(&pair.src, set, false).await;
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let mut request = pair.request(ticket, &pair.dst);
    request.content = Content::first(2, &[7, 7]).unwrap().digest();
    let refused = pair.dst.agent.pull(request).await.unwrap_err();
    assert!(matches!(refused, TransferError::Job(JobError::Refused { .. })), "{refused}");
    assert_eq!(pair.found(), before, "nothing was written");
    drop(leases);
}

#[tokio::test]
async fn a_consumed_ticket_is_refused() {
    let pair = Pair::default();
    let set = LeaseSetId([5; 16]);
    let leases = pair.leases(&pair.src, set, false).await;
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let request = pair.request(ticket, &pair.dst);
    pair.dst.agent.pull(request.clone()).await.unwrap();
    for lease in leases {
        lease.ended().await.unwrap();
    }
    let refused = pair.dst.agent.pull(request).await.unwrap_err();
    let TransferError::Job(JobError::Refused { refusal, .. }) = refused else {
        panic!("{refused}");
    };
    assert_eq!(refusal, Refusal::Consumed);
}

#[tokio::test]
async fn an_early_pull_waits_for_its_lease() {
    let pair = Pair::default();
    let expected = pair.expected();
    let set = LeaseSetId([6; 16]);
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let request = pair.request(ticket, &pair.dst);
    let pull = pair.dst.agent.start_pull(request).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let leases = pair.leases(&pair.src, set, false).await;
    pull.finish().await.unwrap();
    assert_eq!(pair.found(), expected);
    assert_eq!(BTreeSet::from_iter(leases.iter().map(|lease| lease.key().rank)).len(), 2);
}

#[tokio::test]
async fn a_ticket_does_not_choose_the_direction() {
    let pair = Pair::default();
    let before: Vec<_> = pair.src.memories.iter().map(contents).collect();
    let set = LeaseSetId([7; 16]);
    // Whoever holds it means to push, and would have its blocks overwritten.
    let _leases = pair.leases(&pair.dst, set, false).await;
    let ticket = pair.ticket(&pair.dst, set, Direction::Pull);
    let request = pair.push_request(ticket);
    let refused = pair.src.agent.start_push(request).await.unwrap_err();
    let allowed = Direction::Pull;
    assert_eq!(refused, TransferError::Direction { allowed });
    let after: Vec<_> = pair.src.memories.iter().map(contents).collect();
    assert!(before == after);

    let ticket = pair.ticket(&pair.dst, set, Direction::Push);
    let request = pair.request(ticket, &pair.src);
    let refused = pair.src.agent.start_pull(request).await.unwrap_err();
    let allowed = Direction::Push;
    assert_eq!(refused, TransferError::Direction { allowed });
}

/// Returns a lease of blocks that are still being computed, on one rank.
async fn unfinished(pair: &Pair, set: LeaseSetId, rank: Rank, keeper: Option<Keeper>) -> Lease {
    let tables = pair.src.tables.clone();
    let mut request = LeaseRequest::new(set, rank, tables, pair.content, pair.tokens);
    request.prefilled = false;
    request.keeper = keeper;
    pair.src.agent.lease(request).await.unwrap()
}

#[tokio::test]
async fn an_owner_hears_what_cannot_be() {
    let pair = Pair::default();
    let set = LeaseSetId([8; 16]);
    let lease = unfinished(&pair, set, Rank(0), None).await;
    lease.ready(0, pair.tokens).await.unwrap();
    let refused = lease.ready(0, pair.tokens + 1).await.unwrap_err();
    assert!(matches!(refused, LeaseUseError::Lease(LeaseError::Tokens { .. })), "{refused}");
    let tables = pair.src.tables.clone();
    let again = LeaseRequest::new(set, Rank(0), tables, pair.content, pair.tokens);
    match pair.src.agent.lease(again).await {
        Err(LeaseOpenError::Refused { reason, tables, .. }) => {
            assert_eq!((reason, tables), (OpenFault::Open, pair.src.tables.clone()));
        }
        other => panic!("{other:?}"),
    }
    lease.cancel().await.unwrap();
    let refused = lease.finish_prefill().await.unwrap_err();
    assert!(matches!(refused, LeaseUseError::Lease(LeaseError::NotOpen { .. })), "{refused}");
}

#[tokio::test]
async fn what_is_told_may_come_after_something_else() {
    let pair = Pair::default();
    let (before, expected) = (pair.found(), pair.expected());
    let set = LeaseSetId([9; 16]);
    let (after, tell) = After::told();
    let mut leases = Vec::new();
    for rank in [Rank(0), Rank(1)] {
        let lease = unfinished(&pair, set, rank, None).await;
        for layer in 0..4 {
            let told = lease.ready_after(after.clone(), layer, pair.tokens);
            told.await.unwrap();
        }
        lease.finish_prefill_after(after.clone()).await.unwrap();
        leases.push(lease);
    }
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let mut request = pair.request(ticket, &pair.dst);
    request.request.by_layer = true;
    let pull = pair.dst.agent.start_pull(request).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(pair.found(), before);
    tell(Ok(()));
    pull.finish().await.unwrap();
    assert_eq!(pair.found(), expected);

    // What nobody tells will never be done.
    let lease = unfinished(&pair, LeaseSetId([10; 16]), Rank(0), None).await;
    let (never, tell) = After::told();
    lease.ready_after(never, 0, pair.tokens).await.unwrap();
    drop(tell);
    assert_eq!(lease.ended().await.unwrap().end, LeaseEnd::Cancelled);
}

#[tokio::test]
async fn keepers_go_when_nothing_touches_the_blocks() {
    let pair = Pair::default();
    let keeper = || -> (Keeper, Weak<_>) {
        let keeper: Keeper = Arc::new(());
        let kept = Arc::downgrade(&keeper);
        (keeper, kept)
    };
    let gone = async |kept: Weak<_>| {
        while kept.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let set = LeaseSetId([9; 16]);
    let (keeper_of_lease, kept_by_lease) = keeper();
    let lease = unfinished(&pair, set, Rank(0), Some(keeper_of_lease)).await;
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let mut request = pair.request(ticket, &pair.dst);
    let (keeper_of_pull, kept_by_pull) = keeper();
    request.keeper = Some(keeper_of_pull);
    // It waits for the prefill, and nobody waits for it.
    let pulling = pair.dst.agent.pull(request);
    let waited = tokio::time::timeout(Duration::from_millis(200), pulling).await;
    assert!(waited.is_err());
    gone(kept_by_pull).await;
    drop(lease);
    gone(kept_by_lease).await;

    // Who hears of the end finds it gone.
    let set = LeaseSetId([10; 16]);
    let leases = pair.leases(&pair.src, set, false).await;
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let mut request = pair.request(ticket, &pair.dst);
    let (keeper, kept) = keeper();
    request.keeper = Some(keeper);
    pair.dst.agent.pull(request).await.unwrap();
    assert_eq!(kept.strong_count(), 0);
    drop(leases);
}

/// A future is dropped between the driver's answer and the poll that would have fetched it. (Where the
/// answer comes within the only poll, dropping that cancels too.)
#[tokio::test]
async fn an_answer_that_nobody_fetches_cancels() {
    let pair = Pair::default();
    let long = Duration::from_secs(600);
    let mut once = Context::from_waker(Waker::noop());
    let set = LeaseSetId([14; 16]);
    {
        let tables = pair.src.tables.clone();
        let mut request = LeaseRequest::new(set, Rank(0), tables, pair.content, pair.tokens);
        request.ttl = long;
        request.hard_bound = long;
        let mut leasing = pin!(pair.src.agent.lease(request));
        let _polled = leasing.as_mut().poll(&mut once);
        // Commands are answered in order.
        assert_eq!(pair.src.agent.gauges().await.unwrap().leases, 1);
    }
    while pair.src.agent.gauges().await.unwrap().leases > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    // It waits for the prefill.
    let set = LeaseSetId([15; 16]);
    let leases = [unfinished(&pair, set, Rank(0), None).await, unfinished(&pair, set, Rank(1), None).await];
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let mut request = pair.request(ticket, &pair.dst);
    request.timeout = long;
    {
        let mut pulling = pin!(pair.dst.agent.pull(request));
        let _polled = pulling.as_mut().poll(&mut once);
        assert_eq!(pair.dst.agent.gauges().await.unwrap().jobs, 1);
    }
    while pair.dst.agent.gauges().await.unwrap().jobs > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(leases);
}

#[tokio::test]
async fn connections_that_nothing_needs_are_closed() {
    let mut options = AgentOptions { keep_idle: Duration::from_millis(10), ..AgentOptions::default() };
    options.wire.early_wait = Duration::from_millis(20);
    // Idle connections are looked for four times as often.
    options.wire.stall = Duration::from_secs(2);
    let pair = Pair::with_options(options);
    for set in [11, 12] {
        let set = LeaseSetId([set; 16]);
        let leases = [unfinished(&pair, set, Rank(0), None).await, unfinished(&pair, set, Rank(1), None).await];
        let ticket = pair.ticket(&pair.src, set, Direction::Pull);
        let request = pair.request(ticket, &pair.dst);
        let pull = pair.dst.agent.start_pull(request).await.unwrap();
        // Silent, but needed.
        tokio::time::sleep(Duration::from_millis(700)).await;
        for lease in &leases {
            lease.finish_prefill().await.unwrap();
        }
        let report = pull.finish().await.unwrap();
        assert!(report.routes.iter().all(|route| route.attempts == 1));
        all_end(leases, LeaseEnd::Completed).await;
        for side in [&pair.src, &pair.dst] {
            let open = || side.agent.endpoints().open_connections();
            while open() > 0 || side.agent.gauges().await.unwrap().sessions > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
}

/// Panics where it is dropped, which is on the driver's thread.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a fault of the driver, on purpose");
    }
}

#[tokio::test]
async fn a_driver_that_has_panicked_fails_every_call_and_keeps_no_peer_waiting() {
    let pair = Pair::default();
    let owner = &pair.src.agent;
    let lease = |set| {
        let tables = pair.src.tables.clone();
        LeaseRequest::new(set, Rank(0), tables, pair.content, pair.tokens)
    };
    let set = LeaseSetId([21; 16]);
    let other = owner.lease(lease(set)).await.unwrap();
    // One rank is not leased, so this waits.
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let request = || pair.request(ticket.clone(), &pair.dst);
    let waiting = pair.dst.agent.start_pull(request()).await.unwrap();
    while owner.gauges().await.unwrap().early == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut bomb = lease(LeaseSetId([22; 16]));
    bomb.keeper = Some(Arc::new(Bomb));
    let bomb = owner.lease(bomb).await.unwrap();
    bomb.cancel().await.unwrap();
    assert_eq!(bomb.ended().await, Err(AgentGone.into()));

    assert!(matches!(other.renew(Duration::from_secs(1)).await, Err(LeaseUseError::Gone(AgentGone))));
    assert_eq!(other.ended().await, Err(AgentGone.into()));
    let refused = owner.lease(lease(LeaseSetId([23; 16]))).await.unwrap_err();
    assert!(matches!(refused, LeaseOpenError::Gone(AgentGone)));
    let pulled = owner.pull(pair.request(ticket.clone(), &pair.src)).await;
    assert_eq!(pulled.unwrap_err(), TransferError::Gone(AgentGone));
    assert_eq!(owner.gauges().await.unwrap_err(), AgentGone);
    assert_eq!(owner.metrics().await.unwrap_err(), AgentGone);
    assert!(owner.cancel(ticket.clone(), None).await.is_err());
    owner.shutdown(Duration::from_secs(1)).await;

    // The peer has heard of it: no timeout of a transfer is anywhere as short.
    let hearing = async {
        while pair.dst.agent.gauges().await.unwrap().sessions > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let heard = tokio::time::timeout(Duration::from_secs(10), hearing).await;
    heard.expect("the peer is hung up on");
    waiting.cancel().await.unwrap();
    waiting.finish().await.unwrap_err();
}
