//! The setup of every test here: an owner of leases, and an ordinary peer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use transload_layout::Rank;
use transload_tests::cluster::{
    CLUSTER, Cache, Origins, Side, claims_of, idle, impatient, lease_of, mint, open, transfer_of,
};
use transload_transfer::{
    Agent, Authority, Claims, ClusterName, Direction, Identity, Incarnation, LeaseSetId, Roles, ServiceName,
};

/// A time limit that nothing here reaches.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// An owner of leases, and an ordinary peer that pulls from it all the time.
pub(crate) struct Town {
    pub(crate) authority: Authority,
    pub(crate) owner: Agent,
    pub(crate) owner_cache: Cache,
    /// The number of requests that the ordinary peer has pulled.
    served: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    ordinary: tokio::task::JoinHandle<()>,
}

impl Town {
    pub(crate) fn new() -> Self {
        let owner_cache = Cache::new(Side::Prefill);
        let authority = Authority::new(ClusterName::new(CLUSTER).unwrap()).unwrap();
        owner_cache.fill(2);
        let mut options = impatient();
        options.data.header_timeout = Duration::from_millis(300);
        let identity = issue(&authority, "prefill-0", Roles::all());
        let life = Incarnation::new(1, 1);
        let ranks = [Rank(0), Rank(1)];
        let owner = owner_cache.agent(identity, ranks, life, options);
        let stop = Arc::new(AtomicBool::new(false));
        let identity = issue(&authority, "ordinary", Roles::all());
        let served = Arc::new(AtomicU64::new(0));
        let ordinary = Ordinary { owner: owner.clone(), served: served.clone(), stop: stop.clone() };
        Self { authority, owner, owner_cache, served, stop, ordinary: tokio::spawn(ordinary.pull(identity)) }
    }

    pub(crate) fn hostile(&self, roles: Roles) -> Identity {
        issue(&self.authority, "hostile", roles)
    }

    /// The ordinary peer was served all the time, and is now; nothing is left of the others.
    pub(crate) async fn stays_well(self) {
        let before = self.served.load(Ordering::Relaxed);
        let served = async {
            while self.served.load(Ordering::Relaxed) < before + 2 {
                assert!(!self.ordinary.is_finished(), "the ordinary one has failed");
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, served).await.expect("it is served");
        self.stop.store(true, Ordering::Relaxed);
        timeout(PATIENCE, self.ordinary).await.unwrap().unwrap();
        println!("{before} requests were served beside it");
        idle(&self.owner).await;
        assert!(self.owner_cache.holds(2), "the owner's memory is as it was");
    }
}

/// An agent in a town that takes what hostile sources have, with canaries wherever nothing of it
/// belongs.
pub(crate) struct Destination {
    pub(crate) town: Town,
    pub(crate) agent: Agent,
    pub(crate) cache: Cache,
    pub(crate) origins: Origins,
}

impl Destination {
    pub(crate) fn in_a(town: Town) -> Self {
        let cache = Cache::new(Side::Decode);
        let identity = issue(&town.authority, "decode-0", Roles::all());
        let agent = cache.agent(identity, RANKS, Incarnation::new(1, 1), impatient());
        Self { town, agent, cache, origins: Origins::new() }
    }

    /// Checks that no canary was touched, and that nothing is written any more.
    pub(crate) async fn is_quiet(&self, request: u64) {
        let sum = self.cache.checksum();
        self.origins.check_canaries(&self.cache, request).unwrap();
        sleep(Duration::from_millis(100)).await;
        assert_eq!(self.cache.checksum(), sum, "written after the end");
    }

    /// Checks that no state is left of transfers and peers that ended, and that the others still work.
    pub(crate) async fn stays_well(self) {
        idle(&self.agent).await;
        self.agent.shutdown(Duration::from_secs(1)).await;
        self.town.stays_well().await;
    }
}

/// All ranks of the decode side.
pub(crate) const RANKS: [Rank; 4] = [Rank(0), Rank(1), Rank(2), Rank(3)];

/// An ordinary peer that leases and pulls request 2 again and again. The owner's memory has its content.
struct Ordinary {
    owner: Agent,
    served: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Ordinary {
    async fn pull(self, identity: Identity) {
        let mine = Cache::new(Side::Decode);
        let origins = Origins::new();
        let agent = mine.agent(identity, RANKS, Incarnation::new(2, 2), impatient());
        for number in 1.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let set = LeaseSetId(u128::to_le_bytes(number));
            for rank in [Rank(0), Rank(1)] {
                let mut lease = lease_of(Side::Prefill, rank, 2);
                lease.set = set;
                // Kept by the agent until it has ended.
                let lease = open(&self.owner, Direction::Pull, lease).await;
                tokio::spawn(lease.ended());
            }
            let mut claims = owners_claims(&self.owner, 2);
            claims.set = set;
            let ticket = mint(&self.owner.ticket_key(), &claims);
            mine.clear();
            agent.pull(transfer_of(Side::Decode, &RANKS, ticket, 2)).await.unwrap();
            origins.check(&mine, 2, &RANKS).unwrap();
            self.served.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_millis(20)).await;
        }
        agent.shutdown(Duration::from_secs(1)).await;
    }
}

pub(crate) fn owners_claims(owner: &Agent, request: u64) -> Claims {
    let digest = owner.deployment_digest();
    let addresses = vec![owner.address("127.0.0.1"); 2];
    claims_of(request, Direction::Pull, digest, owner.incarnation(), addresses)
}

pub(crate) fn issue(authority: &Authority, name: &str, roles: Roles) -> Identity {
    authority.issue(&ServiceName::new(name).unwrap(), roles).unwrap()
}
