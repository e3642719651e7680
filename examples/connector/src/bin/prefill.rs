//! A prefill server, as far as a connector goes: it computes a request into its cache, and lends the blocks out.
//!
//! `prefill CERTS` prints a ticket, which `decode CERTS` reads.

use std::time::Duration;

use anyhow::{Context, bail};
use engine::{computed, prompt};
use transload_layout::document::{Syntax, parse};
use transload_layout::{Rank, make_meta_kv_cache};
use transload_transfer::{
    Agent, BlockTable, Claims, Content, Direction, Identity, LeaseEnd, LeaseRequest, LeaseSetId, Memory, ServiceName,
    Tables, Ticket,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let certs = std::env::args().nth(1).context("usage: prefill CERTS")?;
    let text = include_str!("../../prefill.toml");
    let deployment = parse("prefill.toml", text, Syntax::Toml)?;

    // The cache: one allocation, for there is one rank with one group of layers.
    let group = &deployment.groups()[0];
    let mut cache = Memory::allocate(&[group.placement(0).allocation_bytes as usize])?;

    // The engine fills the blocks that it has given to the request: keys, then values, each [L, B, S, H, C].
    let blocks = vec![5, 2, 7];
    for component in &make_meta_kv_cache(&deployment, Rank(0))[0] {
        let mut array = cache.array_mut::<f32>(&component.view)?;
        for (at, value) in computed(component, &blocks) {
            array[at] = value;
        }
    }

    // From here on the memory is an agent's, too.
    let identity = Identity::load_agent(certs, &ServiceName::new("prefill")?)?;
    let cluster = identity.peer().cluster.clone();
    let agent = Agent::builder(identity, deployment).register(Rank(0), vec![cache])?.bind("127.0.0.1:0".parse()?)?;

    // The blocks stay as they are for as long as this lease lives. An engine draws a set for each request.
    let (set, tokens) = (LeaseSetId([7; 16]), prompt().len() as u64);
    let content = Content::first(tokens, &prompt())?.digest();
    let tables = Tables(vec![BlockTable::List(blocks)]);
    let lease = agent.lease(LeaseRequest::new(set, Rank(0), tables, content, tokens)).await?;

    let claims = Claims {
        cluster,
        set,
        direction: Direction::Pull,
        owner: agent.deployment_digest(),
        incarnation: agent.incarnation(),
        start: 0,
        valid_tokens: tokens,
        ranks: vec![agent.address("127.0.0.1")],
        time_left: Duration::from_secs(60),
        audience: None,
    };
    println!("{}", Ticket::mint(&agent.ticket_key(), &claims)?.expose());

    // Whichever way it ends, the blocks can be given to another request now.
    let end = lease.ended().await?.end;
    agent.shutdown(Duration::from_secs(1)).await;
    match end {
        LeaseEnd::Completed => Ok(()),
        end => bail!("the lease ended otherwise: {end}"),
    }
}
