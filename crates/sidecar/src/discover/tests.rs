use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use proptest::prelude::*;

use super::file::Watched;
use super::found::MOST_SERVERS;
use super::keys::Keys;
use super::*;
use crate::etcd::{Change, ChangeEvent, Pair, WatchAnswer};
use crate::target::ServerUrl;
use crate::warnings::Warnings;

fn servers() -> Arc<Servers> {
    Arc::new(Servers::new(false))
}

fn known(servers: &Servers) -> Vec<String> {
    let known = servers.snapshot();
    let mut known: Vec<_> = known.iter().map(|server| format!("{} {}", server.role.name(), server.url)).collect();
    known.sort();
    known
}

fn warnings(doing: impl FnOnce()) -> usize {
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), doing);
    warnings.said().len()
}

#[test]
fn sources_are_read_as_they_are_written() {
    for (text, written) in [
        ("file:/etc/servers.json", "file:/etc/servers.json"),
        ("file:a b.json", "file:a b.json"),
        ("dns:vllm:8000", "dns:decode=vllm:8000"),
        ("dns:prefill=p.ns.svc:8100,decode=D:8200", "dns:prefill=p.ns.svc:8100,decode=d:8200"),
        ("dns:[::1]:80", "dns:decode=[::1]:80"),
        ("etcd://e/x", "etcd://e:2379/x"),
        ("etcds://e:1,f:2/x", "etcds://e:1,f:2/x"),
    ] {
        let source = Source::parse(text).expect(text);
        assert_eq!(Source::parse(written), Ok(source));
    }
    for text in ["", "vllm:8000", "/etc/servers.json", "consul://e/x", "http://e:80"] {
        assert_eq!(Source::parse(text), Err(SourceError::Kind), "{text}");
    }
    assert_eq!(Source::parse("file:"), Err(SourceError::NoPath));
    assert_eq!(Source::parse("etcd://e"), Err(SourceError::Etcd(ClusterError::Prefix)));
    for (text, at) in [
        ("dns:", 1),
        ("dns:vllm", 1),
        ("dns:vllm:0", 1),
        ("dns:http://vllm:80", 1),
        ("dns:decode=a:1,", 2),
        ("dns:decode=a:1,both=b:1", 2),
    ] {
        let wrong = Source::parse(text).expect_err(text);
        assert!(matches!(wrong, SourceError::Name { number, .. } if number == at), "{text}: {wrong}");
    }
    let many = format!("dns:{}", ["a:1"; MOST_NAMES + 1].join(","));
    assert_eq!(Source::parse(&many), Err(SourceError::Names));
}

#[test]
fn only_so_many_servers_are_used() {
    let servers = servers();
    let url = |number| ServerUrl::parse(&format!("http://s{number}:1")).expect("a URL");
    let mut found = Found::new(servers.clone());
    assert_eq!(warnings(|| found.update(Vec::new(), (0..MOST_SERVERS + 5).map(url).collect())), 1);
    assert_eq!(servers.snapshot().len(), MOST_SERVERS);
}

fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).expect("a file");
    std::fs::rename(new, path).expect("in its place");
}

