//! Tests of servers that announce themselves at a real etcd, and of their discovery there.

mod relay;
mod world;

use std::time::Duration;

use tokio::net::TcpListener;
use transload_sidecar::Role;
use transload_sidecar::announce::{AnnounceError, Announcement, announce};
use transload_sidecar::settings::UpstreamTls;

use relay::Relay;
use transload_test_servers::{Etcd, soon};
use world::{Announcer, Looking, announcement};

#[tokio::test]
async fn a_server_is_found_while_it_is_announced() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let looking = Looking::at(&etcd.uri());
    let decode = Announcer::start(announcement(&etcd.uri(), Role::Decode, "http://d:1"));
    looking.finds(&["decode http://d:1"]).await;
    let prefill = Announcer::start(announcement(&etcd.uri(), Role::Prefill, "https://[::1]:2"));
    looking.finds(&["decode http://d:1", "prefill https://[::1]:2"]).await;
    assert_eq!(
        etcd.ctl(&["get", "--prefix", "t/", "--keys-only"]).split_whitespace().collect::<Vec<_>>(),
        ["t/decode/d:1", "t/prefill/[::1]:2"]
    );
    decode.end().await;
    // The announcement was withdrawn, since its lease would have lasted some seconds more.
    assert_eq!(etcd.ctl(&["get", "t/decode/d:1"]), "");
    looking.finds(&["prefill https://[::1]:2"]).await;
    prefill.end().await;
    assert_eq!(etcd.ctl(&["lease", "list"]).trim(), "found 0 leases");
    looking.finds(&[]).await;
}

#[tokio::test]
async fn a_server_whose_announcer_was_killed_goes_with_its_lease() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let looking = Looking::at(&etcd.uri());
    let killed = Announcer::start(announcement(&etcd.uri(), Role::Decode, "http://d:1"));
    looking.finds(&["decode http://d:1"]).await;
    killed.kill().await;
    assert_ne!(etcd.ctl(&["get", "t/decode/d:1"]), "", "nobody takes it back");
    looking.finds(&[]).await;
}

#[tokio::test]
async fn a_lease_that_is_lost_is_granted_anew_and_a_key_that_is_deleted_stays_so() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let looking = Looking::at(&etcd.uri());
    let announcer = Announcer::start(announcement(&etcd.uri(), Role::Decode, "http://d:1"));
    looking.finds(&["decode http://d:1"]).await;
    let leases = etcd.ctl(&["lease", "list"]);
    let lease = leases.lines().nth(1).expect("there is one").to_owned();
    etcd.ctl(&["lease", "revoke", &lease]);
    looking.finds(&[]).await;
    looking.finds(&["decode http://d:1"]).await;
    etcd.ctl(&["del", "t/decode/d:1"]);
    looking.finds(&[]).await;
    // This is longer than the interval between renewals.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(looking.found(), [""; 0]);
    announcer.end().await;
}

#[tokio::test]
async fn one_that_takes_the_name_of_another_replaces_it() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let looking = Looking::at(&etcd.uri());
    let named = |url| Announcement { name: Some("pod-0".to_owned()), ..announcement(&etcd.uri(), Role::Decode, url) };
    let old = Announcer::start(named("http://old:1"));
    looking.finds(&["decode http://old:1"]).await;
    let new = Announcer::start(named("http://new:1"));
    looking.finds(&["decode http://new:1"]).await;
    old.end().await;
    assert!(etcd.ctl(&["get", "t/decode/pod-0"]).contains("http://new:1"), "the old one takes back only its own");
    new.end().await;
    looking.finds(&[]).await;
}

