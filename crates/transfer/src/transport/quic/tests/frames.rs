//! Control messages.

use super::*;

#[tokio::test]
async fn messages_of_every_size_get_across_in_order() {
    let Pair {
        a: _a,
        b: _b,
        mut at_a,
        mut at_b,
    } = Pair::new().await;
    let limit = impatient().max_frame as usize - 1;
    let sizes = [0, 1, 3, 4, 5, 1000, 1452, 40_000, limit];
    for (version, size) in (0_u8..).zip(sizes) {
        at_a.send(version, &vec![version; size]).await.unwrap();
    }
    for (version, size) in (0_u8..).zip(sizes) {
        let frame = at_b.recv().await.unwrap();
        assert_eq!(frame.version, version);
        assert_eq!(frame.payload, vec![version; size]);
    }
    assert_eq!(
        at_a.send(0, &vec![0; limit + 1]).await.unwrap_err(),
        FrameError::TooLarge {
            limit: limit + 1,
            actual: limit + 2
        }
    );
    // A message that was too large changes nothing.
    at_a.send(9, b"still here").await.unwrap();
    assert_eq!(at_b.recv().await.unwrap().version, 9);
    at_b.send(1, b"and back").await.unwrap();
    assert_eq!(&at_a.recv().await.unwrap().payload[..], b"and back");
}

#[tokio::test]
async fn receiving_may_be_cancelled_anywhere() {
    let Pair {
        a: _a,
        b: _b,
        mut at_a,
        mut at_b,
    } = Pair::new().await;
    let sending = tokio::spawn(async move {
        for i in 0..200_u8 {
            at_a.send(i, &vec![i; 5000]).await.unwrap();
        }
        at_a
    });
    let mut expected = 0;
    while expected < 200 {
        tokio::select! {
            biased;
            frame = at_b.recv() => {
                let frame = frame.unwrap();
                assert_eq!((frame.version, frame.payload.len()), (expected, 5000));
                expected += 1;
            }
            () = tokio::task::yield_now() => {}
        }
    }
    drop(sending.await.unwrap());
    assert!(matches!(
        at_b.recv().await,
        Err(FrameError::Lost(_) | FrameError::Ended)
    ));
}

#[tokio::test]
async fn a_cancelled_message_goes_out_whole_later() {
    let pair = Pair::new().await;
    let (mut sender, _receiver) = pair.at_a.split();
    let mut at_b = pair.at_b;
    let large = vec![7; 60_000];
    // Fill the stream until sending has to wait, and then stop waiting.
    let mut sent = 0;
    loop {
        let send = sender.send(1, &large);
        sent += 1;
        if tokio::time::timeout(Duration::from_millis(50), send)
            .await
            .is_err()
        {
            break;
        }
    }
    let receiving = tokio::spawn(async move {
        for _ in 0..sent {
            assert_eq!(at_b.recv().await.unwrap().payload.len(), 60_000);
        }
        assert_eq!(&at_b.recv().await.unwrap().payload[..], b"last");
    });
    sender.send(1, b"last").await.unwrap();
    receiving.await.unwrap();
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_given_up() {
    let Pair {
        a: _a,
        b: _b,
        mut at_a,
        at_b: _not_read,
    } = Pair::new().await;
    let large = vec![0; 60_000];
    let error = loop {
        if let Err(error) = at_a.send(1, &large).await {
            break error;
        }
    };
    assert_eq!(
        error,
        FrameError::TimedOut {
            after: impatient().frame_timeout
        }
    );
    assert_eq!(at_a.closed().await, ConnectionLost::ClosedHere);
}

/// A connection that has said what it is for, and from there on says what it likes.
async fn misbehaving() -> (
    Endpoints,
    ControlConnection,
    quinn::Connection,
    quinn::SendStream,
) {
    let authority = authority();
    let server = bind(&authority, "server", impatient());
    let connection = Stranger::traitor(&authority)
        .connect(server.control_addr())
        .await
        .unwrap();
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(super::super::acceptor::CONTROL_PREAMBLE)
        .await
        .unwrap();
    let mut answer = [0; 4];
    receive.read_exact(&mut answer).await.unwrap();
    let control = server.accept().await.unwrap();
    (server, control, connection, send)
}

async fn received_after(bytes: &[u8], then_end: bool) -> FrameError {
    let (_server, mut control, connection, mut send) = misbehaving().await;
    send.write_all(bytes).await.unwrap();
    if then_end {
        send.finish().unwrap();
    }
    let error = control.recv().await.unwrap_err();
    // Whoever breaks the framing is told off and gone.
    assert!(matches!(
        connection.closed().await,
        quinn::ConnectionError::ApplicationClosed(_)
    ));
    error
}

#[tokio::test]
async fn oversized_and_broken_messages_end_the_connection() {
    let limit = impatient().max_frame as usize;
    for actual in [limit + 1, 1 << 24, u32::MAX as usize] {
        let header = (actual as u32).to_be_bytes();
        assert_eq!(
            received_after(&header, false).await,
            FrameError::TooLarge { limit, actual }
        );
    }
    assert_eq!(received_after(&[0; 4], false).await, FrameError::Empty);
    assert_eq!(
        received_after(&[0, 0, 0, 9, 1, 2], true).await,
        FrameError::Truncated
    );
    assert_eq!(received_after(&[0, 0], true).await, FrameError::Truncated);
    assert_eq!(received_after(&[], true).await, FrameError::Ended);
    // Half a message, and then nothing.
    assert_eq!(
        received_after(&[0, 0, 0, 9, 1, 2], false).await,
        FrameError::TimedOut {
            after: impatient().frame_timeout
        }
    );
}

#[tokio::test]
async fn a_trickle_of_bytes_does_not_keep_a_message_alive() {
    let (_server, mut control, _connection, mut send) = misbehaving().await;
    let trickle = tokio::spawn(async move {
        let message = [&200_u32.to_be_bytes()[..], &[1; 200]].concat();
        for byte in message {
            if send.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(matches!(
        control.recv().await.unwrap_err(),
        FrameError::TimedOut { .. }
    ));
    trickle.await.unwrap();
}

#[tokio::test]
async fn garbage_instead_of_messages_ends_the_connection() {
    let (server, mut control, connection, mut send) = misbehaving().await;
    let garbage: Vec<u8> = (0..100_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let _ = send.write_all(&garbage).await;
    let error = loop {
        match control.recv().await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, FrameError::TooLarge { .. }), "{error:?}");
    connection.closed().await;
    drop(server);
}
