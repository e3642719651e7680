//! False greetings, and bytes that are no messages.

use std::time::Duration;

use tokio::time::sleep;
use transload_tests::cluster::{CLUSTER, Side};
use transload_tests::process::Chance;
use transload_transfer::internal::quic::ConnectError;
use transload_transfer::plan::ids::DeploymentDigest;
use transload_transfer::wire::HelloRefusal;
use transload_transfer::wire::message::{Hello, Message};
use transload_transfer::{AgentId, Authority, ClusterName, Roles};

use crate::peer::Hostile;
use crate::town::{Town, issue};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_breaks_the_protocol_is_hung_up_on() {
    let town = Town::new();
    let owner = &town.owner;
    let identity = || town.hostile(Roles::all());

    let stranger = Authority::new(ClusterName::new(CLUSTER).unwrap()).unwrap();
    let stranger = Hostile::endpoints(issue(&stranger, "hostile", Roles::all()));
    let refused = stranger.connect(owner.control_addr(), None).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Certificate { .. }), "{refused}");

    let garbage = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut chance = Chance(7);
    let ports = owner.endpoints().lane_ports().into_iter();
    for port in ports.chain([owner.control_addr().port()]) {
        for _ in 0..1000 {
            let length = chance.below(1400) as usize;
            let bytes: Vec<u8> = (0..length).map(|_| chance.draw() as u8).collect();
            garbage.send_to(&bytes, ("127.0.0.1", port)).unwrap();
        }
    }

    let mut silent = Hostile::silent(identity(), owner).await;
    assert!(silent.is_hung_up_on().await);
    let framed = |body: &[u8]| [&(body.len() as u32).to_le_bytes(), body].concat();
    let mut half = framed(&[1; 100]);
    half.truncate(50);
    for said in [
        framed(&[]),
        framed(&[1]),
        framed(&[0xFF; 100]),
        framed(&[1; 40_000]),
        framed(&[1; 70_000]),
        u32::MAX.to_le_bytes().to_vec(),
        half,
    ] {
        let mut hostile = Hostile::welcome(identity(), owner, Side::Decode).await;
        let _ = hostile.control.sender.send(said.into()).await;
        assert!(hostile.is_hung_up_on().await);
    }
    // A byte at a time keeps no message alive.
    let mut hostile = Hostile::welcome(identity(), owner, Side::Decode).await;
    for byte in framed(&[1; 200]) {
        if hostile.control.sender.send(vec![byte].into()).await.is_err() {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    assert!(hostile.is_hung_up_on().await);
    let mut hostile = Hostile::welcome(identity(), owner, Side::Decode).await;
    hostile.sequence += 1;
    hostile.say(Message::Welcome).await;
    assert!(hostile.is_hung_up_on().await);
    let mut hostile = Hostile::welcome(identity(), owner, Side::Decode).await;
    hostile.say(Message::Welcome).await;
    assert!(hostile.is_hung_up_on().await);

    // Those who are not welcome hear why.
    type Lie = fn(&mut Hello);
    type Matches = fn(&HelloRefusal) -> bool;
    let lies: [(Lie, Matches); 2] = [
        (|hello| hello.agent = AgentId::new("ordinary").unwrap(), |r| matches!(r, HelloRefusal::Agent)),
        (|hello| hello.deployment = DeploymentDigest([9; 32]), |r| matches!(r, HelloRefusal::Document { .. })),
    ];
    for (lie, matches) in lies {
        let mut hostile = Hostile::silent(identity(), owner).await;
        let (mut hello, document) = hostile.hello(Side::Decode);
        lie(&mut hello);
        hostile.say(Message::Hello(hello)).await;
        let refusal = loop {
            match hostile.hear().await.expect("a reason") {
                Message::DocumentWanted => {
                    let document = document.clone();
                    hostile.say(Message::Document { document }).await;
                }
                Message::Unwelcome(refusal) => break refusal,
                _ => {}
            }
        };
        assert!(matches(&refusal), "{refusal}");
        assert!(hostile.is_hung_up_on().await);
    }
    town.stays_well().await;
}
