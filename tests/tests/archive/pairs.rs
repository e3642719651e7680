//! Random pairs of deployments.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use serde_json::Value;
use transload_archive::{Archive, ArchiveError, Model};
use transload_store::Backend;
use transload_store::backend::MemoryStore;
use transload_tests::cases::{Case, Reach, cases};

use crate::engines::{carry, deployment};

/// Returns whether every state goes into a token chunk.
fn can_be_cut(document: &Value) -> bool {
    let groups = document["group"].as_array().unwrap();
    let specs = groups.iter().flat_map(|group| group["spec"].as_array().unwrap());
    let mut tokens = specs.filter_map(|spec| spec["tokens_per_state"].as_u64());
    tokens.all(|tokens| 256 % tokens == 0)
}

/// Asserts that an archive refuses every rank of a side whose tokens are dealt out. Returns whether it is one.
fn is_refused(side: &Value) -> bool {
    let deployment = deployment(side);
    let is_dealt = deployment.groups().iter().any(|group| group.dcp() > 1);
    if is_dealt && can_be_cut(side) {
        let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
        let archive = Archive::new(store, Model::new("m", "w"), &deployment).unwrap();
        for rank in deployment.ranks() {
            assert!(matches!(archive.rank(&deployment, rank), Err(ArchiveError::Layout { .. })), "{side:#}");
        }
    }
    is_dealt
}

fn check(case: &Case, tokens: u64, start: u64) {
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    if is_refused(&case.from) || is_refused(&case.to) {
        return;
    }
    if can_be_cut(&case.from) {
        let restored = carry(&store, (&case.from, &case.to), tokens, start);
        assert_eq!(restored, tokens / 256 * 256, "{case:?}");
    } else {
        let error = Archive::new(store, Model::new("m", "w"), &deployment(&case.from)).unwrap_err();
        assert!(matches!(error, ArchiveError::TokensPerState { .. }), "{error}");
    }
}

/// `PROPTEST_CASES` and `PROPTEST_RNG_SEED` ask for more and for others.
#[test]
fn restored_blocks_are_those_of_a_direct_transfer() {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 150;
    }
    if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
        config.rng_seed = RngSeed::Fixed(4);
    }
    let strategy = (cases(Reach::Settled), 256..900_u64, 0..600_u64);
    let run = TestRunner::new(config).run(&strategy, |(case, tokens, start)| {
        check(&case, tokens, start);
        Ok(())
    });
    run.unwrap_or_else(|fault| panic!("{fault}"));
}
