//! Leases that end in the midst of a copy out of shared memory: whatever was copied by then is no
//! success, and nothing is written later.

use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use transload_layout::Rank;
use transload_tests::cluster::{Side, lease_of, mint, open, set_of, transfer_of, unused};
use transload_tests::process::Chance;
use transload_transfer::identity::Roles;
use transload_transfer::ids::Direction;
use transload_transfer::lease::LeaseEnd;
use transload_transfer::wire::message::Message;
use transload_transfer::wire::{Failure, PathSet};

use crate::loans::{Lender, taken};
use crate::source::{Source, failure};
use crate::town::{Destination, PATIENCE, RANKS, Town, owners_claims};

/// How long after its memory was handed over a source says that the lease is over, in microseconds; the
/// copy takes a few thousand.
const MOMENTS: [u64; 8] = [0, 100, 300, 600, 1000, 1500, 2500, 4000];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_whose_lease_ends_is_no_success() {
    let to = Destination::in_a(Town::new());
    let moments = MOMENTS.map(|us| Some(Duration::from_micros(us)));
    // And once when everything was copied.
    for (number, moment) in (0..).zip(moments.into_iter().chain([None])) {
        let request = 6 + 4 * number;
        let source = Source::new(&to.town, &number.to_string(), Roles::all());
        let lender = Lender::new(request);
        let mut links = Vec::new();
        let ended = source
            .pulled(&to, &[Rank(0)], request, async |hostile, ask| {
                lender.accept_with_blocks(hostile, &ask).await;
                links.push(lender.lend(hostile, Rank(0)).await);
                match moment {
                    Some(moment) => sleep(moment).await,
                    None => taken(hostile).await.expect("it was copied"),
                }
                let transfer = ask.transfer;
                let end = LeaseEnd::Expired;
                let failure = Failure::LeaseEnded { end };
                hostile.say(Message::Abort { transfer, failure }).await;
            })
            .await;
        let end = LeaseEnd::Expired;
        assert_eq!(failure(ended), Failure::LeaseEnded { end });
        // The blocks are others' now: none of this may be copied any more.
        lender.cache.fill(request + 1);
        to.is_quiet(request).await;
    }
    to.stays_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_cancelled_in_the_midst_of_copies_gives_its_blocks_back_once() {
    let to = Destination::in_a(Town::of_lenders());
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
    assert!(cancelled > 0, "no moment was in the midst of a copy");
    unused(&to.agent).await;
    to.agent.shutdown(Duration::from_secs(1)).await;
    to.town.stays_well().await;
}
