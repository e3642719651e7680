//! Asks servers whether they are well.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::Servers;
use crate::Role;
use crate::target::ServerUrl;
use crate::upstream::Upstream;

/// The time from one probe of a server to its next, and that for an answer.
const EVERY: Duration = Duration::from_secs(1);

/// Asks every server that is known each second, the first time at once, until the future is dropped.
pub(crate) async fn probe_all(servers: Arc<Servers>, upstream: Upstream) {
    let mut under_way: JoinSet<(Role, ServerUrl)> = JoinSet::new();
    let mut asked: HashSet<(Role, ServerUrl)> = HashSet::new();
    let mut turns = tokio::time::interval(EVERY);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        while let Some(Ok(done)) = under_way.try_join_next() {
            asked.remove(&done);
        }
        for (role, url) in servers.named() {
            // One at a time for each server, however slow it is.
            if !asked.insert((role, url.clone())) {
                continue;
            }
            let (servers, upstream) = (servers.clone(), upstream.clone());
            under_way.spawn(async move {
                let status = upstream.probe(&url, role, "/health", EVERY).await;
                let healthy = status.as_ref().is_ok_and(http::StatusCode::is_success);
                if servers.probed(role, &url, healthy) {
                    let now = if healthy { "is well" } else { "is down" };
                    tracing::info!(server = %url, role = role.name(), "a server {now}");
                }
                (role, url)
            });
        }
    }
}
