//! Two sources of one deployment, each with a ring of its own into the agent that pulls from both.

use std::time::Duration;

use transload_layout::Rank;
use transload_tests::cluster::{
    CLUSTER, Cache, Origins, Side, claims_of, impatient, lease_of, mint, open, transfer_of,
};
use transload_transfer::{Authority, ClusterName, Direction, Incarnation, Path, PathSet, Roles, ServiceName};

#[tokio::test]
async fn two_rings_into_one_agent_move_at_a_time() {
    let authority = Authority::new(ClusterName::new(CLUSTER).unwrap()).unwrap();
    let issue = |name| {
        let service = ServiceName::new(name).unwrap();
        authority.issue(&service, Roles::all()).unwrap()
    };
    let (src, dst) = (Cache::new(Side::Prefill), Cache::new(Side::Decode));
    let life = Incarnation::new(1, 1);
    let sources = [("prefill-0", Rank(0)), ("prefill-1", Rank(1))]
        .map(|(name, rank)| src.agent(issue(name), [rank], life, impatient()));
    let ranks = [0, 1, 2, 3].map(Rank);
    let puller = dst.agent(issue("decode-0"), ranks, life, impatient());
    let origins = Origins::new();
    for request in (2..34).step_by(4) {
        src.fill(request);
        dst.clear();
        let mut leases = Vec::new();
        for (rank, source) in (0..).map(Rank).zip(&sources) {
            let lease = lease_of(Side::Prefill, rank, request);
            leases.push(open(source, Direction::Pull, lease).await);
        }
        let addresses = sources.iter().map(|source| source.address("127.0.0.1"));
        let owner = sources[0].deployment_digest();
        let claims = claims_of(request, Direction::Pull, owner, life, addresses.collect());
        let ticket = mint(&puller.ticket_key(), &claims);
        let mut pull = transfer_of(Side::Decode, &ranks, ticket, request);
        pull.paths = PathSet::LOCAL;
        let report = puller.pull(pull).await.unwrap();
        assert!(report.routes.iter().all(|route| route.path == Path::RING));
        origins.check(&dst, request, &ranks).unwrap();
        for lease in leases {
            lease.ended().await.unwrap();
        }
    }
    puller.shutdown(Duration::from_secs(1)).await;
    for source in sources {
        source.shutdown(Duration::from_secs(1)).await;
    }
}
