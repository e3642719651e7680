//! Agents of one host that copy out of memory which the source has lent.

use transload_layout::Rank;
use transload_tests::pair::{Pair, Registered, contents, fill};
use transload_transfer::agent::{PullReport, TransferError};
use transload_transfer::identity::{Role, Roles};
use transload_transfer::ids::{Direction, LeaseSetId};
use transload_transfer::lease::LeaseEnd;
use transload_transfer::wire::{JobError, Path, PathSet};

/// Pulls everything. Whatever does not belong to the request must be as it was, on both sides.
async fn pull(pair: &Pair, set: u8, paths: PathSet) -> PullReport {
    for (seed, memory) in (1..).zip(&pair.dst.memories) {
        fill(memory, seed);
    }
    let before: Vec<_> = pair.src.memories.iter().map(contents).collect();
    let set = LeaseSetId([set; 16]);
    let leases = pair.leases(&pair.src, set, false).await;
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let mut request = pair.request(ticket, &pair.dst);
    request.paths = paths;
    let report = pair.dst.agent.pull(request).await.unwrap();
    for lease in leases {
        assert_eq!(lease.ended().await.unwrap().end, LeaseEnd::Completed);
    }
    assert!(pair.found() == pair.expected(), "{report:?}");
    let after: Vec<_> = pair.src.memories.iter().map(contents).collect();
    assert!(before == after, "the source was written to");
    report
}

async fn push(pair: &Pair, set: u8) -> PullReport {
    for (seed, memory) in (1..).zip(&pair.dst.memories) {
        fill(memory, seed);
    }
    let set = LeaseSetId([set; 16]);
    let openings = pair.leases(&pair.dst, set, true).await;
    let ticket = pair.ticket(&pair.dst, set, Direction::Push);
    let request = pair.request(ticket, &pair.src);
    let report = pair.src.agent.push(request).await.unwrap();
    for opening in openings {
        assert_eq!(opening.ended().await.unwrap().end, LeaseEnd::Completed);
    }
    assert!(pair.found() == pair.expected(), "{report:?}");
    report
}

fn paths(report: &PullReport) -> Vec<Path> {
    report.routes.iter().map(|route| route.path).collect()
}

/// All roles but that to map memory.
fn without_map() -> Roles {
    Roles::all()
        .iter()
        .filter(|role| *role != Role::Map)
        .collect()
}

#[tokio::test]
async fn memory_that_is_lent_is_copied_once() {
    let pair = Pair::new(Registered::Shared(0), Roles::all());
    // The second request finds the loans made.
    for (set, wanted) in [(1, PathSet::ANY), (2, PathSet::LOCAL)] {
        let report = pull(&pair, set, wanted).await;
        assert_eq!(paths(&report), [Path::Shared; 4]);
        assert!(report.routes.iter().all(|route| route.attempts == 1));
    }
    // Copied here, out of memory there.
    let (ours, theirs) = (pair.dst.agent.metrics(), pair.src.agent.metrics());
    let (ours, theirs) = (ours.await.unwrap(), theirs.await.unwrap());
    assert_eq!((ours.pulls.begun, ours.pulls.succeeded), (2, 2));
    assert_eq!((theirs.served.begun, theirs.served.succeeded), (8, 8));
    assert!(ours.bytes_in.shared > 0 && ours.pulls.queued <= ours.pulls.took);
    assert_eq!(ours.bytes_in, theirs.bytes_out);
    assert!(!ours.chunks.is_empty() && theirs.chunks.is_empty());
    let report = pull(&pair, 3, PathSet::LOCAL.without(Path::Shared)).await;
    assert_eq!(paths(&report), [Path::Ring; 4]);
    let report = pull(&pair, 4, PathSet::QUIC).await;
    assert_eq!(paths(&report), [Path::Quic; 4]);
}

#[tokio::test]
async fn a_push_out_of_shared_memory_is_copied_by_the_other_side() {
    let pair = Pair::new(Registered::Shared(0), Roles::all());
    let report = push(&pair, 1).await;
    assert_eq!(paths(&report), [Path::Shared; 4]);
    // What was lent for pushes serves pulls too.
    let report = pull(&pair, 2, PathSet::ANY).await;
    assert_eq!(paths(&report), [Path::Shared; 4]);
}

#[tokio::test]
async fn nothing_is_lent_to_whom_may_not_map() {
    let pair = Pair::new(Registered::Shared(0), without_map());
    assert_eq!(paths(&pull(&pair, 1, PathSet::ANY).await), [Path::Ring; 4]);
    assert_eq!(paths(&push(&pair, 2).await), [Path::Ring; 4]);

    let set = LeaseSetId([3; 16]);
    let _leases = pair.leases(&pair.src, set, false).await;
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let mut request = pair.request(ticket, &pair.dst);
    request.paths = PathSet::from_iter([Path::Shared]);
    let refused = pair.dst.agent.pull(request).await.unwrap_err();
    assert!(
        matches!(refused, TransferError::Job(JobError::Refused { .. })),
        "{refused}"
    );
}

#[tokio::test]
async fn nothing_is_lent_unless_all_ranks_are_shared() {
    for registered in [Registered::Own, Registered::PartlyShared] {
        let pair = Pair::new(registered, Roles::all());
        assert_eq!(paths(&pull(&pair, 1, PathSet::ANY).await), [Path::Ring; 4]);
        assert_eq!(paths(&push(&pair, 2).await), [Path::Ring; 4]);
    }
}

#[tokio::test]
async fn a_loan_that_fails_gives_way_to_the_ring() {
    // More than a borrower maps for this layout.
    let too_long = Registered::Shared(4 << 20);
    let pair = Pair::new(too_long, Roles::all());
    let report = pull(&pair, 1, PathSet::ANY).await;
    assert_eq!(paths(&report), [Path::Ring; 4]);
    let attempts = report.routes.iter().map(|route| route.attempts);
    assert!(attempts.max() >= Some(2), "shared memory was tried first");
    // It is not tried again over this connection.
    let report = pull(&pair, 2, PathSet::ANY).await;
    assert!(report.routes.iter().all(|route| route.attempts == 1));

    let pair = Pair::new(too_long, Roles::all());
    let report = push(&pair, 3).await;
    assert_eq!(paths(&report), [Path::Ring; 4]);
}

#[tokio::test]
async fn every_rank_may_be_lent_while_others_move() {
    let pair = Pair::new(Registered::Shared(0), Roles::all());
    let set = LeaseSetId([9; 16]);
    let leases = pair.leases(&pair.src, set, false).await;
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    // One pull for each rank, all at once: they share the loans of their source ranks.
    let mut pulls = Vec::new();
    for rank in 0..4 {
        let mut request = pair.request(ticket.clone(), &pair.dst);
        request.ranks = [Rank(rank)].into();
        pulls.push(pair.dst.agent.start_pull(request).await.unwrap());
    }
    for pull in pulls {
        assert_eq!(paths(&pull.finish().await.unwrap()), [Path::Shared]);
    }
    for lease in leases {
        assert_eq!(lease.ended().await.unwrap().end, LeaseEnd::Completed);
    }
    assert!(pair.found() == pair.expected());
}

#[tokio::test]
async fn more_parts_than_are_fetched_at_a_time() {
    let pair = Pair::with_sources(80);
    let report = pull(&pair, 1, PathSet::ANY).await;
    assert_eq!(paths(&report), [Path::Shared; 80]);
    assert!(report.routes.iter().all(|route| route.attempts == 1));
}
