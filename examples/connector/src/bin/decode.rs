//! A decode server, as far as a connector goes: it pulls a request into blocks of its own, in a layout of its own.
//!
//! `decode CERTS` reads the ticket that `prefill CERTS` prints.

use std::time::Duration;

use anyhow::{Context, bail};
use engine::{computed, prompt};
use transload_layout::document::{Syntax, parse};
use transload_layout::make_meta_kv_cache;
use transload_transfer::{Agent, BlockTable, Content, Identity, Memory, PullRequest, ServiceName, Tables, Ticket};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let certs = std::env::args().nth(1).context("usage: decode CERTS")?;
    let text = include_str!("../../decode.toml");
    let deployment = parse("decode.toml", text, Syntax::Toml)?;

    // One agent for both ranks, each with a cache of its own.
    let identity = Identity::load_agent(certs, &ServiceName::new("decode")?)?;
    let mut builder = Agent::builder(identity, deployment.clone());
    let mut caches = Vec::new();
    for rank in deployment.ranks() {
        let bytes = deployment.groups()[0].placement(0).allocation_bytes;
        let cache = Memory::allocate(&[bytes as usize])?;
        builder = builder.register(rank, vec![cache.clone()])?;
        caches.push((rank, cache));
    }
    let agent = builder.bind("127.0.0.1:0".parse()?)?;

    // Ticket and prompt come with the request. Were it another prompt than that of the blocks, the pull would be
    // refused.
    let mut ticket = String::new();
    std::io::stdin().read_line(&mut ticket)?;
    let ticket = Ticket::from_text(ticket.trim())?;
    let tokens = prompt().len() as u64;
    let content = Content::first(tokens, &prompt())?.digest();
    let blocks = vec![6, 1];
    let tables = Tables(vec![BlockTable::List(blocks.clone())]);
    let request = PullRequest::new(ticket, deployment.ranks(), tables, content, tokens);
    // After an error the request is computed here instead. Nothing touches the blocks any more, unless it says that memory
    // is not done with them.
    let report = agent.pull(request).await?;

    // The engine decodes. This one looks whether it has what it would have computed, in copies: the memory is the
    // agent's, too.
    let mut verified = 0;
    for (rank, cache) in caches {
        for component in &make_meta_kv_cache(&deployment, rank)[0] {
            let array = cache.to_array::<f32>(&component.view)?;
            for (at, expected) in computed(component, &blocks) {
                let found = array[at];
                if found != expected {
                    bail!("rank {rank} {at:?}: {found} is not {expected}");
                }
                verified += 1;
            }
        }
    }
    let bytes = report.bytes;
    println!("pulled {bytes} bytes, verified {verified} elements");
    agent.shutdown(Duration::from_secs(1)).await;
    Ok(())
}
