//! Conversion of a model to a deployment document that serves it.

use super::{Model, ModelGroup};
use crate::deployment::Deployment;
use crate::document::{Document, GroupDocument};
use crate::multiple::least_common_multiple;
use crate::placement::Allocation;
use crate::spec::{ConvLayout, Spec};

/// The default tokens of a block: vLLM's default on GPUs.
const BLOCK_SIZE: u64 = 16;

/// An engine whose rules are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// vLLM 0.32 on GPUs.
    Vllm,
}

/// The settings with which a side serves a model. Those that are not set get defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// The side's name, for display.
    pub name: String,
    /// The number of tensor-parallel ranks.
    pub tp: u64,
    /// The number of pipeline stages.
    pub pp: u64,
    /// The engine whose rules for block sizes and padding apply, if any.
    pub engine: Option<Engine>,
    /// Tokens per block. The default is 16, or the next multiple that whole states fill.
    pub block_size: Option<u64>,
    /// Blocks on every rank. The default is enough for one sequence.
    pub num_blocks: Option<u64>,
    /// The physical order of the groups that [take orders](GroupDocument::takes_orders). The default is that of each
    /// kind.
    pub order: Option<String>,
    /// The outer content axis of convolutions.
    pub conv_layout: ConvLayout,
    /// Whether there is one allocation, or one for each layer.
    pub allocation: Allocation,
}

impl Default for Serving {
    fn default() -> Self {
        Self {
            name: String::new(),
            tp: 1,
            pp: 1,
            engine: None,
            block_size: None,
            num_blocks: None,
            order: None,
            conv_layout: ConvLayout::Sd,
            allocation: Allocation::One,
        }
    }
}

impl Model {
    /// Returns what a deployment's model caches.
    pub fn of_deployment(deployment: &Deployment) -> Self {
        let groups = deployment.groups().iter().map(|group| ModelGroup {
            name: group.name().to_owned(),
            layers: group.layers().clone(),
            specs: group.specs().to_vec(),
        });
        let stages = (0..deployment.pp()).map(|stage| deployment.stage_layers(stage).end);
        Self {
            family: deployment.document().model.clone().unwrap_or_default(),
            num_layers: stages.max().unwrap_or(0),
            groups: groups.collect(),
            assumed: Vec::new(),
            wrapper: None,
            unread: Vec::new(),
            packed: None,
        }
    }

    /// Returns an unchecked deployment that can hold one sequence of this many tokens.
    pub fn serve(&self, serving: &Serving, tokens: u64) -> Document {
        let page = self.hybrid_page(serving);
        let block_size = match &page {
            Some(page) => page.block_size,
            None => serving.block_size.unwrap_or_else(|| self.block_size()),
        };
        let groups = self.groups.iter().map(|group| {
            let mut specs = group.specs.clone();
            let convolutions = specs.iter_mut().filter_map(Spec::conv_layout_mut);
            convolutions.for_each(|layout| *layout = serving.conv_layout);
            let recurrent = specs.iter().all(Spec::is_recurrent);
            let block_size = match &specs[..] {
                // A ring: its single block is as long as the group of tokens that is not compressed yet.
                [Spec::Attention(spec)] if group.name == "indexer-state" => {
                    spec.chunk_size.map_or(block_size, |chunk| chunk.min(block_size))
                }
                _ => block_size,
            };
            let needed = match recurrent {
                true => 1,
                false => tokens.div_ceil(block_size.max(1)).max(1),
            };
            let mut group = GroupDocument {
                name: group.name.clone(),
                layers: group.layers.to_string(),
                block_size,
                num_blocks: serving.num_blocks.unwrap_or(needed),
                dealt: true,
                order: None,
                allocation: serving.allocation,
                offset: 0,
                block_stride: page.filter(|_| recurrent).map(|page| page.bytes),
                layer_stride: None,
                stages: Vec::new(),
                specs,
                draft: false,
            };
            if group.takes_orders() {
                group.order.clone_from(&serving.order);
            }
            group
        });
        Document {
            name: serving.name.clone(),
            model: Some(self.family.clone()),
            tp: serving.tp,
            pp: serving.pp,
            dcp: 1,
            interleave: 1,
            num_layers: Some(self.num_layers.into()),
            pp_layers: None,
            groups: groups.collect(),
        }
    }

    /// Returns the default block size that whole states of every cache fill.
    pub fn block_size(&self) -> u64 {
        let specs = self.groups.iter().flat_map(|group| &group.specs);
        let states = specs.filter_map(Spec::tokens_per_state);
        states.fold(BLOCK_SIZE, |size, tokens| least_common_multiple(size, tokens).unwrap_or(size))
    }
}
