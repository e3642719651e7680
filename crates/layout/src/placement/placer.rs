//! Placement of one spec in an order, as views of its components.

use smallvec::SmallVec;

use super::error::{Field, PlacementError, product, sum};
use super::level::Level;
use super::{Allocation, Shape};
use crate::order::{Letter, Letters, Order, OrderError};
use crate::spec::{Arrangement, Component, Geometry, Spec, States};
use crate::view::{Axis, ComponentView, Dim, View};

pub(super) struct Placed {
    pub(super) components: Vec<ComponentView>,
    pub(super) size: u64,
    pub(super) span: u64,
}

impl Placed {
    pub(super) fn shift(&mut self, bytes: u64) -> Result<(), PlacementError> {
        for component in &mut self.components {
            component.view.offset =
                sum(component.view.offset, bytes).ok_or_else(|| too_large(component.spec, "the page of a block"))?;
        }
        Ok(())
    }
}

/// A component inside the content axis, with offset and dims in elements.
struct Part {
    component: usize,
    offset: u64,
    dims: SmallVec<[Dim; 3]>,
}

pub(super) struct Placer<'a> {
    shape: &'a Shape<'a>,
    index: usize,
    spec: &'a Spec,
    geometry: &'a Geometry,
    /// The units per rank of each component.
    units: SmallVec<[u64; 4]>,
    states: u64,
    heads: u64,
}

impl<'a> Placer<'a> {
    pub(super) fn new(
        shape: &'a Shape<'a>,
        index: usize,
        spec: &'a Spec,
        geometry: &'a Geometry,
    ) -> Result<Self, PlacementError> {
        let states = match geometry.states {
            States::Sequence => 1,
            States::PerTokens(tokens) if shape.block_size.is_multiple_of(tokens) => shape.block_size / tokens,
            States::PerTokens(tokens_per_state) => {
                return Err(PlacementError::RaggedState { block_size: shape.block_size, tokens_per_state });
            }
        };
        let mut units = SmallVec::new();
        for component in &geometry.components {
            let owned = component.partition.per_rank(shape.tp);
            units.push(owned.map_err(|error| PlacementError::Partition {
                spec: index,
                component: component.name,
                error,
            })?);
        }
        let heads = match geometry.arrangement {
            Arrangement::HeadsFirst => units.first().copied().unwrap_or(1),
            Arrangement::ChannelsFirst | Arrangement::TapsFirst => 1,
        };
        Ok(Self { shape, index, spec, geometry, units, states, heads })
    }

    pub(super) fn place(&self, order: &Order) -> Result<Placed, PlacementError> {
        let (block, layer) = (self.shape.block_stride, self.shape.layer_stride);
        let one_allocation = self.shape.allocation == Allocation::One;
        if one_allocation && block.is_some() != layer.is_some() && block_outside(order) {
            let field = match block {
                Some(_) => Field::BlockStride,
                None => Field::LayerStride,
            };
            return Err(PlacementError::OneStrideOnly { given: field });
        }
        match &order.apart {
            None => {
                self.require_all(&order.shared)?;
                self.flat(&order.shared)
            }
            Some(apart) => {
                let components = self.geometry.components.len();
                if apart.len() != components {
                    return Err(
                        OrderError::ComponentCount { given: apart.len(), kind: self.spec.kind(), components }.into()
                    );
                }
                for own in apart {
                    self.require_all(&order.shared.iter().chain(own).copied().collect())?;
                    if own.contains(&Letter::K) || order.shared.contains(&Letter::K) {
                        return Err(match self.spec {
                            Spec::Attention(_) => OrderError::KeyValueTwice,
                            _ => self.no_key_value(),
                        }
                        .into());
                    }
                }
                let content = |letter: &&Letter| matches!(letter, Letter::C | Letter::D);
                if let Some(letter) = order.shared.iter().find(content) {
                    return Err(OrderError::ContentShared { letter: *letter }.into());
                }
                let mut placed = self.apart(apart)?;
                let shared = self.level(&order.shared, placed.size, |letter| self.extent(letter))?;
                for component in &mut placed.components {
                    shared.wrap(&mut component.view);
                }
                Ok(Placed { components: placed.components, size: shared.size, span: shared.span })
            }
        }
    }

