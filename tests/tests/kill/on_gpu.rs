//! Processes whose caches are on a GPU survive each other as others do, over each of the paths.

use transload_tests::fake_cuda::run_anywhere;
use transload_transfer::Path;

use crate::destinations::destinations_survive;
use crate::heard::a_source_that_dies_is_heard_of;
use crate::request::RANKS;
use crate::siege::Siege;
use crate::sources::a_source_survives;

const PATHS: [(u64, Path); 3] = [(10, Path::QUIC), (11, Path::RING), (12, Path::DEVICE)];

/// A round takes longer where it opens a driver in two more processes.
const ONE_ROUND: (&str, &str) = ("TRANSLOAD_TEST_KILLS", "1");

#[test]
fn a_source_on_a_gpu_that_dies_is_heard_of() {
    let name = "on_gpu::a_source_on_a_gpu_that_dies_is_heard_of";
    run_anywhere(name, &[], |_| {
        a_source_that_dies_is_heard_of(Siege::on_gpu(18, Path::DEVICE));
    });
}

#[test]
fn destinations_on_a_gpu_survive_their_sources() {
    let name = "on_gpu::destinations_on_a_gpu_survive_their_sources";
    run_anywhere(name, &[ONE_ROUND], |_| {
        for (test, path) in PATHS {
            destinations_survive(&Siege::on_gpu(test, path), &[&RANKS[..2], &RANKS[2..]]);
        }
    });
}

#[test]
fn a_source_on_a_gpu_survives_its_destinations() {
    let name = "on_gpu::a_source_on_a_gpu_survives_its_destinations";
    run_anywhere(name, &[ONE_ROUND], |_| {
        for (test, path) in PATHS {
            a_source_survives(&Siege::on_gpu(test, path));
        }
    });
}
