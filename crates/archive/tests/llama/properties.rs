//! Any state, saved one way and restored another.

use std::sync::Arc;

use proptest::prelude::*;
use transload_store::Backend;
use transload_store::backend::MemoryStore;

use crate::oracle::{Model, sorted, state, tokens};
use crate::{load, states};

/// Rows of numbers, of q8_0 and q4_0 blocks, and of an unknown type.
fn rows() -> impl Strategy<Value = (i32, u64)> {
    (0..6_usize, 1..4_u64).prop_map(|(kind, blocks)| {
        let (kind, bytes) = [(0, 4), (1, 2), (30, 2), (8, 34), (2, 18), (99, 7)][kind];
        (kind, bytes * blocks)
    })
}

fn models() -> impl Strategy<Value = Model> {
    let keys = prop::collection::vec(rows(), 1..5);
    (keys, prop::collection::vec(rows(), 5), any::<bool>()).prop_map(|(keys, values, latents)| {
        let count = if latents { 0 } else { keys.len() };
        let values = values[..count].to_vec();
        Model { keys, values }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn what_was_saved_one_way_is_restored_the_other(
        model in models(),
        count in prop_oneof![1..40_usize, 250..262_usize, 500..600_usize],
        shared in any::<prop::sample::Index>(),
        [save_transposed, load_transposed] in any::<[bool; 2]>(),
        mut cells in Just((0..600_usize).collect::<Vec<_>>()).prop_shuffle(),
        is_shuffled in any::<bool>(),
    ) {
        // Quantized values are never transposed.
        let can = model.values.iter().all(|(kind, _)| matches!(kind, 0 | 1 | 30));
        let (save_transposed, load_transposed) = (save_transposed && can, load_transposed && can);
        cells.retain(|cell| *cell < count);
        if !is_shuffled {
            cells.sort_unstable();
        }
        let own = tokens(1, count);
        let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
        let states = states(&store, &sorted(&model, &own[..1], load_transposed));
        states.save(&own, &state(&model, &own, &cells, save_transposed)).unwrap();

        let restored = load(&states, &own).unwrap();
        prop_assert_eq!(restored.0, count);
        prop_assert!(restored.1 == sorted(&model, &own, load_transposed));

        // Another prompt shares the rest only behind all whole token chunks.
        let shared = shared.index(count + 1);
        let prompt = [&own[..shared], &[u32::MAX; 300]].concat();
        let expected = if shared / 256 == count / 256 { shared } else { shared / 256 * 256 };
        match load(&states, &prompt) {
            None => prop_assert_eq!(expected, 0),
            Some((found, state)) => {
                prop_assert_eq!(found, expected);
                prop_assert!(state == sorted(&model, &own[..found], load_transposed));
            }
        }
    }
}
