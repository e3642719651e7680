//! Holds the planner against the oracle on many random cases and counts what comes out, instead of
//! stopping at the first disagreement: `cargo run --release -p transload-tests --example survey -- [cases]
//! [seed] [disputed]`. Of each sort of disagreement the smallest case found is printed in full.
//!
//! Exit code: 1 where there was a disagreement, or more stitches than [`STITCHES`]; otherwise 0.

use std::collections::BTreeMap;
use std::process::ExitCode;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use transload_tests::cases::{Case, Reach, cases};
use transload_tests::chunks::Tally;
use transload_tests::compiled::{Bound, Streamed};
use transload_tests::planner::{Demand, check};

/// Most stitches, for each thousand chunks. They are allowed, each by itself; many more than there were
/// would say that loops have begun to fall apart. Seeds 1 to 4 of 1,000 cases have 0.9 to 2.6.
const STITCHES: u64 = 10;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| match arguments.next().map(|a| a.parse::<u64>()) {
        Some(Ok(number)) => number,
        _ => default,
    };
    let (count, seed) = (number(1000), number(0));
    let reach = match std::env::args().any(|a| a == "disputed") {
        true => Reach::Disputed,
        false => Reach::Settled,
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = cases(reach);

    let mut total = Tally::default();
    let mut with_stitches = 0;
    let mut sorts = BTreeMap::<String, (u64, Case, String)>::new();
    for _ in 0..count {
        let mut tree = strategy.new_tree(&mut runner).expect("a case");
        match judge(&tree.current()) {
            Ok(tally) => {
                total.add(&tally);
                with_stitches += u64::from(tally.unmerged() > 0);
            }
            Err((sort, _)) => {
                if let Some(found) = sorts.get_mut(&sort) {
                    found.0 += 1;
                    continue;
                }
                let same = |case: &Case| match judge(case) {
                    Err((found, why)) if found == sort => Some(why),
                    _ => None,
                };
                let (case, fault) = shrink(&mut tree, same).expect("as just seen");
                sorts.insert(sort, (1, case, fault));
            }
        }
    }
    println!(
        "{count} cases, seed {seed}: {} bytes, {} chunks, {} would do, {} stitches in {with_stitches} cases",
        total.bytes,
        total.chunks,
        total.fewest,
        total.unmerged(),
    );
    let mut stitches = total.stitches.iter().collect::<Vec<_>>();
    stitches.sort_by_key(|(_, times)| std::cmp::Reverse(**times));
    for (axes, times) in stitches {
        println!("{times:8} over {axes}");
    }
    for (sort, (times, case, fault)) in &sorts {
        println!("\n{times} times {sort}\n  {fault}\n  {case:?}");
    }
    let many = total.unmerged() * 1000 > total.chunks * STITCHES;
    if many {
        println!("\nthat is more than {STITCHES} stitches for each thousand chunks");
    }
    match sorts.is_empty() && !many {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Judges a case by both ways of planning. A disagreement comes with its kind.
fn judge(case: &Case) -> Result<Tally, (String, String)> {
    let Case { from, to, request, .. } = case;
    let sorted = |way: &str, fault: String| {
        let chains = fault.split_once("had to be one, ").map(|(_, rest)| {
            let what = rest.split(':').next().unwrap_or_default();
            format!("{way}: unmerged, {what}")
        });
        let words = || {
            let words = fault.split(|c: char| c.is_ascii_digit() || c == '"').collect::<String>();
            format!("{way}: {}", words.chars().take(90).collect::<String>())
        };
        (format!("{} {:?}", chains.unwrap_or_else(words), case.disputed), fault)
    };
    for by_layer in [false, true] {
        check(Demand::Bytes, &Streamed::exact(by_layer), from, to, request)
            .map_err(|fault| sorted("streamed", fault))?;
    }
    check(Demand::Chunks, &Bound, from, to, request).map_err(|fault| sorted("bound", fault))
}

/// Returns the simplest case for which `found` still finds something, as far as some hundred steps lead.
fn shrink<T>(tree: &mut impl ValueTree<Value = Case>, found: impl Fn(&Case) -> Option<T>) -> Option<(Case, T)> {
    let mut best = None;
    for _ in 0..400 {
        let case = tree.current();
        let hit = found(&case).map(|it| best = Some((case, it))).is_some();
        if !(if hit { tree.simplify() } else { tree.complicate() }) {
            break;
        }
    }
    best
}
