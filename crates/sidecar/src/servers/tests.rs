use std::collections::HashMap;
use std::time::Duration;

use super::*;
use crate::observe::ServerState;
use crate::target::Target;

mod model;

fn url(number: u16) -> ServerUrl {
    ServerUrl { tls: false, target: Target::parse(&format!("s{number}:8000")).expect("a target") }
}

fn urls(numbers: impl IntoIterator<Item = u16>) -> Vec<ServerUrl> {
    numbers.into_iter().map(url).collect()
}

fn proxy(decode: u16) -> Arc<Servers> {
    let servers = Arc::new(Servers::new(false));
    servers.set(Origin::Settings, Role::Decode, &urls(0..decode));
    servers
}

fn choose(servers: &Arc<Servers>, policy: Policy, prefix: u64, now: Instant) -> Option<Claim> {
    let wanted = Wanted { tokens: 10, prefix: Some(prefix), avoid: &[], prefill: None };
    servers.choose(Role::Decode, &wanted, policy, now)
}

fn state(servers: &Servers, of: &ServerUrl) -> ServerState {
    servers.snapshot().into_iter().find(|server| server.url == *of).expect("it is known").state
}

#[test]
fn where_no_decode_server_is_well_one_is_asked_all_the_same() {
    let (servers, now) = (proxy(2), Instant::now());
    servers.set(Origin::Settings, Role::Prefill, &urls(0..2));
    for (role, number) in [(Role::Decode, 0), (Role::Decode, 1), (Role::Prefill, 0), (Role::Prefill, 1)] {
        assert!(servers.probed(role, &url(number), false), "that is news");
        assert!(!servers.probed(role, &url(number), false));
    }
    assert!(choose(&servers, Policy::RoundRobin, 0, now).is_some());
    let wanted = Wanted { tokens: 1, prefix: None, avoid: &[], prefill: None };
    assert!(servers.choose(Role::Prefill, &wanted, Policy::RoundRobin, now).is_none());
    let both = urls(0..2);
    let wanted = Wanted { tokens: 1, prefix: None, avoid: &both, prefill: None };
    assert!(servers.choose(Role::Decode, &wanted, Policy::RoundRobin, now).is_none());
}

#[test]
fn servers_that_misfit_are_kept_apart_and_are_not_at_fault() {
    let (servers, mut now) = (proxy(2), Instant::now());
    servers.set(Origin::Settings, Role::Prefill, &urls([7]));
    let prefill = url(7);
    let choose = |role, prefill, now| {
        let wanted = Wanted { tokens: 1, prefix: None, avoid: &[], prefill };
        servers.choose(role, &wanted, Policy::RoundRobin, now)
    };
    let misfit = |decode: u16, now| {
        let claim = servers.claim(Role::Decode, &url(decode), 1, now);
        let claim = claim.expect("it is up").fetching_from(Some(&prefill));
        claim.pair().expect("a pair").misfits(now);
    };
    (0..3).for_each(|_| misfit(0, now));
    for _ in 0..4 {
        let claim = choose(Role::Decode, Some(&prefill), now).expect("a server");
        assert_eq!(claim.url(), &url(1));
    }
    assert!(choose(Role::Prefill, None, now).is_some());
    (0..3).for_each(|_| misfit(1, now));
    assert!(choose(Role::Prefill, None, now).is_none(), "it is in vain");
    assert!(servers.claim(Role::Prefill, &prefill, 1, now).is_none());
    for known in servers.snapshot() {
        assert_eq!((known.state, known.failures), (ServerState::Up, 0));
        let apart = match known.role {
            Role::Decode => vec![prefill.clone()],
            Role::Prefill => Vec::new(),
        };
        assert_eq!(known.misfits, apart);
    }
    // Later they are tried again, and what fits is forgotten.
    now += Duration::from_secs(2);
    let kept_apart = |now| {
        let known = servers.lock().snapshot(now);
        let apart = known.into_iter().filter(|of| !of.misfits.is_empty());
        apart.map(|of| of.url).collect::<Vec<_>>()
    };
    assert_eq!(kept_apart(now), []);
    assert!(choose(Role::Prefill, None, now).is_some());
    let claim = choose(Role::Decode, Some(&prefill), now).expect("a server");
    let fits = claim.url().clone();
    claim.fetching_from(Some(&prefill)).succeeded(now);
    let other = u16::from(fits == url(0));
    misfit(other, now);
    assert_eq!(kept_apart(now), [url(other)]);
    assert!(choose(Role::Prefill, None, now).is_some());
}

