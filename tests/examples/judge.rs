//! Judges one case, in the form that the tests and `survey` print, from standard input: `cargo run -p transload-tests
//! --example judge < case.json`. It prints the planned chunks next to the fewest possible ones.
//! fewest.

use std::io::Read;

use transload_tests::cases::Case;
use transload_tests::chunks;
use transload_tests::compiled::{Bound, Streamed};
use transload_tests::oracle;
use transload_tests::planner::{Demand, Planner, check};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let case = Case::from_json(&serde_json::from_str(&text)?)?;
    let (from, to, request) = (&case.from, &case.to, &case.request);

    for list in Bound.chunks(from, to, request)? {
        println!(
            "planned: rank {} to rank {}, group {}: {} chunks",
            list.src_rank,
            list.dst_rank,
            list.group,
            list.chunks.len()
        );
        for chunk in list.chunks.iter().take(40) {
            println!("  {chunk:?}");
        }
    }
    for route in oracle::transfer(from, to, request)? {
        let chunks = chunks::fewest(&route);
        println!(
            "fewest: rank {} to rank {}, group {}: {} chunks",
            route.src_rank,
            route.dst_rank,
            route.group,
            chunks.len()
        );
        for chunk in chunks.iter().take(40) {
            println!("  {chunk:?}");
        }
    }
    println!("{:?}", check(Demand::Chunks, &Bound, from, to, request));
    for by_layer in [false, true] {
        let streamed = check(Demand::Bytes, &Streamed::exact(by_layer), from, to, request);
        println!("streamed, by_layer {by_layer}: {:?}", streamed.map(|t| t.bytes));
    }
    Ok(())
}
