//! A connected Unix socket as a doorbell and sign of life.
//!
//! After the handover no data is sent on it; a message means "look again". A socket is used instead of an eventfd for
//! three reasons: the peer's death hangs it up, which the same `poll` sees; each end is an open file of its own, so
//! that a peer cannot clear our `O_NONBLOCK`; and shutting it down from another thread ends every wait on both sides.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

/// The reason why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// The peer rang, a signal came, or the time is up: look again.
    LookAgain,
    /// The socket was hung up, by the peer, its death, or this side.
    HungUp,
}

/// One end of the connection, which any thread can hang up. Clones refer to the same end.
#[derive(Clone, Debug)]
pub struct Doorbell {
    line: Arc<Line>,
}

#[derive(Debug)]
struct Line {
    socket: OwnedFd,
    hung_up: AtomicBool,
}

impl Doorbell {
    pub(super) fn new(socket: OwnedFd) -> Self {
        let hung_up = AtomicBool::new(false);
        Self { line: Arc::new(Line { socket, hung_up }) }
    }

    /// Ends the use of this ring for good. Idempotent; returns at once.
    ///
    /// It ends every wait of either side, and no further window is given out here. A current window stays valid until
    /// it is dropped. Its user holds access through the fence of a transfer, which waits for that.
    pub fn hang_up(&self) {
        self.line.hung_up.store(true, Ordering::SeqCst);
        // Fails only if it was done before.
        let _ = rustix::net::shutdown(&self.line.socket, Shutdown::Both);
    }

    /// Returns whether this side has hung up.
    pub fn is_hung_up(&self) -> bool {
        self.line.hung_up.load(Ordering::SeqCst)
    }

    /// Wakes the peer, and returns whether it is still there. A full queue needs no further message, since the peer has
    /// not read the earlier ones yet.
    pub(super) fn ring(&self) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        matches!(
            rustix::net::send(&self.line.socket, &[1], flags),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM)
        )
    }

    /// Sleeps until the peer rings, the connection is hung up, or the deadline has passed.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> io::Result<Woken> {
        // A deadline too distant for the system counts as none.
        let timeout =
            deadline.and_then(|deadline| Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok());
        let mut fds = [PollFd::new(&self.line.socket, PollFlags::IN)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => return Ok(Woken::LookAgain),
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        let got = fds[0].revents();
        if got.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Ok(Woken::HungUp);
        }
        self.drain()
    }

    /// Removes the messages that have arrived, but only a bounded number, so that a peer that rings without end cannot
    /// block this thread. Messages that are left make the next wait return at once.
    fn drain(&self) -> io::Result<Woken> {
        let mut byte = [0u8; 8];
        for _ in 0..16 {
            match rustix::net::recv(&self.line.socket, &mut byte, RecvFlags::DONTWAIT) {
                // An empty message looks like the end of the connection. A peer that sends one may be treated like
                // that.
                Ok((_, 0)) => return Ok(Woken::HungUp),
                Ok(_) => {}
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) => return Ok(Woken::HungUp),
            }
        }
        Ok(Woken::LookAgain)
    }
}
