//! Floods: peers that send too much of everything.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use transload_tests::cluster::{Side, set_of, ticket_of};
use transload_tests::words;
use transload_transfer::internal::quic::{CloseCode, ConnectError, ConnectionLost};
use transload_transfer::plan::ids::{Nonce, TransferId};
use transload_transfer::wire::internal::stream::StreamHeader;
use transload_transfer::wire::message::{Message, Notice, NoticeKind};
use transload_transfer::{Agent, Direction, Roles};

use crate::peer::{Hostile, ask};
use crate::town::{PATIENCE, Town, owners_claims};

/// The number of streams that are opened on one lane, several times its limit.
const STREAMS: u32 = 2000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_begin_badly_make_room_for_others() {
    let town = Town::new();
    let owner = &town.owner;
    let mut hostile = Hostile::welcome(town.hostile(Roles::all()), owner, Side::Decode).await;
    let (lane, port) = hostile.lane().await;
    let refused = hostile.lane_with(port, &Nonce([3; 16])).await.unwrap_err();
    assert_eq!(refused, ConnectError::LaneRefused);
    let mut open = Vec::new();
    for number in 0..STREAMS {
        // Each is stopped or given up before long, whatever it does.
        let opening = timeout(PATIENCE, lane.open_stream()).await;
        let opening = opening.unwrap_or_else(|_| panic!("no room after {number} streams"));
        let mut stream = opening.unwrap_or_else(|error| panic!("stream {number}: {error}"));
        let header = StreamHeader {
            transfer: TransferId([number as u8; 16]),
            nonce: Nonce([5; 16]),
            stream: number,
            offset: u64::MAX - 3,
            length: u64::MAX,
        };
        let bytes = header.encode();
        let bytes: &[u8] = match number % 3 {
            0 => &bytes,
            1 => &bytes[..7],
            _ => b"garbage garbage garbage garbage garbage garbage garbage garbage garbage",
        };
        let _ = stream.send_all(bytes).await;
        open.push(stream);
        if open.len() > 100 {
            open.clear();
        }
    }
    drop((open, lane, hostile));
    town.stays_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asks_without_a_lease_wait_up_to_a_bound() {
    let town = Town::new();
    let owner = &town.owner;
    let mut hostile = Hostile::welcome(town.hostile(Roles::all()), owner, Side::Decode).await;
    let key = owner.ticket_key();
    let mut claims = owners_claims(owner, 3);
    let mut most = 0;
    for number in 0..3000_u64 {
        claims.set = set_of(1000 + number);
        let mut ask = ask(0, &claims, &key, 3);
        ask.transfer = TransferId(u128::from(number).to_le_bytes());
        hostile.say(Message::Pull(ask)).await;
        hostile.say(words::lanes_wanted(u16::MAX)).await;
        let token = (Nonce([0; 16]), Nonce([0; 16]));
        hostile.say(words::ring_offered("nowhere", token)).await;
        if number % 100 == 0 {
            most = most.max(owner.gauges().await.unwrap().early);
        }
    }
    assert!((1..=1024).contains(&most), "{most} waited");
    drop(hostile);
    town.stays_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_asks_and_does_not_read_is_hung_up_on() {
    let town = Town::new();
    let owner = &town.owner;
    let mut hostile = Hostile::welcome(town.hostile(Roles::all()), owner, Side::Decode).await;
    let ticket = ticket_of(owner, 3, Direction::Pull);
    let asking = async {
        for id in 0.. {
            let says = NoticeKind::Renew { ttl_ms: 1 };
            let notice = Notice { id, ticket: ticket.clone(), says };
            if !hostile.say(Message::Notice(notice)).await {
                return id;
            }
        }
        unreachable!("there are many numbers")
    };
    let said = timeout(MINUTE, asking).await.expect("it is hung up on");
    let lost = hostile.control.closed().await;
    println!("hung up on after {said} notices: {lost}");
    assert!(matches!(&lost, ConnectionLost::ClosedByPeer { code, .. } if *code == CloseCode::PROTOCOL), "{lost}");
    // The ordinary one stays.
    sessions_fall_to(owner, 1).await;
    drop(hostile);
    town.stays_well().await;
}

/// A time limit for steps that take a while on a slow machine.
const MINUTE: Duration = Duration::from_secs(60);

async fn sessions_fall_to(owner: &Agent, most: usize) {
    let falling = async {
        while owner.gauges().await.unwrap().sessions > most {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, falling).await.expect("sessions fall");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_certificate_has_few_connections_that_say_nothing() {
    let town = Town::new();
    let owner = &town.owner;
    let endpoints = Hostile::endpoints(town.hostile(Roles::all()));
    let mut connections = Vec::new();
    for _ in 0..80 {
        if let Ok(connection) = endpoints.connect(owner.control_addr(), None).await {
            connections.push(connection);
        }
    }
    let gauges = owner.gauges().await.unwrap();
    assert!(gauges.sessions <= 1 + 64, "{gauges:?}");
    drop((connections, endpoints));
    town.stays_well().await;
}
