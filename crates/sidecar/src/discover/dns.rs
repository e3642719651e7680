//! Discovers servers by DNS: each address of a name is one server.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::found::{Found, MOST_SERVERS};
use crate::Role;
use crate::target::{Host, ServerUrl, Target};

const INTERVAL: Duration = Duration::from_secs(3);

/// Looks names up repeatedly. Each name has a loop of its own, so that one that hangs does not delay the others.
///
/// A name's last addresses stay in use while it has none: resolvers do not distinguish a name without servers at the
/// moment from an unknown name.
pub(super) async fn follow<L, F>(names: Vec<(Role, Target)>, mut found: Found, look_up: L)
where
    L: Fn(Target) -> F + Send + Sync,
    F: Future<Output = io::Result<Vec<IpAddr>>> + Send,
{
    let look = |at: usize, after: Duration| {
        let looking = look_up(names[at].1.clone());
        async move {
            tokio::time::sleep(after).await;
            (at, looking.await)
        }
    };
    let mut known = vec![None; names.len()];
    let mut failing = vec![false; names.len()];
    let mut looks: FuturesUnordered<_> = (0..names.len()).map(|at| look(at, Duration::ZERO)).collect();
    while let Some((at, looked)) = looks.next().await {
        // The next look-up is scheduled however this one ended.
        looks.push(look(at, INTERVAL));
        let (role, target) = &names[at];
        let looked = looked.and_then(|addresses| servers(&addresses, target.port));
        let failed = looked.is_err();
        if std::mem::replace(&mut failing[at], failed) != failed {
            match &looked {
                Err(error) => {
                    tracing::warn!(
                        name = %target, role = role.name(), %error,
                        "no address was found for this name; the servers found before stay"
                    );
                }
                Ok(_) => {
                    tracing::info!(name = %target, role = role.name(), "addresses were found for this name again");
                }
            }
        }
        if let Ok(servers) = looked {
            known[at] = Some(servers);
            let of = |role| {
                let names = names.iter().zip(&known);
                let mine = names.filter(|((of, _), _)| *of == role);
                mine.filter_map(|(_, servers)| servers.as_deref()).flatten().cloned().collect()
            };
            found.update(of(Role::Prefill), of(Role::Decode));
        }
    }
}

/// Asks the operating system's resolver, which has a time limit of its own. A time limit here would leave the look-up
/// running in its thread.
pub(super) async fn system(target: Target) -> io::Result<Vec<IpAddr>> {
    let name = match target.host {
        Host::V4(address) => return Ok(vec![address.into()]),
        Host::V6(address) => return Ok(vec![address.into()]),
        Host::Name(name) => name,
    };
    let addresses = tokio::net::lookup_host((&*name, target.port)).await?;
    Ok(addresses.map(|address| address.ip()).collect())
}

/// Returns the servers at these addresses, sorted, since resolvers shuffle them.
///
/// If a name has both IPv4 and IPv6 addresses, each server is assumed to have one of each, and only the IPv4 addresses
/// are used: all servers listen there.
fn servers(addresses: &[IpAddr], port: u16) -> io::Result<Vec<ServerUrl>> {
    let mut addresses: Vec<IpAddr> = addresses.iter().map(IpAddr::to_canonical).collect();
    if addresses.iter().any(IpAddr::is_ipv4) {
        addresses.retain(IpAddr::is_ipv4);
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses.truncate(MOST_SERVERS + 1);
    if addresses.is_empty() {
        let why = "the name has no address";
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    let server = |address| ServerUrl { tls: false, target: Target { host: Host::from(address), port } };
    Ok(addresses.into_iter().map(server).collect())
}
