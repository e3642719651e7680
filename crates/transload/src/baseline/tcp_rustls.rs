//! TCP with TLS 1.3, mutually authenticated: what QUIC has to beat.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    thread,
    time::Instant,
};

use rustls::{ClientConnection, ServerConnection, Stream};
use transload_transfer::identity::{Authority, Identity, Roles, tls};

use super::{BaselineError, Throughput, chunks, source};

/// What the receiver reads at once. Larger buffers were not faster.
const READ_BYTES: usize = 256 << 10;

/// Sends `bytes` bytes in writes of `chunk` bytes from one thread to another over a TCP connection
/// on loopback, encrypted and mutually authenticated by rustls, with the certificates that agents
/// use and without any async runtime in between. The receiver decrypts and counts.
///
/// # Errors
/// [`BaselineError`].
pub fn tcp_rustls(bytes: u64, chunk: usize) -> Result<Throughput, BaselineError> {
    let authority = Authority::new("baseline".parse()?)?;
    let sender = authority.issue(&"sender".parse()?, Roles::NONE)?;
    let receiver = authority.issue(&"receiver".parse()?, Roles::NONE)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let addr = listener.local_addr()?;
    let receiving = thread::spawn(move || receive(&listener, &receiver, bytes));
    let source = source();

    let mut tcp = TcpStream::connect(addr)?;
    tcp.set_nodelay(true)?;
    let mut tls = ClientConnection::new(sender.tls().client(None), tls::server_name())?;
    tls.set_buffer_limit(Some(chunk.max(64 << 10)));
    while tls.is_handshaking() {
        tls.complete_io(&mut tcp)?;
    }
    let start = Instant::now();
    let mut stream = Stream::new(&mut tls, &mut tcp);
    for piece in chunks(source, bytes, chunk) {
        stream.write_all(&piece)?;
    }
    stream.flush()?;
    let (actual, end) = receiving.join().map_err(|_| BaselineError::Ended)??;
    if actual != bytes {
        return Err(BaselineError::Missing {
            expected: bytes,
            actual,
        });
    }
    Ok(Throughput {
        bytes,
        elapsed: end.duration_since(start),
    })
}

fn receive(
    listener: &TcpListener,
    identity: &Identity,
    bytes: u64,
) -> Result<(u64, Instant), BaselineError> {
    let (mut tcp, _) = listener.accept()?;
    let mut tls = ServerConnection::new(identity.tls().server())?;
    let mut stream = Stream::new(&mut tls, &mut tcp);
    let mut buffer = vec![0; READ_BYTES];
    let mut got = 0;
    while got < bytes {
        match stream.read(&mut buffer)? {
            0 => break,
            count => got += count as u64,
        }
    }
    Ok((got, Instant::now()))
}
