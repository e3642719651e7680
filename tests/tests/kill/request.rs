//! A request as the survivor sees it: its leases, and the ways in which it may end.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use transload_layout::Rank;
use transload_tests::cluster::{self, Cache, lease_of};
use transload_transfer::{Agent, Direction, JobError, Lease, LeaseEnd, LeaseOutcome, TransferError};

pub(crate) const RANKS: [Rank; 4] = [Rank(0), Rank(1), Rank(2), Rank(3)];

/// The time within which a survivor must know. Its jobs would fail by themselves a second later.
pub(crate) const SOON: Duration = Duration::from_secs(7);

/// The time that late writes get to appear.
const LATE: Duration = Duration::from_millis(150);

/// Leases the blocks of a request, or opens them.
pub(crate) async fn open(
    owner: &Agent,
    cache: &Cache,
    ranks: &[Rank],
    request: u64,
    direction: Direction,
) -> Vec<Lease> {
    let mut leases = Vec::new();
    for &rank in ranks {
        let lease = lease_of(cache.side(), rank, request);
        leases.push(cluster::open(owner, direction, lease).await);
    }
    leases
}

/// Waits until leases have ended, all of them soon and with their blocks; how the last one did that was
/// not completed.
pub(crate) async fn ends(leases: Vec<Lease>, cache: &Cache, request: u64) -> String {
    let mut news = LeaseEnd::Completed;
    for lease in leases {
        let ended = timeout(SOON, lease.ended()).await;
        let LeaseOutcome { end, tables } = ended.expect("a lease does not end").unwrap();
        assert_eq!(tables, cache.side().tables(request));
        if end != LeaseEnd::Completed {
            news = end;
        }
    }
    news.to_string()
}

/// Returns the kind of an error that a dead peer, or a lost GPU, may lead to.
pub(crate) fn kind(error: &TransferError) -> String {
    match error {
        TransferError::Job(JobError::Unreachable { .. }) => "unreachable".to_owned(),
        TransferError::Job(JobError::Failed { failure, .. }) => format!("failed: {failure}"),
        TransferError::Job(JobError::Refused { refusal, .. }) => format!("refused: {refusal}"),
        other if other.kind() == "device_lost" => other.kind().to_owned(),
        other => panic!("{other}"),
    }
}

/// Checks that nothing is written any more, even late.
pub(crate) async fn nothing_is_written(cache: &Cache, round: u64) {
    let sum = cache.checksum();
    sleep(LATE).await;
    assert_eq!(cache.checksum(), sum, "round {round}: written after the end");
}
