//! Agents on GPUs that fail, over each of the paths, on the fake driver.
//!
//! - [`calls`]: each function of the driver fails once, or loses the device.
//! - [`losses`]: what a lost device takes with it, and what it does not.
//! - [`stalls`]: a device that stands still.
#![cfg(target_os = "linux")]

mod calls;
mod losses;
mod stalls;

use std::time::Duration;

use smallvec::smallvec;
use tokio::time::{sleep, timeout};
use transload_layout::Rank;
use transload_tests::pair::{Pair, contents};
use transload_transfer::device::{DeviceError, copy};
use transload_transfer::memory::copy::CopyOptions;
use transload_transfer::plan::program::{Nest, Placed, Program};
use transload_transfer::{
    Direction, Lease, LeaseEnd, LeaseRequest, LeaseSetId, Memory, Path, PathSet, PullReport, TransferError,
};

const OUT_OF_MEMORY: u32 = 2;
const LAUNCH_FAILED: u32 = 719;

/// The paths between caches of one GPU.
const PATHS: [Path; 3] = [Path::QUIC, Path::RING, Path::DEVICE];

/// Returns a path, and those that replace it if it is not available.
fn up_to(path: Path) -> PathSet {
    PATHS.into_iter().filter(|other| *other <= path).collect()
}

/// Fails a test that hangs, with a time limit far above what anything here takes.
async fn soon<T>(work: impl Future<Output = T>) -> T {
    let done = timeout(Duration::from_secs(60), work).await;
    done.expect("done in time")
}

/// Waits until something holds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = timeout(Duration::from_secs(60), wait).await;
    waited.unwrap_or_else(|_| panic!("never: {what}"));
}

fn whole(len: u64) -> Program {
    let (nests, placed) = (vec![Nest { loops: smallvec![], run: len }], vec![Placed { nest: 0, src: 0, dst: 0 }]);
    Program { nests, placed }
}

/// Writes the initial contents to the caches of the destination.
fn reset(pair: &Pair) {
    for (memory, device) in pair.dst.memories.iter().zip(&pair.dst.on_gpu) {
        copy(&whole(memory.bytes()), memory, device, &CopyOptions::default()).unwrap();
    }
}

/// Returns the contents of the destination's caches, if they can still be read.
fn found(pair: &Pair) -> Result<Vec<Vec<u8>>, DeviceError> {
    let devices = pair.dst.on_gpu.iter();
    let read = devices.map(|device| {
        let (_, len) = device.allocation(0).unwrap();
        let host = Memory::allocate(&[len as usize]).unwrap();
        copy(&whole(len), device, &host, &CopyOptions::default())?;
        Ok(contents(&host))
    });
    read.collect()
}

fn set_id(set: u32) -> LeaseSetId {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&set.to_le_bytes());
    LeaseSetId(id)
}

/// Leases everything that a rank of the source has.
fn lease_of(pair: &Pair, set: u32, rank: Rank) -> LeaseRequest {
    let tables = pair.src.tables.clone();
    LeaseRequest::new(set_id(set), rank, tables, pair.content, pair.tokens)
}

/// Leases what the source has to a set, and pulls that.
async fn pull(pair: &Pair, set: u32, paths: impl Into<PathSet>) -> (Vec<Lease>, Result<PullReport, TransferError>) {
    let leases = pair.leases(&pair.src, set_id(set), false).await;
    (leases, pull_leased(pair, set, paths).await)
}

/// Pulls the leases of a set.
async fn pull_leased(pair: &Pair, set: u32, paths: impl Into<PathSet>) -> Result<PullReport, TransferError> {
    let ticket = pair.ticket(&pair.src, set_id(set), Direction::Pull);
    let mut request = pair.request(ticket, &pair.dst);
    request.paths = paths.into();
    soon(pair.dst.agent.pull(request)).await
}

/// Returns whether all bytes have taken a path.
fn took(report: &PullReport, path: Path) -> bool {
    report.routes.iter().all(|route| route.path == path)
}

async fn all_end(leases: Vec<Lease>) -> Vec<LeaseEnd> {
    let mut ends = Vec::new();
    for lease in leases {
        ends.push(soon(lease.ended()).await.unwrap().end);
    }
    ends
}
