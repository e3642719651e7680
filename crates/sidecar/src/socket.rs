//! Settings of TCP connections, and questions to the system about them.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// TCP keepalive: the silence before the first probe, the time between probes, and their number.
const SILENCE: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_secs(10);
const TRIES: u32 = 3;

/// Makes a connection send small pieces at once, and break within a minute after its peer's machine has disappeared.
/// Streams may be silent for long, so a time limit on data would not do.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(SILENCE).with_interval(INTERVAL).with_retries(TRIES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Raises the limit of open files to its maximum and returns it.
pub(crate) fn files() -> u64 {
    let limits = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limits.maximum, ..limits };
    let granted = setrlimit(Resource::Nofile, most).map_or(limits.current, |()| limits.maximum);
    granted.unwrap_or(u64::MAX)
}

/// Returns whether an error means that this process, or its machine, has no file descriptor left.
pub(crate) fn no_file_left(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::MFILE | Errno::NFILE))
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// The server runs on this host: both ends of the connection have the same address.
    pub(crate) is_this_host: bool,
}

impl Peer {
    pub(crate) fn of(stream: &TcpStream) -> io::Result<Self> {
        let address = stream.peer_addr()?.ip().to_canonical();
        let is_this_host = stream.local_addr()?.ip().to_canonical() == address;
        Ok(Self { address, is_this_host })
    }
}

pub(crate) fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

pub(crate) trait Reset {
    /// Makes a later close look like a fault to the peer, not like the end of the data.
    fn reset(&self);
}

impl Reset for TcpStream {
    fn reset(&self) {
        // If this fails, the connection ends in the ordinary way.
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