#[tokio::test]
async fn an_etcd_that_is_killed_and_started_again_changes_nothing() {
    let Some(mut etcd) = Etcd::start().await else {
        return;
    };
    let looking = Looking::at(&etcd.uri());
    let announcer = Announcer::start(announcement(&etcd.uri(), Role::Decode, "http://d:1"));
    looking.finds(&["decode http://d:1"]).await;
    etcd.kill().await;
    // An announcer that starts while there is no etcd waits for one.
    let late = Announcer::start(announcement(&etcd.uri(), Role::Prefill, "http://p:1"));
    // This is longer than a lease lasts.
    looking.keeps("decode http://d:1", Duration::from_secs(12)).await;
    etcd.start_again().await;
    let both = looking.finds(&["decode http://d:1", "prefill http://p:1"]);
    tokio::join!(both, looking.keeps("decode http://d:1", Duration::from_secs(5)));
    announcer.end().await;
    late.end().await;
    looking.finds(&[]).await;
}

#[tokio::test]
async fn an_etcd_that_has_lost_everything_is_told_again_before_servers_go() {
    let Some(mut etcd) = Etcd::start().await else {
        return;
    };
    let looking = Looking::at(&etcd.uri());
    let announcer = Announcer::start(announcement(&etcd.uri(), Role::Decode, "http://d:1"));
    let other = Announcer::start(announcement(&etcd.uri(), Role::Decode, "http://e:1"));
    let all = ["decode http://d:1", "decode http://e:1"];
    looking.finds(&all).await;
    other.kill().await;
    etcd.kill().await;
    etcd.forget();
    etcd.start_again().await;
    // The announced server stays in the table until the new etcd is trusted, and after that.
    let gone = looking.finds(&["decode http://d:1"]);
    tokio::join!(gone, looking.keeps("decode http://d:1", Duration::from_secs(15)));
    announcer.end().await;
    looking.finds(&[]).await;
}

