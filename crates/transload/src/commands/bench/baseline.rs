//! Baselines: other ways of moving bytes on this machine.
//!
//! Each baseline sends bytes between two threads over loopback, with the certificates and mutual authentication of
//! agents.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use bytes::Bytes;
use rustls::{ClientConnection, ServerConnection, Stream};
use transload::transfer::internal::quic::{Endpoints, Lane};
use transload::transfer::internal::tls;
use transload::transfer::{AgentId, Authority, Identity, QuicOptions, Roles};

/// The rate in GB/s from the first write to the last byte's arrival, or the reason why it could not be measured.
pub(super) type Speed = Result<f64, Failed>;
pub(super) type Failed = Box<dyn Error + Send + Sync>;

/// The size of the senders' and receivers' memory in bytes. It exceeds a core's last-level cache, so that neither side
/// works from its caches.
const REGION: usize = 64 << 20;

/// The size of each write in bytes; larger ones are not faster.
const WRITE: usize = 1 << 20;

/// The read buffer of the TLS receiver in bytes. Larger buffers were not faster.
const READ: usize = 256 << 10;

/// The pieces that a lane's receiver takes at once: about one batch of the kernel.
const PIECES: usize = 64;

fn identities() -> Result<[Identity; 2], Failed> {
    let authority = Authority::new("baseline".parse()?)?;
    let issue = |name: &str| authority.issue(&name.parse().expect("a name"), Roles::NONE);
    Ok([issue("sender")?, issue("receiver")?])
}

/// Returns writes of `bytes` in total, from memory whose pages are already mapped.
fn writes(bytes: u64) -> impl Iterator<Item = Bytes> + Send {
    let source: Bytes = (0..REGION).map(|i| (i >> 3) as u8).collect();
    (0..bytes).step_by(WRITE).map(move |from| {
        let at = from as usize % REGION;
        source.slice(at..at + WRITE.min((bytes - from) as usize))
    })
}

fn speed(expected: u64, actual: u64, took: std::time::Duration) -> Speed {
    match actual == expected {
        true => Ok(expected as f64 / took.as_secs_f64() / 1e9),
        false => Err(format!("{actual} of {expected} bytes arrived").into()),
    }
}

/// Sends bytes over one QUIC lane, by reference, to a receiver that copies them into its own memory. This is the limit
/// of the network path, without plans, checksums or scattered memory.
pub(super) async fn raw_quic(bytes: u64) -> Speed {
    let options = QuicOptions { lanes: 1, ..QuicOptions::default() };
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let [sender, receiver] = identities()?;
    let sender = Endpoints::bind(sender, options.clone(), any)?;
    let accepting = Endpoints::bind(receiver, options, any)?;
    let connecting = sender.connect(accepting.control_addr(), None);
    let (control, arrived) = tokio::join!(connecting, accepting.accept());
    let (control, arrived) = (control?, arrived.ok_or("the endpoint was closed")?);
    let mut session = accepting.expect_lanes(&AgentId::from(&arrived.peer().service), 1)?;
    let peer = AgentId::from(&control.peer().service);
    let port = accepting.lane_ports().first().copied().unwrap_or_default();
    let connecting = sender.connect_lane(0, (any.ip(), port).into(), &peer, session.token());
    let lane = connecting.await?;
    let other = session.accept().await.ok_or("the endpoint was closed")?;

    let receiving = other.clone().spawn(receive(other));
    let writes = writes(bytes);
    let start = Instant::now();
    let sending = lane.clone().spawn(send(lane, writes));
    sending.await??;
    let (actual, end) = receiving.await??;
    speed(bytes, actual, end.duration_since(start))
}

async fn send(lane: Lane, writes: impl Iterator<Item = Bytes>) -> Result<(), Failed> {
    let mut stream = lane.open_stream().await?;
    for piece in writes {
        stream.send_chunk(piece).await?;
    }
    stream.finish()?.await?;
    Ok(())
}

async fn receive(lane: Lane) -> Result<(u64, Instant), Failed> {
    // Filled with ones, so that the pages are mapped before the clock starts.
    let mut memory = vec![1; REGION];
    let mut stream = lane.accept_stream().await?;
    let mut pieces = vec![Bytes::new(); PIECES];
    let (mut got, mut at) = (0, 0);
    while let Some(count) = stream.recv_chunks(&mut pieces).await? {
        for piece in pieces[..count].iter_mut().map(std::mem::take) {
            if at + piece.len() > REGION {
                at = 0;
            }
            memory[at..at + piece.len()].copy_from_slice(&piece);
            at += piece.len();
            got += piece.len() as u64;
        }
    }
    Ok((got, Instant::now()))
}

/// Sends bytes over TCP with TLS 1.3, without an async runtime, as the competitor of QUIC. The receiver decrypts and
/// counts.
pub(super) fn tcp_rustls(bytes: u64) -> Speed {
    let [sender, receiver] = identities()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let addr = listener.local_addr()?;
    let receiving = thread::spawn(move || -> Result<(u64, Instant), Failed> {
        let (mut tcp, _) = listener.accept()?;
        let mut tls = ServerConnection::new(receiver.tls().server())?;
        let mut stream = Stream::new(&mut tls, &mut tcp);
        let (mut buffer, mut got) = (vec![0; READ], 0);
        while got < bytes {
            match stream.read(&mut buffer)? {
                0 => break,
                count => got += count as u64,
            }
        }
        Ok((got, Instant::now()))
    });
    let mut tcp = TcpStream::connect(addr)?;
    tcp.set_nodelay(true)?;
    let mut tls = ClientConnection::new(sender.tls().client(None), tls::server_name())?;
    tls.set_buffer_limit(Some(WRITE));
    while tls.is_handshaking() {
        tls.complete_io(&mut tcp)?;
    }
    let writes = writes(bytes);
    let start = Instant::now();
    let mut stream = Stream::new(&mut tls, &mut tcp);
    for piece in writes {
        stream.write_all(&piece)?;
    }
    stream.flush()?;
    let (actual, end) = receiving.join().map_err(|_| "its thread panicked")??;
    speed(bytes, actual, end.duration_since(start))
}
