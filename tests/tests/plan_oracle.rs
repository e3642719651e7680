//! The planner against the oracle.

use proptest::prelude::*;
use transload_tests::cases::{Case, Reach, cases};
use transload_tests::chunks::Tally;
use transload_tests::compiled::{Bound, Streamed};
use transload_tests::planner::{Demand, Planner, check};

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Every byte once, from the right place, in chunks as long as they have to be.
    #[test]
    fn bound_plans_are_those_of_the_oracle(case in cases(Reach::Settled)) {
        agree(&case, Demand::Chunks, &Bound)?;
    }

    /// A gather and a scatter that know nothing of each other's tables move the same bytes.
    #[test]
    fn streams_carry_every_byte_to_its_place(case in cases(Reach::Settled), by_layer: bool) {
        agree(&case, Demand::Bytes, &Streamed { by_layer })?;
    }
}

fn agree(case: &Case, demand: Demand, planner: &impl Planner) -> Result<Tally, TestCaseError> {
    check(demand, planner, &case.from, &case.to, &case.request)
        .map_err(|fault| TestCaseError::fail(format!("{fault}\n{case:?}")))
}
