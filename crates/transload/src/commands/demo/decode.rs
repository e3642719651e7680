//! The decode side: starts the prefill process, pulls from it, and checks what has come.

use std::time::Duration;

use transload::transfer::agent::{Agent, PullError, PullReport, PullRequest};
use transload::transfer::identity::{Authority, AuthorityError, Role, Roles, random_cluster_name};
use transload::transfer::ids::AgentId;
use transload::transfer::plan::{Plan, Request};
use transload::transfer::ticket::Ticket;
use transload::transfer::wire::PathSet;

use super::papers::Papers;
use super::peer::{Peer, PeerError};
use super::report::{Report, Transfer};
use super::side::Side;
use super::talk::{Answer, Order};
use super::{broken, decode_shape, prefill, prefill_shape};
use crate::commands::plan::time;
use crate::commands::random::mix;
use crate::failure::{Failure, chain};
use crate::show::progress::Progress;

/// Each is one transfer of the request, by these paths and no other.
const PATHS: [PathSet; 2] = [PathSet::QUIC, PathSet::LOCAL];

pub(super) async fn run(tokens: u64, seed: u64) -> Result<Report, Failure> {
    let authority = authority()?;
    let issue = |name: &str, role| -> Result<_, Failure> {
        let agent = AgentId::new(name).map_err(broken)?;
        authority
            .issue(&agent, Roles::NONE.with(role))
            .map_err(unmade)
    };
    let mut peer = Peer::start()?;
    peer.order(&Order::Prefill {
        papers: Box::new(Papers::of(&issue("prefill", Role::Serve)?).map_err(broken)?),
        tokens,
        seed,
    })
    .await?;

    let side = Side::new(decode_shape(tokens), tokens, seed)?;
    // Canaries, the request once, and checking all of it, for each transfer.
    let work = PATHS.len() as u64 * (2 * side.bytes() + tokens * BYTES_PER_TOKEN);
    let mut progress = Progress::new("moving and checking", work);
    let mut report = plan(&side, tokens, seed)?;
    let agent = side.agent(issue("decode", Role::Pull)?)?;
    match peer.answer().await? {
        Answer::Ready => {}
        other => return Err(unexpected(&other)),
    }
    for (number, paths) in (0..).zip(PATHS) {
        side.clear(|bytes| progress.advance(bytes))
            .map_err(broken)?;
        let (pulled, leases) = pull(&mut peer, &agent, &side, paths, seed ^ number).await?;
        progress.advance(pulled.bytes);
        let checked = side.verify(|bytes| progress.advance(bytes));
        let checked = checked.map_err(|wrong| {
            Failure::no(
                format!("verification failed: {wrong}"),
                format!("this is a fault of transload: report it, with --seed {seed}"),
            )
        })?;
        report
            .transfers
            .push(Transfer::new(&pulled, checked, leases));
    }
    agent.shutdown(Duration::from_secs(1)).await;
    peer.finish().await?;
    Ok(report)
}

/// Of the shape that both sides have: 32 layers of 8 heads, each with 128 keys and values of 2 bytes.
const BYTES_PER_TOKEN: u64 = 32 * 8 * 2 * 128 * 2;

/// A certificate authority that lives as long as the demo.
fn authority() -> Result<Authority, Failure> {
    let cluster = random_cluster_name().map_err(AuthorityError::from);
    cluster.and_then(Authority::new).map_err(unmade)
}

fn unmade(error: AuthorityError) -> Failure {
    Failure::no(
        format!("the certificates could not be made: {}", chain(&error)),
        "the clock may be wrong, or the system out of randomness",
    )
}

/// What is going to happen, as `transload plan` would print it. The agents each make the plan on
/// their own; this one is for the eye.
fn plan(dst: &Side, tokens: u64, seed: u64) -> Result<Report, Failure> {
    let shape = prefill_shape(tokens);
    let src = shape.deployment()?;
    let src_tables = Side::tables(shape, tokens, seed);
    let request = Request::tokens(tokens);
    let plan = Plan::compile(&src, &dst.deployment, &request).map_err(broken)?;
    let bound = plan.bind(&src_tables, &dst.tables).map_err(broken)?;
    Ok(Report {
        compile: time(
            &src,
            &dst.deployment,
            &request,
            &(src_tables, dst.tables.clone()),
        ),
        src,
        dst: dst.deployment.clone(),
        plan,
        bound,
        tokens,
        seed,
        transfers: Vec::new(),
    })
}

/// Has the request leased, pulls it, and hears how its leases ended.
async fn pull(
    peer: &mut Peer,
    agent: &Agent,
    side: &Side,
    paths: PathSet,
    seed: u64,
) -> Result<(PullReport, Vec<String>), Failure> {
    let set = [mix(seed), mix(!seed)].map(u64::to_le_bytes);
    let mut set_id = [0; 16];
    set_id.copy_from_slice(set.as_flattened());
    peer.order(&Order::Lease { set: set_id }).await?;
    let ticket = match peer.answer().await? {
        Answer::Leased { ticket } => Ticket::from_text(&ticket),
        other => return Err(unexpected(&other)),
    };
    let tokens = side.contents.tokens;
    let content = prefill::content(tokens)?;
    let ranks = side.ranks().map(|(rank, _)| rank);
    let tables = side.tables.clone();
    let mut request = PullRequest::new(ticket.map_err(broken)?, ranks, tables, content, tokens);
    request.paths = paths;

    let mut pulling = std::pin::pin!(agent.pull(request));
    let mut early = None;
    let pulled = loop {
        tokio::select! {
            pulled = &mut pulling => break pulled.map_err(not_pulled)?,
            // The leases end at about the time that the pull does, so this may come first. Where the
            // process is gone, there is nothing to wait for.
            answer = peer.answer(), if early.is_none() => early = Some(answer?),
        }
    };
    let ended = match early {
        Some(answer) => answer,
        None => peer.answer().await?,
    };
    match ended {
        Answer::Ended { ends } => Ok((pulled, ends)),
        other => Err(unexpected(&other)),
    }
}

fn not_pulled(error: PullError) -> Failure {
    Failure::no(
        format!("the pull failed: {}", chain(&error)),
        "is there a firewall on the loopback interface? `--verbose` says more",
    )
}

fn unexpected(answer: &Answer) -> Failure {
    PeerError::Nonsense(format!("{answer:?}")).into()
}
