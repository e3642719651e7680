//! What an agent calls itself that was given no name, and when its life began.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::ids::{Incarnation, InstanceName};

impl InstanceName {
    /// Makes a name of this host's, which is the pod's on Kubernetes, and a port; see [`at`](Self::at).
    pub fn of_host(port: u16) -> Self {
        let host = rustix::system::uname();
        Self::at(&host.nodename().to_string_lossy(), port)
    }
}

impl Incarnation {
    /// Draws a life that starts now, for all agents of an engine instance to share.
    ///
    /// # Errors
    /// The system has no randomness to give.
    pub fn draw() -> io::Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let started = SystemTime::now().duration_since(UNIX_EPOCH);
        let started = started.map_or(0, |since| since.as_millis() as u64);
        Ok(Self::new(started, u64::from_le_bytes(random)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_a_name() {
        let of_host = InstanceName::of_host(7600);
        assert_eq!(InstanceName::new(of_host.as_str()), Ok(of_host));
    }
}
