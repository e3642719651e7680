//! A Unix socket that hands over arbitrary descriptors and bytes to an agent of this host.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use transload_transfer::internal::ring::random_socket;
use transload_transfer::plan::ids::Nonce;

use crate::source::halves;
use crate::town::PATIENCE;

/// The bytes with which both sides of a handover begin.
const MAGIC: &[u8; 8] = b"tl-loc/2";

/// The descriptors and bytes that a guest gets.
#[derive(Debug)]
pub(crate) struct Gift {
    /// Whether we prove that we know the token.
    pub(crate) proof: bool,
    /// The bytes after the proof; nothing is sent if it is empty.
    pub(crate) offer: Vec<u8>,
    /// The descriptors that are sent with it.
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Truncates the first descriptor's file to this many bytes once it has arrived.
    pub(crate) shrink: Option<u64>,
}

/// Serves a gift to one guest, in a thread. Returns the socket and the token with which an agent can fetch it.
pub(crate) fn serve(gift: Gift) -> (String, (Nonce, Nonce)) {
    let (name, token) = (random_socket().unwrap(), [7; 32]);
    let address = SocketAddrUnix::new_abstract_name(name.as_str().as_bytes()).unwrap();
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &address).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE)).unwrap();
    // The guest may hang up at any time, and may not come at all.
    std::thread::spawn(move || hand_over(&socket, token, &gift));
    (name.as_str().to_owned(), halves(&token))
}

fn hand_over(socket: &OwnedFd, token: [u8; 32], gift: &Gift) -> rustix::io::Result<()> {
    let guest = rustix::net::accept(socket)?;
    set_socket_timeout(&guest, Timeout::Recv, Some(PATIENCE))?;
    let mut heard = [0; 64];
    rustix::net::recv(&guest, &mut heard, RecvFlags::empty())?;
    let key = if gift.proof { token } else { [8; 32] };
    let proof = blake3::keyed_hash(&key, b"transload local welcome");
    let welcome = [&MAGIC[..], proof.as_bytes()].concat();
    rustix::net::send(&guest, &welcome, SendFlags::NOSIGNAL)?;
    if !gift.offer.is_empty() {
        let descriptors: Vec<_> = gift.descriptors.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let offer = [IoSlice::new(&gift.offer)];
        rustix::net::sendmsg(&guest, &offer, &mut control, SendFlags::NOSIGNAL)?;
    }
    if let (Some(bytes), Some(first)) = (gift.shrink, gift.descriptors.first()) {
        // Where it is sealed, as it has to be, this fails.
        let _ = rustix::fs::ftruncate(first, bytes);
    }
    // Until the guest hangs up; what it answers does not matter.
    while rustix::net::recv(&guest, &mut heard, RecvFlags::empty())?.0 > 0 {}
    Ok(())
}

/// Returns the offer of a ring, of which the guest is the consumer.
pub(crate) fn ring(slots: u32, slot_bytes: u32) -> Vec<u8> {
    postcard::to_allocvec(&(slots, slot_bytes)).unwrap()
}

/// Makes a memfd of this many bytes, with its size sealed or not.
pub(crate) fn memfd(bytes: u64, sealed: bool) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memfd = rustix::fs::memfd_create("transload-hostile", flags).unwrap();
    rustix::fs::ftruncate(&memfd, bytes).unwrap();
    if sealed {
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&memfd, seals).unwrap();
    }
    memfd
}
