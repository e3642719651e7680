//! A simulation of agents in virtual time, with everything that can go wrong between them.
//!
//! A world has up to six agents of two or three deployments, a few requests, clocks that drift apart, and a network
//! that delays, reorders between streams, duplicates, breaks and partitions. Engines cancel, restart, mix up tickets,
//! and hand over blocks before their GPU work is done. Memory is modelled as version numbers, which are overwritten as
//! soon as blocks are returned. Thousands of worlds are tried, each from a seed. These rules must hold:
//!
//! - every lease and every job ends exactly once and returns its blocks exactly once;
//! - nothing is read or written after that, nor before its mark, and no two attempts write the same blocks at a time;
//! - a success means that all the right bytes arrived, after a commit while the lease was alive;
//! - everything that is bound to a past life has ended;
//! - in the end nothing is left: no lease, no transfer, no timer;
//! - if nothing goes wrong, everything succeeds.
//!
//! `TRANSLOAD_SEEDS=100000` tries more seeds, `TRANSLOAD_SEED=17` only one. Each [`Fault`] breaks one rule on purpose,
//! and the simulation must notice it.

mod audit;
mod channels;
mod engine;
mod event;
mod faults;
mod marks;
mod memory;
mod network;
pub(crate) mod plan;
mod request;
pub(crate) mod rng;
mod script;
mod seams;
mod state;
mod step;
mod streams;
mod world;

use std::collections::BTreeSet;

use crate::lease::LeaseEnd;
use faults::Fault;
use state::View;
use world::{Tally, World};

fn world(seed: u64, chaos: f64, fault: Option<Fault>) -> World {
    let mut world = World::new(seed, chaos, fault);
    world.build();
    world
}

/// Runs one world. Returns the violation that was found, if any.
fn run(seed: u64, chaos: f64, fault: Option<Fault>) -> (Option<String>, Tally) {
    let mut world = world(seed, chaos, fault);
    world.run();
    if chaos == 0.0 && world.failure.is_none() {
        world.check_success();
    }
    (world.failure, world.tally)
}

fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    match number("TRANSLOAD_SEED") {
        Some(only) => only..only + 1,
        None => 0..number("TRANSLOAD_SEEDS").unwrap_or(usual),
    }
}

fn try_all(chaos: f64, usual: u64) -> Tally {
    let mut total = Tally::default();
    for seed in seeds(usual) {
        let (failure, tally) = run(seed, chaos, None);
        if let Some(failure) = failure {
            panic!("seed {seed}, chaos {chaos}: {failure}\n{tally:#?}");
        }
        total.events += tally.events;
        total.jobs_ok += tally.jobs_ok;
        total.retried += tally.retried;
        total.stalled += tally.stalled;
        let add = |to: &mut u64, n: u64| *to += n;
        tally.jobs_failed.into_iter().for_each(|(k, n)| add(total.jobs_failed.entry(k).or_default(), n));
        tally.leases.into_iter().for_each(|(k, n)| add(total.leases.entry(k).or_default(), n));
        tally.paths.into_iter().for_each(|(k, n)| add(total.paths.entry(k).or_default(), n));
    }
    println!("{total:#?}");
    total
}

#[test]
fn where_nothing_goes_wrong_everything_succeeds() {
    try_all(0.0, 500);
}

#[test]
fn a_seed_is_one_world() {
    for seed in 0..20 {
        let [once, twice] = [(); 2].map(|()| format!("{:?}", run(seed, 1.0, None)));
        assert_eq!(once, twice, "seed {seed}");
    }
}

