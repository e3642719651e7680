//! Compares footprints with a slow count: token by token, state by state, block by block.

use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::Footprint;
use crate::dtype::Dtype;
use crate::spec::{
    Attention, ConvLayout, Linear, Mamba1Conv, Mamba1Ssm, Mamba2Conv, Mamba2Ssm, Mla, Opaque, ScaledLatent, Spec,
};

/// Counts the bytes of a sequence without any formula of the crate.
mod oracle {
    use std::collections::BTreeSet;

    use super::*;

    fn seen(spec: &Spec, tokens: u64, t: u64) -> bool {
        let newest = tokens - 1;
        let in_window = |window: Option<u64>| window.is_none_or(|window| newest - t < window);
        match spec {
            Spec::Attention(spec) => {
                let same_chunk = |chunk: u64| newest / chunk == t / chunk;
                in_window(spec.sliding_window) && spec.chunk_size.is_none_or(same_chunk)
            }
            Spec::Mla(spec) => in_window(spec.sliding_window),
            Spec::Compressed(spec) | Spec::Indexer(spec) => in_window(spec.sliding_window),
            _ => true,
        }
    }

    /// Returns the number of tokens of a state, or `None` for a state of the whole sequence.
    fn tokens_per_state(spec: &Spec) -> Option<u64> {
        match spec {
            Spec::Attention(_) | Spec::Mla(_) => Some(1),
            Spec::Compressed(spec) | Spec::Indexer(spec) => Some(spec.tokens_per_state),
            Spec::Opaque(spec) => Some(spec.tokens_per_state),
            _ => None,
        }
    }

    /// Returns the bytes of one state on one rank. Heads are divided, or repeated if there are fewer than ranks.
    fn state_bytes(spec: &Spec, tp: u64) -> u64 {
        let share = |units: u64| if units >= tp { units / tp } else { 1 };
        match spec {
            Spec::Attention(spec) => {
                let entry = spec.head_dim + spec.v_head_dim;
                share(spec.heads) * entry * spec.dtype.bytes()
            }
            Spec::Mla(spec) => spec.latent * spec.dtype.bytes(),
            Spec::Compressed(spec) | Spec::Indexer(spec) => spec.data_bytes + spec.scale_bytes,
            Spec::Opaque(spec) => share(spec.heads) * spec.entry_bytes,
            Spec::Mamba2Conv(spec) => {
                let x = share(spec.heads) * (spec.d_inner / spec.heads);
                let b_and_c = 2 * share(spec.groups) * spec.state_size;
                (x + b_and_c) * spec.conv_states * spec.dtype.bytes()
            }
            Spec::Mamba2Ssm(spec) => share(spec.heads) * spec.head_dim * spec.state_size * spec.dtype.bytes(),
            Spec::Mamba1Conv(spec) => share(spec.d_inner) * spec.conv_states * spec.dtype.bytes(),
            Spec::Mamba1Ssm(spec) => share(spec.d_inner) * spec.state_size * spec.dtype.bytes(),
            Spec::Linear(spec) => share(spec.heads) * spec.head_dim * spec.v_head_dim * spec.dtype.bytes(),
            other => panic!("no {}", other.kind()),
        }
    }

    /// Counts finished states with a token that is attended to. A state is kept as long as its last token is.
    pub(super) fn sequence_bytes(specs: &[Spec], tp: u64, tokens: u64) -> u64 {
        let bytes = specs.iter().map(|spec| {
            let Some(per_state) = tokens_per_state(spec) else {
                return if tokens > 0 { state_bytes(spec, tp) } else { 0 };
            };
            let ends = (0..tokens).filter(|t| (t + 1) % per_state == 0);
            ends.filter(|t| seen(spec, tokens, *t)).count() as u64 * state_bytes(spec, tp)
        });
        bytes.sum()
    }

    /// Counts the blocks with a token that is attended to in any of the specs that share them.
    pub(super) fn allocated_bytes(specs: &[Spec], tp: u64, tokens: u64, block_size: u64) -> u64 {
        let states = |spec| tokens_per_state(spec).map_or(1, |per_state| block_size / per_state);
        let block: u64 = specs.iter().map(|spec| states(spec) * state_bytes(spec, tp)).sum();
        let mut touched = BTreeSet::new();
        for t in 0..tokens {
            for spec in specs {
                match tokens_per_state(spec) {
                    None => touched.insert(0),
                    Some(_) if seen(spec, tokens, t) => touched.insert(t / block_size),
                    Some(_) => false,
                };
            }
        }
        touched.len() as u64 * block
    }
}

fn attention(window: Option<u64>, chunk: Option<u64>) -> Spec {
    Spec::Attention(Attention {
        heads: 8,
        head_dim: 16,
        v_head_dim: 8,
        dtype: Dtype::Bf16,
        sliding_window: window,
        chunk_size: chunk,
    })
}

