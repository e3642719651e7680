//! What is left of lent memory in the end: it counts the mappings of the whole process, so that nothing
//! else may borrow in it.

use std::time::Duration;

use tokio::time::sleep;
use transload_tests::pair::{Pair, Registered};
use transload_transfer::identity::Roles;
use transload_transfer::ids::{Direction, LeaseSetId};
use transload_transfer::wire::{Path, PathSet};

/// How many mappings of lent memory this process has.
fn borrowed() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let borrowed = |line: &&str| line.contains(" r--s ") && line.contains("memfd:transload-shared");
    maps.lines().filter(borrowed).count()
}

#[tokio::test]
async fn loans_are_unmapped_in_the_end() {
    let pair = Pair::new(Registered::Shared(0), Roles::all());
    let set = LeaseSetId([1; 16]);
    let _leases = pair.leases(&pair.src, set, false).await;
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let mut request = pair.request(ticket, &pair.dst);
    request.paths = PathSet::LOCAL;
    let report = pair.dst.agent.pull(request).await.unwrap();
    assert!(report.routes.iter().all(|route| route.path == Path::Shared));
    assert!(borrowed() > 0);
    pair.dst.agent.shutdown(Duration::from_secs(5)).await;
    // By a thread of its own, which nobody waits for.
    for _ in 0..1000 {
        if borrowed() == 0 {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("{} are left", borrowed());
}
