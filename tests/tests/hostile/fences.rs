//! Leases that end during a transfer over a ring. The bytes that have arrived do not count as a success, and nothing is
//! written later.

use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use transload_layout::Rank;
use transload_tests::cluster::{Side, lease_of, mint, open, set_of, transfer_of, unused};
use transload_tests::process::Chance;
use transload_transfer::{Direction, LeaseEnd, PathSet};

use crate::town::{Destination, PATIENCE, RANKS, Town, owners_claims};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_cancelled_in_the_midst_gives_its_blocks_back_once() {
    let to = Destination::in_a(Town::new());
    let mut chance = Chance(11);
    let (mut cancelled, mut moved) = (0, 0);
    let mut took = Duration::ZERO;
    for round in 0..200_u64 {
        if cancelled >= 4 {
            break;
        }
        // Always the content that the owner's memory holds, and each time another lease set.
        let set = set_of(1000 + round);
        let mut leases = Vec::new();
        for rank in [Rank(0), Rank(1)] {
            let mut lease = lease_of(Side::Prefill, rank, 2);
            lease.set = set;
            leases.push(open(&to.town.owner, Direction::Pull, lease).await);
        }
        let mut claims = owners_claims(&to.town.owner, 2);
        claims.set = set;
        let ticket = mint(&to.town.owner.ticket_key(), &claims);
        let mut pull = transfer_of(Side::Decode, &RANKS, ticket, 2);
        pull.paths = PathSet::LOCAL;
        to.cache.clear();
        let began = Instant::now();
        let ending = async {
            if round > 1 {
                sleep(took.mul_f64(chance.below(1100) as f64 / 1000.0)).await;
                leases[0].cancel().await.unwrap();
            }
        };
        let (result, ()) = tokio::join!(timeout(PATIENCE, to.agent.pull(pull)), ending);
        let result = result.expect("it ends");
        if round <= 1 {
            // The first makes the connection.
            took = began.elapsed();
        }
        match &result {
            Ok(_) => {
                to.origins.check(&to.cache, 2, &RANKS).unwrap();
                moved += 1;
            }
            Err(error) => {
                println!("{error}");
                cancelled += 1;
                to.is_quiet(2).await;
            }
        }
        for (rank, lease) in leases.into_iter().enumerate() {
            let ended = timeout(PATIENCE, lease.ended()).await;
            let ended = ended.expect("each lease ends").unwrap();
            assert_eq!(ended.tables, Side::Prefill.tables(2));
            // Either it had committed to all of it, or nobody has succeeded.
            if result.is_ok() && rank == 1 {
                assert_eq!(ended.end, LeaseEnd::Completed);
            }
        }
    }
    println!("{cancelled} cancelled, {moved} moved");
    assert!(moved >= 2, "the first two are left alone");
    assert!(cancelled > 0, "no moment was in the midst of a transfer");
    unused(&to.agent).await;
    to.agent.shutdown(Duration::from_secs(1)).await;
    to.town.stays_well().await;
}
