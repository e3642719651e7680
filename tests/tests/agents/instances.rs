//! Several agents with one certificate, and certificates that change under agents.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use transload_layout::Rank;
use transload_tests::cluster::{
    CLUSTER, Cache, Origins, Side, all_end, content_of, impatient, lease_of, ticket_of, transfer_of,
};
use transload_transfer::{
    Agent, AgentOptions, Authority, ClusterName, Direction, Identity, Incarnation, InstanceName, JobError, LeaseEnd,
    Roles, ServiceName, TransferError,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn authority() -> Authority {
    Authority::new(ClusterName::new(CLUSTER).unwrap()).unwrap()
}

fn service(name: &str) -> ServiceName {
    ServiceName::new(name).unwrap()
}

/// Makes an agent for all ranks of a side. Its name below the service is `name`, or the default.
fn agent(cache: &Cache, identity: Identity, life: u64, name: Option<&str>, options: AgentOptions) -> Agent {
    let ranks: Vec<_> = cache.side().deployment().ranks().collect();
    let name = name.map(|name| InstanceName::new(name).unwrap());
    let builder = cache.builder(identity, ranks, Incarnation::new(life, life), options);
    let builder = match name {
        Some(name) => builder.instance(name),
        None => builder,
    };
    builder.bind("127.0.0.1:0".parse().unwrap()).unwrap()
}

/// Moves a request from one agent to another, and checks every byte.
async fn moves(src: (&Cache, &Agent), dst: (&Cache, &Agent), request: u64) -> Result<(), TransferError> {
    src.0.fill(request);
    dst.0.clear();
    let mut leases = Vec::new();
    for rank in Side::Prefill.deployment().ranks() {
        leases.push(src.1.lease(lease_of(Side::Prefill, rank, request)).await.unwrap());
    }
    let ranks: Vec<Rank> = Side::Decode.deployment().ranks().collect();
    let ticket = ticket_of(src.1, request, Direction::Pull);
    dst.1.pull(transfer_of(Side::Decode, &ranks, ticket, request)).await?;
    Origins::new().check(dst.0, request, &ranks).unwrap();
    all_end(leases, LeaseEnd::Completed).await;
    Ok(())
}

#[tokio::test]
async fn replicas_with_one_certificate_all_serve_and_pull() {
    let authority = authority();
    let certificates = ["prefill", "decode"].map(|name| authority.issue(&service(name), Roles::all()).unwrap());
    let caches = [Side::Prefill, Side::Decode].map(|side| [Cache::new(side), Cache::new(side)]);
    // Their lives differ, as those of replicas do, and the later is not always the one that connects last.
    let mut life = 9;
    let mut replicas = |side: usize| {
        caches[side].each_ref().map(|cache| {
            life -= 1;
            agent(cache, certificates[side].clone(), life, None, impatient())
        })
    };
    let (prefills, decodes) = (replicas(0), replicas(1));
    assert_ne!(prefills[0].id(), prefills[1].id());
    for request in 0..40 {
        let (from, to) = (request as usize % 2, request as usize / 2 % 2);
        moves((&caches[0][from], &prefills[from]), (&caches[1][to], &decodes[to]), request)
            .await
            .unwrap_or_else(|error| panic!("request {request}: {error}"));
    }
    for agent in prefills.into_iter().chain(decodes) {
        agent.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn two_of_one_name_are_told_so() {
    let authority = authority();
    let identity = |name| authority.issue(&service(name), Roles::all()).unwrap();
    let (src, dst) = (Cache::new(Side::Prefill), Cache::new(Side::Decode));
    let one = agent(&src, identity("prefill"), 1, Some("a"), impatient());
    let other = agent(&src, identity("prefill"), 2, Some("a"), impatient());
    let puller = agent(&dst, identity("decode"), 1, None, impatient());
    moves((&src, &one), (&dst, &puller), 1).await.unwrap();
    moves((&src, &other), (&dst, &puller), 2).await.unwrap();
    let error = moves((&src, &one), (&dst, &puller), 3).await.unwrap_err();
    assert_eq!(error.kind(), "restarted");
    assert!(error.to_string().contains("`instance`"), "{error}");
}

#[tokio::test]
async fn an_instance_keeps_its_name_over_a_restart() {
    let authority = authority();
    let identity = |name| authority.issue(&service(name), Roles::all()).unwrap();
    let (src, dst) = (Cache::new(Side::Prefill), Cache::new(Side::Decode));
    let owner = agent(&src, identity("prefill"), 1, None, impatient());
    let first = agent(&dst, identity("decode"), 1, None, impatient());
    let (id, address) = (first.id().clone(), first.control_addr());
    moves((&src, &owner), (&dst, &first), 1).await.unwrap();
    // Its next life is the same agent to its peers.
    first.shutdown(Duration::ZERO).await;
    drop(first);
    let ranks: Vec<_> = Side::Decode.deployment().ranks().collect();
    let again = loop {
        let life = Incarnation::new(2, 2);
        let builder = dst.builder(identity("decode"), ranks.clone(), life, impatient());
        match builder.bind(address) {
            Ok(again) => break again,
            // The system has not let go of the port yet.
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    };
    assert_eq!(*again.id(), id);
    moves((&src, &owner), (&dst, &again), 2).await.unwrap();
}

#[tokio::test]
async fn own_tickets_are_refused_at_once() {
    let authority = authority();
    let identity = authority.issue(&service("both"), Roles::all()).unwrap();
    let cache = Cache::new(Side::Prefill);
    let both = agent(&cache, identity, 1, None, impatient());
    let lease = both.lease(lease_of(Side::Prefill, Rank(0), 1)).await.unwrap();
    let ticket = ticket_of(&both, 1, Direction::Pull);
    let ranks: Vec<Rank> = Side::Prefill.deployment().ranks().collect();
    let pull = transfer_of(Side::Prefill, &ranks, ticket.clone(), 1);
    let error = both.start_pull(pull).await.unwrap_err();
    assert_eq!(error, TransferError::Job(JobError::OwnTicket));
    assert_eq!(error.kind(), "own");
    // It is given up without a connection to anybody.
    let told = both.cancel(ticket, Some(content_of(1))).await.unwrap();
    assert_eq!(told.heard, (1, 1));
    assert_eq!(lease.ended().await.unwrap().end, LeaseEnd::Cancelled);
    assert_eq!(both.gauges().await.unwrap().sessions, 0);
}

/// Replaces the files of a service as platforms do it: each whole, one after the other.
fn replace(folder: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let new = folder.join("..new");
        fs::write(&new, text).unwrap();
        fs::rename(&new, folder.join(name)).unwrap();
    }
}

/// Waits until an agent shows new peers this certificate.
async fn shows(agent: &Agent, identity: &Identity) {
    let end = Instant::now() + PATIENCE;
    while agent.endpoints().identity().chain() != identity.chain() {
        assert!(Instant::now() < end, "the certificate is still the old one");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn an_authority_is_replaced_while_agents_run() {
    let (old, new) = (authority(), authority());
    let ca = |authority: &Authority| authority.issue(&service("x"), Roles::NONE).unwrap().authority_pem();
    let both = format!("{}{}", ca(&old), ca(&new));
    let folder = TempDir::new().unwrap();
    let first = ["prefill", "decode"].map(|name| old.issue(&service(name), Roles::all()).unwrap());
    for identity in &first {
        identity.save(folder.path()).unwrap();
    }
    let caches = [Cache::new(Side::Prefill), Cache::new(Side::Decode)];
    let options = || {
        let mut options = impatient();
        options.renew_every = Duration::from_millis(20);
        options
    };
    let load = |name| Identity::load_agent(folder.path(), &service(name)).unwrap();
    let owner = agent(&caches[0], load("prefill"), 1, None, options());
    let puller = agent(&caches[1], load("decode"), 1, None, options());
    moves((&caches[0], &owner), (&caches[1], &puller), 1).await.unwrap();

    // Agents keep the key of tickets that they have started with, whatever becomes of its file.
    fs::write(folder.path().join("ticket.key"), [9; 32]).unwrap();
    // Both authorities are trusted, and the new one issues.
    replace(folder.path(), &[("ca.pem", &both)]);
    let second = ["prefill", "decode"].map(|name| new.issue(&service(name), Roles::all()).unwrap());
    for (name, identity) in ["prefill", "decode"].iter().zip(&second) {
        let (key, chain) = (identity.expose_key_pem(), identity.certificates_pem());
        replace(folder.path(), &[(&format!("{name}.key"), &key), (&format!("{name}.pem"), &chain)]);
    }
    shows(&owner, &second[0]).await;
    shows(&puller, &second[1]).await;
    // The connection from before goes on, and a newcomer that trusts the new authority alone is served.
    moves((&caches[0], &owner), (&caches[1], &puller), 2).await.unwrap();
    let young = new.issue(&service("decode"), Roles::all()).unwrap();
    let secret = first[0].ticket_secret().clone();
    let young = Identity::from_pem(&young.certificates_pem(), &young.expose_key_pem(), &ca(&new), secret);
    let cache = Cache::new(Side::Decode);
    let newcomer = agent(&cache, young.unwrap(), 1, None, impatient());
    moves((&caches[0], &owner), (&cache, &newcomer), 3).await.unwrap();
}

#[tokio::test]
async fn a_changed_certificate_that_does_not_serve_changes_nothing() {
    let authority = authority();
    let folder = TempDir::new().unwrap();
    let issue = |name| authority.issue(&service(name), Roles::all()).unwrap();
    let good = issue("prefill");
    good.save(folder.path()).unwrap();
    let cache = Cache::new(Side::Prefill);
    let mut options = impatient();
    options.renew_every = Duration::from_millis(5);
    let owner = agent(&cache, Identity::load(folder.path()).unwrap(), 1, None, options);
    let (next, other) = (issue("prefill"), issue("decode"));
    let pair = |identity: &Identity| (identity.certificates_pem(), identity.expose_key_pem());
    let ((good_pem, good_key), (next_pem, _), (other_pem, other_key)) = (pair(&good), pair(&next), pair(&other));
    for (pem, key) in [
        ("half a certif", good_key.as_str()),
        // Of two generations, as between two renames.
        (&next_pem, &good_key),
        (&other_pem, &other_key),
    ] {
        replace(folder.path(), &[("prefill.pem", pem), ("prefill.key", key)]);
        for _ in 0..10 {
            assert_eq!(owner.endpoints().identity().chain(), good.chain());
            sleep(Duration::from_millis(5)).await;
        }
    }
    replace(folder.path(), &[("prefill.pem", &good_pem), ("prefill.key", &good_key)]);
    let renewed = issue("prefill");
    let (pem, key) = pair(&renewed);
    replace(folder.path(), &[("prefill.pem", &pem), ("prefill.key", &key)]);
    shows(&owner, &renewed).await;
}
