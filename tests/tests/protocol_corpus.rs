//! Replays the corpora of the fuzz targets for tickets and frames, and keeps their seeds current.
//!
//! `TRANSLOAD_BLESS=1` writes the seeds anew after the format has changed.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use transload_tests::words;
use transload_transfer::plan::codec::Codec;
use transload_transfer::plan::ids::{DeploymentDigest, Nonce, PlanDigest, TransferId};
use transload_transfer::wire::internal::frame;
use transload_transfer::wire::internal::stream::{StreamHeader, StreamTrailer};
use transload_transfer::wire::message::{Ask, Envelope, Hello, Invitation, Message, Notice, NoticeKind};
use transload_transfer::wire::{Audience, Awaited, Difference, Failure, HelloRefusal, Refusal};
use transload_transfer::{
    AgentId, Claims, ClusterName, ContentDigest, Direction, Incarnation, LeaseEnd, LeaseSetId, Path, PathSet, Rank,
    RankAddress, Request, Ticket, TicketKey,
};

#[path = "../../fuzz/checks/frame.rs"]
mod frame_check;
#[path = "../../fuzz/checks/ticket.rs"]
mod ticket_check;

fn agent(name: &str) -> AgentId {
    AgentId::new(name).unwrap()
}

fn claims(ranks: u16, audience: Option<Audience>) -> Claims {
    let address = |rank| RankAddress {
        agent: agent(&format!("prefill/prefill-6d9f7c5b8-abcde-7600-{rank}")),
        host: format!("10.0.0.{}", rank / 4),
        port: 7600 + rank,
    };
    Claims {
        cluster: ClusterName::new("west").unwrap(),
        set: LeaseSetId([1; 16]),
        direction: Direction::Pull,
        owner: DeploymentDigest([2; 32]),
        incarnation: Incarnation::new(1_700_000_000_000, 3),
        start: 0,
        valid_tokens: 2000,
        ranks: (0..ranks).map(address).collect(),
        time_left: Duration::from_secs(30),
        audience,
    }
}

fn ticket(ranks: u16, audience: Option<Audience>) -> Ticket {
    Ticket::mint(&TicketKey::new(&ticket_check::SECRET), &claims(ranks, audience)).unwrap()
}

/// Returns the claims as they lie in a ticket, without prefix and MAC.
fn unsealed(ticket: &Ticket) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'-' => 62,
        _ => 63,
    };
    let values = ticket.expose().bytes().skip("tl1.".len()).map(value);
    let bits: Vec<u8> = values.flat_map(|v| (0..6).rev().map(move |i| (v >> i) & 1)).collect();
    let byte = |bits: &[u8]| bits.iter().fold(0, |byte, bit| (byte << 1) | bit);
    let mut bytes: Vec<u8> = bits.chunks_exact(8).map(byte).collect();
    bytes.truncate(bytes.len() - 32);
    bytes
}

fn tickets() -> Vec<(&'static str, Vec<u8>)> {
    let plain = ticket(1, None);
    let text = plain.expose().as_bytes();
    let mut forged = text.to_vec();
    forged[20] ^= 1;
    let mut trailing = unsealed(&plain);
    trailing.push(0);
    let of_agent = Some(Audience::Agent(agent("decode-0")));
    let of_deployment = Some(Audience::Deployment(DeploymentDigest([4; 32])));
    vec![
        ("text", text.to_vec()),
        ("text-64-ranks", ticket(64, of_agent).expose().into()),
        ("text-forged", forged),
        ("text-cut", text[..text.len() - 5].to_vec()),
        ("text-other-version", [b"tl2.", &text[4..]].concat()),
        ("claims", unsealed(&plain)),
        ("claims-audience", unsealed(&ticket(2, of_deployment))),
        ("claims-trailing", trailing.clone()),
        ("claims-cut", trailing[..40].to_vec()),
        ("empty", Vec::new()),
    ]
}

fn ask() -> Ask {
    Ask {
        transfer: TransferId([1; 16]),
        nonce: Nonce([2; 16]),
        ticket: ticket(2, None),
        source: Rank(0),
        destination: Rank(1),
        request: Request { by_layer: true, ..Request::tokens(2000) },
        content: ContentDigest([3; 32]),
        plan: PlanDigest([4; 32]),
        lanes: 4,
        paths: PathSet::ANY,
        attempt: 1,
    }
}

fn notice(says: NoticeKind) -> Message {
    Message::Notice(Notice { id: 1, ticket: ticket(1, None), says })
}

fn greetings() -> Vec<(&'static str, Message)> {
    let hello = Hello {
        versions: (1, 1),
        cluster: ClusterName::new("west").unwrap(),
        agent: agent("decode-0"),
        incarnation: Incarnation::new(1, 2),
        deployment: DeploymentDigest([5; 32]),
        ranks: vec![Rank(0), Rank(1)],
        codecs: vec![Codec::Q8],
    };
    let difference = Difference { field: "group.attn.spec.heads".into(), ours: "8".into(), theirs: "4".into() };
    let document = b"{}".to_vec();
    vec![
        ("hello", Message::Hello(hello)),
        ("document-wanted", Message::DocumentWanted),
        ("document", Message::Document { document }),
        ("welcome", Message::Welcome),
        ("unwelcome", Message::Unwelcome(HelloRefusal::Specs(difference))),
    ]
}

