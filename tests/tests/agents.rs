//! Agents that pull and push over QUIC, in one process.

use std::collections::BTreeSet;
use std::time::Duration;

use transload_layout::document::Value;
use transload_layout::{Deployment, Rank};
use transload_transfer::agent::{Agent, Lease, LeaseRequest, PullError, PullRequest};
use transload_transfer::content::{Content, ContentDigest};
use transload_transfer::copy::{CopyOptions, copy};
use transload_transfer::identity::{Authority, Roles};
use transload_transfer::ids::{AgentId, ClusterName, Direction, LeaseSetId};
use transload_transfer::lease::LeaseEnd;
use transload_transfer::memory::Memory;
use transload_transfer::plan::{BlockTable, Plan, Request, Tables};
use transload_transfer::ticket::{Claims, Ticket};
use transload_transfer::wire::{JobError, Path, PathSet};

fn deployment(tp: u32, block: u32, order: &str) -> Deployment {
    let text = format!(
        r#"{{"schema": "transload.deployment/1", "tp": {tp}, "block_size": {block},
            "num_blocks": 64, "order": "{order}", "group": [{{"name": "attn", "layers": "0-3",
            "spec": [{{"kind": "attention", "heads": 4, "head_dim": 16, "dtype": "bf16"}}]}}]}}"#
    );
    let value: Value = serde_json::from_str(&text).unwrap();
    Deployment::from_value(&value).unwrap()
}

fn memories(deployment: &Deployment) -> Vec<Memory> {
    let ranks = deployment.ranks().map(|rank| {
        let (_, stage) = deployment.split_rank(rank);
        let placement = deployment.groups()[0].placement(stage);
        Memory::allocate(&[placement.allocation_bytes as usize]).unwrap()
    });
    ranks.collect()
}

fn fill(memory: &Memory, seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let bytes: Vec<u8> = (0..memory.bytes())
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect();
    memory.write(0, &bytes).unwrap();
}

fn contents(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.bytes() as usize];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

struct Side {
    agent: Agent,
    memories: Vec<Memory>,
    tables: Tables,
}

fn side(authority: &Authority, name: &str, deployment: Deployment, step: u32) -> Side {
    let identity = authority
        .issue(&AgentId::new(name).unwrap(), Roles::all())
        .unwrap();
    let memories = memories(&deployment);
    for (seed, memory) in (1..).zip(&memories) {
        fill(memory, seed);
    }
    let mut builder = Agent::builder(identity, deployment);
    for (rank, memory) in (0..).map(Rank).zip(&memories) {
        builder = builder.register(rank, vec![memory.clone()]).unwrap();
    }
    let agent = builder.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let blocks = (0..64).map(|i| i * step % 61).take(60).collect();
    Side {
        agent,
        memories,
        tables: Tables(vec![BlockTable::List(blocks)]),
    }
}

struct Pair {
    src: Side,
    dst: Side,
    tokens: u64,
    content: ContentDigest,
}

fn pair() -> Pair {
    let authority = Authority::new(ClusterName::new("test").unwrap()).unwrap();
    let tokens = 100;
    let ids: Vec<u32> = (0..tokens as u32).collect();
    Pair {
        src: side(&authority, "prefill", deployment(2, 4, "NHD"), 7),
        dst: side(&authority, "decode", deployment(4, 6, "HND"), 11),
        tokens,
        content: Content::first(tokens, &ids).unwrap().digest(),
    }
}

impl Pair {
    fn ticket(&self, owner: &Side, set: LeaseSetId, direction: Direction) -> Ticket {
        let agent = &owner.agent;
        let claims = Claims {
            cluster: ClusterName::new("test").unwrap(),
            set,
            direction,
            owner: agent.deployment_digest(),
            incarnation: agent.incarnation(),
            start: 0,
            valid_tokens: self.tokens,
            ranks: owner
                .memories
                .iter()
                .map(|_| agent.address("127.0.0.1"))
                .collect(),
            time_left: Duration::from_secs(60),
            audience: None,
        };
        Ticket::mint(&agent.ticket_key(), &claims).unwrap()
    }

    async fn leases(&self, owner: &Side, set: LeaseSetId, push: bool) -> Vec<Lease> {
        let mut leases = Vec::new();
        for rank in (0..owner.memories.len() as u32).map(Rank) {
            let tables = owner.tables.clone();
            let request = LeaseRequest::new(set, rank, tables, self.content, self.tokens);
            let opened = match push {
                false => owner.agent.lease(request).await,
                true => owner.agent.open(request).await,
            };
            leases.push(opened.unwrap().unwrap());
        }
        leases
    }

    fn request(&self, ticket: Ticket, mine: &Side) -> PullRequest {
        let ranks = (0..mine.memories.len() as u32).map(Rank);
        PullRequest::new(
            ticket,
            ranks,
            mine.tables.clone(),
            self.content,
            self.tokens,
        )
    }

    /// What the destination has to look like: the same copy, made in one process.
    fn expected(&self) -> Vec<Vec<u8>> {
        let (src, dst) = (&self.src, &self.dst);
        let twins = memories(dst.agent.deployment());
        for (seed, memory) in (1..).zip(&twins) {
            fill(memory, seed);
        }
        let request = Request::tokens(self.tokens);
        let plan = Plan::compile(src.agent.deployment(), dst.agent.deployment(), &request).unwrap();
        for route in plan.bind(&src.tables, &dst.tables).unwrap().routes {
            let (from, to) = (
                &src.memories[route.src_rank.0 as usize],
                &twins[route.dst_rank.0 as usize],
            );
            copy(&route.program, from, to, &CopyOptions::default()).unwrap();
        }
        twins.iter().map(contents).collect()
    }

