//! Tests of a server that is left alone after failures and used again once it begins to answer.

use std::time::Duration;

use tokio::time::sleep;
use transload_test_servers::End;

use crate::case::{Bytes, Case, Knobs, Leg};
use crate::play;
use crate::rig::Rig;

#[tokio::test]
async fn a_prefill_server_is_taken_back_when_its_answer_begins() {
    let case = Case { body: Bytes(b"{}".to_vec()), ..Case::default() };
    let rig = Rig::start(&case).await;
    let (prefill, decode) = (&rig.prefill[0], &rig.decode[0]);
    let breaks = || Leg { mute: true, end: End::Reset, ..Leg::default() };
    // The head arrives, but the rest of the answer does not.
    let begins = || Leg { cut: Some(1), end: End::Silence, ..Leg::good() };
    let legs = [breaks(), breaks(), breaks(), begins(), Leg::good()];
    play::legs(&rig, prefill, &legs);
    play::legs(&rig, decode, &vec![Leg::good(); 5]);
    let ask = || play::client(&rig, &case, &[]);
    for _ in 0..4 {
        ask().await.expect("an answer");
    }
    assert_eq!(prefill.seen().len(), 3, "it is left alone");
    sleep(Duration::from_millis(2_100)).await;
    tokio::select! {
        _ = ask() => panic!("the prefill does not end"),
        () = async {
            // These are far fewer requests than fit into the pause after which the server would be tried again anyway.
            for _ in 0..100 {
                sleep(Duration::from_millis(5)).await;
                match prefill.seen().len() {
                    4 => drop(ask().await.expect("an answer")),
                    5 => break,
                    _ => {}
                }
            }
        } => {}
    }
    assert_eq!(prefill.seen().len(), 5, "it is taken back");
}

#[tokio::test]
async fn a_server_that_breaks_what_is_passed_through_is_left_alone() {
    let case = Case {
        request: "POST /v1/embeddings".to_owned(),
        body: Bytes(b"{}".to_vec()),
        settings: Knobs { proxy: true, decodes: Some(2), ..Knobs::default() },
        ..Case::default()
    };
    let rig = Rig::start(&case).await;
    let (breaking, other) = (&rig.decode[0], &rig.decode[1]);
    let breaks = Leg { cut: Some(1), end: End::Reset, ..Leg::good() };
    play::legs(&rig, breaking, &vec![breaks; 8]);
    play::legs(&rig, other, &vec![Leg::good(); 8]);
    for _ in 0..8 {
        // Half of the first answers break off.
        let _ = play::client(&rig, &case, &[]).await;
    }
    assert_eq!(breaking.seen().len(), 3, "it is left alone");
    assert_eq!(other.seen().len(), 5);
}

#[tokio::test]
async fn a_server_of_sglang_is_tried_again_after_a_pause() {
    let case = Case {
        prefiller: String::new(),
        body: Bytes(b"{}".to_vec()),
        settings: Knobs { proxy: true, connector: "sglang".to_owned(), ..Knobs::default() },
        ..Case::default()
    };
    let rig = Rig::start(&case).await;
    let (prefill, decode) = (&rig.prefill[0], &rig.decode[0]);
    let fails = || Leg { status: 500, ..Leg::good() };
    let legs = [fails(), fails(), fails(), Leg::good()];
    play::legs(&rig, prefill, &legs);
    play::legs(&rig, decode, &vec![Leg { delay_ms: 100, ..Leg::good() }; 10]);
    for _ in 0..4 {
        play::client(&rig, &case, &[]).await.expect("an answer");
    }
    assert_eq!(prefill.seen().len(), 3, "it is left alone");
    sleep(Duration::from_millis(2_100)).await;
    play::client(&rig, &case, &[]).await.expect("an answer");
    assert_eq!(prefill.seen().len(), 4, "it is tried again");
}

#[tokio::test]
async fn retries_of_a_request_are_not_cut_short() {
    let case =
        Case { body: Bytes(b"{}".to_vec()), settings: Knobs { retries: 5, ..Knobs::default() }, ..Case::default() };
    let rig = Rig::start(&case).await;
    let fails = Leg { status: 503, ..Leg::good() };
    play::legs(&rig, &rig.prefill[0], &[&vec![fails; 5][..], &[Leg::good()]].concat());
    play::legs(&rig, &rig.decode[0], &[Leg::good()]);
    play::client(&rig, &case, &[]).await.expect("an answer");
    assert_eq!(rig.prefill[0].seen().len(), 6);
}

#[tokio::test]
async fn a_prefill_that_is_costly_blames_no_server_that_is_well() {
    let case = Case {
        body: Bytes(b"{}".to_vec()),
        settings: Knobs { prefill_timeout_ms: Some(100), ..Knobs::default() },
        ..Case::default()
    };
    let rig = Rig::start(&case).await;
    let (prefill, decode) = (&rig.prefill[0], &rig.decode[0]);
    let silent = || Leg { mute: true, end: End::Silence, ..Leg::default() };
    // Each prefill times out. After the third the server is probed, and reports that it is well.
    let legs = [silent(), silent(), silent(), Leg::good(), silent()];
    play::legs(&rig, prefill, &legs);
    play::legs(&rig, decode, &vec![Leg::good(); 4]);
    for seen in [1, 2, 4, 5] {
        play::client(&rig, &case, &[]).await.expect("an answer");
        for _ in 0..1_000 {
            if prefill.seen().len() == seen {
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(prefill.seen().len(), seen, "it is not left alone");
    }
}
