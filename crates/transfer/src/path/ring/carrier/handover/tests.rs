use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::SealFlags;

use super::connection::*;
use super::message::{self, Answer, Offer, decode_greeting, encode_greeting, hello, welcome};
use super::socket::Packets;
use super::*;
use crate::path::ring::carrier::memfd::{self, MemfdFault};
use crate::path::ring::carrier::slots::RingShape;
use crate::path::ring::carrier::{random_socket, random_token};
use transload_wire::internal::negotiation::encode;
use transload_wire::internal::ring::Token;

fn limits() -> Limits {
    Limits { timeout: Duration::from_secs(20), ..Limits::default() }
}

/// Makes both ends of a connection: the listening and the connecting one.
async fn connected() -> (Connection, Connection) {
    let listener = Listener::bind(limits()).unwrap();
    let token = random_token().unwrap();
    let expected = listener.expect(&token).unwrap();
    let connecting = connect(listener.name(), &token, &limits()).await.unwrap();
    let listening = expected.connection(Duration::from_secs(20)).await.unwrap();
    (listening, connecting)
}

const SHAPE: RingShape = RingShape::DEFAULT;

#[tokio::test]
async fn a_ring_is_handed_over() {
    let (a, b) = connected().await;
    let (p, c) = tokio::join!(a.offer_producer(SHAPE), b.accept_consumer());
    let (mut p, mut c) = (p.unwrap(), c.unwrap());
    let mut window = p.reserve(None).unwrap();
    window.put(0, b"cargo").unwrap();
    window.publish(1, 2, 5).unwrap();
    let window = c.receive(None).unwrap();
    assert_eq!((window.tag(), window.offset(), window.len()), (1, 2, 5));
    let mut cargo = [0; 5];
    window.get(0, &mut cargo).unwrap();
    assert_eq!(&cargo, b"cargo");
}

#[tokio::test]
async fn tokens_are_for_one_use_by_who_holds_them() {
    let listener = Listener::bind(limits()).unwrap();
    let token = random_token().unwrap();
    let refused = |r: Result<Connection, HandoverError>| {
        assert!(matches!(r, Err(HandoverError::PeerGone)), "{r:?}");
    };
    // Nobody is expected; then somebody else; then a guest who was given up.
    refused(connect(listener.name(), &token, &limits()).await);
    let expected = listener.expect(&token).unwrap();
    refused(connect(listener.name(), &random_token().unwrap(), &limits()).await);
    drop(expected);
    refused(connect(listener.name(), &token, &limits()).await);
    // Then the right one, once.
    let expected = listener.expect(&token).unwrap();
    connect(listener.name(), &token, &limits()).await.unwrap();
    refused(connect(listener.name(), &token, &limits()).await);
    expected.connection(Duration::from_secs(20)).await.unwrap();

    let nobody = random_socket().unwrap();
    assert!(matches!(connect(&nobody, &token, &limits()).await, Err(HandoverError::NoListener)));
    let expected = listener.expect(&token).unwrap();
    assert!(matches!(expected.connection(Duration::from_millis(1)).await, Err(HandoverError::TimedOut)));
}

#[tokio::test]
async fn a_guest_that_came_takes_no_other_with_it() {
    let listener = Listener::bind(limits()).unwrap();
    let (first, second) = (random_token().unwrap(), random_token().unwrap());
    let expected = listener.expect(&first).unwrap();
    connect(listener.name(), &first, &limits()).await.unwrap();
    let next = listener.expect(&second).unwrap();
    expected.connection(Duration::from_secs(20)).await.unwrap();
    connect(listener.name(), &second, &limits()).await.unwrap();
    next.connection(Duration::from_secs(20)).await.unwrap();
}

