//! Hostile values of `x-prefiller-host-port`: a clear refusal, and nothing is dialled.
//!
//! `PORT` in a value is the port of a listener at every address of this machine. The listener must get no connection,
//! and the system must know of no connection from this machine to that port at any address, not even a failed one.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use transload_test_servers::Client;
use transload_test_servers::wire::{self, Kind};

use crate::case::{Case, Knobs};
use crate::play;
use crate::rig::Rig;

/// Malformed targets: 400. One of each kind; the unit tests of targets have many of each.
const MALFORMED: [&str; 20] = [
    "127.0.0.1",
    ":PORT",
    "127.0.0.1:0",
    "127.0.0.1:PORT:PORT",
    "127.0.0.1:PORT/",
    "127.0.0.1:PORT?x=1",
    "127.0.0.1:PORT#x",
    "user@127.0.0.1:PORT",
    "https://127.0.0.1:PORT",
    "http://http://127.0.0.1:PORT",
    "127.0.0.1: PORT",
    "127.0.0.1:PORT x",
    "127.0.0.1:PORT\u{a0}",
    "127.0.0.1%00:PORT",
    "127.1:PORT",
    "0x7f000001:PORT",
    "localhost.:PORT",
    "::1:PORT",
    "[::1%lo]:PORT",
    "user@x:1 , 127.0.0.1:PORT",
];

/// Well-formed, but not to be dialled by default: 403.
const FORBIDDEN: [&str; 8] = [
    "169.254.169.254:PORT",
    "169.254.0.0:PORT",
    "169.254.255.255:PORT",
    "[fe80::1]:PORT",
    "[febf:ffff::1]:PORT",
    "[::ffff:169.254.169.254]:PORT",
    "[::FFFF:A9FE:A9FE]:PORT",
    "http://169.254.169.254:PORT",
];

/// Well-formed, but not in the list: 403.
const LIST: &str = "10.0.0.0/8:8000,model-1:8100,fd00::/8,10.9.8.7:PORT1";
const UNLISTED: [&str; 16] = [
    "127.0.0.1:PORT",
    "localhost:PORT",
    "LOCALHOST:PORT",
    "0.0.0.0:PORT",
    "[::1]:PORT",
    "[::]:PORT",
    "[::ffff:127.0.0.1]:PORT",
    "[::127.0.0.1]:PORT",
    "[64:ff9b::7f00:1]:PORT",
    "10.0.0.1:PORT",
    "[::ffff:10.0.0.1]:PORT",
    "model-1:PORT",
    "model-1.evil:PORT",
    "evil.model-1:PORT",
    "model_1:PORT",
    "127.0.0.1:PORT,10.0.0.1:8000",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_targets_are_not_dialled() {
    // Dual: it takes IPv4 too.
    let Ok(canary) = TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))).await else {
        eprintln!("NOT RUN: there is no IPv6");
        return;
    };
    let port = canary.local_addr().expect("an address").port();
    let port = port.to_string();
    // Connections of earlier tests, which used this port before, may still be listed.
    let before = connections_to(&port);
    let owned = |values: &[&str]| -> Vec<String> { values.iter().map(|value| (*value).to_owned()).collect() };
    let mut wrong = Vec::new();
    for (allow, values, status) in [
        (None, owned(&MALFORMED), 400),
        (None, owned(&FORBIDDEN), 403),
        (Some(LIST.replace("PORT1", "1")), owned(&UNLISTED), 403),
    ] {
        let case = Case { settings: Knobs { allow: allow.clone(), ..Knobs::default() }, ..Case::default() };
        let rig = Rig::start(&case).await;
        for value in values {
            let value = value.replace("PORT", &port);
            let got = ask(rig.running.addresses()[0], &value).await;
            let leaks = allow.is_some() && got.1.contains("10.9.8.7");
            if got.0 != status || leaks {
                wrong.push(format!("{value:?}: {got:?} instead of {status}"));
            }
        }
        if rig.fakes().any(|(_, fake)| fake.dialled() > 0) {
            wrong.push(format!("with the list {allow:?} a server was dialled"));
        }
    }
    let dialled = timeout(Duration::from_millis(100), canary.accept()).await;
    wrong.extend(dialled.ok().map(|_| "the canary was dialled".to_owned()));
    let new = |found: &String| !before.contains(found);
    wrong.extend(connections_to(&port).into_iter().filter(new));
    // The check itself works: it sees a connection that this test makes.
    let own = TcpStream::connect(("127.0.0.1", port.parse().expect("a port"))).await;
    assert!(own.is_ok() && connections_to(&port).iter().any(new));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Sends a request that names a prefill server. Returns the answer's status and body.
async fn ask(address: SocketAddr, target: &str) -> (u16, String) {
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n";
    let mut client = Client::connect(address).await;
    let request = format!("{head}x-prefiller-host-port: {target}\r\n\r\n{{}}");
    client.send(play::latin1(&request)).await.expect("it takes a request");
    let reading = wire::read(&mut client.0, Kind::Answer).await;
    match reading {
        Ok(Some(answer)) => (answer.status(), String::from_utf8_lossy(&answer.body).into()),
        other => (0, format!("{other:?}")),
    }
}

/// Lists the connections to a port, at any address, that the system knows.
fn connections_to(port: &str) -> Vec<String> {
    let port: u16 = port.parse().expect("a port");
    let suffix = format!(":{port:04X}");
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    let tables = tables.iter().filter_map(|path| std::fs::read_to_string(path).ok());
    let mut found = Vec::new();
    for table in tables {
        found.extend(table.lines().filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (from, to) = (words.next()?, words.next()?);
            to.ends_with(&suffix).then(|| format!("{from} to {to}"))
        }));
    }
    found
}