    /// Places the spec in a page: heads, states, content. The content of attention is a key followed by its value.
    /// Components that lie apart in every block also lie apart here.
    pub(super) fn place_in_page(&self) -> Result<Placed, PlacementError> {
        use Letter::{C, D, H, S};
        if !self.geometry.components_apart {
            return self.together(&[H, S, C], None);
        }
        let own: Letters = [H, S, D].as_slice().into();
        self.apart(&vec![own; self.geometry.components.len()])
    }

    /// Places an order without brackets as one level, with the content as `C`, `D`, or `K` and `D`.
    fn flat(&self, letters: &[Letter]) -> Result<Placed, PlacementError> {
        use Letter::{C, D, K};
        let Some(k) = letters.iter().position(|l| *l == K) else {
            let joined: Letters = letters.iter().map(|l| if *l == D { C } else { *l }).collect();
            return self.together(&joined, None);
        };
        let Spec::Attention(attention) = self.spec else {
            return Err(self.no_key_value().into());
        };
        if letters.get(k + 1) == Some(&D) {
            // K directly outside D equals C, whatever the widths.
            let mut joined: Letters = letters.into();
            joined.remove(k);
            joined[k] = C;
            return self.together(&joined, None);
        }
        if attention.head_dim != attention.v_head_dim {
            return Err(
                OrderError::UnequalWidths { head_dim: attention.head_dim, v_head_dim: attention.v_head_dim }.into()
            );
        }
        self.together(letters, Some(attention.head_dim))
    }

    /// Places all components along one content axis or, with `width`, as `K` (component) and `D` (element).
    fn together(&self, letters: &[Letter], width: Option<u64>) -> Result<Placed, PlacementError> {
        let all: SmallVec<[usize; 4]> = (0..self.geometry.components.len()).collect();
        let (elements, parts) = self.content(&all)?;
        let level = self.level(letters, self.geometry.element_bytes, |letter| match letter {
            Letter::C => elements,
            Letter::D => width.unwrap_or(elements),
            Letter::K => 2,
            _ => self.extent(letter),
        })?;
        let components = parts
            .into_iter()
            .map(|part| match width {
                None => self.view(part, level.stride(Letter::C), None, &level),
                Some(_) => {
                    let start = part.component as u64 * level.stride(Letter::K);
                    self.view(part, level.stride(Letter::D), Some(start), &level)
                }
            })
            .collect();
        Ok(Placed { components, size: level.size, span: level.span })
    }

    fn apart(&self, orders: &[Letters]) -> Result<Placed, PlacementError> {
        let mut placed = Placed { components: Vec::new(), size: 0, span: 0 };
        let allocation = || too_large(self.index, "the allocation");
        for (index, own) in orders.iter().enumerate() {
            let (elements, parts) = self.content(&[index])?;
            let level = self.level(own, self.geometry.element_bytes, |letter| match letter {
                Letter::C | Letter::D => elements,
                _ => self.extent(letter),
            })?;
            let stride = level.stride(Letter::D).max(level.stride(Letter::C));
            for part in parts {
                let mut view = self.view(part, stride, None, &level);
                view.view.offset = sum(view.view.offset, placed.size).ok_or_else(allocation)?;
                placed.components.push(view);
            }
            placed.span = sum(placed.size, level.span).ok_or_else(allocation)?;
            placed.size = sum(placed.size, level.size).ok_or_else(allocation)?;
        }
        Ok(placed)
    }

    fn level(&self, letters: &[Letter], bundle: u64, extent: impl Fn(Letter) -> u64) -> Result<Level, PlacementError> {
        let heads = self.geometry.components.first();
        let heads = heads.map_or("heads", |component| component.field);
        let spec = Some((self.index, heads));
        Level::new(self.shape, letters, bundle, spec, extent)
    }

    fn extent(&self, letter: Letter) -> u64 {
        match letter {
            Letter::S => self.states,
            Letter::H => self.heads,
            other => self.shape.outer_extent(other),
        }
    }

    fn view(&self, part: Part, stride: u64, start: Option<u64>, level: &Level) -> ComponentView {
        let component = &self.geometry.components[part.component];
        let mut view = View {
            offset: start.unwrap_or(part.offset * stride),
            dims: part.dims.into_iter().map(|dim| Dim { stride: dim.stride * stride, ..dim }).collect(),
        };
        view.dims.push(Dim { axis: Axis::Byte, extent: self.geometry.element_bytes, stride: 1 });
        level.wrap(&mut view);
        let units = 0..self.units[part.component];
        debug_assert!(component.partition.units() >= units.end);
        ComponentView { spec: self.index, component: part.component, units, view }
    }

