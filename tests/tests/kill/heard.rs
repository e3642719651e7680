//! The death of a source during a load is noticed at once, however long silent sources are waited for. Sources that pause
//! for a while are waited for.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use transload_tests::cluster::{Cache, Origins, Side, claims_of, mint, transfer_of};
use transload_transfer::{Agent, Direction, JobError, Path, PullReport, TransferError};

use crate::peer::Peer;
use crate::request::RANKS;
use crate::siege::{Siege, choose_path};

/// A time limit far above that of a load. Silence is not noticed earlier.
const LONG: Duration = Duration::from_secs(60);

/// A load that is half done: the first layer has arrived, and the source waits for a command to compute the others.
struct Load {
    agent: Agent,
    cache: Cache,
    source: Peer,
    request: u64,
    pulling: JoinHandle<Result<PullReport, TransferError>>,
}

impl Load {
    async fn begin(siege: &Siege, [source, puller]: [&'static str; 2], path: Option<Path>) -> Self {
        let cache = siege.cache(Side::Decode);
        let agent = siege.agent(puller, &cache, &RANKS);
        let (incarnation, request) = (siege.incarnation(), siege.request());
        let mut source = Peer::start(siege, source, &RANKS[..2], incarnation).await;
        source.say(&format!("begin {request}"));
        assert_eq!(source.hear().await.unwrap(), format!("begun {request}"));
        let addresses = vec![source.address(); 2];
        let claims = claims_of(request, Direction::Pull, source.owner, incarnation, addresses);
        let mut pull = transfer_of(Side::Decode, &RANKS, mint(&agent.ticket_key(), &claims), request);
        choose_path(path, &mut pull);
        pull.request.by_layer = true;
        pull.timeout = 2 * LONG;
        cache.clear();
        let empty = cache.checksum();
        let pulling = tokio::spawn({
            let agent = agent.clone();
            async move { agent.pull(pull).await }
        });
        let begun = timeout(LONG, async {
            while cache.checksum() == empty {
                sleep(Duration::from_millis(10)).await;
            }
        });
        begun.await.expect("its first layer comes");
        Self { agent, cache, source, request, pulling }
    }

    fn signal(&self, signal: Signal) {
        let source = Pid::from_raw(self.source.id().try_into().unwrap()).unwrap();
        kill_process(source, signal).unwrap();
    }

    /// Ends both sides, and checks that the `victims` ended by the signal.
    async fn end(self, victims: &[u32]) {
        self.source.ended(victims, 0);
        self.agent.shutdown(Duration::from_secs(1)).await;
    }
}

pub(crate) fn a_source_that_dies_is_heard_of(siege: Siege) {
    a_source_is_given_up(siege, LONG, Signal::KILL, |port| {
        format!("no process is at 127.0.0.1:{port}: its port is closed")
    });
}

/// Sends a signal to a source during a load, and checks the reason for which the load then fails.
fn a_source_is_given_up(mut siege: Siege, patience: Duration, by: Signal, why: fn(u16) -> String) {
    siege.patience = Some(patience);
    siege.lay(async || {
        let mut load = Load::begin(&siege, ["prefill-0", "decode-0"], siege.path).await;
        load.signal(by);
        let victim = load.source.id();
        let ended = timeout(LONG / 2, &mut load.pulling).await;
        let error = ended.expect("it is heard of").unwrap().unwrap_err();
        let TransferError::Job(JobError::Unreachable { why: found, .. }) = &error else {
            panic!("{error}");
        };
        assert_eq!(found.to_string(), why(load.source.address().port));
        load.source.kill();
        load.end(&[victim]).await;
    });
}

#[test]
fn a_source_that_dies_is_heard_of_over_the_network() {
    a_source_that_dies_is_heard_of(Siege::new(5, Some(Path::QUIC)));
}

#[test]
fn a_source_that_dies_is_heard_of_over_a_ring() {
    a_source_that_dies_is_heard_of(Siege::new(6, Some(Path::RING)));
}

/// A stopped process sends as little as a machine that has vanished.
#[test]
fn a_source_that_stands_still_for_too_long_is_given_up() {
    let (siege, patience) = (Siege::new(8, Some(Path::RING)), Duration::from_secs(2));
    a_source_is_given_up(siege, patience, Signal::STOP, |port| format!("127.0.0.1:{port} has not answered within 2s"));
}

/// The time limits are those of vLLM's connector.
#[test]
fn sources_that_stand_still_are_waited_for() {
    let mut siege = Siege::new(7, None);
    siege.patience = Some(Duration::from_secs(5));
    let origins = Origins::new();
    siege.lay(async || {
        let mut loads = [
            Load::begin(&siege, ["prefill-0", "decode-0"], Some(Path::QUIC)).await,
            Load::begin(&siege, ["prefill-1", "decode-1"], Some(Path::RING)).await,
        ];
        loads.iter().for_each(|load| load.signal(Signal::STOP));
        sleep(Duration::from_secs(2)).await;
        loads.iter().for_each(|load| load.signal(Signal::CONT));
        for load in &mut loads {
            load.source.say(&format!("finish {}", load.request));
            let report = timeout(LONG, &mut load.pulling).await.expect("it ends");
            let report = report.unwrap().unwrap();
            assert!(report.routes.iter().all(|route| route.attempts == 1), "{report:?}");
            origins.check(&load.cache, load.request, &RANKS).unwrap();
        }
        for load in loads {
            load.end(&[]).await;
        }
    });
}
