//! One QUIC lane without plans, checksums or scattered memory: the limit of the network path.

use std::time::Instant;

use bytes::Bytes;
use transload_transfer::{
    identity::{Authority, Roles},
    ids::AgentId,
    quic::{Endpoints, Lane, LaneStats, QuicOptions},
};

use super::{BaselineError, Sink, Throughput, chunks, source};

/// What the receiver of [`raw_quic`] does with the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receiver {
    /// It counts them.
    Counts,
    /// It copies them into memory of its own, one after the other.
    Copies,
}

/// Pieces taken at once: about what arrives in one batch from the kernel.
const PIECES: usize = 64;

/// Sends `bytes` bytes in chunks of `chunk` bytes over one lane on loopback, by reference and not copied,
/// between two agents that authenticate each other. Also says what the sender's lane has seen.
///
/// # Errors
/// [`BaselineError`].
pub async fn raw_quic(
    options: &QuicOptions,
    receiver: Receiver,
    bytes: u64,
    chunk: usize,
) -> Result<(Throughput, LaneStats), BaselineError> {
    let authority = Authority::new("baseline".parse()?)?;
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let bind = |name: &str| -> Result<Endpoints, BaselineError> {
        let identity = authority.issue(&name.parse()?, Roles::NONE)?;
        let mut options = options.clone();
        options.lanes = 1;
        Ok(Endpoints::bind(identity, options, any)?)
    };
    let (sender, accepting) = (bind("sender")?, bind("receiver")?);

    let connecting = sender.connect(accepting.control_addr(), None);
    let (control, arrived) = tokio::join!(connecting, accepting.accept());
    let (control, arrived) = (control?, arrived.ok_or(BaselineError::Ended)?);
    let mut session = accepting.expect_lanes(&AgentId::from(&arrived.peer().service), 1)?;
    let peer = AgentId::from(&control.peer().service);
    let port = accepting.lane_ports().first().copied().unwrap_or_default();
    let lane = sender
        .connect_lane(0, (any.ip(), port).into(), &peer, session.token())
        .await?;
    let other = session.accept().await.ok_or(BaselineError::Ended)?;

    let receiving = other.clone().spawn(receive(other, receiver));
    let source = source();
    let start = Instant::now();
    let sending = lane
        .clone()
        .spawn(send(lane.clone(), chunks(source, bytes, chunk)));
    sending.await.map_err(|_| BaselineError::Ended)??;
    let (actual, end) = receiving.await.map_err(|_| BaselineError::Ended)??;
    if actual != bytes {
        return Err(BaselineError::Missing {
            expected: bytes,
            actual,
        });
    }
    let throughput = Throughput {
        bytes,
        elapsed: end.duration_since(start),
    };
    Ok((throughput, lane.stats()))
}

async fn send(lane: Lane, chunks: impl Iterator<Item = Bytes>) -> Result<(), BaselineError> {
    let mut stream = lane.open_stream().await?;
    for piece in chunks {
        stream.send_chunk(piece).await?;
    }
    stream.finish()?.await?;
    Ok(())
}

async fn receive(lane: Lane, receiver: Receiver) -> Result<(u64, Instant), BaselineError> {
    let mut sink = (receiver == Receiver::Copies).then(Sink::new);
    let mut stream = lane.accept_stream().await?;
    let mut pieces = vec![Bytes::new(); PIECES];
    let mut got = 0;
    while let Some(count) = stream.recv_chunks(&mut pieces).await? {
        for piece in &mut pieces[..count] {
            let piece = std::mem::take(piece);
            got += piece.len() as u64;
            if let Some(sink) = &mut sink {
                sink.copy(&piece);
            }
        }
    }
    Ok((got, Instant::now()))
}
