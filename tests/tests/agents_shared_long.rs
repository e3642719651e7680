//! Many long pulls out of shared memory at once: their block tables are more than may wait to be sent.

use std::time::Duration;

use transload_layout::document::Value;
use transload_layout::{Deployment, Rank};
use transload_tests::pair::{Registered, Side, contents};
use transload_transfer::agent::{AgentOptions, LeaseRequest, PullRequest};
use transload_transfer::content::Content;
use transload_transfer::identity::{Authority, Roles};
use transload_transfer::ids::{AgentId, ClusterName, Direction, LeaseSetId};
use transload_transfer::plan::{BlockTable, Tables};
use transload_transfer::ticket::{Claims, Ticket};
use transload_transfer::wire::Path;

/// Their tables are 24 MB, of which an agent lets 16 MiB wait.
const PULLS: u8 = 60;

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

#[tokio::test]
async fn long_tables_wait_for_their_turn() {
    let cluster = ClusterName::new("test").unwrap();
    let authority = Authority::new(cluster.clone()).unwrap();
    let side = |name, deployment, registered| {
        let name = AgentId::new(name).unwrap();
        let identity = authority.issue(&name, Roles::all()).unwrap();
        let mut options = AgentOptions::default();
        // The last in turn stands still for long where everything is slow.
        options.wire.stall = Duration::from_secs(120);
        Side::new(identity, deployment, 1, registered, options)
    };
    let lendable = Registered::Shared(0);
    let src = side("prefill", deployment(1, FIRST + TOKENS), lendable);
    // A block for each pull.
    let into = deployment(TOKENS, PULLS.into());
    let dst = side("decode", into, Registered::Own);
    let (rank, tokens) = (Rank(0), u64::from(TOKENS));
    let ids: Vec<u32> = (0..TOKENS).collect();
    let content = Content::first(tokens, &ids).unwrap().digest();

    let (mut leases, mut requests) = (Vec::new(), Vec::new());
    for number in 0..PULLS {
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
            ranks: vec![src.agent.address("127.0.0.1")],
            time_left: Duration::from_secs(60),
            audience: None,
        };
        let ticket = Ticket::mint(&src.agent.ticket_key(), &claims).unwrap();
        let table = blocks([number.into()].into_iter());
        requests.push(PullRequest::new(ticket, [rank], table, content, tokens));
    }
    let mut pulls = Vec::new();
    for request in requests {
        pulls.push(dst.agent.start_pull(request).await.unwrap());
    }
    for pull in pulls {
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
