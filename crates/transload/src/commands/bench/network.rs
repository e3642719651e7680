//! `--mtu`: the bench runs in a network of its own, whose packets are as long as those of a real one.
//!
//! Loopback carries packets of 64 KiB, which no network between hosts does. Linux gives a process without privileges a
//! network namespace, and its loopback takes any MTU.

use std::env;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::failure::Failure;

/// Tells the command that it already runs in such a network.
const INSIDE: &str = "TRANSLOAD_BENCH_MTU";

/// What runs in the new network: `$1` is the MTU, the rest a command.
const SCRIPT: &str = r#"ip link set lo mtu "$1" up && shift && exec "$@""#;

/// Replaces this process with itself in a network with packets of `mtu` bytes. Does nothing where it is in one.
pub(super) fn enter(mtu: u32) -> Result<(), Failure> {
    let mtu = mtu.to_string();
    if env::var_os(INSIDE).is_some_and(|inside| *inside == *mtu) {
        return Ok(());
    }
    // A process that cannot have one says so by itself, but not what to do about it.
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
        format!("there is no network with an MTU of {mtu}: {why}"),
        "`--mtu` needs `unshare` and `ip` (util-linux, iproute2), and Linux that lets users have namespaces",
    )
}
