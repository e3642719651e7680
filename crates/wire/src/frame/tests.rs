use proptest::prelude::*;
use transload_plan::Request;
use transload_plan::codec::Codec;
use transload_plan::content::ContentDigest;
use transload_plan::ids::{AgentId, ClusterName, DeploymentDigest, Incarnation, Nonce, PlanDigest, Rank, TransferId};

use super::*;
use crate::message::{Ask, Hello, MAX_DOCUMENT, Message, Notice, NoticeKind};
use crate::path::negotiation::MAX_WORD;
use crate::path::{Path, PathSet};
use crate::refusal::{Difference, Failure, HelloRefusal, Refusal};
use crate::ticket::{MAX_RANKS, MAX_TICKET, Ticket};
use crate::waiting::Awaited;

fn ticket() -> Ticket {
    Ticket::from_text(&format!("tl1.{}", "A".repeat(MAX_TICKET - 4))).unwrap()
}

pub(crate) fn samples() -> Vec<Message> {
    let transfer = TransferId([1; 16]);
    let ask = Ask {
        transfer,
        nonce: Nonce([2; 16]),
        ticket: ticket(),
        source: Rank(u32::MAX),
        destination: Rank(0),
        request: Request { start: u64::MAX, tokens: u64::MAX, by_layer: true, codec: Codec::Exact },
        content: ContentDigest([3; 32]),
        plan: PlanDigest([4; 32]),
        lanes: 8,
        paths: PathSet::ANY,
        attempt: u32::MAX,
    };
    let ranks: Vec<_> = (0..MAX_RANKS as u32).map(|r| Rank(u32::MAX - r)).collect();
    let long = "\u{1F980}".repeat(MAX_FRAME);
    let difference =
        Difference { field: long.as_str().into(), ours: long.clone().into(), theirs: long.as_str().into() };
    vec![
        Message::Hello(Hello {
            versions: (1, u16::MAX),
            cluster: ClusterName::new("c".repeat(64)).unwrap(),
            agent: AgentId::new("a".repeat(64)).unwrap(),
            incarnation: Incarnation(u128::MAX),
            deployment: DeploymentDigest([5; 32]),
            ranks: ranks.clone(),
            codecs: Codec::ALL.to_vec(),
        }),
        Message::DocumentWanted,
        Message::Document { document: vec![7; MAX_DOCUMENT] },
        Message::Welcome,
        Message::Unwelcome(HelloRefusal::Specs(difference)),
        Message::Pull(ask.clone()),
        Message::Push(ask),
        Message::Refused { transfer, refusal: Refusal::Unplannable { why: long.as_str().into() } },
        Message::Accepted { transfer, path: Path::RING },
        Message::Waiting { transfer, on: Awaited::Prefill },
        Message::Commit { transfer, streams: 640, bytes: u64::MAX },
        Message::Landed { transfer },
        Message::Abort { transfer, failure: Failure::StreamBroken { why: long.into() } },
        Message::Notice(Notice {
            id: u64::MAX,
            ticket: ticket(),
            says: NoticeKind::Done { ranks, content: ContentDigest([6; 32]) },
        }),
        Message::NoticeHeard { id: 1, outcome: Err(Refusal::Forged) },
        Message::Path { path: Path::QUIC, word: vec![7; MAX_WORD] },
        Message::Path { path: Path::RING, word: Vec::new() },
    ]
}

fn envelopes() -> Vec<Envelope> {
    let numbered = (u64::MAX - 100..).zip(samples());
    numbered.map(|(sequence, message)| Envelope { sequence, message }).collect()
}

#[test]
fn every_message_fits_a_frame_and_comes_back() {
    for envelope in envelopes() {
        let frame = encode(&envelope).unwrap();
        assert!(frame.len() <= MAX_FRAME);
        assert_eq!(decode(&frame[LENGTH..]), Ok(envelope));
    }
}

#[test]
fn a_reader_finds_frames_however_they_are_cut() {
    let envelopes = envelopes();
    let stream: Vec<u8> = envelopes.iter().flat_map(|e| encode(e).unwrap()).collect();
    for cut in [1, 3, 7, 1000, MAX_FRAME, stream.len()] {
        let mut reader = FrameReader::new();
        let mut found = Vec::new();
        for piece in stream.chunks(cut) {
            reader.push(piece);
            let whole = std::iter::from_fn(|| reader.next());
            found.extend(whole.map(|body| decode(&body.unwrap()).unwrap()));
        }
        assert_eq!(found, envelopes);
        assert!(reader.is_between_frames());
    }
}

#[test]
fn frames_are_read_strictly() {
    let envelope = Envelope { sequence: 1, message: Message::Welcome };
    let frame = encode(&envelope).unwrap().to_vec();
    let with = |frame: &[u8]| {
        let mut reader = FrameReader::new();
        reader.push(frame);
        let read = reader.next()?;
        Some(read.and_then(|body| decode(&body)))
    };
    assert_eq!(with(&frame[..frame.len() - 1]), None, "not all there");
    let mut longer = frame.clone();
    longer.push(0);
    longer[0] += 1;
    assert_eq!(with(&longer), Some(Err(FrameError::Trailing { bytes: 1 })));
    let mut other = frame.clone();
    other[LENGTH] = 2;
    assert_eq!(with(&other), Some(Err(FrameError::Version { found: 2 })));
    let mut unknown = frame;
    *unknown.last_mut().unwrap() = 0x7f;
    assert_eq!(with(&unknown), Some(Err(FrameError::Message)));
    assert_eq!(with(&[0; 4]), Some(Err(FrameError::Empty)));
    let bytes = MAX_FRAME + 1;
    assert_eq!(
        with(&((bytes - LENGTH) as u32).to_le_bytes()),
        Some(Err(FrameError::TooLong { bytes })),
        "before a byte of it is kept"
    );
}

#[test]
fn what_outgrows_a_frame_is_not_sent() {
    let document = vec![0; MAX_FRAME];
    let envelope = Envelope { sequence: 1, message: Message::Document { document } };
    assert!(matches!(encode(&envelope), Err(FrameError::TooLong { .. })));
}

#[test]
fn nothing_secret_is_printed() {
    let printed = format!("{:?}", envelopes());
    assert!(!printed.contains("AAAA"), "tickets");
    assert!(!printed.contains("Nonce(["), "nonces");
}

proptest! {
    #[test]
    fn garbage_never_panics(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(envelope) = decode(&body) {
            // A number can have several encodings, but only one meaning.
            let again = encode(&envelope).unwrap();
            prop_assert_eq!(decode(&again[LENGTH..]), Ok(envelope));
        }
    }

    #[test]
    fn damaged_frames_never_panic(which in 0..samples().len(), at in any::<usize>(), to in any::<u8>()) {
        let mut frame = encode(&envelopes()[which]).unwrap().to_vec();
        let at = LENGTH + at % (frame.len() - LENGTH);
        frame[at] = to;
        let _ = decode(&frame[LENGTH..]);
    }
}
