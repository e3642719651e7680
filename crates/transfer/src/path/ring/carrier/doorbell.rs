//! A connected Unix socket as doorbell and sign of life.
//!
//! Bytes never travel here once the handover is done; a message means "look again". A socket and
//! no eventfd, for three reasons: its hang-up is the death of the peer, seen by the same `poll`;
//! each end is an open file of its own, so that no peer can clear `O_NONBLOCK` under us; and
//! shutting it down from another thread ends every wait on both sides.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// The peer rang, or a signal came, or time is up: look again.
    LookAgain,
    /// The socket was hung up, by the peer's death or from this side.
    HungUp,
}

/// One end of the connection, which can be hung up from any thread. Clones are the same end.
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
    /// Every wait of either side ends, and no further window is given out here. A window that is out at this moment
    /// stays valid until it is given back; whoever has it is inside of the fence of a transfer, which waits for that.
    pub fn hang_up(&self) {
        self.line.hung_up.store(true, Ordering::SeqCst);
        // It fails only where it has already happened.
        let _ = rustix::net::shutdown(&self.line.socket, Shutdown::Both);
    }

    /// Whether it was hung up on this side.
    pub fn is_hung_up(&self) -> bool {
        self.line.hung_up.load(Ordering::SeqCst)
    }

    /// Wakes the peer, and says whether it is still there. A full queue is as good as a ring: the peer has not yet seen
    /// the last one.
    pub(super) fn ring(&self) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        matches!(
            rustix::net::send(&self.line.socket, &[1], flags),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM)
        )
    }

    /// Sleeps until the peer rings, the connection is hung up, or the deadline has passed.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> io::Result<Woken> {
        // One too far ahead for the system is as good as none.
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

    /// Takes away what has been rung so far. A bounded number, so that a peer that rings without
    /// end cannot hold us here; what is left makes the next wait return at once.
    fn drain(&self) -> io::Result<Woken> {
        let mut byte = [0u8; 8];
        for _ in 0..16 {
            match rustix::net::recv(&self.line.socket, &mut byte, RecvFlags::DONTWAIT) {
                // A peer that sends an empty message reads like one that is gone; it is not owed more.
                Ok((_, 0)) => return Ok(Woken::HungUp),
                Ok(_) => {}
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) => return Ok(Woken::HungUp),
            }
        }
        Ok(Woken::LookAgain)
    }
}
