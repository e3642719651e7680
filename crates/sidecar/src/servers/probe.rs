//! Probes servers for their health.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};

use super::{Servers, ask, log_change};
use crate::Role;
use crate::target::ServerUrl;
use crate::upstream::Upstream;

const EVERY: Duration = Duration::from_secs(1);

/// Probes every known server each second, the first time at once, until the future is dropped.
pub(crate) async fn probe_all(servers: Arc<Servers>, upstream: Upstream) {
    let ask = |role, url: ServerUrl| {
        let upstream = upstream.clone();
        async move { ask(&upstream, role, &url).await }
    };
    probe_with(servers, ask).await;
}

async fn probe_with<F>(servers: Arc<Servers>, ask: impl Fn(Role, ServerUrl) -> F)
where
    F: Future<Output = Option<Result<(), String>>> + Send + 'static,
{
    let mut under_way = JoinSet::new();
    let mut asked: HashMap<(Role, ServerUrl), AbortHandle> = HashMap::new();
    let mut turns = tokio::time::interval(EVERY);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        while let Some(ended) = under_way.try_join_next() {
            if let Err(error) = ended {
                tracing::error!(%error, "a probe broke off");
            }
        }
        asked.retain(|_, probe| !probe.is_finished());
        for (role, url) in servers.named() {
            // A slow server has one probe at a time.
            if asked.contains_key(&(role, url.clone())) {
                continue;
            }
            let (servers, answer) = (servers.clone(), ask(role, url.clone()));
            let server = url.clone();
            let probe = under_way.spawn(async move {
                let Some(answer) = answer.await else { return };
                let changed = servers.probed(role, &server, answer.is_ok());
                log_change(role, &server, changed.then_some(answer.is_ok()), || answer.err().unwrap_or_default());
            });
            asked.insert((role, url), probe);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::observe::ServerState;
    use crate::servers::Origin;
    use crate::warnings::Warnings;

    /// Probes one server for 9.9 s. Returns the number of probes and the server's state.
    async fn run<F>(ask: impl Fn(u32) -> F) -> (u32, ServerState)
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let servers = Arc::new(Servers::new(false));
        let url = ServerUrl::parse("http://s:1").expect("a URL");
        servers.set(Origin::Settings, Role::Decode, &[url]);
        let asked = AtomicU32::new(0);
        let ask = |_, _| {
            let asking = ask(asked.fetch_add(1, Ordering::Relaxed));
            async { Some(asking.await) }
        };
        let probing = probe_with(servers.clone(), ask);
        let ended = timeout(Duration::from_millis(9_900), probing).await;
        assert!(ended.is_err(), "it never ends");
        (asked.load(Ordering::Relaxed), servers.snapshot()[0].state)
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_panics_ends_no_other() {
        let panics = |number| async move {
            assert_ne!(number, 0, "the first probe panics");
            Err(String::new())
        };
        assert_eq!(run(panics).await, (10, ServerState::Down));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_answers_late_is_asked_once_at_a_time() {
        let late = |_| async {
            sleep(Duration::from_millis(3_500)).await;
            Ok(())
        };
        assert_eq!(run(late).await, (3, ServerState::Up));
    }

    #[tokio::test(start_paused = true)]
    async fn the_log_says_when_a_server_goes_and_comes_and_why() {
        let warnings = Warnings::default();
        let _guard = tracing::subscriber::set_default(warnings.clone());
        let answers = |number| async move {
            match number {
                2..5 => Err("no answer within 15s".to_owned()),
                _ => Ok(()),
            }
        };
        assert_eq!(run(answers).await.1, ServerState::Up);
        let said = warnings.said();
        let [down, back] = &said[..] else {
            panic!("{said:?}");
        };
        assert!(down.contains("is down") && down.contains("no answer within 15s"));
        assert!(down.contains("http://s:1") && back.contains("is back"));
    }
}
