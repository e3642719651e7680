//! What stands in for an engine in this example: a model, and a request that both servers know.

#![forbid(unsafe_code)]

use transload_layout::{Axis, ComponentView};

/// The extents of what the model computes for the prompt: keys and values, layers, tokens, heads, channels.
const MODEL: [usize; 5] = [2, 4, 40, 4, 64];

/// Returns the prompt's tokens.
pub fn prompt() -> Vec<u32> {
    (1000..1040).collect()
}

/// Returns what the model computes for the prompt: where each element is in a component's array `[L, B, S, H, C]`, and its
/// value. The prompt has `blocks`, in this order.
pub fn computed(component: &ComponentView, blocks: &[u32]) -> impl Iterator<Item = ([usize; 5], f32)> {
    let block_size = component.view.dim(Axis::State).extent as usize;
    // This rank's heads among the model's.
    let heads = component.units.start as usize..component.units.end as usize;
    let [_, layers, tokens, _, channels] = MODEL;
    let elements = ndarray::indices([layers, tokens, heads.len(), channels]);
    elements.into_iter().map(move |(layer, token, head, channel)| {
        let block = blocks[token / block_size] as usize;
        let at = [layer, block, token % block_size, head, channel];
        let of_model = [component.component, layer, token, heads.start + head, channel];
        let number = of_model.iter().zip(MODEL).fold(1, |number, (i, extent)| number * extent + i);
        (at, number as f32)
    })
}