    fn found(&self) -> Vec<Vec<u8>> {
        self.dst.memories.iter().map(contents).collect()
    }
}

#[tokio::test]
async fn a_pull_brings_every_byte_and_ends_the_leases() {
    let pair = pair();
    let expected = pair.expected();
    let set = LeaseSetId([1; 16]);
    let leases = pair.leases(&pair.src, set, false).await;
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let report = pair
        .dst
        .agent
        .pull(pair.request(ticket, &pair.dst))
        .await
        .unwrap();
    assert_eq!(report.bytes, 100 * 4 * 4 * 64);
    assert_eq!(pair.found(), expected);
    for lease in leases {
        assert_eq!(lease.ended().await.unwrap().end, LeaseEnd::Completed);
    }
    pair.dst.agent.shutdown(Duration::from_secs(5)).await;
    pair.src.agent.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn the_path_is_the_one_that_was_required() {
    let pair = pair();
    let expected = pair.expected();
    for (set, paths, path) in [
        (LeaseSetId([11; 16]), PathSet::QUIC, Path::Quic),
        (LeaseSetId([12; 16]), PathSet::LOCAL, Path::Ring),
        (LeaseSetId([13; 16]), PathSet::ANY, Path::Ring),
    ] {
        for (seed, memory) in (1..).zip(&pair.dst.memories) {
            fill(memory, seed);
        }
        let leases = pair.leases(&pair.src, set, false).await;
        let ticket = pair.ticket(&pair.src, set, Direction::Pull);
        let mut request = pair.request(ticket, &pair.dst);
        request.paths = paths;
        let report = pair.dst.agent.pull(request).await.unwrap();
        assert!(
            report.routes.iter().all(|route| route.path == path),
            "{report:?}"
        );
        assert_eq!(pair.found(), expected);
        for lease in leases {
            assert_eq!(lease.ended().await.unwrap().end, LeaseEnd::Completed);
        }
    }
}

#[tokio::test]
async fn a_push_brings_every_byte_and_ends_the_openings() {
    let pair = pair();
    let expected = pair.expected();
    let set = LeaseSetId([2; 16]);
    let openings = pair.leases(&pair.dst, set, true).await;
    let ticket = pair.ticket(&pair.dst, set, Direction::Push);
    pair.src
        .agent
        .push(pair.request(ticket, &pair.src))
        .await
        .unwrap();
    for opening in openings {
        assert_eq!(opening.ended().await.unwrap().end, LeaseEnd::Completed);
    }
    assert_eq!(pair.found(), expected);
}

#[tokio::test]
async fn layers_leave_as_they_are_ready() {
    let pair = pair();
    let expected = pair.expected();
    let set = LeaseSetId([3; 16]);
    let mut leases = Vec::new();
    for rank in [Rank(0), Rank(1)] {
        let mut request = LeaseRequest::new(
            set,
            rank,
            pair.src.tables.clone(),
            pair.content,
            pair.tokens,
        );
        request.prefilled = false;
        leases.push(pair.src.agent.lease(request).await.unwrap().unwrap());
    }
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let mut request = pair.request(ticket, &pair.dst);
    request.by_layer = true;
    let pull = pair.dst.agent.start(request, true).await.unwrap();
    for layer in 0..4 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        for lease in &leases {
            lease.ready(layer, pair.tokens).await.unwrap();
        }
    }
    for lease in &leases {
        lease.finish_prefill().await.unwrap();
    }
    pull.finish().await.unwrap();
    assert_eq!(pair.found(), expected);
}

#[tokio::test]
async fn a_pull_of_other_content_is_refused() {
    let pair = pair();
    let before = pair.found();
    let set = LeaseSetId([4; 16]);
    let leases = pair.leases(&pair.src, set, false).await;
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let mut request = pair.request(ticket, &pair.dst);
    request.content = Content::first(2, &[7, 7]).unwrap().digest();
    let refused = pair.dst.agent.pull(request).await.unwrap_err();
    assert!(
        matches!(refused, PullError::Job(JobError::Refused { .. })),
        "{refused}"
    );
    assert_eq!(pair.found(), before, "nothing was written");
    drop(leases);
}

#[tokio::test]
async fn a_consumed_ticket_is_refused() {
    let pair = pair();
    let set = LeaseSetId([5; 16]);
    let leases = pair.leases(&pair.src, set, false).await;
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let request = pair.request(ticket, &pair.dst);
    pair.dst.agent.pull(request.clone()).await.unwrap();
    for lease in leases {
        lease.ended().await.unwrap();
    }
    assert!(pair.dst.agent.pull(request).await.is_err());
}

#[tokio::test]
async fn an_early_pull_waits_for_its_lease() {
    let pair = pair();
    let expected = pair.expected();
    let set = LeaseSetId([6; 16]);
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let request = pair.request(ticket, &pair.dst);
    let pull = pair.dst.agent.start(request, true).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let leases = pair.leases(&pair.src, set, false).await;
    pull.finish().await.unwrap();
    assert_eq!(pair.found(), expected);
    assert_eq!(
        BTreeSet::from_iter(leases.iter().map(|lease| lease.key().rank)).len(),
        2
    );
}