/// A server that is named again may be another one.
#[test]
fn a_server_that_is_forgotten_misfits_none() {
    let now = Instant::now();
    type Way = fn(&Arc<Servers>, Instant);
    let ways: [(&[u16], Way); 4] = [
        (&[7], |servers, _| servers.set(Origin::Settings, Role::Prefill, &[])),
        (&[7], |servers, _| servers.set(Origin::Settings, Role::Decode, &[])),
        (&[7], |servers, now| {
            let claim = servers.claim_again(Role::Prefill, &url(7), 1, now);
            servers.set(Origin::Settings, Role::Prefill, &[]);
            drop(claim);
        }),
        // A server that only a request has named makes room for others.
        (&[], |servers, now| {
            for number in 10_000..11_024 {
                drop(servers.claim_again(Role::Prefill, &url(number), 1, now));
            }
        }),
    ];
    for (way, (named, forget)) in ways.into_iter().enumerate() {
        let servers = proxy(1);
        servers.set(Origin::Settings, Role::Prefill, &urls(named.iter().copied()));
        servers.lock().named(Role::Prefill, &url(7));
        let misfits = || servers.lock().pair_misfits(&url(7), &url(0), now);
        for _ in 0..3 {
            misfits();
        }
        let fits = || servers.claim(Role::Prefill, &url(7), 1, now).is_some();
        assert!(!fits());
        forget(&servers, now);
        // Later reports about it refer to a server that is no longer known.
        for _ in 0..3 {
            misfits();
        }
        for (role, number) in [(Role::Prefill, 7), (Role::Decode, 0)] {
            servers.set(Origin::Settings, role, &urls([number]));
        }
        assert!(fits(), "way {way}");
    }
}

#[test]
fn the_only_decode_server_has_no_breaker() {
    let (servers, now) = (Arc::new(Servers::new(true)), Instant::now());
    servers.set(Origin::Settings, Role::Decode, &urls([0]));
    for _ in 0..10 {
        servers.claim(Role::Decode, &url(0), 1, now).expect("always").failed(FailureKind::Broken, now);
    }
    assert_eq!(state(&servers, &url(0)), ServerState::Up);
    assert_eq!(servers.snapshot()[0].failures, 10);
}

#[test]
fn servers_that_requests_name_are_bounded() {
    let (servers, now) = (Arc::new(Servers::new(true)), Instant::now());
    let held = servers.claim(Role::Prefill, &url(0), 1, now).expect("it is new");
    for number in 1..3_000 {
        drop(servers.claim(Role::Prefill, &url(number), 1, now + Duration::from_millis(number.into())));
    }
    let known = servers.snapshot();
    assert_eq!(known.len(), 1024);
    assert!(known.iter().any(|server| server.url == *held.url()));
}

#[test]
fn a_prefix_stays_and_moves_only_where_it_must() {
    let now = Instant::now();
    let place =
        |servers: &Arc<Servers>, prefix| choose(servers, Policy::Prefix, prefix, now).expect("a server").url().clone();
    let (eight, nine) = (proxy(8), proxy(9));
    let mut moved = 0;
    let mut shares = HashMap::new();
    for prefix in 0..2_000 {
        let before = place(&eight, prefix);
        assert_eq!(before, place(&eight, prefix));
        let after = place(&nine, prefix);
        if before != after {
            assert_eq!(after, url(8), "only to the new one");
            moved += 1;
        }
        *shares.entry(before).or_insert(0) += 1;
    }
    assert!((150..300).contains(&moved), "{moved} of 2000 moved to one of nine");
    assert!(shares.values().all(|share| (150..350).contains(share)), "{shares:?}");
}

#[test]
fn a_prefix_of_everybody_is_spread() {
    let (servers, now) = (proxy(4), Instant::now());
    let held: Vec<_> = (0..100).map(|_| choose(&servers, Policy::Prefix, 7, now).expect("a server")).collect();
    let most = servers.snapshot().iter().map(|server| server.in_flight).max();
    assert!(most <= Some(33), "{most:?} of 100 at one of four");
    drop(held);
}

#[test]
fn a_growing_conversation_keeps_its_key() {
    let text: Vec<u8> = (0..10_000u32).map(|at| (at % 251) as u8).collect();
    let mut keys: Vec<u64> = (512..10_000).map(|length| prefix::key(&text[..length])).collect();
    keys.dedup();
    assert_eq!(keys.len(), 4);
    assert_ne!(prefix::key(b"a"), prefix::key(b"b"));
}