fn talk() -> Vec<(&'static str, Message)> {
    let transfer = TransferId([1; 16]);
    let content = ContentDigest([6; 32]);
    let refusal = Refusal::DigestMismatch;
    let end = LeaseEnd::Expired;
    let failure = Failure::LeaseEnded { end };
    let (path, on) = (Path::QUIC, Awaited::Lease);
    let (streams, bytes) = (4, 1 << 26);
    let ranks = vec![Rank(0)];
    vec![
        ("pull", Message::Pull(ask())),
        ("push", Message::Push(ask())),
        ("refused", Message::Refused { transfer, refusal }),
        ("accepted", Message::Accepted { transfer, path }),
        ("waiting", Message::Waiting { transfer, on }),
        ("commit", Message::Commit { transfer, streams, bytes }),
        ("landed", Message::Landed { transfer }),
        ("abort", Message::Abort { transfer, failure }),
        ("done", notice(NoticeKind::Done { ranks, content })),
        ("cancel", notice(NoticeKind::Cancel { content: None })),
        ("renew", notice(NoticeKind::Renew { ttl_ms: 10_000 })),
        ("notice-heard", Message::NoticeHeard { id: 1, outcome: Ok(10_000) }),
        ("lanes", words::lanes_offered(&[7700, 7701], Nonce([8; 16]))),
    ]
}

/// Returns the messages with which a holder invites the owner to push, and those that it gets.
fn invitations() -> Vec<(&'static str, Message)> {
    let invitation = Invitation {
        id: 2,
        ticket: ticket(1, None),
        into: ticket(2, None),
        content: ContentDigest([3; 32]),
        lanes: 4,
        by_layer: false,
        paths: PathSet::ANY,
    };
    let (id, refusal) = (2, Refusal::NotYourBlocks);
    let outcome = Err(refusal);
    vec![
        ("invite", Message::Invite(invitation)),
        ("invited", Message::Invited { id, outcome: Ok(()) }),
        ("not-invited", Message::Invited { id, outcome }),
    ]
}

/// Returns the messages with which two agents negotiate paths.
fn lanes() -> Vec<(&'static str, Message)> {
    let socket = "transload-000102030405060708090a0b0c0d0e0f";
    let token = (Nonce([9; 16]), Nonce([10; 16]));
    vec![("lanes-wanted", words::lanes_wanted(4)), ("lanes-local", words::ring_offered(socket, token))]
}

fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let framed = |(sequence, (name, message)): (u64, (&'static str, Message))| {
        let envelope = Envelope { sequence, message };
        (name, frame::encode(&envelope).unwrap().to_vec())
    };
    let messages = greetings().into_iter().chain(talk());
    let messages = messages.chain(lanes()).chain(invitations());
    let mut seeds: Vec<_> = (1..).zip(messages).map(framed).collect();
    let all: Vec<u8> = seeds.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    let header = StreamHeader {
        transfer: TransferId([1; 16]),
        nonce: Nonce([2; 16]),
        stream: 3,
        offset: 1 << 20,
        length: 1 << 20,
    };
    let trailer = StreamTrailer { length: 1 << 20, crc: 0xe306_9283 };
    let stream = [&header.encode()[..], &[0; 32], &trailer.encode()].concat();
    let mut damaged = all.clone();
    damaged[200] ^= 0x55;
    let cut = all[..all.len() - 7].to_vec();
    seeds.extend([
        ("all-in-one", all),
        ("cut", cut),
        ("damaged", damaged),
        ("too-long", vec![0xff; 8]),
        ("data-stream", stream),
    ]);
    seeds
}

fn replay(target: &str, seeds: &[(&str, Vec<u8>)], check: fn(&[u8])) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folder = folder.join("../fuzz/corpus").join(target);
    if std::env::var_os("TRANSLOAD_BLESS").is_some() {
        fs::create_dir_all(&folder).unwrap();
        for (name, bytes) in seeds {
            fs::write(folder.join(name), bytes).unwrap();
        }
    }
    for (name, bytes) in seeds {
        let kept = fs::read(folder.join(name)).unwrap_or_default();
        assert_eq!(&kept, bytes, "{target}/{name} is not current: TRANSLOAD_BLESS=1 writes it");
    }
    let mut replayed = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        check(&fs::read(entry.unwrap().path()).unwrap());
        replayed += 1;
    }
    assert!(replayed >= seeds.len());
}

#[test]
fn tickets_are_replayed() {
    replay("ticket", &tickets(), ticket_check::check);
    let opened = |(_, bytes): &(&str, Vec<u8>)| {
        let text = std::str::from_utf8(bytes).ok()?;
        let ticket = Ticket::from_text(text).ok()?;
        ticket.open(&TicketKey::new(&ticket_check::SECRET)).ok()
    };
    assert_eq!(tickets().iter().filter_map(opened).count(), 2);
}

#[test]
fn frames_are_replayed() {
    replay("frame", &frames(), frame_check::check);
}
