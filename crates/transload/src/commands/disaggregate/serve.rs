//! A sidecar or proxy as a process, from its settings until a signal ends it.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};
use transload_sidecar::settings::Settings;
use transload_sidecar::{Running, StartError};

use crate::commands::engines;
use crate::failure::{Failure, chain};

/// Serves clients until SIGTERM or SIGINT, then waits for requests in flight.
pub(super) fn serve(mut settings: Settings) -> Result<(), Failure> {
    allow_open_files();
    if !has_ipv6() {
        settings.listen = without_ipv6(settings.listen);
        settings.admin = settings.admin.map(without_ipv6);
    }
    // This runtime only waits and serves the admin address; clients have their own threads.
    let runtime = engines::runtime()?;
    let served = runtime.block_on(until_stopped(settings));
    // A DNS look-up may hang longer than the process should wait.
    runtime.shutdown_background();
    served
}

async fn until_stopped(settings: Settings) -> Result<(), Failure> {
    // Installed before anything is served, so that an early signal is not lost.
    let mut stop = StopSignals::new().map_err(no_runtime)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(no_runtime)?;
    let drain = settings.drain;
    let started = tokio::select! {
        started = Running::start(settings) => started,
        () = stop.next() => return Ok(()),
    };
    let running = started.map_err(|error| unstarted(&error))?;
    let addresses: Vec<_> = running.addresses().iter().map(SocketAddr::to_string).collect();
    let mut line = format!("listening on {}", addresses.join(" "));
    if let Some(admin) = running.admin() {
        line += &format!(", admin on {admin}");
    }
    eprintln!("{line}");

    loop {
        tokio::select! {
            _ = hangup.recv() => running.reload(),
            () = stop.next() => break,
        }
    }
    eprintln!("shutting down: requests in flight have {drain:?} to end");
    tokio::select! {
        () = running.drain(drain) => Ok(()),
        () = stop.next() => Err(Failure::no(
            "stopped by a second signal: requests in flight were cut off",
            "a single signal lets them end within --drain",
        )),
    }
}

pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn unstarted(error: &StartError) -> Failure {
    let right = match error {
        StartError::Admin { source, .. } if source.kind() == ErrorKind::AddrInUse => {
            "another sidecar or proxy on this host may use it; give this one its own admin address: --admin \
             127.0.0.1:9401, or --admin off"
        }
        StartError::Listen { source, .. } | StartError::Admin { source, .. } => match source.kind() {
            ErrorKind::AddrInUse => "stop the process that listens there, or choose another port",
            ErrorKind::AddrNotAvailable => "choose an address of this host",
            ErrorKind::PermissionDenied => "choose a port from 1024 on, or grant the right to use lower ones",
            _ => "choose another address",
        },
        StartError::Tls(_) => {
            "name existing, readable certificates in PEM; the folder of --cert-path contains tls.crt and tls.key"
        }
        StartError::Tickets(_) => {
            "name a folder that `transload certs init` created, with an agent that has the \
                                   role pull"
        }
        _ => "see `transload sidecar --help`",
    };
    Failure::no(chain(error), right)
}

pub(super) fn no_runtime(error: io::Error) -> Failure {
    Failure::no(format!("cannot start the runtime: {error}"), "the system may be out of file descriptors or threads")
}

/// Raises the limit of open files to its maximum: each request needs two or three.
fn allow_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If this is not allowed, the current limit stays.
    let _ = setrlimit(Resource::Nofile, limit);
}

fn has_ipv6() -> bool {
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok()
}

/// Replaces the IPv6 address of all interfaces by that of IPv4, for systems without IPv6.
fn without_ipv6(mut address: SocketAddr) -> SocketAddr {
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        address.set_ip(Ipv4Addr::UNSPECIFIED.into());
    }
    address
}
