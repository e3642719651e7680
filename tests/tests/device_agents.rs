//! Agents whose caches are in the memory of a GPU, on the fake driver.
#![cfg(target_os = "linux")]

use std::time::Duration;

use tokio::runtime::Runtime;
use transload_tests::fake_cuda::run;
use transload_tests::pair::Pair;
use transload_transfer::agent::PullReport;
use transload_transfer::device::Gpu;
use transload_transfer::ids::{Direction, LeaseSetId};
use transload_transfer::lease::LeaseEnd;
use transload_transfer::path::{Path, PathSet};

/// Which sides have their caches on the GPU.
const WHERE: [[bool; 2]; 3] = [[true, true], [true, false], [false, true]];

fn pair(gpu: &Gpu, [src, dst]: [bool; 2]) -> Pair {
    Pair::on_gpus([src.then_some(gpu), dst.then_some(gpu)])
}

fn paths(report: &PullReport) -> PathSet {
    report.routes.iter().map(|route| route.path).collect()
}

#[test]
fn pulls_reach_every_byte_from_and_to_a_gpu() {
    run("pulls_reach_every_byte_from_and_to_a_gpu", &[], |fake| {
        let gpu = Gpu::open(0).unwrap();
        let before = fake.live();
        Runtime::new().unwrap().block_on(async {
            for on in WHERE {
                for path in [Path::QUIC, Path::RING] {
                    let pair = pair(&gpu, on);
                    let set = LeaseSetId([1; 16]);
                    let leases = pair.leases(&pair.src, set, false).await;
                    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
                    let mut request = pair.request(ticket, &pair.dst);
                    request.paths = path.into();
                    let report = pair.dst.agent.pull(request).await.unwrap();
                    assert_eq!(paths(&report), path.into(), "{on:?}");
                    assert_eq!(pair.found(), pair.expected(), "{on:?} over {path:?}");
                    for lease in leases {
                        assert_eq!(lease.ended().await.unwrap().end, LeaseEnd::Completed);
                    }
                }
            }
        });
        // All memories of the pairs were given back, and what was uploaded for their routes.
        for _ in 0..100 {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(fake.live(), before);
    });
}

#[test]
fn pushes_reach_every_byte_from_and_to_a_gpu() {
    run("pushes_reach_every_byte_from_and_to_a_gpu", &[], |_| {
        let gpu = Gpu::open(0).unwrap();
        Runtime::new().unwrap().block_on(async {
            for on in WHERE {
                for path in [Path::QUIC, Path::RING] {
                    let pair = pair(&gpu, on);
                    let expected = pair.expected();
                    let set = LeaseSetId([2; 16]);
                    let openings = pair.leases(&pair.dst, set, true).await;
                    let ticket = pair.ticket(&pair.dst, set, Direction::Push);
                    let mut request = pair.request(ticket, &pair.src);
                    request.paths = path.into();
                    pair.src.agent.push(request).await.unwrap();
                    for opening in openings {
                        assert_eq!(opening.ended().await.unwrap().end, LeaseEnd::Completed);
                    }
                    assert_eq!(pair.found(), expected, "{on:?} over {path:?}");
                }
            }
        });
    });
}
