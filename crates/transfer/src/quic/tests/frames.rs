//! Control messages.

use super::*;
use crate::quic::error::ControlError;
use transload_wire::internal::frame::{FrameError, MAX_FRAME};

#[tokio::test]
async fn messages_of_every_size_get_across_in_order() {
    let Pair { a: _a, b: _b, mut at_a, mut at_b } = Pair::new().await;
    let sizes = [1, 3, 4, 5, 1000, 1452, 40_000, MAX_FRAME - 4];
    for (fill, size) in (0_u8..).zip(sizes) {
        at_a.sender.send(framed(&vec![fill; size])).await.unwrap();
    }
    for (fill, size) in (0_u8..).zip(sizes) {
        assert_eq!(at_b.receiver.recv().await.unwrap(), vec![fill; size]);
    }
    at_b.sender.send(framed(b"and back")).await.unwrap();
    assert_eq!(at_a.receiver.recv().await.unwrap(), &b"and back"[..]);
}

#[tokio::test]
async fn receiving_may_be_cancelled_anywhere() {
    let Pair { a: _a, b: _b, mut at_a, mut at_b } = Pair::new().await;
    let sending = tokio::spawn(async move {
        for i in 0..200_u8 {
            at_a.sender.send(framed(&[i; 5000])).await.unwrap();
        }
        at_a
    });
    let mut expected = 0;
    while expected < 200 {
        tokio::select! {
            biased;
            frame = at_b.receiver.recv() => {
                assert_eq!(frame.unwrap(), vec![expected; 5000]);
                expected += 1;
            }
            () = tokio::task::yield_now() => {}
        }
    }
    drop(sending.await.unwrap());
    assert!(matches!(at_b.receiver.recv().await, Err(ControlError::Lost(_) | ControlError::Ended)));
}

#[tokio::test]
async fn a_cancelled_message_goes_out_whole_later() {
    let pair = Pair::new().await;
    let ControlConnection { mut sender, receiver: _receiver } = pair.at_a;
    let mut at_b = pair.at_b;
    let large = framed(&[7; 60_000]);
    // Fill the stream until sending has to wait, and then stop waiting.
    let mut sent = 0;
    loop {
        let send = sender.send(large.clone());
        sent += 1;
        if tokio::time::timeout(Duration::from_millis(50), send).await.is_err() {
            break;
        }
    }
    let receiving = tokio::spawn(async move {
        for _ in 0..sent {
            assert_eq!(at_b.receiver.recv().await.unwrap().len(), 60_000);
        }
        assert_eq!(at_b.receiver.recv().await.unwrap(), &b"last"[..]);
    });
    sender.send(framed(b"last")).await.unwrap();
    receiving.await.unwrap();
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_given_up() {
    let Pair { a: _a, b: _b, mut at_a, at_b: _not_read } = Pair::new().await;
    let large = framed(&[0; 60_000]);
    let error = loop {
        if let Err(error) = at_a.sender.send(large.clone()).await {
            break error;
        }
    };
    assert_eq!(error, ControlError::TimedOut { after: impatient().frame_timeout });
    assert_eq!(at_a.closed().await, ConnectionLost::ClosedHere);
}

/// Makes a connection that states its purpose, and then sends arbitrary bytes.
async fn misbehaving() -> (Endpoints, ControlConnection, quinn::Connection, quinn::SendStream) {
    let authority = authority();
    let server = bind(&authority, "server", impatient());
    let connection = Stranger::traitor(&authority).connect(server.control_addr()).await.unwrap();
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(super::super::acceptor::CONTROL_PREAMBLE).await.unwrap();
    let mut answer = [0; 4];
    receive.read_exact(&mut answer).await.unwrap();
    let control = server.accept().await.unwrap();
    (server, control, connection, send)
}

async fn received_after(bytes: &[u8], then_end: bool) -> ControlError {
    let (_server, mut control, connection, mut send) = misbehaving().await;
    send.write_all(bytes).await.unwrap();
    if then_end {
        send.finish().unwrap();
    }
    let error = control.receiver.recv().await.unwrap_err();
    // Whoever breaks the framing is told off and gone.
    assert!(matches!(connection.closed().await, quinn::ConnectionError::ApplicationClosed(_)));
    error
}

#[tokio::test]
async fn oversized_and_broken_messages_end_the_connection() {
    for bytes in [MAX_FRAME + 1, 1 << 24, u32::MAX as usize] {
        let header = (bytes as u32 - 4).to_le_bytes();
        assert_eq!(received_after(&header, false).await, ControlError::Frame(FrameError::TooLong { bytes }));
    }
    let empty = ControlError::Frame(FrameError::Empty);
    assert_eq!(received_after(&[0; 4], false).await, empty);
    assert_eq!(received_after(&[9, 0, 0, 0, 1, 2], true).await, ControlError::Truncated);
    assert_eq!(received_after(&[0, 0], true).await, ControlError::Truncated);
    assert_eq!(received_after(&[], true).await, ControlError::Ended);
    // Half a message, and then nothing.
    assert_eq!(
        received_after(&[9, 0, 0, 0, 1, 2], false).await,
        ControlError::TimedOut { after: impatient().frame_timeout }
    );
}

#[tokio::test]
async fn a_trickle_of_bytes_does_not_keep_a_message_alive() {
    let (_server, mut control, _connection, mut send) = misbehaving().await;
    let trickle = tokio::spawn(async move {
        let message = [&200_u32.to_le_bytes()[..], &[1; 200]].concat();
        for byte in message {
            if send.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(matches!(control.receiver.recv().await.unwrap_err(), ControlError::TimedOut { .. }));
    trickle.await.unwrap();
}

#[tokio::test]
async fn garbage_instead_of_messages_ends_the_connection() {
    let (server, mut control, connection, mut send) = misbehaving().await;
    let garbage: Vec<u8> = (0..100_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let _ = send.write_all(&garbage).await;
    let error = loop {
        match control.receiver.recv().await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    let too_long = matches!(error, ControlError::Frame(FrameError::TooLong { .. }));
    assert!(too_long, "{error:?}");
    connection.closed().await;
    drop(server);
}
