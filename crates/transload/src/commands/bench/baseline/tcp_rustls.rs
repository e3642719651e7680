//! TCP with TLS 1.3, mutually authenticated: what QUIC has to beat.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use rustls::{ClientConnection, ServerConnection, Stream};
use transload::transfer::identity::{Authority, Identity, Roles, random_cluster_name, tls};

use super::{BaselineError, WRITE, source, speed, writes};

/// What the receiver reads at once. Larger buffers were not faster.
const READ: usize = 256 << 10;

/// Sends so many bytes from one thread to another, without an async runtime in between. The receiver
/// decrypts them into one buffer, and looks at none. In GB/s from the first write to the last byte's
/// arrival.
pub(in super::super) fn tcp_rustls(bytes: u64) -> Result<f64, BaselineError> {
    let authority = Authority::new(random_cluster_name()?)?;
    let sender = authority.issue(&"sender".parse()?, Roles::NONE)?;
    let receiver = authority.issue(&"receiver".parse()?, Roles::NONE)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let addr = listener.local_addr()?;
    let receiving = thread::spawn(move || receive(&listener, &receiver, bytes));
    let source = source();

    let mut tcp = TcpStream::connect(addr)?;
    tcp.set_nodelay(true)?;
    let mut tls = ClientConnection::new(sender.tls().client(None), tls::server_name())?;
    tls.set_buffer_limit(Some(WRITE));
    while tls.is_handshaking() {
        tls.complete_io(&mut tcp)?;
    }
    let start = Instant::now();
    let mut stream = Stream::new(&mut tls, &mut tcp);
    for piece in writes(source, bytes) {
        stream.write_all(&piece)?;
    }
    stream.flush()?;
    let (actual, end) = receiving.join().map_err(|_| BaselineError::Ended)??;
    speed(bytes, actual, end.duration_since(start))
}

fn receive(
    listener: &TcpListener,
    identity: &Identity,
    bytes: u64,
) -> Result<(u64, Instant), BaselineError> {
    let (mut tcp, _) = listener.accept()?;
    let mut tls = ServerConnection::new(identity.tls().server())?;
    let mut stream = Stream::new(&mut tls, &mut tcp);
    let mut buffer = vec![0; READ];
    let mut got = 0;
    while got < bytes {
        match stream.read(&mut buffer)? {
            0 => break,
            count => got += count as u64,
        }
    }
    Ok((got, Instant::now()))
}