#[test]
fn a_file_is_read_again_when_it_changes_and_a_broken_one_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("servers.json");
    let servers = servers();
    let mut watched = None;
    let first = || watched = Some(Watched::read_first(path.clone(), Found::new(servers.clone())));
    assert_eq!(warnings(first), 1, "it is not there");
    let mut watched = watched.expect("it was read");
    let mut look = |warned, expected: &[&str]| {
        let looked = warnings(|| {
            watched.look();
            watched.look();
        });
        assert_eq!((looked, known(&servers)), (warned, expected.iter().map(|&text| text.to_owned()).collect()));
    };
    look(0, &[]);
    replace(&path, r#"{"prefill": ["http://p:1"], "decode": ["http://d:1", "https://d"]}"#);
    let all = ["decode http://d:1", "decode https://d:443", "prefill http://p:1"];
    look(0, &all);
    for broken in [
        "",
        "{",
        r#"{"prefill": []} {}"#,
        r#"["http://d:1"]"#,
        r#"{"decode": "http://d:1"}"#,
        r#"{"decode": ["d:1"]}"#,
        r#"{"decode": ["http://d:1", "http://169.254.169.254.:1"]}"#,
        r#"{"decode": ["http://d:1/v1"]}"#,
        r#"{"deocde": ["http://d:1"]}"#,
        r#"{"decode": [], "decode": []}"#,
        "\u{feff}{}",
        &format!("{{}}{}", " ".repeat(2 << 20)),
    ] {
        replace(&path, broken);
        look(1, &all);
    }
    std::fs::write(&path, b"\xff").expect("in place");
    look(1, &all);
    std::fs::remove_file(&path).expect("it is there");
    look(1, &all);
    std::fs::create_dir(&path).expect("a folder of that name");
    look(0, &all);
    std::fs::remove_dir(&path).expect("it is there");
    std::fs::write(&path, r#"{"decode": ["http://e:1"]}"#).expect("a file");
    look(0, &["decode http://e:1"]);
    replace(&path, "{}");
    look(0, &[]);
}

/// A changed symbolic link counts as a change: Kubernetes mounts `FILE -> ..data/FILE` and `..data -> ..1`, and
/// replaces `..data`.
#[test]
fn a_link_that_is_turned_is_a_change() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    for (version, url) in [("1", "http://a:1"), ("2", "http://b:1")] {
        std::fs::create_dir(at(version)).expect("a folder");
        let text = format!(r#"{{"decode": ["{url}"]}}"#);
        std::fs::write(at(version).join("servers.json"), text).expect("a file");
    }
    symlink("1", at("..data")).expect("a link");
    symlink("..data/servers.json", at("servers.json")).expect("a link");
    let servers = servers();
    let mut watched = Watched::read_first(at("servers.json"), Found::new(servers.clone()));
    assert_eq!(known(&servers), ["decode http://a:1"]);
    symlink("2", at("..new")).expect("a link");
    std::fs::rename(at("..new"), at("..data")).expect("turned");
    watched.look();
    assert_eq!(known(&servers), ["decode http://b:1"]);
}

#[test]
fn what_a_file_has_wrong_is_named_and_not_shown() {
    let text = br#"{"decode": ["http://d:1", "http://user:word@d:2"]}"#;
    let wrong = super::file::parse(text).expect_err("a password").to_string();
    assert!(wrong.starts_with("its decode server 2 is not a URL: "), "{wrong}");
    assert!(!wrong.contains("word"), "{wrong}");
}

#[tokio::test]
async fn a_file_is_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("servers.json");
    std::fs::write(&path, r#"{"decode": ["http://a:1"]}"#).expect("a file");
    let servers = servers();
    let source = Source::File(path.clone());
    let following = follow(source, servers.clone(), &UpstreamTls::default()).expect("no TLS");
    assert_eq!(known(&servers), ["decode http://a:1"], "before anything runs");
    let following = tokio::spawn(following);
    replace(&path, r#"{"prefill": ["http://b:1"]}"#);
    let changed = async {
        while known(&servers) != ["prefill http://b:1"] {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), changed).await.expect("it is noticed");
    following.abort();
}

type Names = Arc<Mutex<HashMap<String, Option<Vec<&'static str>>>>>;

fn following(names: &Names, source: &str, servers: &Arc<Servers>) -> tokio::task::JoinHandle<()> {
    let Ok(Source::Dns(targets)) = Source::parse(source) else { panic!("{source} is a source") };
    let names = names.clone();
    let look_up = move |target: Target| {
        let said = names.lock().expect("nobody panics with it").get(&target.to_string()).cloned();
        async move {
            match said {
                Some(Some(addresses)) => {
                    Ok(addresses.iter().map(|text| text.parse::<IpAddr>().expect("an address")).collect())
                }
                Some(None) => Err(io::Error::other("no such name")),
                None => std::future::pending().await,
            }
        }
    };
    tokio::spawn(dns::follow(targets, Found::new(servers.clone()), look_up))
}

fn say(names: &Names, name: &str, addresses: Option<&[&'static str]>) {
    let addresses = addresses.map(<[_]>::to_vec);
    names.lock().expect("nobody panics with it").insert(name.to_owned(), addresses);
}

#[tokio::test(start_paused = true)]
async fn names_are_looked_up_again_and_one_that_stands_for_nothing_keeps_its_servers() {
    let (names, servers) = (Names::default(), servers());
    say(&names, "d:2", None);
    say(&names, "p:1", Some(&["10.0.0.2", "10.0.0.1", "10.0.0.2", "::ffff:10.0.0.1"]));
    // The look-up of `hung` never ends, which must not delay the others.
    let task = following(&names, "dns:prefill=p:1,d:2,decode=hung:3", &servers);
    let turn = || tokio::time::sleep(Duration::from_secs(5));
    turn().await;
    let prefill = ["prefill http://10.0.0.1:1", "prefill http://10.0.0.2:1"];
    assert_eq!(known(&servers), prefill);
    say(&names, "d:2", Some(&["::1", "127.0.0.1"]));
    turn().await;
    let all = ["decode http://127.0.0.1:2", prefill[0], prefill[1]];
    assert_eq!(known(&servers), all);
    for nothing in [None, Some(&[][..])] {
        say(&names, "p:1", nothing);
        turn().await;
        assert_eq!(known(&servers), all);
    }
    say(&names, "p:1", Some(&["10.0.0.3"]));
    say(&names, "d:2", Some(&["fd00::1"]));
    turn().await;
    assert_eq!(known(&servers), ["decode http://[fd00::1]:2", "prefill http://10.0.0.3:1"]);
    task.abort();
}

#[tokio::test]
async fn the_systems_resolver_is_asked() {
    let target = |text| Target::parse(text).expect("a target");
    let localhost = dns::system(target("localhost:80")).await.expect("it is known");
    assert!(localhost.iter().all(IpAddr::is_loopback) && !localhost.is_empty());
    let address = dns::system(target("10.1.2.3:80")).await.expect("it is one");
    assert_eq!(address, [IpAddr::from([10, 1, 2, 3])]);
}

fn cluster() -> Cluster {
    Cluster::parse("etcd://e/t").expect("a cluster")
}

fn pair(key: &str, value: &str, mod_revision: i64) -> Pair {
    Pair { key: key.into(), value: value.into(), mod_revision }
}

fn change(r#type: Change, kv: Pair) -> WatchAnswer {
    WatchAnswer {
        header: Default::default(),
        canceled: false,
        cancel_reason: String::new(),
        compact_revision: 0,
        events: vec![ChangeEvent { r#type, kv }],
    }
}

const GARBAGE: [(&str, &str); 10] = [
    ("t/decode/a", ""),
    ("t/decode/a", "{}"),
    ("t/decode/a", "http://a:1"),
    ("t/decode/a", r#"{"url": 1}"#),
    ("t/decode/a", r#"{"url": "http://user@a:1"}"#),
    ("t/decode/a", r#"{"url": "http://a:1/x"}"#),
    ("t/decode/a", r#"{"url": "file:///etc/passwd"}"#),
    ("t/decode/", r#"{"url": "http://a:1"}"#),
    ("t/encode/a", r#"{"url": "http://a:1"}"#),
    ("t/a", r#"{"url": "http://a:1"}"#),
];

#[test]
fn a_broken_key_is_left_out_and_logged_once() {
    for (at, (key, value)) in GARBAGE.into_iter().enumerate() {
        let mut keys = Keys::new(cluster());
        let range = |revision| {
            let good = pair("t/decode/b", r#"{"url": "http://b:1", "more": [1]}"#, 1);
            vec![pair(key, value, revision), good]
        };
        assert_eq!(warnings(|| keys.replace(range(1), false)), 1, "{at}");
        assert_eq!(keys.servers(Role::Decode).len(), 1);
        assert_eq!(warnings(|| keys.replace(range(1), false)), 0, "{at}: was said");
        assert_eq!(warnings(|| keys.replace(range(2), false)), 1, "{at}: is another");
        assert_eq!(
            warnings(|| {
                keys.change(change(Change::Put, pair(key, value, 3)));
            }),
            1
        );
        assert_eq!(warnings(|| keys.replace(range(3), false)), 0);
    }
}

#[test]
fn values_and_keys_are_bounded() {
    let mut keys = Keys::new(cluster());
    let long = format!(r#"{{"url": "http://a:1", "more": "{}"}}"#, "x".repeat(5_000));
    let named = format!("t/decode/{}", "x".repeat(2_000));
    let url = r#"{"url": "http://a:1"}"#;
    keys.replace(vec![pair("t/decode/a", &long, 1), pair(&named, url, 1)], false);
    assert_eq!(keys.servers(Role::Decode).len(), 0);
    let said = warnings(|| {
        for number in 0..5_000 {
            keys.change(change(Change::Put, pair(&format!("t/decode/{number}"), url, 1)));
        }
    });
    assert_eq!(said, 1, "that there are too many");
    assert_eq!(keys.servers(Role::Decode).len(), 2 * MOST_SERVERS - 2);
}

proptest! {
    /// After any sequence of puts, deletions and rereads, the servers are those of the existing valid keys.
    #[test]
    fn keys_are_followed(steps in prop::collection::vec((0..4u8, 0..6usize, 0..8u16), 1..60)) {
        let mut keys = Keys::new(cluster());
        let mut model: BTreeMap<String, (String, i64)> = BTreeMap::new();
        let url = |port: u16| match port {
            0 => "garbage".to_owned(),
            port => format!(r#"{{"url": "http://s:{port}"}}"#),
        };
        for (revision, (step, name, port)) in (1i64..).zip(steps) {
            let key = format!("t/{}/{name}", ["prefill", "decode", "other"][name % 3]);
            match step {
                0 | 1 => {
                    model.insert(key.clone(), (url(port), revision));
                    keys.change(change(Change::Put, pair(&key, &url(port), revision)));
                }
                2 => {
                    model.remove(&key);
                    keys.change(change(Change::Delete, pair(&key, "", revision)));
                }
                // A change was missed: the value differs, and everything is reread.
                _ => {
                    model.insert(key, (url(port), revision));
                    keys.replace(model.iter().map(|(key, (value, at))| pair(key, value, *at)).collect(), false);
                }
            }
            for (role, name) in [(Role::Prefill, "t/prefill/"), (Role::Decode, "t/decode/")] {
                let expected: Vec<_> = model
                    .iter()
                    .filter(|(key, (value, _))| key.starts_with(name) && value != "garbage")
                    .map(|(_, (value, _))| value.clone())
                    .collect();
                let servers = keys.servers(role);
                let got: Vec<_> = servers.iter().map(|url| format!(r#"{{"url": "{url}"}}"#)).collect();
                prop_assert_eq!(got, expected);
            }
        }
    }
}
