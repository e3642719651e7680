//! Many long pulls out of shared memory at once, whose block tables are told one after the other.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep_until};

use transload_layout::document::Value;
use transload_layout::{Deployment, Rank};
use transload_tests::pair::{Registered, Side, contents};
use transload_transfer::agent::{AgentOptions, LeaseRequest, PullRequest};
use transload_transfer::content::Content;
use transload_transfer::identity::{Authority, Roles};
use transload_transfer::ids::{ClusterName, Direction, LeaseSetId, ServiceName};
use transload_transfer::plan::{BlockTable, Tables};
use transload_transfer::ticket::{Claims, Ticket};
use transload_transfer::wire::Path;

/// A byte each.
const TOKENS: u32 = 100_000;

/// The first block of the source: from here on, a block takes four bytes in a message.
const FIRST: u32 = 1 << 21;

fn deployment(block: u32, blocks: u32) -> Deployment {
    let text = format!(
        r#"{{"schema": "transload.deployment/1", "tp": 1, "block_size": {block},
            "num_blocks": {blocks}, "group": [{{"name": "mla", "layers": "0",
            "spec": [{{"kind": "mla", "latent": 1, "dtype": "u8"}}]}}]}}"#
    );
    let value: Value = serde_json::from_str(&text).unwrap();
    Deployment::from_value(&value).unwrap()
}

fn blocks(list: impl Iterator<Item = u32>) -> Tables {
    Tables(vec![BlockTable::List(list.collect())])
}

/// An address that leads to another one, from where so many bytes come back in a second.
async fn slow_way_back(there: SocketAddr, rate: f64) -> SocketAddr {
    let any = (Ipv4Addr::LOCALHOST, 0);
    let near = UdpSocket::bind(any).await.unwrap();
    let far = UdpSocket::bind(any).await.unwrap();
    let addr = near.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut out, mut back) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let (mut here, mut free) = (None, Instant::now());
        loop {
            // What does not arrive is sent again.
            tokio::select! {
                Ok((len, from)) = near.recv_from(&mut out) => {
                    here = Some(from);
                    let _ = far.send_to(&out[..len], there).await;
                }
                Ok(len) = async {
                    sleep_until(free).await;
                    far.recv(&mut back).await
                } => {
                    free = free.max(Instant::now()) + Duration::from_secs_f64(len as f64 / rate);
                    if let Some(here) = here {
                        let _ = near.send_to(&back[..len], here).await;
                    }
                }
            }
        }
    });
    addr
}

/// Pulls the same so many times at once, each into a block of its own. All of it has to go the shortest way
/// at the first attempt.
async fn pull(pulls: u8, stall: Option<Duration>, rate: Option<f64>) {
    let cluster = ClusterName::new("test").unwrap();
    let authority = Authority::new(cluster.clone()).unwrap();
    let side = |name, deployment, registered| {
        let name = ServiceName::new(name).unwrap();
        let identity = authority.issue(&name, Roles::all()).unwrap();
        let mut options = AgentOptions::default();
        options.wire.stall = stall.unwrap_or(options.wire.stall);
        Side::new(identity, deployment, 1, registered, options)
    };
    let lendable = Registered::Shared(0);
    let src = side("prefill", deployment(1, FIRST + TOKENS), lendable);
    // A block for each pull.
    let into = deployment(TOKENS, pulls.into());
    let dst = side("decode", into, Registered::Own);
    let (rank, tokens) = (Rank(0), u64::from(TOKENS));
    let ids: Vec<u32> = (0..TOKENS).collect();
    let content = Content::first(tokens, &ids).unwrap().digest();

    let mut address = src.agent.address("127.0.0.1");
    if let Some(rate) = rate {
        let slow = slow_way_back(src.agent.control_addr(), rate).await;
        address.port = slow.port();
    }

    let (mut leases, mut requests) = (Vec::new(), Vec::new());
    for number in 0..pulls {
        let set = LeaseSetId([number; 16]);
        let table = blocks(FIRST..FIRST + TOKENS);
        let lease = LeaseRequest::new(set, rank, table, content, tokens);
        leases.push(src.agent.lease(lease).await.unwrap());
        let claims = Claims {
            cluster: cluster.clone(),
            set,
            direction: Direction::Pull,
            owner: src.agent.deployment_digest(),
            incarnation: src.agent.incarnation(),
            start: 0,
            valid_tokens: tokens,
            ranks: vec![address.clone()],
            time_left: Duration::from_secs(60),
            audience: None,
        };
        let ticket = Ticket::mint(&src.agent.ticket_key(), &claims).unwrap();
        let table = blocks([number.into()].into_iter());
        requests.push(PullRequest::new(ticket, [rank], table, content, tokens));
    }
    let mut under_way = Vec::new();
    for request in requests {
        under_way.push(dst.agent.start_pull(request).await.unwrap());
    }
    for pull in under_way {
        let report = pull.finish().await.unwrap();
        let route = &report.routes[0];
        assert_eq!(
            (route.path, route.attempts),
            (Path::Shared, 1),
            "{report:?}"
        );
    }
    let sent = &contents(&src.memories[0])[FIRST as usize..];
    for landed in contents(&dst.memories[0]).chunks(sent.len()) {
        assert!(landed == sent);
    }
}

#[tokio::test]
async fn long_tables_wait_for_their_turn() {
    // Their tables are 24 MB, of which an agent lets 16 MiB wait.
    pull(60, None, None).await;
}

#[tokio::test]
async fn who_waits_for_its_turn_does_not_stand_still() {
    // All tables take 8 s, and a piece of one 60 ms.
    pull(12, Some(Duration::from_secs(2)), Some(6e5)).await;
}