    /// Returns the length of the content axis that these components share, and each one's location in it.
    fn content(&self, which: &[usize]) -> Result<(u64, SmallVec<[Part; 4]>), PlacementError> {
        let large = || too_large(self.index, "the content of a state");
        let mut parts = SmallVec::new();
        let components = || which.iter().map(|i| (*i, &self.geometry.components[*i]));
        if self.geometry.arrangement == Arrangement::HeadsFirst {
            let mut offset = 0;
            for (index, component) in components() {
                let mut dims: SmallVec<[Dim; 3]> = SmallVec::new();
                let mut stride = 1;
                for (axis, extent) in component.content.iter().enumerate().rev() {
                    dims.push(content_dim(axis, *extent, stride));
                    stride = product(stride, *extent).ok_or_else(large)?;
                }
                parts.push(Part { component: index, offset, dims });
                offset = sum(offset, stride).ok_or_else(large)?;
            }
            return Ok((offset, parts));
        }
        let per_unit = |component: &Component| component.content.first().copied().unwrap_or(1);
        let taps = components().next().and_then(|(_, component)| component.content.get(1).copied()).unwrap_or(1);
        let mut channels = 0;
        for (index, component) in components() {
            let own = product(self.units[index], per_unit(component));
            channels = own.and_then(|own| sum(channels, own)).ok_or_else(large)?;
        }
        let (channel_stride, tap_stride) = match self.geometry.arrangement {
            Arrangement::TapsFirst => (1, channels),
            Arrangement::ChannelsFirst | Arrangement::HeadsFirst => (taps, 1),
        };
        let mut first_channel = 0;
        for (index, component) in components() {
            let width = per_unit(component);
            parts.push(Part {
                component: index,
                offset: product(first_channel, channel_stride).ok_or_else(large)?,
                dims: [
                    Dim {
                        axis: Axis::Unit,
                        extent: self.units[index],
                        stride: product(width, channel_stride).ok_or_else(large)?,
                    },
                    content_dim(0, width, channel_stride),
                    content_dim(1, taps, tap_stride),
                ]
                .into_iter()
                .collect(),
            });
            first_channel += self.units[index] * width;
        }
        Ok((product(channels, taps).ok_or_else(large)?, parts))
    }

    /// Checks that the order has every axis that can have more than one position.
    fn require_all(&self, letters: &Letters) -> Result<(), OrderError> {
        use Letter::{B, C, D, H, L, S};
        let single_head = match self.geometry.arrangement {
            Arrangement::HeadsFirst => {
                self.geometry.components.iter().all(|component| component.partition.units() == 1)
            }
            Arrangement::ChannelsFirst | Arrangement::TapsFirst => true,
        };
        let recurrent = self.geometry.states == States::Sequence;
        for (letter, optional) in [(L, false), (B, false), (S, recurrent), (H, single_head)] {
            if !letters.contains(&letter) && !optional {
                return Err(OrderError::Missing { letter });
            }
        }
        if !letters.contains(&C) && !letters.contains(&D) {
            return Err(OrderError::Missing { letter: C });
        }
        Ok(())
    }

    fn no_key_value(&self) -> OrderError {
        OrderError::NoKeyValue { kind: self.spec.kind() }
    }
}

fn block_outside(order: &Order) -> bool {
    let outside = |own: &[Letter]| {
        let position = |letter| order.shared.iter().chain(own).position(|l| *l == letter);
        match (position(Letter::B), position(Letter::L)) {
            (Some(b), Some(l)) => b < l,
            (Some(_), None) => true,
            _ => false,
        }
    };
    match &order.apart {
        None => outside(&[]),
        Some(apart) => apart.iter().any(|own| outside(own)),
    }
}

fn too_large(spec: usize, what: &'static str) -> PlacementError {
    PlacementError::TooLarge { field: Field::Spec(spec, None), what }
}

fn content_dim(axis: usize, extent: u64, stride: u64) -> Dim {
    Dim { axis: Axis::Content(axis as u8), extent, stride }
}
