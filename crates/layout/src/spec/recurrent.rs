//! Caches with one state for the whole sequence: `[L, B, 1, …]`.
//!
//! The sources are vLLM's state shapes for Mamba1, Mamba2 and gated delta nets. A convolution keeps `kernel - 1` *taps*
//! (the last inputs), and more if the engine decodes speculatively.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use super::{Arrangement, Component, FieldValue, Geometry, States};
use crate::dtype::Dtype;
use crate::partition::{Partition, Replication};

/// The outer one of a convolution's two content axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ConvLayout {
    /// `[channels, taps]`.
    Ds,
    /// `[taps, channels]`, vLLM's default.
    Sd,
}

impl ConvLayout {
    /// All variants.
    pub const ALL: [Self; 2] = [Self::Ds, Self::Sd];

    /// Returns the name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ds => "DS",
            Self::Sd => "SD",
        }
    }
}

/// `mamba2_conv`: components `x` (by heads), `B` and `C` (by groups; complete on every rank if there is one group).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mamba2Conv {
    /// Channels of `x`; a multiple of `heads`.
    pub d_inner: u64,
    /// The heads by which `x` is partitioned.
    pub heads: u64,
    /// The groups by which `B` and `C` are partitioned.
    pub groups: u64,
    /// Channels of `B` and of `C` per group.
    pub state_size: u64,
    /// The number of taps kept.
    pub conv_states: u64,
    /// Type of all three.
    pub dtype: Dtype,
    /// The outer content axis.
    pub conv_layout: ConvLayout,
}

/// `mamba2_ssm`: `[L, B, 1, heads/tp, [head_dim, state_size]]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mamba2Ssm {
    /// Heads of the whole model.
    pub heads: u64,
    /// Rows of one head's state.
    pub head_dim: u64,
    /// Columns of one head's state.
    pub state_size: u64,
    /// Type of its elements.
    pub dtype: Dtype,
}

/// `gdn_conv`: components `q` and `k` (by key heads) and `v` (by value heads).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GdnConv {
    /// The heads by which `q` and `k` are partitioned.
    pub key_heads: u64,
    /// Channels of `q` and of `k` per key head.
    pub key_head_dim: u64,
    /// The heads by which `v` is partitioned.
    pub value_heads: u64,
    /// Channels of `v` per value head.
    pub value_head_dim: u64,
    /// The number of taps kept.
    pub conv_states: u64,
    /// Type of all three.
    pub dtype: Dtype,
    /// The outer content axis.
    pub conv_layout: ConvLayout,
}

/// `gdn_ssm`: `[L, B, 1, value_heads/tp, [value_head_dim, key_head_dim]]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GdnSsm {
    /// Heads of the whole model.
    pub value_heads: u64,
    /// Rows of one head's state.
    pub value_head_dim: u64,
    /// Columns of one head's state.
    pub key_head_dim: u64,
    /// Type of its elements.
    pub dtype: Dtype,
}

/// `mamba1_conv`: one component `x`, partitioned by channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mamba1Conv {
    /// Channels of the whole model.
    pub d_inner: u64,
    /// The number of taps kept.
    pub conv_states: u64,
    /// Type of its elements.
    pub dtype: Dtype,
    /// The outer content axis.
    pub conv_layout: ConvLayout,
}

/// `mamba1_ssm`: `[L, B, 1, d_inner/tp, [state_size]]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mamba1Ssm {
    /// Channels of the whole model.
    pub d_inner: u64,
    /// State elements per channel.
    pub state_size: u64,
    /// Type of its elements.
    pub dtype: Dtype,
}

/// `linear`: `[L, B, 1, heads/tp, [head_dim, v_head_dim]]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Linear {
    /// Heads of the whole model.
    pub heads: u64,
    /// Rows of one head's state (key width).
    pub head_dim: u64,
    /// Columns of one head's state (value width).
    pub v_head_dim: u64,
    /// Type of its elements.
    pub dtype: Dtype,
}

fn conv(layout: ConvLayout, dtype: Dtype, components: SmallVec<[Component; 4]>) -> Geometry {
    Geometry {
        states: States::Sequence,
        element_bytes: dtype.bytes(),
        components,
        arrangement: match layout {
            ConvLayout::Ds => Arrangement::ChannelsFirst,
            ConvLayout::Sd => Arrangement::TapsFirst,
        },
        components_apart: false,
    }
}

