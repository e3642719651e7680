//! Common parts of families with recurrent state: which layers keep a state and which attend, and how many inputs a
//! convolution keeps.
//!
//! Configs describe their layers in several ways (a list of kinds, indices, a period). All of them are converted to one
//! [`Mixer`] per layer.

use super::attention::{LayerOverrides, Mask};
use super::config::{Config, ConfigError};
use super::layers::Layers;
use crate::bounds::MAX_LAYERS;
use crate::document::Value;
use crate::spec::Spec;

/// The kind of a layer, by what it keeps of earlier tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mixer {
    Recurrent,
    Attention,
    Both,
    /// Nothing: an MLP, or experts, that a config counts as a layer.
    Nothing,
}

impl Mixer {
    fn recurs(self) -> bool {
        matches!(self, Mixer::Recurrent | Mixer::Both)
    }

    fn attends(self) -> bool {
        matches!(self, Mixer::Attention | Mixer::Both)
    }

    /// Returns attention in the layers for which `attends` is true, and a state in all others.
    pub(super) fn each(layers: u64, attends: impl Fn(u64) -> bool) -> Vec<Self> {
        let mixer = |layer| match attends(layer) {
            true => Mixer::Attention,
            false => Mixer::Recurrent,
        };
        (0..layers).map(mixer).collect()
    }
}

pub(super) type Word = (&'static str, Mixer);

/// The words of `transformers` 5.x, and older words that it renames.
pub(super) const WORDS: &[Word] = &[
    ("linear_attention", Mixer::Recurrent),
    ("full_attention", Mixer::Attention),
    ("mamba", Mixer::Recurrent),
    ("attention", Mixer::Attention),
];

/// Reads the layers from a list of kinds. Returns `None` if there is no list.
pub(super) fn listed(config: &Config<'_>, key: &str, words: &[Word]) -> Result<Option<Vec<Mixer>>, ConfigError> {
    let Some(kinds) = config.texts(key)? else {
        return Ok(None);
    };
    let mixers = kinds.iter().enumerate().map(|(layer, kind)| {
        let known = words.iter().find(|(word, _)| word == kind);
        known.map(|(_, mixer)| *mixer).ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let found = Value::Text((*kind).to_owned()).describe();
            let problem = format!("must be one of {}, not {found}", words.join(", "));
            config.fault(&format!("{key}[{layer}]"), problem)
        })
    });
    mixers.collect::<Result<_, _>>().map(Some)
}

pub(super) fn listed_all(config: &Config<'_>, key: &str, words: &[Word]) -> Result<Option<Vec<Mixer>>, ConfigError> {
    let layers = config.layers("num_hidden_layers")?;
    match listed(config, key, words)? {
        Some(mixers) => check_count(config, key, mixers, layers).map(Some),
        None => Ok(None),
    }
}

pub(super) fn check_count<T>(config: &Config<'_>, key: &str, list: Vec<T>, layers: u64) -> Result<Vec<T>, ConfigError> {
    if list.len() as u64 != layers {
        let found = list.len();
        let problem = format!("has {found} layers, but num_hidden_layers is {layers}");
        return Err(config.fault(key, problem));
    }
    Ok(list)
}

/// Returns attention in the layers of a list of indices, counted from 0, and a state in all others. Without a list, or
/// with an empty one, no layer attends.
pub(super) fn attention_at(config: &Config<'_>, key: &str, layers: u64) -> Result<Vec<Mixer>, ConfigError> {
    let mut mixers = Mixer::each(layers, |_| false);
    let indices = config.numbers(key)?.unwrap_or_default();
    for (i, index) in indices.into_iter().enumerate() {
        let slot = usize::try_from(index).ok();
        let Some(mixer) = slot.and_then(|slot| mixers.get_mut(slot)) else {
            let problem = format!("is {index}, but the layers are 0 to {}", layers - 1);
            return Err(config.fault(&format!("{key}[{i}]"), problem));
        };
        *mixer = Mixer::Attention;
    }
    Ok(mixers)
}

/// Groups the layers of a hybrid model under two names. A spec is computed only if a layer needs it, so a model without
/// states may have any `mamba_*` keys.
/// Single layers may have keys and values of their own. Latents and states are the same in all layers.
pub(super) fn gather(
    config: &Config<'_>,
    mixers: &[Mixer],
    (state_group, state): (&'static str, impl FnOnce() -> Result<Vec<Spec>, ConfigError>),
    (token_group, token): (&'static str, impl FnOnce() -> Result<Spec, ConfigError>),
) -> Result<Layers, ConfigError> {
    let mut layers = Layers::of(mixers.len() as u64);
    let state = match mixers.iter().any(|mixer| mixer.recurs()) {
        true => state()?,
        false => Vec::new(),
    };
    let token = match mixers.iter().any(|mixer| mixer.attends()) {
        true => Some(token()?),
        false => None,
    };
    let own = LayerOverrides::read(config, layers.ids().end)?;
    for (layer, mixer) in (0..).zip(mixers) {
        if mixer.recurs() {
            layers.add(layer, state_group, state.as_slice());
        }
        let token = token.as_ref().filter(|_| mixer.attends());
        match token.cloned() {
            Some(Spec::Attention(attention)) => {
                let attention = own.applied(layer, Mask::All, attention)?;
                layers.add(layer, token_group, [Spec::Attention(attention)]);
            }
            Some(latent) => layers.add(layer, token_group, [latent]),
            None => {}
        }
    }
    Ok(layers)
}

/// Returns how many inputs a convolution keeps: its kernel's size minus the newest. Speculative decoding keeps more.
pub(super) fn taps(config: &Config<'_>, kernel: &str) -> Result<u64, ConfigError> {
    match config.number(kernel)? {
        0 | 1 => Err(config.fault(kernel, "must be 2 or more, or there is nothing to keep")),
        size => Ok(size - 1),
    }
}

pub(super) fn counted<T>(config: &Config<'_>, key: &str, list: &[T]) -> Result<u64, ConfigError> {
    match list.len() as u64 {
        0 => Err(config.fault(key, "cannot be empty")),
        layers if layers > MAX_LAYERS => {
            let problem = format!("cannot have more than {MAX_LAYERS} layers, not {layers}");
            Err(config.fault(key, problem))
        }
        layers => Ok(layers),
    }
}
