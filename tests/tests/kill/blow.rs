//! The blow that falls on some peers in the midst of a request.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::peer::Peer;
use crate::siege::Siege;

/// The one blow of a round. The first requests pass without it, to learn how long one takes; then it
/// falls, and is noticed at once or by the next request.
#[derive(Default)]
pub(crate) struct Blow {
    requests: u64,
    /// The time that the last transfer took, from which the moment in the next one is drawn.
    took: Option<Duration>,
    killer: Option<Killer>,
}

impl Blow {
    /// Records that a request begins now. If the kill is planned for this one, some of the peers will not see its end.
    pub(crate) fn begin<const N: usize>(&mut self, siege: &Siege, peers: [&Peer; N]) -> Instant {
        if let Some(took) = self.took.take() {
            self.killer = Some(siege.kill(peers, took));
        }
        Instant::now()
    }

    /// Records that a request that began then has ended.
    pub(crate) fn pass(&mut self, began: Instant) {
        if self.killer.is_none() {
            self.requests += 1;
            // The first has made the connections as well.
            self.took = (self.requests > 1).then(|| began.elapsed());
        }
    }

    /// Returns whether it is due, or has fallen.
    pub(crate) fn is_due(&self) -> bool {
        self.killer.is_some()
    }

    pub(crate) fn has_fallen(&self) -> bool {
        self.killer.as_ref().is_some_and(Killer::is_done)
    }

    /// Waits for it, and returns the processes that it killed.
    pub(crate) fn victims(self) -> Vec<u32> {
        self.killer.expect("no round ends without it").wait()
    }
}

/// Kills, after a while.
pub(crate) struct Killer {
    victims: Vec<u32>,
    thread: JoinHandle<()>,
}

impl Killer {
    pub(crate) fn start(victims: Vec<u32>, after: Duration) -> Self {
        let all = victims.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(after);
            for victim in all {
                let victim = Pid::from_raw(victim.try_into().unwrap()).unwrap();
                kill_process(victim, Signal::KILL).unwrap();
            }
        });
        Self { victims, thread }
    }

    fn is_done(&self) -> bool {
        self.thread.is_finished()
    }

    fn wait(self) -> Vec<u32> {
        self.thread.join().unwrap();
        self.victims
    }
}