fn per_token() -> impl Strategy<Value = Vec<Spec>> {
    let reach = || option::of(1..200u64);
    prop_oneof![
        (reach(), reach()).prop_map(|(window, chunk)| vec![attention(window, chunk)]),
        reach()
            .prop_map(|sliding_window| { vec![Spec::Mla(Mla { latent: 576, dtype: Dtype::F8E4M3, sliding_window })] }),
        (select(vec![1, 4, 128]), reach(), any::<bool>()).prop_map(|(tokens_per_state, sliding_window, indexer)| {
            let spec = ScaledLatent { data_bytes: 128, scale_bytes: 4, tokens_per_state, sliding_window };
            vec![match indexer {
                true => Spec::Indexer(spec),
                false => Spec::Compressed(spec),
            }]
        }),
        // Two caches in one page: the longer window determines the blocks.
        (reach(), reach(), select(vec![1, 4, 128])).prop_map(|(window, chunk, tokens_per_state)| {
            let packed = Opaque { heads: 4, entry_bytes: 10, tokens_per_state, packed_heads: None };
            vec![attention(window, chunk), Spec::Opaque(packed)]
        }),
        (reach(), reach()).prop_map(|(one, other)| vec![attention(one, None), attention(other, None)]),
    ]
}

fn recurrent() -> Vec<Vec<Spec>> {
    let (dtype, conv_layout) = (Dtype::Bf16, ConvLayout::Sd);
    let mamba2 = vec![
        Spec::Mamba2Conv(Mamba2Conv {
            d_inner: 128,
            heads: 16,
            groups: 8,
            state_size: 32,
            conv_states: 3,
            dtype,
            conv_layout,
        }),
        Spec::Mamba2Ssm(Mamba2Ssm { heads: 16, head_dim: 8, state_size: 32, dtype: Dtype::F32 }),
    ];
    let mamba1 = vec![
        Spec::Mamba1Conv(Mamba1Conv { d_inner: 128, conv_states: 3, dtype, conv_layout }),
        Spec::Mamba1Ssm(Mamba1Ssm { d_inner: 128, state_size: 16, dtype }),
    ];
    let linear = vec![Spec::Linear(Linear { heads: 8, head_dim: 8, v_head_dim: 8, dtype })];
    vec![mamba2, mamba1, linear]
}

fn compare(specs: &[Spec], tp: u32, tokens: u64, block_size: u64) -> Result<(), TestCaseError> {
    let layer = Footprint::of(specs, tp).unwrap();
    let kept = oracle::sequence_bytes(specs, tp.into(), tokens);
    prop_assert_eq!(layer.sequence_bytes(tokens), u128::from(kept));
    let held = oracle::allocated_bytes(specs, tp.into(), tokens, block_size);
    prop_assert_eq!(layer.allocated_bytes(tokens, block_size), u128::from(held));
    Ok(())
}

proptest! {
    #[test]
    fn a_sequence_takes_what_a_count_of_its_tokens_says(
        specs in prop_oneof![6 => per_token(), 1 => select(recurrent())],
        tp in select(vec![1, 2, 4, 8]),
        tokens in 0..700u64,
        block_size in select(vec![128, 256, 384]),
    ) {
        compare(&specs, tp, tokens, block_size)?;
    }

    #[test]
    fn blocks_of_any_size_hold_states_of_one_token(
        window in option::of(1..100u64),
        chunk in option::of(1..100u64),
        tokens in 0..300u64,
        block_size in 1..40u64,
    ) {
        compare(&[attention(window, chunk)], 16, tokens, block_size)?;
    }

    /// Compares the bytes that grow and those that do not with the difference between two long sequences.
    #[test]
    fn a_long_sequence_grows_by_so_much_for_each_token(
        specs in prop_oneof![6 => per_token(), 1 => select(recurrent())],
    ) {
        let layer = Footprint::of(&specs, 1).unwrap();
        // The lengths are multiples of the tokens of all states. Chunks are excluded, because they do not stay full.
        let windows_only = specs.iter().all(|spec| match spec {
            Spec::Attention(spec) => spec.chunk_size.is_none(),
            _ => true,
        });
        prop_assume!(windows_only);
        let (short, long) = (128 * 8, 128 * 20);
        let grown = layer.sequence_bytes(long) - layer.sequence_bytes(short);
        prop_assert_eq!(grown as f64, layer.bytes_per_token() * (long - short) as f64);
        let growing = layer.bytes_per_token() * long as f64;
        prop_assert_eq!(layer.fixed_bytes() as f64, layer.sequence_bytes(long) as f64 - growing);
    }
}

#[test]
fn a_full_chunk_is_what_stays_fixed() {
    let layer = Footprint::of(&[attention(None, Some(64))], 1).unwrap();
    let most = (1..1000).map(|tokens| layer.sequence_bytes(tokens)).max();
    assert_eq!(most, Some(layer.fixed_bytes()));
    let both = Footprint::of(&[attention(Some(20), Some(64))], 1).unwrap();
    let most = (1..1000).map(|tokens| both.sequence_bytes(tokens)).max();
    assert_eq!(most, Some(both.fixed_bytes()));
}

#[test]
fn nothing_overflows() {
    for specs in [vec![attention(Some(u64::MAX), Some(1))], vec![attention(None, None)]] {
        let layer = Footprint::of(&specs, 1).unwrap();
        let state = 8 * (16 + 8) * 2;
        assert_eq!(layer.block_bytes(u64::MAX), u128::from(u64::MAX) * state);
        assert!(layer.allocated_bytes(u64::MAX, 1) > 0);
        assert_eq!(layer.allocated_bytes(u64::MAX, 0), 0);
    }
}
