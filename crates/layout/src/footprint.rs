//! The size of a cache: for a token, a sequence or a block, in total or on one rank.

use std::ops::Range;

use crate::spec::{ContentSizeError, Spec};

/// The size of one layer's cache with some specs, for one sequence on one rank.
///
/// ```
/// use transload_layout::{Dtype, Footprint};
/// use transload_layout::spec::{Attention, Spec};
///
/// let windowed = Spec::Attention(Attention {
///     heads: 8, head_dim: 64, v_head_dim: 64, dtype: Dtype::Bf16,
///     sliding_window: Some(128), chunk_size: None,
/// });
/// let layer = Footprint::of(&[windowed], 1)?;
/// assert_eq!((layer.bytes_per_token(), layer.fixed_bytes()), (0.0, 128 * 8 * 64 * 2 * 2));
/// assert_eq!(layer.sequence_bytes(100), 100 * 8 * 64 * 2 * 2);
/// // The last 128 of 1,000 tokens, the first of them being number 872, lie in 9 blocks of 16.
/// assert_eq!(layer.allocated_bytes(1000, 16), 9 * 16 * 8 * 64 * 2 * 2);
/// # Ok::<(), transload_layout::spec::ContentSizeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    spec: Spec,
    /// The bytes of one state with all heads of the rank.
    state_bytes: u64,
}

impl Footprint {
    /// Returns the footprint of one layer on each of `tp` ranks. With a `tp` of 1 it is that of the whole model.
    ///
    /// # Errors
    /// Returns an error if `tp` does not divide the units of a spec, or if a state does not fit into 64 bits.
    pub fn of(specs: &[Spec], tp: u32) -> Result<Self, ContentSizeError> {
        let parts = specs.iter().map(|spec| {
            let heads = spec.num_heads(tp)?;
            let content = spec.state_content_size(tp)?;
            let state_bytes = heads.checked_mul(content);
            Ok::<_, ContentSizeError>(Part {
                spec: spec.clone(),
                state_bytes: state_bytes.ok_or(ContentSizeError::TooLarge)?,
            })
        });
        Ok(Self { parts: parts.collect::<Result<_, _>>()? })
    }

    /// Returns the bytes that one more token takes in a long sequence, whose windows are full. A state of several
    /// tokens counts proportionally.
    pub fn bytes_per_token(&self) -> f64 {
        let growing = self.parts.iter().filter_map(|part| {
            let tokens = part.spec.tokens_per_state()?;
            let grows = part.spec.reach().is_none() && tokens > 0;
            grows.then(|| part.state_bytes as f64 / tokens as f64)
        });
        growing.sum()
    }

    /// Returns the bytes that any long sequence takes, whatever its length: full windows and chunks, and recurrent
    /// state.
    pub fn fixed_bytes(&self) -> u128 {
        let fixed = self.parts.iter().map(|part| {
            let states = match (part.spec.tokens_per_state(), part.spec.reach()) {
                (None, _) => 1,
                // The number right after a state was finished.
                (Some(tokens), Some(reach)) if tokens > 0 => reach.div_ceil(tokens),
                (Some(_), _) => 0,
            };
            u128::from(states) * u128::from(part.state_bytes)
        });
        fixed.sum()
    }

    /// Returns the bytes of the states that a sequence of this many tokens keeps. An unfinished state of several tokens
    /// does not count.
    pub fn sequence_bytes(&self, tokens: u64) -> u128 {
        let kept = self.parts.iter().map(|part| {
            let states = part.spec.states_kept(tokens);
            u128::from(states.end - states.start) * u128::from(part.state_bytes)
        });
        kept.sum()
    }

    /// Returns the bytes of one block of `block_size` tokens with all its states. A recurrent cache has one state in a
    /// block of any size.
    pub fn block_bytes(&self, block_size: u64) -> u128 {
        let pages = self.parts.iter().map(|part| {
            let states = match part.spec.tokens_per_state() {
                None => 1,
                Some(tokens) => block_size.checked_div(tokens).unwrap_or(0),
            };
            u128::from(states) * u128::from(part.state_bytes)
        });
        pages.sum()
    }

    /// Returns the bytes of the blocks that a sequence of this many tokens keeps: those with any kept token.
    pub fn allocated_bytes(&self, tokens: u64, block_size: u64) -> u128 {
        let specs = self.parts.iter().map(|part| &part.spec);
        let recurrent = specs.clone().all(Spec::is_recurrent);
        let blocks = match specs.map(|spec| spec.tokens_kept(tokens).start).min() {
            _ if tokens == 0 || block_size == 0 => 0,
            _ if recurrent => 1,
            first => tokens.div_ceil(block_size) - first.unwrap_or(0) / block_size,
        };
        u128::from(blocks) * self.block_bytes(block_size)
    }
}

impl Spec {
    /// Returns the maximum number of newest tokens that are kept, or `None` if all are.
    fn reach(&self) -> Option<u64> {
        match self {
            Spec::Attention(spec) => match (spec.sliding_window, spec.chunk_size) {
                (Some(window), Some(chunk)) => Some(window.min(chunk)),
                (window, chunk) => window.or(chunk),
            },
            Spec::Mla(spec) => spec.sliding_window,
            Spec::Compressed(spec) | Spec::Indexer(spec) => spec.sliding_window,
            _ => None,
        }
    }

    fn tokens_kept(&self, tokens: u64) -> Range<u64> {
        let Some(newest) = tokens.checked_sub(1) else {
            return 0..0;
        };
        self.first_token_needed(0, newest)..tokens
    }

    /// Returns the finished states of a sequence that are still kept.
    fn states_kept(&self, tokens: u64) -> Range<u64> {
        match self.tokens_per_state() {
            None => 0..tokens.min(1),
            Some(per_state) => {
                let kept = self.tokens_kept(tokens);
                let states = |tokens: u64| tokens.checked_div(per_state).unwrap_or(0);
                states(kept.start)..states(kept.end)
            }
        }
    }
}

#[cfg(test)]
mod tests;
