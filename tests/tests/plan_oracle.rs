//! The planner against the oracle.
//!
//! Without settings the random cases are the same in every run. `PROPTEST_CASES` and `PROPTEST_RNG_SEED`
//! ask for more and for others; `cargo run --release -p transload-tests --example survey` counts what
//! comes out of very many.

use std::env;
use std::time::{SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use transload_tests::cases::{Case, Reach, cases, kept};
use transload_tests::chunks::Tally;
use transload_tests::compiled::{Bound, Streamed};
use transload_tests::planner::{Demand, Planner, check};
use transload_transfer::plan::codec::Codec;

fn config() -> ProptestConfig {
    let mut config = ProptestConfig {
        // What fails is kept as a case of its own, under `vectors/cases`.
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    if env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 1000;
    }
    if env::var_os("PROPTEST_RNG_SEED").is_none() {
        config.rng_seed = RngSeed::Fixed(2);
    }
    config
}

proptest! {
    #![proptest_config(config())]

    /// Every byte comes once, from the right place, in chunks as long as possible.
    #[test]
    fn bound_plans_are_those_of_the_oracle(case in cases(Reach::Settled)) {
        agree(&case, Demand::Chunks, &Bound).map_err(TestCaseError::fail)?;
    }

    /// A gather and a scatter that know nothing of each other's tables move the same bytes.
    #[test]
    fn streams_carry_every_byte_to_its_place(
        case in cases(Reach::Settled),
        by_layer: bool,
        codec in prop::sample::select(&[Codec::Exact, Codec::Q8]),
    ) {
        let streamed = Streamed { by_layer, codec };
        agree(&case, Demand::Bytes, &streamed).map_err(TestCaseError::fail)?;
    }
}

/// Each run checks a few new cases. A failure prints the seed that repeats it.
#[test]
fn cases_of_a_new_seed() {
    let seed = match env::var("PROPTEST_RNG_SEED") {
        Ok(seed) => seed.parse().expect("a number for a seed"),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64),
    };
    let mut config = config();
    config.cases /= 4;
    config.rng_seed = RngSeed::Fixed(seed);
    let run = TestRunner::new(config).run(&cases(Reach::Settled), |case| {
        agree(&case, Demand::Chunks, &Bound).map_err(TestCaseError::fail)?;
        agree(&case, Demand::Bytes, &Streamed::default()).map_err(TestCaseError::fail)?;
        Ok(())
    });
    run.unwrap_or_else(|fault| panic!("with PROPTEST_RNG_SEED={seed}: {fault}"));
}

#[test]
fn what_was_wrong_once_is_right() {
    for (name, case) in kept() {
        let fail = |fault: String| -> Tally { panic!("{name}: {fault}") };
        agree(&case, Demand::Chunks, &Bound).unwrap_or_else(fail);
        for by_layer in [false, true] {
            for codec in [Codec::Exact, Codec::Q8] {
                let streamed = Streamed { by_layer, codec };
                agree(&case, Demand::Bytes, &streamed).unwrap_or_else(fail);
            }
        }
    }
}

fn agree(case: &Case, demand: Demand, planner: &impl Planner) -> Result<Tally, String> {
    check(demand, planner, &case.from, &case.to, &case.request).map_err(|fault| format!("{fault}\n{case:?}"))
}
