//! A Unix socket of packets that can carry descriptors.
//!
//! With `SOCK_SEQPACKET`, a packet arrives completely with its descriptors or not at all, so a peer cannot send half a
//! message. Tokio's Unix stream types support it as they do streams (readiness, `accept`, credentials).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};

use super::error::HandoverError;
use super::message::{MAX_DESCRIPTORS, MAX_PACKET};
use transload_wire::internal::ring::SocketName;

pub(super) fn listen(name: &SocketName) -> io::Result<UnixListener> {
    let socket = open()?;
    rustix::net::bind(&socket, &address(name)?)?;
    rustix::net::listen(&socket, 128)?;
    UnixListener::from_std(socket.into())
}

/// Packets in both directions.
#[derive(Debug)]
pub(super) struct Packets {
    stream: UnixStream,
}

impl Packets {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream }
    }

    pub(super) async fn connect(name: &SocketName) -> Result<Self, HandoverError> {
        let failed = |e: Errno| failed("connect")(e.into());
        let socket = open().map_err(failed)?;
        let address = address(name).map_err(failed)?;
        loop {
            match rustix::net::connect(&socket, &address) {
                Ok(()) => break,
                // The listener's queue is full, and there is no event to wait for.
                Err(Errno::AGAIN) => tokio::time::sleep(Duration::from_millis(2)).await,
                Err(Errno::INTR) => {}
                Err(Errno::CONNREFUSED) => return Err(HandoverError::NoListener),
                Err(e) => return Err(failed(e)),
            }
        }
        let stream = UnixStream::from_std(socket.into());
        Ok(Self::new(stream.map_err(self::failed("connect"))?))
    }

    /// Returns the effective user of the process at the other end, as of when it connected or listened.
    pub(super) fn peer_uid(&self) -> Result<u32, HandoverError> {
        let cred = self.stream.peer_cred();
        Ok(cred.map_err(failed("SO_PEERCRED"))?.uid())
    }

    pub(super) async fn send(&self, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), HandoverError> {
        let sent = self
            .stream
            .async_io(Interest::WRITABLE, || {
                let mut space = [MaybeUninit::uninit(); SPACE];
                let mut control = SendAncillaryBuffer::new(&mut space);
                if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
                    return Err(io::ErrorKind::InvalidInput.into());
                }
                Ok(rustix::net::sendmsg(
                    &self.stream,
                    &[IoSlice::new(packet)],
                    &mut control,
                    SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
                )?)
            })
            .await;
        sent.map(drop).map_err(failed("sendmsg"))
    }

    /// Receives one packet, with exactly its descriptors. None are accepted unless `with_descriptors` is set.
    pub(super) async fn receive(&self, with_descriptors: bool) -> Result<(Vec<u8>, Vec<OwnedFd>), HandoverError> {
        let mut packet = vec![0; MAX_PACKET];
        let received = self
            .stream
            .async_io(Interest::READABLE, || {
                let mut space = [MaybeUninit::uninit(); SPACE];
                let room = if with_descriptors { SPACE } else { 0 };
                let mut control = RecvAncillaryBuffer::new(&mut space[..room]);
                let message = rustix::net::recvmsg(
                    &self.stream,
                    &mut [IoSliceMut::new(&mut packet)],
                    &mut control,
                    RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
                )?;
                let mut descriptors = Vec::new();
                for item in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(fds) = item {
                        descriptors.extend(fds);
                    }
                }
                Ok((message.bytes, message.flags, descriptors))
            })
            .await;
        let (bytes, flags, descriptors) = received.map_err(failed("recvmsg"))?;
        // On errors, dropping `descriptors` closes those that arrived.
        if bytes == 0 {
            return Err(HandoverError::PeerGone);
        }
        if flags.contains(ReturnFlags::TRUNC) {
            let limit = MAX_PACKET as u64;
            return Err(HandoverError::too_much("bytes in a packet", limit));
        }
        if flags.contains(ReturnFlags::CTRUNC) {
            let limit = MAX_DESCRIPTORS as u64 * u64::from(with_descriptors);
            return Err(HandoverError::too_much("descriptors in a packet", limit));
        }
        packet.truncate(bytes);
        Ok((packet, descriptors))
    }

    pub(super) fn into_socket(self) -> io::Result<OwnedFd> {
        Ok(self.stream.into_std()?.into())
    }
}

const SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));

fn open() -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

fn address(name: &SocketName) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(name.as_str().as_bytes())
}

/// Converts an error of a system call.
fn failed(doing: &'static str) -> impl Fn(io::Error) -> HandoverError {
    move |source| match source.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected => {
            HandoverError::PeerGone
        }
        _ => HandoverError::Socket { doing, source },
    }
}
