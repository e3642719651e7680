//! `--mtu`: runs the bench in its own network, with packets as short as those of a real network.
//!
//! Loopback carries packets of 64 KiB, and networks between hosts carry shorter ones. On Linux a process without
//! privileges can have a network namespace, whose loopback accepts any MTU.

use std::env;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::failure::Failure;

/// The variable that tells the command that it already runs in such a network.
const INSIDE: &str = "TRANSLOAD_BENCH_MTU";

/// The script that runs in the new network. `$1` is the MTU, the rest a command.
const SCRIPT: &str = r#"ip link set lo mtu "$1" up && shift && exec "$@""#;

/// The network that a bench runs over.
#[derive(Debug, clap::Args)]
pub(super) struct Network {
    /// Packet size in bytes, including IP and UDP headers; networks between hosts usually have 1500 or 9000. Needs
    /// `unshare` and `ip`. Default: 65536, as loopback has it.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1_280..=65_535))]
    mtu: Option<u32>,
}

impl Network {
    /// Continues in that network, if an MTU is given, and adds a note about it.
    pub(super) fn enter(&self, notes: &mut Vec<String>) -> Result<(), Failure> {
        let Some(mtu) = self.mtu else { return Ok(()) };
        enter(mtu)?;
        notes.push(format!("over loopback with an MTU of {mtu}"));
        Ok(())
    }
}

/// Replaces this process with itself in a network with packets of `mtu` bytes. Does nothing if it already runs in one.
fn enter(mtu: u32) -> Result<(), Failure> {
    let mtu = mtu.to_string();
    if env::var_os(INSIDE).is_some_and(|inside| *inside == *mtu) {
        return Ok(());
    }
    // The trial comes first because the message of `unshare` alone does not say what to do about a failure.
    let namespace = ["--map-root-user", "--net", "--"];
    let trial = Command::new("unshare").args(namespace).args(["ip", "link", "set", "lo", "mtu", &mtu, "up"]).output();
    let trial = trial.map_err(|error| unavailable(&mtu, &error.to_string()))?;
    if !trial.status.success() {
        return Err(unavailable(&mtu, String::from_utf8_lossy(&trial.stderr).trim()));
    }
    let this = env::current_exe().map_err(|error| unavailable(&mtu, &error.to_string()))?;
    let mut inside = Command::new("unshare");
    inside.args(namespace).args(["sh", "-c", SCRIPT, "sh", &mtu]).arg(this).args(env::args_os().skip(1));
    let error: io::Error = inside.env(INSIDE, &mtu).exec();
    Err(unavailable(&mtu, &error.to_string()))
}

fn unavailable(mtu: &str, why: &str) -> Failure {
    Failure::no(
        format!("cannot create a network with an MTU of {mtu}: {why}"),
        "`--mtu` needs `unshare` and `ip` (util-linux, iproute2), and a Linux that lets users create namespaces",
    )
}
