//! Grouping of layers that cache the same.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{Model, ModelGroup};
use crate::deployment::LayerSet;
use crate::spec::Spec;

/// The caches of a model's layers, added layer by layer in ascending order.
#[derive(Debug)]
pub(super) struct Layers {
    count: u64,
    groups: Vec<Gathered>,
    /// Indices into `groups`. Every layer may have its own group, so a linear search would be slow.
    indices: HashMap<(&'static str, Vec<Spec>), usize>,
    namesakes: HashMap<&'static str, usize>,
}

#[derive(Debug)]
struct Gathered {
    name: &'static str,
    /// Distinguishes groups of the same name, from 1 on.
    number: usize,
    layers: Vec<u32>,
    specs: Vec<Spec>,
}

impl Layers {
    pub(super) fn of(count: u64) -> Self {
        Self { count, groups: Vec::new(), indices: HashMap::new(), namesakes: HashMap::new() }
    }

    pub(super) fn followed_by(self, more: u64) -> Self {
        Self { count: self.count + more, ..self }
    }

    pub(super) fn ids(&self) -> std::ops::Range<u64> {
        0..self.count
    }

    /// Adds a cache of a layer: one spec, or those of one page. Layers that cache the same under one name form a group.
    /// If they differ, the later group gets a number: `attn`, `attn-2`.
    pub(super) fn add(&mut self, layer: u64, name: &'static str, specs: impl Into<Vec<Spec>>) {
        let (specs, layer) = (specs.into(), layer as u32);
        match self.indices.entry((name, specs)) {
            Entry::Occupied(index) => self.groups[*index.get()].layers.push(layer),
            Entry::Vacant(index) => {
                let namesakes = self.namesakes.entry(name).or_default();
                *namesakes += 1;
                self.groups.push(Gathered {
                    name,
                    number: *namesakes,
                    layers: vec![layer],
                    specs: index.key().1.clone(),
                });
                index.insert(self.groups.len() - 1);
            }
        }
    }

    pub(super) fn any(&self, is: impl Fn(&Spec) -> bool) -> bool {
        self.groups.iter().flat_map(|group| &group.specs).any(is)
    }

    /// Rewrites the specs of each layer and group with `change`, which gets the layer's number and the group's name.
    pub(super) fn mapped<E>(
        self,
        mut change: impl FnMut(u64, &str, &mut Vec<Spec>) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut mapped = Self::of(self.count);
        let mut caches: Vec<(u32, usize)> = Vec::new();
        for (index, group) in self.groups.iter().enumerate() {
            caches.extend(group.layers.iter().map(|layer| (*layer, index)));
        }
        caches.sort_unstable();
        for (layer, index) in caches {
            let Some(group) = self.groups.get(index) else {
                continue;
            };
            let (layer, mut specs) = (layer.into(), group.specs.clone());
            change(layer, group.name, &mut specs)?;
            mapped.add(layer, group.name, specs);
        }
        Ok(mapped)
    }

    pub(super) fn model(self, family: &str) -> Model {
        let groups = self.groups.into_iter().map(|group| ModelGroup {
            name: match group.number {
                1 => group.name.to_owned(),
                number => format!("{}-{number}", group.name),
            },
            layers: LayerSet::from_ids(group.layers),
            specs: group.specs,
        });
        Model {
            family: family.to_owned(),
            num_layers: self.count as u32,
            groups: groups.collect(),
            assumed: Vec::new(),
            wrapper: None,
            unread: Vec::new(),
            packed: None,
        }
    }
}
