//! Specs with fewer heads and shorter content.

use transload::layout::Spec;
use transload::layout::spec::{
    Attention, GdnConv, GdnSsm, Linear, Mamba1Conv, Mamba1Ssm, Mamba2Conv, Mamba2Ssm, Mla, Opaque,
    ScaledLatent,
};

use super::sizes::{Ranks, Size};

/// Elements along a content axis: enough to see which of two axes is outside.
const FEW: u64 = 2;

/// Taps of a convolution that are kept at most.
const TAPS: u64 = 3;

/// The specs of a group, smaller: the same for both sides, as what differs between them is kept.
pub(super) fn smaller(specs: &[Spec], ranks: &Ranks, size: &Size) -> Vec<Spec> {
    specs.iter().map(|spec| shrink(spec, ranks, size)).collect()
}

fn shrink(spec: &Spec, ranks: &Ranks, size: &Size) -> Spec {
    let units = |real| ranks.units(real);
    match spec.clone() {
        Spec::Attention(spec) => {
            let (head_dim, v_head_dim) = match spec.head_dim.cmp(&spec.v_head_dim) {
                std::cmp::Ordering::Equal => (FEW, FEW),
                std::cmp::Ordering::Greater => (FEW + 1, FEW),
                std::cmp::Ordering::Less => (FEW, FEW + 1),
            };
            Spec::Attention(Attention {
                heads: units(spec.heads),
                head_dim,
                v_head_dim,
                sliding_window: spec.sliding_window.map(|_| size.window()),
                chunk_size: spec.chunk_size.map(|_| size.window()),
                ..spec
            })
        }
        Spec::Mla(spec) => Spec::Mla(Mla {
            latent: FEW,
            ..spec
        }),
        Spec::Compressed(spec) => Spec::Compressed(scaled(spec)),
        Spec::Indexer(spec) => Spec::Indexer(scaled(spec)),
        Spec::Opaque(spec) => Spec::Opaque(Opaque {
            heads: units(spec.heads),
            entry_bytes: FEW,
            ..spec
        }),
        Spec::Mamba2Conv(spec) => {
            let heads = units(spec.heads);
            Spec::Mamba2Conv(Mamba2Conv {
                heads,
                d_inner: heads * FEW,
                groups: units(spec.groups),
                state_size: FEW,
                conv_states: spec.conv_states.min(TAPS),
                ..spec
            })
        }
        Spec::Mamba2Ssm(spec) => Spec::Mamba2Ssm(Mamba2Ssm {
            heads: units(spec.heads),
            head_dim: FEW,
            state_size: FEW,
            ..spec
        }),
        Spec::GdnConv(spec) => Spec::GdnConv(GdnConv {
            key_heads: units(spec.key_heads),
            key_head_dim: FEW,
            value_heads: units(spec.value_heads),
            value_head_dim: FEW,
            conv_states: spec.conv_states.min(TAPS),
            ..spec
        }),
        Spec::GdnSsm(spec) => Spec::GdnSsm(GdnSsm {
            value_heads: units(spec.value_heads),
            value_head_dim: FEW,
            key_head_dim: FEW,
            ..spec
        }),
        Spec::Mamba1Conv(spec) => Spec::Mamba1Conv(Mamba1Conv {
            d_inner: units(spec.d_inner),
            conv_states: spec.conv_states.min(TAPS),
            ..spec
        }),
        Spec::Mamba1Ssm(spec) => Spec::Mamba1Ssm(Mamba1Ssm {
            d_inner: units(spec.d_inner),
            state_size: FEW,
            ..spec
        }),
        Spec::Linear(spec) => Spec::Linear(Linear {
            heads: units(spec.heads),
            head_dim: FEW,
            v_head_dim: FEW,
            ..spec
        }),
    }
}

fn scaled(spec: ScaledLatent) -> ScaledLatent {
    ScaledLatent {
        data_bytes: 2 * FEW,
        scale_bytes: FEW,
        ..spec
    }
}
