//! Runs the two servers as the guide does, and one of them against a prefill server that has a byte wrong.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use transload_layout::document::{Syntax, parse};
use transload_layout::{Rank, make_meta_kv_cache};
use transload_transfer::{
    Agent, BlockTable, Claims, Content, Direction, Identity, Lease, LeaseEnd, LeaseRequest, LeaseSetId, Memory,
    ServiceName, Tables, Ticket,
};

const GUIDE: &str = include_str!("../../../docs/src/guide/engines.md");

#[test]
fn each_side_is_as_short_as_the_guide_says() {
    assert!(GUIDE.contains("less than 80 lines each"));
    for side in [include_str!("../src/bin/prefill.rs"), include_str!("../src/bin/decode.rs")] {
        assert!(side.lines().count() < 80);
    }
}

/// `transload certs init`.
fn certs() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let arguments = ["certs", "init", "--format", "json"].map(Into::into);
    let arguments = arguments.into_iter().chain([dir.path().join("certs").into()]);
    assert_eq!(transload::command::run(Vec::new(), arguments), 0);
    dir
}

fn decode(dir: &Path, ticket: Stdio) -> Command {
    let mut decode = Command::new(env!("CARGO_BIN_EXE_decode"));
    decode.arg(dir.join("certs")).stdin(ticket);
    decode.stdout(Stdio::piped()).stderr(Stdio::piped());
    // Which `anyhow` would print behind an error.
    decode.env_remove("RUST_BACKTRACE").env_remove("RUST_LIB_BACKTRACE");
    decode
}

fn said(output: &Output) -> (Option<i32>, String) {
    let said = [&output.stdout[..], &output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

#[test]
fn what_is_prefilled_arrives_in_another_layout() {
    let dir = certs();
    let mut prefill = Command::new(env!("CARGO_BIN_EXE_prefill"))
        .arg(dir.path().join("certs"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let ticket = prefill.stdout.take().unwrap();
    let output = decode(dir.path(), ticket.into()).output().unwrap();
    // 40 tokens, 4 layers, 4 heads, 64 channels, keys and values.
    let line = "pulled 327680 bytes, verified 81920 elements\n";
    assert_eq!(said(&output), (Some(0), line.to_owned()));
    assert!(GUIDE.contains(line), "the guide shows what they print");
    assert!(prefill.wait().unwrap().success(), "its lease was completed");
}

/// A ticket of another cluster, a folder without certificates and no ticket at all.
#[tokio::test]
async fn what_goes_wrong_is_said_in_sentences() {
    let (dir, others) = (certs(), certs());
    let (agent, _, forged) = altered(&others.path().join("certs")).await;
    let said = |dir: &Path, ticket: &str| {
        let mut decode = decode(dir, Stdio::piped()).spawn().unwrap();
        // Where it ends before it reads, nothing takes this.
        let _ = decode.stdin.take().unwrap().write_all(ticket.as_bytes());
        let output = decode.wait_with_output().unwrap();
        let (code, said) = said(&output);
        assert_eq!(code, Some(1), "{said}");
        said
    };
    let forged = said(dir.path(), forged.expose());
    assert_eq!(forged, "Error: the ticket was not sealed with this cluster's key, or was changed since\n");
    let missing = said(&dir.path().join("nowhere"), "");
    assert!(missing.contains("decode.pem: No such file"), "{missing}");
    let none = said(dir.path(), "");
    assert_eq!(none, "Error: a ticket of this version begins with \"tl1.\"\n");
    agent.shutdown(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_byte_that_is_wrong_is_noticed() {
    let dir = certs();
    let (agent, lease, ticket) = altered(&dir.path().join("certs")).await;
    let mut decode = decode(dir.path(), Stdio::piped()).spawn().unwrap();
    decode.stdin.take().unwrap().write_all(ticket.expose().as_bytes()).unwrap();
    let output = tokio::task::spawn_blocking(|| decode.wait_with_output()).await;
    // Token 33 is state 1 of the second block there, and head 3 of the model is head 1 of rank 1.
    let (code, said) = said(&output.unwrap().unwrap());
    assert_eq!(code, Some(1), "{said}");
    let found = "rank 1 [2, 1, 1, 1, 63]: 152063.02 is not 152063";
    assert!(said.contains(found), "{said}");
    assert_eq!(lease.ended().await.unwrap().end, LeaseEnd::Completed);
    agent.shutdown(Duration::from_secs(1)).await;
}

/// Returns a prefill server in this process, with one bit of one value flipped in its cache.
async fn altered(certs: &Path) -> (Agent, Lease, Ticket) {
    let text = include_str!("../prefill.toml");
    let deployment = parse("prefill.toml", text, Syntax::Toml).unwrap();
    let bytes = deployment.groups()[0].placement(0).allocation_bytes;
    let mut cache = Memory::allocate(&[bytes as usize]).unwrap();
    let blocks = vec![0, 1, 2];
    let components = &make_meta_kv_cache(&deployment, Rank(0))[0];
    for component in components {
        let mut array = cache.array_mut::<f32>(&component.view).unwrap();
        engine::computed(component, &blocks).for_each(|(at, value)| array[at] = value);
    }
    let mut values = cache.array_mut::<[u8; 4]>(&components[1].view).unwrap();
    values[[2, 2, 1, 3, 63]][0] ^= 1;

    let identity = Identity::load_agent(certs, &ServiceName::new("prefill").unwrap()).unwrap();
    let cluster = identity.peer().cluster.clone();
    let builder = Agent::builder(identity, deployment).register(Rank(0), vec![cache]);
    let agent = builder.unwrap().bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let (set, prompt) = (LeaseSetId([1; 16]), engine::prompt());
    let valid_tokens = prompt.len() as u64;
    let content = Content::first(valid_tokens, &prompt).unwrap().digest();
    let tables = Tables(vec![BlockTable::List(blocks)]);
    let request = LeaseRequest::new(set, Rank(0), tables, content, valid_tokens);
    let lease = agent.lease(request).await.unwrap();
    let claims = Claims {
        cluster,
        set,
        direction: Direction::Pull,
        owner: agent.deployment_digest(),
        incarnation: agent.incarnation(),
        start: 0,
        valid_tokens,
        ranks: vec![agent.address("127.0.0.1")],
        time_left: Duration::from_secs(60),
        audience: None,
    };
    let ticket = Ticket::mint(&agent.ticket_key(), &claims).unwrap();
    (agent, lease, ticket)
}
