//! Endpoints against themselves and against peers that misbehave.

use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;

use super::*;
use crate::identity::{Authority, Identity, Roles};
use crate::ids::{AgentId, ClusterName};

fn authority() -> Authority {
    Authority::new("test".parse::<ClusterName>().unwrap()).unwrap()
}

fn identity(authority: &Authority, name: &str) -> Identity {
    let agent: AgentId = name.parse().unwrap();
    authority.issue(&agent, Roles::all()).unwrap()
}

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn endpoints(authority: &Authority, name: &str) -> Endpoints {
    Endpoints::bind(
        identity(authority, name),
        QuicOptions::default(),
        loopback(),
    )
    .unwrap()
}

#[tokio::test]
async fn messages_and_streams_get_across() {
    let authority = authority();
    let (a, b) = (endpoints(&authority, "a"), endpoints(&authority, "b"));
    let (ours, theirs) = tokio::join!(a.connect(b.control_addr(), None), b.accept());
    let (mut ours, mut theirs) = (ours.unwrap(), theirs.unwrap());
    assert_eq!(ours.peer().agent.as_str(), "b");
    assert_eq!(theirs.peer().agent.as_str(), "a");
    ours.send(1, b"hello").await.unwrap();
    let frame = theirs.recv().await.unwrap();
    assert_eq!((frame.version, &frame.payload[..]), (1, &b"hello"[..]));

    let mut session = b.expect_lanes(theirs.peer(), 1).unwrap();
    let addr = (Ipv4Addr::LOCALHOST, b.lane_ports()[0]).into();
    let lane = a
        .connect_lane(0, addr, ours.peer(), session.token())
        .await
        .unwrap();
    let other = session.accept().await.unwrap();
    let mut sender = lane.open_stream().await.unwrap();
    let tracker = LendTracker::new();
    let sent = vec![7_u8; 3 << 20];
    let chunk = tracker.lend(sent.clone());
    let receiving = tokio::spawn(async move {
        let mut stream = other.accept_stream().await.unwrap();
        let mut got = Vec::new();
        while let Some(chunk) = stream.recv_chunk(usize::MAX).await.unwrap() {
            got.extend_from_slice(&chunk);
        }
        got
    });
    sender.send_chunk(chunk).await.unwrap();
    sender.send_chunk(Bytes::from_static(b"end")).await.unwrap();
    sender.finish().unwrap().wait().await.unwrap();
    tracker.back().await;
    let got = receiving.await.unwrap();
    assert_eq!(got.len(), sent.len() + 3);
    assert!(got.starts_with(&sent) && got.ends_with(b"end"));
    a.close(CloseCode::DONE, "bye").await;
    assert!(matches!(
        theirs.recv().await,
        Err(FrameError::Lost(ConnectionLost::ClosedByPeer {
            code: CloseCode::DONE,
            ..
        }))
    ));
}
