//! Mamba2 in every layer: `[layers, B, 1, [x, B, C], [ssm]]` as `mamba`, one page of two specs.
//!
//! The convolution keeps the last `kernel - 1` inputs of `x`, `B` and `C`, in the model's type. vLLM lays
//! them out as `[taps, channels]` (`SD`) unless it is told otherwise. The state is
//! `[heads, head_dim, state_size]`, in the same type unless the family says another.
//!
//! Groups: vLLM hands `B` and `C` out by groups where tp divides them, and repeats them whole on every rank
//! where there is one. It sizes pages for a tp that does not divide several groups too (one group a rank,
//! as if there were tp of them), but its Mamba2 layer then refuses to start, and so does a
//! [deployment](crate::Deployment) of these specs. A model of 8 groups thus goes over 1, 2, 4 or 8 ranks.

use super::Kin;
use super::config::Preset::Number;
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use super::recurrent::taps;
use crate::dtype::Dtype;
use crate::spec::{ConvLayout, Mamba2Conv, Mamba2Ssm, Spec};

const MAMBA2: Presets = &[
    ("num_hidden_layers", Number(64)),
    ("hidden_size", Number(4096)),
    ("expand", Number(2)),
    ("num_heads", Number(128)),
    ("head_dim", Number(64)),
    ("n_groups", Number(8)),
    ("state_size", Number(128)),
    ("conv_kernel", Number(4)),
];

pub(super) const KIN: Kin = Kin { members: &[("mamba2", MAMBA2)], caches };

const KEYS: Keys = Keys {
    heads: "num_heads",
    head_dim: "head_dim",
    groups: "n_groups",
    state_size: "state_size",
    conv_kernel: "conv_kernel",
};

fn caches(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let inner = Inner { size: config.product("expand", "hidden_size")?, called: "expand * hidden_size" };
    let head_dim = Some(config.positive("head_dim")?);
    let page = page(config, &KEYS, &inner, head_dim, config.model_dtype()?)?;
    let mut layers = Layers::of(config.layers("num_hidden_layers")?);
    for layer in layers.ids() {
        layers.add(layer, "mamba", page.as_slice());
    }
    Ok(layers)
}

/// What a family calls the sizes of its Mamba2 layers.
pub(super) struct Keys {
    pub(super) heads: &'static str,
    pub(super) head_dim: &'static str,
    pub(super) groups: &'static str,
    pub(super) state_size: &'static str,
    pub(super) conv_kernel: &'static str,
}

/// Keys of the families that put Mamba2 between (or beside) layers of attention.
pub(super) const HYBRID_KEYS: Keys = Keys {
    heads: "mamba_n_heads",
    head_dim: "mamba_d_head",
    groups: "mamba_n_groups",
    state_size: "mamba_d_state",
    conv_kernel: "mamba_d_conv",
};

/// Channels of `x`, all heads together.
pub(super) struct Inner {
    pub(super) size: u64,
    /// What says so, for a message.
    pub(super) called: &'static str,
}

impl Inner {
    /// `mamba_expand * hidden_size`, as most hybrids have it.
    pub(super) fn expanded(config: &Config<'_>) -> Result<Self, ConfigError> {
        Ok(Self { size: config.product("mamba_expand", "hidden_size")?, called: "mamba_expand * hidden_size" })
    }
}

/// A page of one layer: the convolution's inputs, then the state. Without a `head_dim` it is what is left
/// for each head.
pub(super) fn page(
    config: &Config<'_>,
    keys: &Keys,
    inner: &Inner,
    head_dim: Option<u64>,
    ssm_dtype: Dtype,
) -> Result<Vec<Spec>, ConfigError> {
    let heads = config.positive(keys.heads)?;
    let (d_inner, called) = (inner.size, inner.called);
    if !d_inner.is_multiple_of(heads) {
        let problem = format!("is {heads}, which does not divide {called} = {d_inner}");
        return Err(config.fault(keys.heads, problem));
    }
    let share = d_inner / heads;
    if let Some(head_dim) = head_dim.filter(|head_dim| *head_dim != share) {
        let problem = format!("is {head_dim}, but {called} = {d_inner} over {heads} heads is {share}");
        return Err(config.fault(keys.head_dim, problem));
    }
    let groups = config.positive(keys.groups)?;
    if !heads.is_multiple_of(groups) {
        let problem = format!("is {groups}, which does not divide {} = {heads}", keys.heads);
        return Err(config.fault(keys.groups, problem));
    }
    let state_size = config.positive(keys.state_size)?;
    let conv = Mamba2Conv {
        d_inner,
        heads,
        groups,
        state_size,
        conv_states: taps(config, keys.conv_kernel)?,
        dtype: config.model_dtype()?,
        conv_layout: ConvLayout::Sd,
    };
    let ssm = Mamba2Ssm { heads, head_dim: share, state_size, dtype: ssm_dtype };
    Ok(vec![Spec::Mamba2Conv(conv), Spec::Mamba2Ssm(ssm)])
}

/// The page of a hybrid with `mamba_*` keys, whose `mamba_d_head` may be `"auto"`.
pub(super) fn hybrid_page(config: &Config<'_>, inner: &Inner) -> Result<Vec<Spec>, ConfigError> {
    let head_dim = config.unless_auto(HYBRID_KEYS.head_dim)?;
    page(config, &HYBRID_KEYS, inner, head_dim, config.model_dtype()?)
}
