use proptest::prelude::*;

use super::answers::encoded;
use super::client::Messages;
use super::*;

#[test]
fn clusters_are_read_as_they_are_written() {
    for (text, endpoints, written) in [
        ("etcd://e:2379/transload", 1, "etcd://e:2379/transload"),
        ("etcd://e/transload/", 1, "etcd://e:2379/transload"),
        ("etcd://A:1,[::1]:2,10.0.0.1/a/b", 3, "etcd://a:1,[::1]:2,10.0.0.1:2379/a/b"),
        ("etcds://[::1]//registry/x", 1, "etcds://[::1]:2379//registry/x"),
    ] {
        let cluster = Cluster::parse(text).expect(text);
        assert_eq!(cluster.endpoints(), endpoints, "{text}");
        assert_eq!(cluster.to_string(), written);
        assert_eq!(Cluster::parse(written), Ok(cluster), "{written} is read as itself");
    }
}

#[test]
fn what_is_no_cluster_is_refused_without_being_repeated() {
    for (text, wrong) in [
        ("http://e:2379/x", ClusterError::Scheme),
        ("etcd:/e:2379/x", ClusterError::Scheme),
        ("etcd://e:2379", ClusterError::Prefix),
        ("etcd://e:2379/", ClusterError::Prefix),
        ("etcd://e:2379/a b", ClusterError::Prefix),
        ("etcd://e:2379/a?b=c", ClusterError::Prefix),
        ("etcd://e:2379/a\n", ClusterError::Prefix),
    ] {
        assert_eq!(Cluster::parse(text), Err(wrong), "{text:?}");
    }
    for (text, at) in [
        ("etcd:///x", 1),
        ("etcd://e:0/x", 1),
        ("etcd://e,/x", 2),
        ("etcd://e,e:99999/x", 2),
        ("etcd://user:geheim@e:2379/x", 1),
        ("etcd://e?x/x", 1),
    ] {
        let wrong = Cluster::parse(text).expect_err(text);
        assert!(matches!(wrong, ClusterError::Endpoint { number, .. } if number == at), "{text}: {wrong}");
        assert!(!wrong.to_string().contains("geheim"));
    }
    let long = format!("etcd://e/{}", "x".repeat(LONGEST + 1));
    assert_eq!(Cluster::parse(&long), Err(ClusterError::Prefix));
    let many = format!("etcd://{}/x", ["e"; MOST_ENDPOINTS + 1].join(","));
    assert_eq!(Cluster::parse(&many), Err(ClusterError::Endpoints));
}

#[test]
fn a_key_has_the_role_that_it_was_made_for() {
    let cluster = Cluster::parse("etcd://e/a/b").expect("a cluster");
    assert_eq!(cluster.key(Role::Decode, "n"), "a/b/decode/n");
    for role in [Role::Prefill, Role::Decode] {
        assert_eq!(cluster.role(cluster.key(role, "n/m").as_bytes()), Some(role));
    }
    for key in ["a/b/decode", "a/b/decode/", "a/b/decoder/n", "a/bdecode/n", "a/decode/n", "a/b/n", ""] {
        assert_eq!(cluster.role(key.as_bytes()), None, "{key}");
    }
}

/// Returns the answers of etcd 3.4 to a watch.
fn said() -> (Vec<u8>, Vec<String>) {
    let header = r#""header":{"cluster_id":"13455796455940752355","revision":"7"}"#;
    let (key, value) = (encoded(b"t/decode/\xff"), encoded(&[0, 10, 255]));
    let lines = [
        format!(r#"{{"result":{{{header},"created":true}}}}"#),
        format!(
            r#"{{"result":{{{header},"events":[{{"kv":{{"key":"{key}","mod_revision":"7","value":"{value}","lease":"4390624838766773765"}}}},{{"type":"DELETE","kv":{{"key":"{key}","mod_revision":"8"}}}}]}}}}"#
        ),
        String::new(),
        format!(r#"{{"result":{{{header},"canceled":true,"compact_revision":"4"}}}}"#),
        format!(r#"{{"result":{{{header},"canceled":true,"cancel_reason":"no"}}}}"#),
        r#"{"error":{"grpc_code":14,"http_code":503,"message":"gone","http_status":"x"}}"#.to_owned(),
        "nonsense".to_owned(),
    ];
    let text = lines.iter().flat_map(|line| [line.as_bytes(), b"\n"].concat()).collect();
    let meant = [
        "7 [] 0",
        "7 [(Put, [116, 47, 100, 101, 99, 111, 100, 101, 47, 255], [0, 10, 255], 7), (Delete, [116, 47, 100, 101, 99, 111, 100, 101, 47, 255], [], 8)] 0",
        "7 [] 4",
        "it has ended the watch: \"no\"",
        "it refuses with 200 OK: \"gone\"",
        "unreadable",
    ];
    (text, meant.map(str::to_owned).to_vec())
}

fn heard<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    let mut messages = Messages::default();
    let mut heard = Vec::new();
    for piece in pieces {
        messages.push(piece).expect("it is short");
        while let Some(message) = messages.next() {
            heard.push(match message {
                Ok(WatchAnswer { header, events, compact_revision, .. }) => {
                    let events: Vec<_> = events
                        .into_iter()
                        .map(|event| (event.r#type, event.kv.key, event.kv.value, event.kv.mod_revision))
                        .collect();
                    format!("{} {events:?} {compact_revision}", header.revision)
                }
                Err(EtcdError::Unreadable(_)) => "unreadable".to_owned(),
                Err(error) => error.to_string(),
            });
        }
    }
    heard
}

#[test]
fn messages_of_a_watch_are_read_however_they_are_cut() {
    let (text, meant) = said();
    for length in 1..=text.len() {
        assert_eq!(heard(text.chunks(length)), meant, "in pieces of {length}");
    }
    for cut in 0..text.len() {
        let (one, two) = text.split_at(cut);
        assert_eq!(heard([one, two].into_iter()), meant, "cut at {cut}");
    }
}

#[test]
fn a_message_without_an_end_is_not_held_for_ever() {
    let mut messages = Messages::default();
    let piece = vec![b' '; 1 << 20];
    let held = (0..1_000).take_while(|_| messages.push(&piece).is_ok()).count();
    assert_eq!(held, 16);
}

proptest! {
    /// No bytes from a network cause a panic.
    #[test]
    fn anything_may_be_said(text in prop::collection::vec(any::<u8>(), 0..200)) {
        heard([&text[..], b"\n"].into_iter());
    }

    #[test]
    fn any_text_may_be_given(text in "(etcds?://)?[a-z0-9:,./@\\[\\] -]{0,40}") {
        if let Ok(cluster) = Cluster::parse(&text) {
            prop_assert_eq!(Cluster::parse(&cluster.to_string()), Ok(cluster));
        }
    }
}