/// Kills an agent at each call into any machine in turn, for ever or until a restart.
#[test]
fn a_peer_may_vanish_at_any_step() {
    let (mut tried, mut ways) = (0, BTreeSet::new());
    for seed in 0..6 {
        let mut calm = world(seed, 0.0, None);
        calm.run();
        let directions = calm.requests.iter().map(|r| match r.invites {
            true => "invited push".to_owned(),
            false => r.direction.to_string(),
        });
        ways.extend(directions.chain(calm.tally.paths.keys().cloned()));
        let (calls, nodes) = (calm.calls, calm.nodes.len());
        for at in 1..calls {
            let victim = at as usize % nodes;
            let mut world = world(seed, 0.0, None);
            world.kill_at = Some((victim, at));
            world.revive = (at / nodes as u64).is_multiple_of(2);
            world.run();
            if let Some(failure) = world.failure {
                panic!("seed {seed}, node {victim} vanishes after call {at}: {failure}");
            }
            tried += 1;
        }
    }
    assert_eq!(ways.len(), 6, "both directions, a push by invitation, and all three paths: {ways:?}");
    println!("{tried} vanished");
}

/// The marks of one request never come: nothing of it is read or written, its leases expire or are cancelled, and every
/// other request succeeds as if it did not exist.
#[test]
fn nothing_else_waits_for_a_mark_that_never_comes() {
    let (mut failed, mut others, mut ends) = (0, 0, BTreeSet::new());
    for seed in seeds(300) {
        let mut world = World::new(seed, 0.0, None);
        world.unmarked = Some(0);
        world.build();
        world.run();
        if world.failure.is_none() {
            world.check_success();
        }
        if let Some(failure) = world.failure {
            panic!("seed {seed}: {failure}");
        }
        for view in world.views.values() {
            match view {
                View::Lease { request: 0, ended, .. } => ends.extend(*ended),
                // A job without a route needs nothing from any agent, and succeeds.
                View::Job { request: 0, done, .. } => failed += u64::from(*done == Some(false)),
                View::Job { .. } => others += 1,
                View::Lease { .. } => {}
            }
        }
    }
    assert!(ends.contains(&LeaseEnd::Expired), "{ends:?}");
    assert!(!ends.contains(&LeaseEnd::Completed), "{ends:?}");
    assert!(failed > 50, "{failed} jobs have waited for it");
    assert!(others > 100, "{others} jobs of other requests");
}

fn notice(fault: Fault, chaos: f64, what: &str) {
    let found = |seed| run(seed, chaos, Some(fault)).0;
    let mut found = (0..3000).filter_map(|seed| Some((seed, found(seed)?)));
    match found.find(|(_, failure)| failure.contains(what)) {
        Some((seed, failure)) => println!("{fault:?}: seed {seed}, {failure}"),
        None => panic!("{fault:?} goes unnoticed"),
    }
}

#[test]
fn broken_rules_are_noticed() {
    notice(Fault::CommitWithoutLease, 4.0, "and its lease is over");
    notice(Fault::EndLeaseBeforeFence, 1.0, "after they were given back");
    notice(Fault::GiveBackBeforeFence, 1.0, "after they were given back");
    notice(Fault::RetryBeforeFence, 1.0, "at a time");
    notice(Fault::AdmitAfterFence, 1.0, "placed after the fence");
    notice(Fault::SucceedWithoutCommit, 1.0, "landed without a commit");
    notice(Fault::SucceedWithoutBytes, 1.0, "completed without");
    notice(Fault::SucceedWithoutBytes, 1.0, ", not ");
    notice(Fault::IgnoreChecksum, 1.0, ", not ");
    notice(Fault::AnyContent, 1.0, "content that it did not ask for");
    notice(Fault::AnyIncarnation, 1.0, ", not ");
    notice(Fault::NoticeOnlyFirst, 0.0, "though nothing went wrong");
    notice(Fault::ReadBeforeMark, 0.0, "are read before their mark");
    notice(Fault::WriteBeforeMark, 0.0, "are written before their mark");
}

#[test]
fn in_a_bad_world_nothing_is_lost_and_nothing_is_stale() {
    let total = try_all(1.0, 1500);
    assert!(total.stalled > 0, "memory is late in some");
    for end in [LeaseEnd::DeviceLost, LeaseEnd::DeviceStalled] {
        assert!(total.leases.contains_key(&end), "no lease ended as {end}");
    }
}

#[test]
fn in_a_terrible_world_too() {
    try_all(4.0, 1000);
}
