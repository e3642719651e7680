//! One QUIC lane without plans, checksums or scattered memory: the limit of the network path.

use std::time::Instant;

use bytes::Bytes;
use transload::transfer::identity::{Authority, Roles, random_cluster_name};
use transload::transfer::transport::quic::{Endpoints, Lane, QuicOptions};

use super::{BaselineError, Sink, source, speed, writes};

/// Pieces taken at once: about what arrives in one batch from the kernel.
const PIECES: usize = 64;

/// Sends so many bytes over one lane, lent and not copied, to a receiver that copies them into
/// memory of its own. In GB/s from the first write to the last byte's arrival.
pub(in super::super) async fn raw_quic(bytes: u64) -> Result<f64, BaselineError> {
    let authority = Authority::new(random_cluster_name()?)?;
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let bind = |name: &str| -> Result<Endpoints, BaselineError> {
        let identity = authority.issue(&name.parse()?, Roles::NONE)?;
        let mut options = QuicOptions::default();
        options.lanes = 1;
        Ok(Endpoints::bind(identity, options, any)?)
    };
    let (sender, accepting) = (bind("sender")?, bind("receiver")?);

    let connecting = sender.connect(accepting.control_addr(), None);
    let (control, arrived) = tokio::join!(connecting, accepting.accept());
    let (control, arrived) = (control?, arrived.ok_or(BaselineError::Ended)?);
    let mut session = accepting.expect_lanes(arrived.peer(), 1)?;
    let port = accepting.lane_ports().first().copied().unwrap_or_default();
    let lane = sender
        .connect_lane(0, (any.ip(), port).into(), control.peer(), session.token())
        .await?;
    let other = session.accept().await.ok_or(BaselineError::Ended)?;

    let receiving = other.clone().spawn(receive(other, Sink::new()));
    let source = source();
    let start = Instant::now();
    let sending = lane.clone().spawn(send(lane, writes(source, bytes)));
    sending.await.map_err(|_| BaselineError::Ended)??;
    let (actual, end) = receiving.await.map_err(|_| BaselineError::Ended)??;
    speed(bytes, actual, end.duration_since(start))
}

async fn send(lane: Lane, writes: impl Iterator<Item = Bytes>) -> Result<(), BaselineError> {
    let mut stream = lane.open_stream().await?;
    for piece in writes {
        stream.send_chunk(piece).await?;
    }
    stream.finish()?.wait().await?;
    Ok(())
}

async fn receive(lane: Lane, mut sink: Sink) -> Result<(u64, Instant), BaselineError> {
    let mut stream = lane.accept_stream().await?;
    let mut pieces = vec![Bytes::new(); PIECES];
    let mut got = 0;
    while let Some(count) = stream.recv_chunks(&mut pieces).await? {
        for piece in &mut pieces[..count] {
            let piece = std::mem::take(piece);
            got += piece.len() as u64;
            sink.copy(&piece);
        }
    }
    Ok((got, Instant::now()))
}