#[tokio::test]
async fn what_is_no_server_is_left_out() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let looking = Looking::at(&etcd.uri());
    let long = format!(r#"{{"url": "http://l:1", "more": "{}"}}"#, "x".repeat(1 << 20));
    for (key, value) in [
        ("t/decode/a", "garbage"),
        ("t/decode/b", r#"{"url": "http://user:secret@b:1"}"#),
        ("t/decode/c", r#"{"url": "file:///etc/passwd"}"#),
        ("t/decode/d", r#"{"url": "http://good:1", "zone": "a"}"#),
        ("t/decode/e", ""),
        ("t/decode/long", &long),
        ("t/decode", r#"{"url": "http://e:1"}"#),
        ("t/decoder/f", r#"{"url": "http://f:1"}"#),
        ("t0/decode/g", r#"{"url": "http://g:1"}"#),
        ("tt/decode/g", r#"{"url": "http://g:1"}"#),
        ("t/prefill/\u{fffd}\n", r#"{"url": "http://odd:1"}"#),
    ] {
        etcd.put(key, value);
    }
    let good = ["decode http://good:1", "prefill http://odd:1"];
    looking.finds(&good).await;
    Looking::at(&etcd.uri()).finds(&good).await;
    etcd.put("t/decode/d", "garbage");
    looking.finds(&good[1..]).await;
    etcd.put("t/decode/a", r#"{"url": "http://good:1"}"#);
    looking.finds(&good).await;
}

#[tokio::test]
async fn a_member_that_is_dead_or_silent_is_passed_over() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    // The silent endpoint accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let silent_at = silent.local_addr().expect("an address");
    let uri = format!("etcd://127.0.0.1:1,{silent_at},{}/t", etcd.address());
    let looking = Looking::at(&uri);
    let announcer = Announcer::start(announcement(&uri, Role::Decode, "http://d:1"));
    looking.finds(&["decode http://d:1"]).await;
    // The announcement is withdrawn at the endpoint that answers, not by luck at a random one.
    announcer.end().await;
    assert_eq!(etcd.ctl(&["get", "t/decode/d:1"]), "");
    looking.finds(&[]).await;
}

#[tokio::test]
async fn a_watch_that_breaks_in_the_middle_misses_nothing() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let relay = Relay::start(etcd.address()).await;
    let looking = Looking::at(&format!("etcd://{}/t", relay.address()));
    let mut expected = Vec::new();
    for number in 0..20 {
        etcd.put(&format!("t/decode/{number:02}"), &format!(r#"{{"url": "http://d{number:02}:1"}}"#));
        expected.push(format!("decode http://d{number:02}:1"));
        match number % 3 {
            // This cuts in the middle of a message, too.
            0 => relay.cut_after(number * 17),
            1 => relay.cut_after(0),
            _ => {}
        }
        if number == 10 {
            etcd.ctl(&["del", "t/decode/00"]);
            expected.remove(0);
        }
        let expected: Vec<_> = expected.iter().map(String::as_str).collect();
        looking.finds(&expected).await;
    }
    assert!(relay.cuts() >= 10, "{} connections were cut", relay.cuts());
}

#[tokio::test]
async fn a_watch_that_nobody_serves_any_more_is_given_up() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let relay = Relay::start(etcd.address()).await;
    let looking = Looking::at(&format!("etcd://{}/t", relay.address()));
    etcd.put("t/decode/a", r#"{"url": "http://a:1"}"#);
    looking.finds(&["decode http://a:1"]).await;
    relay.swallow();
    etcd.put("t/decode/b", r#"{"url": "http://b:1"}"#);
    looking.finds(&["decode http://a:1", "decode http://b:1"]).await;
}

#[tokio::test]
async fn changes_that_etcd_has_not_kept_are_read_anew() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    etcd.put("t/decode/0", r#"{"url": "http://s0:1"}"#);
    let relay = Relay::start(etcd.address()).await;
    let looking = Looking::at(&format!("etcd://{}/t", relay.address()));
    looking.finds(&["decode http://s0:1"]).await;
    // If the relay holds a watch for too long, the client gives it up and the compaction is not hit. So this is tried
    // several times.
    for number in 1..20 {
        let held = relay.held();
        relay.hold_watches();
        relay.cut_after(0);
        soon("a watch is held", async || relay.held() > held).await;
        etcd.put(&format!("t/decode/{number}"), &format!(r#"{{"url": "http://s{number}:1"}}"#));
        etcd.ctl(&["del", &format!("t/decode/{}", number - 1)]);
        etcd.ctl(&["compact", &etcd.revision().to_string()]);
        relay.let_watches_pass();
        looking.finds(&[&format!("decode http://s{number}:1")]).await;
        if relay.compactions() > 0 {
            return;
        }
    }
    panic!("no watch was too late");
}

#[tokio::test]
async fn etcd_is_spoken_to_over_tls_and_checked() {
    let Some(etcd) = Etcd::start_with_tls().await else {
        return;
    };
    let uri = etcd.uri();
    let trusting = UpstreamTls { ca: Some(etcd.ca()), ..UpstreamTls::default() };
    let looking = Looking::with(&uri, &trusting);
    let announcer = Announcer::start(Announcement { tls: trusting, ..announcement(&uri, Role::Decode, "http://d:1") });
    looking.finds(&["decode http://d:1"]).await;
    // Skipping the verification of decode servers' certificates must not affect etcd's.
    let skipping = UpstreamTls { skip_verify_decode: true, skip_verify_prefill: true, ..UpstreamTls::default() };
    let strange = Looking::with(&uri, &skipping);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(strange.found(), [""; 0]);
    announcer.end().await;
    looking.finds(&[]).await;
}

#[tokio::test]
async fn a_name_that_would_be_another_key_is_refused() {
    for name in ["", "a/b", "a b", "a\n", "ä", &"x".repeat(257)] {
        let announced = Announcement {
            name: Some(name.to_owned()),
            ..announcement("etcd://127.0.0.1:1/t", Role::Decode, "http://d:1")
        };
        let wrong = announce(announced, async {}).await;
        assert!(matches!(wrong, Err(AnnounceError::Name(_))), "{name:?}");
    }
}
