//! An additional path that only the tests have. Agents use it like the others.

use std::sync::atomic::Ordering;

use transload_tests::cluster::all_end;
use transload_tests::memory_path::{Faults, InMemory, MEMORY};
use transload_tests::pair::Pair;
use transload_transfer::{Direction, LeaseEnd, LeaseSetId, Path, PathSet, PullReport};

/// Pulls once over a room with these faults, to the right bytes.
async fn pull(faults: &Faults) -> PullReport {
    let pair = Pair::with_room(InMemory::with(faults.clone()));
    let set = LeaseSetId([1; 16]);
    let leases = pair.leases(&pair.src, set, false).await;
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let request = pair.request(ticket, &pair.dst);
    let report = pair.dst.agent.pull(request).await.unwrap();
    assert_eq!(pair.found(), pair.expected());
    all_end(leases, LeaseEnd::Completed).await;
    report
}

fn paths(report: &PullReport) -> PathSet {
    report.routes.iter().map(|route| route.path).collect()
}

#[tokio::test]
async fn is_taken_before_the_others() {
    assert_eq!(paths(&pull(&Faults::default()).await), PathSet::from(MEMORY));
}

#[tokio::test]
async fn carries_a_push() {
    let pair = Pair::with_room(InMemory::default());
    let expected = pair.expected();
    let set = LeaseSetId([2; 16]);
    let openings = pair.leases(&pair.dst, set, true).await;
    let ticket = pair.ticket(&pair.dst, set, Direction::Push);
    let request = pair.push_request(ticket);
    let report = pair.src.agent.push(request).await.unwrap();
    assert_eq!(paths(&report), PathSet::from(MEMORY));
    all_end(openings, LeaseEnd::Completed).await;
    assert_eq!(pair.found(), expected);
}

#[tokio::test]
async fn that_damages_a_byte_is_tried_again() {
    let faults = Faults::default();
    faults.damaged.store(1, Ordering::SeqCst);
    let report = pull(&faults).await;
    assert!(report.routes.iter().any(|route| route.attempts > 1));
    assert_eq!(paths(&report), PathSet::from(MEMORY));
}

#[tokio::test]
async fn that_breaks_in_the_middle_is_tried_again() {
    let faults = Faults::default();
    faults.broken.store(2, Ordering::SeqCst);
    let report = pull(&faults).await;
    assert!(report.routes.iter().any(|route| route.attempts > 1));
}

#[tokio::test]
async fn that_cannot_be_had_leaves_the_next_one() {
    let faults = Faults::default();
    faults.refused.store(1, Ordering::SeqCst);
    let report = pull(&faults).await;
    assert_eq!(paths(&report), PathSet::from(Path::RING));
}
