//! Tests of unchecked specs: the result is a value or an error, never a panic.

use super::*;
use crate::dtype::Dtype;

fn all(n: u64) -> Vec<Spec> {
    let (dtype, conv_layout) = (Dtype::F64, ConvLayout::Ds);
    let scaled = ScaledLatent { data_bytes: n, scale_bytes: n, tokens_per_state: n, sliding_window: Some(n) };
    vec![
        Spec::Attention(Attention {
            heads: n,
            head_dim: n,
            v_head_dim: n,
            dtype,
            sliding_window: Some(n),
            chunk_size: Some(n),
        }),
        Spec::Mla(Mla { latent: n, dtype, sliding_window: Some(n) }),
        Spec::Compressed(scaled.clone()),
        Spec::Indexer(scaled),
        Spec::Opaque(Opaque { heads: n, entry_bytes: n, tokens_per_state: n, packed_heads: Some(n) }),
        Spec::Mamba2Conv(Mamba2Conv {
            d_inner: n,
            heads: n,
            groups: n,
            state_size: n,
            conv_states: n,
            dtype,
            conv_layout,
        }),
        Spec::Mamba2Ssm(Mamba2Ssm { heads: n, head_dim: n, state_size: n, dtype }),
        Spec::GdnConv(GdnConv {
            key_heads: n,
            key_head_dim: n,
            value_heads: n,
            value_head_dim: n,
            conv_states: n,
            dtype,
            conv_layout,
        }),
        Spec::GdnSsm(GdnSsm { value_heads: n, value_head_dim: n, key_head_dim: n, dtype }),
        Spec::Mamba1Conv(Mamba1Conv { d_inner: n, conv_states: n, dtype, conv_layout }),
        Spec::Mamba1Ssm(Mamba1Ssm { d_inner: n, state_size: n, dtype }),
        Spec::Linear(Linear { heads: n, head_dim: n, v_head_dim: n, dtype }),
    ]
}

#[test]
fn no_numbers_make_a_spec_panic() {
    for n in [0, 1, 3, 1 << 40, u64::MAX] {
        for spec in all(n) {
            let tokens = match spec.geometry().states {
                States::PerTokens(tokens) => Some(tokens),
                States::Sequence => None,
            };
            assert_eq!(spec.tokens_per_state(), tokens, "{spec:?}");
            for tp in [0, 1, 3, u32::MAX] {
                let heads = spec.num_heads(tp);
                let size = spec.state_content_size(tp);
                let partition = |size: &Result<_, _>| matches!(size, Err(ContentSizeError::Partition(_)));
                assert!(heads.is_ok() || partition(&size), "{spec:?}: {size:?}");
            }
            for (start, end) in [(0, 0), (5, 7), (0, u64::MAX)] {
                let first = spec.first_token_needed(start, end);
                assert!(first >= start, "{spec:?}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_into_64_bits_is_an_error() {
    let spec = Spec::Mla(Mla { latent: 1 << 62, dtype: Dtype::F64, sliding_window: None });
    assert_eq!(spec.state_content_size(1), Err(ContentSizeError::TooLarge));
    let spec = Spec::Mla(Mla { latent: 576, dtype: Dtype::Bf16, sliding_window: None });
    assert_eq!(spec.state_content_size(8), Ok(1152));
}

/// DeepSeek V4 attends to the last 128 tokens of its uncompressed cache, and to the last 8 of the state from which it
/// compresses.
#[test]
fn latents_may_have_windows() {
    let latents = |sliding_window| {
        let scaled = ScaledLatent { data_bytes: 576, scale_bytes: 8, tokens_per_state: 1, sliding_window };
        let mla = Mla { latent: 2048, dtype: Dtype::F32, sliding_window };
        [Spec::Compressed(scaled), Spec::Mla(mla)]
    };
    for spec in latents(Some(8)) {
        assert_eq!(spec.first_token_needed(0, 100), 93, "{spec:?}");
        assert_eq!(spec.first_token_needed(97, 100), 97, "{spec:?}");
        assert_eq!(spec.first_token_needed(0, 3), 0, "{spec:?}");
        let window = spec.identity().pop();
        assert_eq!(window, Some(("sliding_window", FieldValue::Number(8))));
    }
    for spec in latents(None) {
        assert_eq!(spec.first_token_needed(0, 100), 0, "{spec:?}");
    }
}