#[tokio::test]
async fn a_listener_that_lacks_the_token_is_found_out() {
    let name = random_socket().unwrap();
    let socket = socket::listen(&name).unwrap();
    let impostor = tokio::spawn(async move {
        let packets = Packets::new(socket.accept().await.unwrap().0);
        let (hello, _) = packets.receive(false).await.unwrap();
        // All it can do is to send back what it was sent.
        let proof = decode_greeting(&hello).unwrap();
        let echo = encode_greeting(proof);
        packets.send(&echo, &[]).await.unwrap();
        packets
    });
    let outcome = connect(&name, &random_token().unwrap(), &limits()).await;
    assert!(matches!(outcome, Err(HandoverError::UnknownToken)));
    impostor.await.unwrap();
}

/// The first hello of all versions, and its answer.
#[test]
fn greetings_of_caches_on_the_host_stay_as_they_are() {
    let token = Token([7; 32]);
    for (proof, expected) in [
        (hello(&token, Caches::OnHost), "518e141f91f4b909566d259c59008ea46a02939372b12417a88bde7f78a5837a"),
        (welcome(&token), "6180d7ed8474ac9c89bd22157936a3162de9e0f1bfe973a60773a829ae1e1274"),
    ] {
        assert_eq!(proof.to_hex().as_str(), expected);
        let packet = [&b"tl-loc/2"[..], proof.as_bytes()].concat();
        assert_eq!(encode_greeting(proof), packet);
    }
}

/// An older listener knows only one hello.
#[tokio::test]
async fn a_listener_that_knows_nothing_of_devices_hears_the_hello_that_it_knows() {
    let name = random_socket().unwrap();
    let (token, socket) = (random_token().unwrap(), socket::listen(&name).unwrap());
    let known = hello(&token, Caches::OnHost);
    let answer = encode_greeting(welcome(&token));
    let old = tokio::spawn(async move {
        for hung_up_on in 0.. {
            let packets = Packets::new(socket.accept().await.unwrap().0);
            let (hello, _) = packets.receive(false).await.unwrap();
            if decode_greeting(&hello).unwrap() == known {
                packets.send(&answer, &[]).await.unwrap();
                return (packets, hung_up_on);
            }
        }
        unreachable!("it is asked until it knows the hello")
    });
    let connection = connect_with(&name, &token, &limits(), Caches::OnDevice).await;
    connection.unwrap();
    let (_packets, hung_up_on) = old.await.unwrap();
    assert_eq!(hung_up_on, 1);
}

#[tokio::test]
async fn other_users_are_turned_away() {
    let nobody = Limits { users: vec![], ..limits() };
    let listener = Listener::bind(nobody.clone()).unwrap();
    let token = random_token().unwrap();
    let _expected = listener.expect(&token).unwrap();
    assert!(matches!(connect(listener.name(), &token, &limits()).await, Err(HandoverError::PeerGone)));
    let listener = Listener::bind(limits()).unwrap();
    assert!(matches!(connect(listener.name(), &token, &nobody).await, Err(HandoverError::ForeignUser { .. })));
    let me = rustix::process::geteuid().as_raw();
    let me_too = Limits { users: vec![me], ..limits() };
    let _expected = listener.expect(&token).unwrap();
    connect(listener.name(), &token, &me_too).await.unwrap();
}

#[tokio::test]
async fn silent_and_garbled_peers_are_bounded() {
    let strict = Limits { timeout: Duration::from_millis(50), greetings: 4, ..Limits::default() };
    let listener = Listener::bind(strict).unwrap();
    let token = random_token().unwrap();
    let expected = listener.expect(&token).unwrap();
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(Packets::connect(listener.name()).await.unwrap());
    }
    let garbage = [&b"x"[..], &[0; 40], &[0xff; MAX_PACKET_FOR_TESTS], b"tl-loc/2"];
    for packet in garbage {
        let packets = Packets::connect(listener.name()).await.unwrap();
        packets.send(packet, &[]).await.unwrap();
        let end = packets.receive(false).await;
        assert!(matches!(end, Err(HandoverError::PeerGone)));
    }
    connect(listener.name(), &token, &limits()).await.unwrap();
    expected.connection(Duration::from_secs(20)).await.unwrap();
    for packets in silent {
        assert!(matches!(packets.receive(false).await, Err(HandoverError::PeerGone)));
    }
}

const MAX_PACKET_FOR_TESTS: usize = message::MAX_PACKET + 1;

