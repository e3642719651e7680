//! What is asked of the system for each TCP connection.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// How long nothing may be heard of a peer, and how often and how many times it is then asked for a sign of life.
const SILENCE: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_secs(10);
const TRIES: u32 = 3;

/// Has a connection send pieces as they come, and break within a minute after its peer's machine has vanished without a word:
/// a stream may rightly be silent for long.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(SILENCE).with_interval(INTERVAL).with_retries(TRIES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// How many files this process may have open, after it has asked for as many as it may ask for.
pub(crate) fn files() -> u64 {
    let limits = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limits.maximum, ..limits };
    let granted = setrlimit(Resource::Nofile, most).map_or(limits.current, |()| limits.maximum);
    granted.unwrap_or(u64::MAX)
}

/// Whether something failed because this process, or its machine, has no file left.
pub(crate) fn no_file_left(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::MFILE | Errno::NFILE))
}

/// Where a server was reached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// It is this host: both ends of the connection have one address.
    pub(crate) is_this_host: bool,
}

impl Peer {
    pub(crate) fn of(stream: &TcpStream) -> io::Result<Self> {
        let address = stream.peer_addr()?.ip().to_canonical();
        let is_this_host = stream.local_addr()?.ip().to_canonical() == address;
        Ok(Self { address, is_this_host })
    }
}

/// Whether this host has an address.
pub(crate) fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// A connection that can be made to end with a fault.
pub(crate) trait Reset {
    /// Has the peer see a fault, and not an end, where the connection is closed from now on.
    fn reset(&self);
}

impl Reset for TcpStream {
    fn reset(&self) {
        // Where that is not to be had it ends as others do.
        let _ = SockRef::from(self).set_linger(Some(Duration::ZERO));
    }
}

impl<T: Reset> Reset for TlsStream<T> {
    fn reset(&self) {
        self.get_ref().0.reset();
    }
}

#[cfg(any(test, feature = "fuzz"))]
impl Reset for tokio::io::DuplexStream {
    fn reset(&self) {}
}