fn state(name: &'static str, units: (&'static str, u64), content: &[u64], dtype: Dtype) -> Geometry {
    Geometry {
        states: States::Sequence,
        element_bytes: dtype.bytes(),
        components: smallvec![Component::new(name, units, content)],
        arrangement: Arrangement::HeadsFirst,
        components_apart: false,
    }
}

impl Mamba2Conv {
    pub(super) fn geometry(&self) -> Geometry {
        let per_group = |name| Component {
            partition: Partition::new(self.groups, Replication::OnlySingle),
            ..Component::new(name, ("groups", self.groups), &[self.state_size, self.conv_states])
        };
        // Without heads there is nothing to partition. The check of a deployment reports it.
        let channels = self.d_inner.checked_div(self.heads).unwrap_or(0);
        let x = Component::new("x", ("heads", self.heads), &[channels, self.conv_states]);
        let components = smallvec![x, per_group("B"), per_group("C")];
        conv(self.conv_layout, self.dtype, components)
    }

    pub(super) fn identity(&self) -> Vec<(&'static str, FieldValue)> {
        vec![
            ("d_inner", self.d_inner.into()),
            ("heads", self.heads.into()),
            ("groups", self.groups.into()),
            ("state_size", self.state_size.into()),
            ("conv_states", self.conv_states.into()),
            ("dtype", self.dtype.into()),
        ]
    }
}

impl Mamba2Ssm {
    pub(super) fn geometry(&self) -> Geometry {
        let content = [self.head_dim, self.state_size];
        state("ssm", ("heads", self.heads), &content, self.dtype)
    }

    pub(super) fn identity(&self) -> Vec<(&'static str, FieldValue)> {
        vec![
            ("heads", self.heads.into()),
            ("head_dim", self.head_dim.into()),
            ("state_size", self.state_size.into()),
            ("dtype", self.dtype.into()),
        ]
    }
}

impl GdnConv {
    pub(super) fn geometry(&self) -> Geometry {
        let key = |name| Component::new(name, ("key_heads", self.key_heads), &[self.key_head_dim, self.conv_states]);
        let value = [self.value_head_dim, self.conv_states];
        let v = Component::new("v", ("value_heads", self.value_heads), &value);
        conv(self.conv_layout, self.dtype, smallvec![key("q"), key("k"), v])
    }

    pub(super) fn identity(&self) -> Vec<(&'static str, FieldValue)> {
        vec![
            ("key_heads", self.key_heads.into()),
            ("key_head_dim", self.key_head_dim.into()),
            ("value_heads", self.value_heads.into()),
            ("value_head_dim", self.value_head_dim.into()),
            ("conv_states", self.conv_states.into()),
            ("dtype", self.dtype.into()),
        ]
    }
}

impl GdnSsm {
    pub(super) fn geometry(&self) -> Geometry {
        let content = [self.value_head_dim, self.key_head_dim];
        state("ssm", ("value_heads", self.value_heads), &content, self.dtype)
    }

    pub(super) fn identity(&self) -> Vec<(&'static str, FieldValue)> {
        vec![
            ("value_heads", self.value_heads.into()),
            ("value_head_dim", self.value_head_dim.into()),
            ("key_head_dim", self.key_head_dim.into()),
            ("dtype", self.dtype.into()),
        ]
    }
}

impl Mamba1Conv {
    pub(super) fn geometry(&self) -> Geometry {
        let x = Component::new("x", ("d_inner", self.d_inner), &[1, self.conv_states]);
        conv(self.conv_layout, self.dtype, smallvec![x])
    }

    pub(super) fn identity(&self) -> Vec<(&'static str, FieldValue)> {
        vec![("d_inner", self.d_inner.into()), ("conv_states", self.conv_states.into()), ("dtype", self.dtype.into())]
    }
}

impl Mamba1Ssm {
    pub(super) fn geometry(&self) -> Geometry {
        state("ssm", ("d_inner", self.d_inner), &[self.state_size], self.dtype)
    }

    pub(super) fn identity(&self) -> Vec<(&'static str, FieldValue)> {
        vec![("d_inner", self.d_inner.into()), ("state_size", self.state_size.into()), ("dtype", self.dtype.into())]
    }
}

impl Linear {
    pub(super) fn geometry(&self) -> Geometry {
        let content = [self.head_dim, self.v_head_dim];
        state("state", ("heads", self.heads), &content, self.dtype)
    }

    pub(super) fn identity(&self) -> Vec<(&'static str, FieldValue)> {
        vec![
            ("heads", self.heads.into()),
            ("head_dim", self.head_dim.into()),
            ("v_head_dim", self.v_head_dim.into()),
            ("dtype", self.dtype.into()),
        ]
    }
}
