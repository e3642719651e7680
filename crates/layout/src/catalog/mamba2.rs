//! Families with Mamba2 in every layer: `[layers, B, 1, [x, B, C], [ssm]]` as `mamba`, one page of two specs.
//!
//! The convolution keeps the last `kernel - 1` inputs of `x`, `B` and `C`, in the model's type. By default vLLM lays
//! them out as `[taps, channels]` (`SD`). The state is `[heads, head_dim, state_size]`, in the same type unless the
//! family names another.
//!
//! vLLM distributes `B` and `C` by group if tp divides the groups, and repeats them on every rank if there is one
//! group. It also computes page sizes for other values of tp (one group a rank, as if there were tp of them), but then
//! its Mamba2 layer refuses to start. A [deployment](crate::Deployment) of these specs refuses too. So a model with 8
//! groups runs on 1, 2, 4 or 8 ranks.

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

pub(super) struct Keys {
    pub(super) heads: &'static str,
    pub(super) head_dim: &'static str,
    pub(super) groups: &'static str,
    pub(super) state_size: &'static str,
    pub(super) conv_kernel: &'static str,
}

pub(super) const HYBRID_KEYS: Keys = Keys {
    heads: "mamba_n_heads",
    head_dim: "mamba_d_head",
    groups: "mamba_n_groups",
    state_size: "mamba_d_state",
    conv_kernel: "mamba_d_conv",
};

/// The number of channels of `x`, over all heads.
pub(super) struct Inner {
    pub(super) size: u64,
    /// The key or expression that gives the size, for messages.
    pub(super) called: &'static str,
}

impl Inner {
    /// Returns `mamba_expand * hidden_size`, the size in most hybrids.
    pub(super) fn expanded(config: &Config<'_>) -> Result<Self, ConfigError> {
        Ok(Self { size: config.product("mamba_expand", "hidden_size")?, called: "mamba_expand * hidden_size" })
    }
}

/// Returns the page of one layer: the convolution's inputs, then the state. Without a `head_dim`, the channels are
/// divided among the heads.
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

/// Returns the page of a hybrid with `mamba_*` keys, whose `mamba_d_head` may be `"auto"`.
pub(super) fn hybrid_page(config: &Config<'_>, inner: &Inner) -> Result<Vec<Spec>, ConfigError> {
    let head_dim = config.unless_auto(HYBRID_KEYS.head_dim)?;
    page(config, &HYBRID_KEYS, inner, head_dim, config.model_dtype()?)
}