#[tokio::test]
async fn too_many_expected_peers_are_refused() {
    let few = Limits { expected: 2, ..limits() };
    let listener = Listener::bind(few).unwrap();
    let token = || random_token().unwrap();
    let _a = listener.expect(&token()).unwrap();
    let b = listener.expect(&token()).unwrap();
    assert!(matches!(listener.expect(&token()), Err(HandoverError::TooMuch { limit: 2, .. })));
    drop(b);
    let _c = listener.expect(&token()).unwrap();
}

/// Makes a pipe whose reading end tells when the last copy of the writing end was closed.
fn canary() -> (File, OwnedFd) {
    let (reader, writer) = std::io::pipe().unwrap();
    (OwnedFd::from(reader).into(), writer.into())
}

#[tokio::test]
async fn descriptors_that_nobody_asked_for_are_closed() {
    let (mut reader, writer) = canary();
    let listener = Listener::bind(limits()).unwrap();
    let packets = Packets::connect(listener.name()).await.unwrap();
    let fds = [writer.as_fd(); message::MAX_DESCRIPTORS];
    packets.send(&[0; 40], &fds).await.unwrap();
    assert!(matches!(packets.receive(false).await, Err(HandoverError::PeerGone)));

    let (a, b) = connected().await;
    let offer = Offer { slots: SHAPE.slots(), slot_bytes: SHAPE.slot_bytes() };
    let packet = encode(&offer);
    a.packets.send(&packet, &fds).await.unwrap();
    assert!(matches!(
        b.accept_consumer().await,
        Err(HandoverError::Descriptors { found: message::MAX_DESCRIPTORS, expected: 1 })
    ));
    // As an answer to an offer they do not even come in.
    let (a, b) = connected().await;
    b.packets.send(b"?", &fds).await.unwrap();
    assert!(matches!(a.offer_producer(SHAPE).await, Err(HandoverError::TooMuch { limit: 0, .. })));
    drop(writer);
    drop(b);
    let end = tokio::task::spawn_blocking(move || reader.read(&mut [0; 1]));
    assert_eq!(end.await.unwrap().unwrap(), 0);
}

fn ring_offer(slots: u32, slot_bytes: u32) -> Vec<u8> {
    encode(&Offer { slots, slot_bytes })
}

