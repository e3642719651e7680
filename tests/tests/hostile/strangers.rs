//! Strangers that begin handshakes all the time and never show a certificate.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tokio::time::sleep;
use transload_layout::Rank;
use transload_tests::cluster::{CLUSTER, Cache, Origins, Side, impatient, lease_of, mint, open, set_of, transfer_of};
use transload_transfer::{Authority, ClusterName, Direction, Incarnation, QuicOptions, Roles};

use crate::peer::Hostile;
use crate::town::{RANKS, Town, issue, owners_claims};

/// The first bits of a packet that has an address prove itself (RFC 9000, section 17.2.5).
const RETRY: u8 = 0xf0;

/// Passes packets to a server, and nothing back except what proves the address, so handshakes stop before any
/// certificate.
struct Gag {
    addr: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Gag {
    fn of(server: SocketAddr) -> Self {
        let bind = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let look = Duration::from_millis(100);
            socket.set_read_timeout(Some(look)).unwrap();
            socket
        };
        let (front, back) = (bind(), bind());
        let this = Self { addr: front.local_addr().unwrap(), stop: Arc::default() };
        let (forward, stop) = ((front.try_clone().unwrap(), back.try_clone().unwrap()), this.stop.clone());
        let (client, its) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let (front, back) = forward;
            let mut packet = [0; 2048];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((len, from)) = front.recv_from(&mut packet) {
                    // There is one.
                    let _ = client.send(from);
                    let _ = back.send_to(&packet[..len], server);
                }
            }
        });
        let stop = this.stop.clone();
        thread::spawn(move || {
            let mut packet = [0; 2048];
            let mut client = None;
            while !stop.load(Ordering::Relaxed) {
                let Ok((len, _)) = back.recv_from(&mut packet) else {
                    continue;
                };
                client = its.try_iter().last().or(client);
                if let Some(client) = client
                    && packet[0] & 0xf0 == RETRY
                {
                    let _ = front.send_to(&packet[..len], client);
                }
            }
        });
        this
    }
}

impl Drop for Gag {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Strangers connect to the control port and to all lanes, from the address of honest agents.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_no_new_agent_out() {
    let town = Town::new();
    let owner = &town.owner;
    let foreign = Authority::new(ClusterName::new(CLUSTER).unwrap()).unwrap();
    let stranger = Hostile::endpoints(issue(&foreign, "stranger", Roles::all()));
    let ports = owner.endpoints().lane_ports().into_iter();
    let ports = ports.chain([owner.control_addr().port()]);
    let gags: Vec<_> = ports.map(|port| Gag::of(SocketAddr::from(([127, 0, 0, 1], port)))).collect();
    let attacks: Vec<_> = gags
        .iter()
        .map(|gag| {
            let (stranger, addr) = (stranger.clone(), gag.addr);
            tokio::spawn(async move {
                for attempt in 0_usize.. {
                    let stranger = stranger.clone();
                    tokio::spawn(async move { stranger.connect(addr, None).await.unwrap_err() });
                    // All places at once, and then as fast as the audit did.
                    if attempt > QuicOptions::default().max_handshakes {
                        sleep(Duration::from_millis(33)).await;
                    }
                }
            })
        })
        .collect();
    let places = QuicOptions::default().max_handshakes / 2;
    while owner.endpoints().open_connections() < places * gags.len() {
        sleep(Duration::from_millis(5)).await;
    }
    let origins = Origins::new();
    for number in 0..5_u64 {
        let cache = Cache::new(Side::Decode);
        let name = format!("new-{number}");
        let life = Incarnation::new(9, number);
        let agent = cache.agent(issue(&town.authority, &name, Roles::all()), RANKS, life, impatient());
        let set = set_of(1000 + number);
        for rank in [Rank(0), Rank(1)] {
            let mut lease = lease_of(Side::Prefill, rank, 2);
            lease.set = set;
            tokio::spawn(open(owner, Direction::Pull, lease).await.ended());
        }
        let mut claims = owners_claims(owner, 2);
        claims.set = set;
        let ticket = mint(&owner.ticket_key(), &claims);
        let mut request = transfer_of(Side::Decode, &RANKS, ticket, 2);
        request.paths = transload_transfer::PathSet::QUIC;
        agent.pull(request).await.unwrap();
        origins.check(&cache, 2, &RANKS).unwrap();
        agent.shutdown(Duration::from_secs(1)).await;
    }
    attacks.iter().for_each(tokio::task::JoinHandle::abort);
    drop((gags, stranger));
    town.stays_well().await;
}
