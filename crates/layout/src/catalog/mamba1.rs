//! Families with Mamba1 in every layer: `[layers, B, 1, [x], [ssm]]` as `mamba`, one page of two specs, both
//! partitioned by channel and in the model's type.
//!
//! A config's `intermediate_size` takes precedence over `expand * hidden_size`: the `expand` of 16 in Falcon-Mamba is
//! wrong.

use super::Kin;
use super::config::Preset::Number;
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use super::recurrent::taps;
use crate::spec::{ConvLayout, Mamba1Conv, Mamba1Ssm, Spec};

const MAMBA: Presets = &[
    ("num_hidden_layers", Number(32)),
    ("hidden_size", Number(768)),
    ("expand", Number(2)),
    ("state_size", Number(16)),
    ("conv_kernel", Number(4)),
];

pub(super) const KIN: Kin = Kin { members: &[("mamba", MAMBA), ("falcon_mamba", MAMBA)], caches };

fn caches(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let d_inner = match config.optional("intermediate_size")? {
        Some(0) => return Err(config.fault("intermediate_size", "cannot be 0")),
        Some(d_inner) => d_inner,
        None => config.product("expand", "hidden_size")?,
    };
    let page = page(config, d_inner, "state_size", "conv_kernel")?;
    let mut layers = Layers::of(config.layers("num_hidden_layers")?);
    for layer in layers.ids() {
        layers.add(layer, "mamba", page.as_slice());
    }
    Ok(layers)
}

/// Returns the page of one layer: the convolution's inputs, then the state.
pub(super) fn page(
    config: &Config<'_>,
    d_inner: u64,
    state_size: &str,
    conv_kernel: &str,
) -> Result<Vec<Spec>, ConfigError> {
    let dtype = config.model_dtype()?;
    let conv = Mamba1Conv { d_inner, conv_states: taps(config, conv_kernel)?, dtype, conv_layout: ConvLayout::Sd };
    let ssm = Mamba1Ssm { d_inner, state_size: config.positive(state_size)?, dtype };
    Ok(vec![Spec::Mamba1Conv(conv), Spec::Mamba1Ssm(ssm)])
}