/// Makes a memfd with these seals only.
fn sealed(len: u64, seals: SealFlags) -> OwnedFd {
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("transload-test", flags).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// Sends an offer unchanged, and returns how a consumer answers it.
async fn offered(packet: &[u8], fds: &[&OwnedFd]) -> HandoverError {
    let (a, mut b) = connected().await;
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    a.packets.send(packet, &fds).await.unwrap();
    b.limits.ring_bytes = SHAPE.bytes();
    match b.accept_consumer().await {
        Ok(_) => panic!("taken"),
        Err(e) => e,
    }
}

#[tokio::test]
async fn offers_are_checked() {
    let (slots, slot_bytes) = (SHAPE.slots(), SHAPE.slot_bytes());
    let good = ring_offer(slots, slot_bytes);
    let ring = memfd::create("transload-test", SHAPE.bytes()).unwrap();

    let e = offered(&good, &[]).await;
    assert!(matches!(e, HandoverError::Descriptors { found: 0, .. }));
    let e = offered(&good, &[&ring, &ring]).await;
    assert!(matches!(e, HandoverError::Descriptors { found: 2, .. }));

    // Not a memfd: a file, a pipe, a directory.
    let file = OwnedFd::from(tempfile::tempfile().unwrap());
    let (_reader, pipe) = canary();
    let dir = OwnedFd::from(File::open("/").unwrap());
    for fd in [&file, &pipe, &dir] {
        let e = offered(&good, &[fd]).await;
        assert!(matches!(e, HandoverError::Memfd(_)), "{e:?}");
    }

    // A memfd of huge pages, whose owner can take them back.
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING | rustix::fs::MemfdFlags::HUGETLB;
    match rustix::fs::memfd_create("transload-test", flags) {
        Ok(huge) => {
            rustix::fs::fcntl_add_seals(&huge, memfd::SIZE_SEALS).unwrap();
            let e = offered(&good, &[&huge]).await;
            assert!(matches!(e, HandoverError::Memfd(MemfdFault::NotMemfd)));
        }
        Err(e) => eprintln!("NOT TESTED: memory of huge pages, which this kernel refuses: {e}"),
    }

    // A memfd with each seal missing.
    for missing in [SealFlags::SHRINK, SealFlags::GROW] {
        let fd = sealed(SHAPE.bytes(), memfd::SIZE_SEALS - missing);
        let e = offered(&good, &[&fd]).await;
        let seals = matches!(e, HandoverError::Memfd(MemfdFault::Seals { .. }));
        assert!(seals, "{missing:?} missing: {e:?}");
    }

    // Of another size.
    for size in [0, SHAPE.bytes() - 1, SHAPE.bytes() + 1] {
        let fd = memfd::create("transload-test", size).unwrap();
        let e = offered(&good, &[&fd]).await;
        assert!(matches!(e, HandoverError::Memfd(MemfdFault::Size { .. })));
    }

    // A shape that cannot be or costs too much.
    for (slots, slot_bytes) in [(0, 4096), (u32::MAX, u32::MAX), (2, 1)] {
        let e = offered(&ring_offer(slots, slot_bytes), &[&ring]).await;
        assert!(matches!(e, HandoverError::Shape(_)));
    }
    let e = offered(&ring_offer(slots, 1 << 20), &[&ring]).await;
    assert!(matches!(e, HandoverError::TooMuch { .. }));

    // Truncated at every byte, and with a byte too many.
    for len in 1..good.len() {
        let e = offered(&good[..len], &[&ring]).await;
        assert!(matches!(e, HandoverError::Malformed { .. }), "{len}: {e:?}");
    }
    let e = offered(&[&good[..], &[0]].concat(), &[&ring]).await;
    assert!(matches!(e, HandoverError::Malformed { .. }));
    let e = offered(&[0xff; MAX_PACKET_FOR_TESTS], &[&ring]).await;
    assert!(matches!(e, HandoverError::TooMuch { .. }));
}

#[tokio::test]
async fn a_peer_that_does_not_go_on_is_left() {
    let hasty = Limits { timeout: Duration::from_millis(20), ..Limits::default() };
    let (mut a, mut b) = connected().await;
    (a.limits, b.limits) = (hasty.clone(), hasty);
    // Nobody answers the offer; nobody makes one.
    assert!(matches!(a.offer_producer(SHAPE).await, Err(HandoverError::TimedOut)));
    // What `a` had offered is still in the queue, so `b` takes a ring whose peer is gone.
    match b.accept_consumer().await {
        Ok(mut consumer) => assert!(consumer.receive(None).is_err()),
        Err(e) => assert!(matches!(e, HandoverError::PeerGone)),
    }
    let (_a, mut b) = connected().await;
    b.limits.timeout = Duration::from_millis(20);
    assert!(matches!(b.accept_consumer().await, Err(HandoverError::TimedOut)));
    let (a, b) = connected().await;
    let (a, b) = tokio::join!(a.offer_producer(RingShape::new(32, 4 << 20).unwrap()), b.accept_consumer());
    assert!(matches!(a, Err(HandoverError::Refused)));
    assert!(matches!(b, Err(HandoverError::TooMuch { .. })));
}

proptest::proptest! {
    /// Any bytes that a peer sends are a message or an error.
    #[test]
    fn any_packet_can_be_read(packet in proptest::collection::vec(proptest::num::u8::ANY, 0..80)) {
        let _ = decode_greeting(&packet);
        if let Ok(offer) = message::decode::<Offer>(&packet, "offer") {
            let again = message::decode::<Offer>(&encode(&offer), "offer");
            proptest::prop_assert_eq!(again.unwrap(), offer.clone());
            let _ = check_ring(offer, vec![], 1, Limits::default().ring_bytes);
        }
        let _ = message::decode::<Answer>(&packet, "answer");
    }
}
