//! Gathers what each layer caches into groups of layers that cache the same.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{Model, ModelGroup};
use crate::deployment::LayerSet;
use crate::spec::Spec;

/// What the layers of a model cache, noted layer by layer in ascending order.
#[derive(Debug)]
pub(super) struct Layers {
    count: u64,
    groups: Vec<Gathered>,
    /// Places in `groups`: every layer may have a group of its own, so none is looked for one by one.
    places: HashMap<(&'static str, Vec<Spec>), usize>,
    /// Groups of each name.
    namesakes: HashMap<&'static str, usize>,
}

#[derive(Debug)]
struct Gathered {
    name: &'static str,
    /// Tells it from others of the same name; the first is 1.
    number: usize,
    layers: Vec<u32>,
    specs: Vec<Spec>,
}

impl Layers {
    /// Of a model with this many layers, whether they own a cache or not.
    pub(super) fn of(count: u64) -> Self {
        Self { count, groups: Vec::new(), places: HashMap::new(), namesakes: HashMap::new() }
    }

    /// Says that there are more layers than these: the last own no cache.
    pub(super) fn followed_by(self, more: u64) -> Self {
        Self { count: self.count + more, ..self }
    }

    /// Every layer, counted from 0.
    pub(super) fn ids(&self) -> std::ops::Range<u64> {
        0..self.count
    }

    /// Notes a cache that a layer owns: one spec, or those of one page. Layers that cache the same under
    /// one name are one group; where they differ, the later group has a number: `attn`, `attn-2`.
    pub(super) fn add(&mut self, layer: u64, name: &'static str, specs: impl Into<Vec<Spec>>) {
        let (specs, layer) = (specs.into(), layer as u32);
        match self.places.entry((name, specs)) {
            Entry::Occupied(place) => self.groups[*place.get()].layers.push(layer),
            Entry::Vacant(place) => {
                let namesakes = self.namesakes.entry(name).or_default();
                *namesakes += 1;
                self.groups.push(Gathered {
                    name,
                    number: *namesakes,
                    layers: vec![layer],
                    specs: place.key().1.clone(),
                });
                place.insert(self.groups.len() - 1);
            }
        }
    }

    /// Whether any layer caches such a spec.
    pub(super) fn any(&self, is: impl Fn(&Spec) -> bool) -> bool {
        self.groups.iter().flat_map(|group| &group.specs).any(is)
    }

    /// Has `change` rewrite the specs of each layer and group, given the layer's number and the group's name.
    pub(super) fn mapped<E>(
        self,
        mut change: impl FnMut(u64, &str, &mut Vec<Spec>) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut mapped = Self::of(self.count);
        let mut caches: Vec<(u32, usize)> = Vec::new();
        for (place, group) in self.groups.iter().enumerate() {
            caches.extend(group.layers.iter().map(|layer| (*layer, place)));
        }
        caches.sort_unstable();
        for (layer, place) in caches {
            let Some(group) = self.groups.get(place) else {
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
