//! Order and spec meet: byte strides of every component on one rank.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use thiserror::Error;

use crate::order::{Letter, Letters, Order, OrderError};
use crate::partition::PartitionError;
use crate::spec::{Arrangement, Component, Geometry, Spec, States};
use crate::view::{ALLOCATION_BITS, Axis, ComponentView, Dim, View};

/// One allocation for all layers of a group, or one for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Allocation {
    /// All layers of a rank lie in one allocation.
    #[default]
    One,
    /// Each layer is an allocation of its own.
    PerLayer,
}

/// What decides where a group's bytes lie on one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape<'a> {
    pub(crate) specs: &'a [Spec],
    pub(crate) order: Option<&'a Order>,
    pub(crate) allocation: Allocation,
    pub(crate) tp: u32,
    pub(crate) layer_slots: u64,
    pub(crate) num_blocks: u64,
    pub(crate) block_size: u64,
    pub(crate) offset: u64,
    pub(crate) block_stride: Option<u64>,
    pub(crate) layer_stride: Option<u64>,
}

/// Where a group's bytes lie on the ranks of one pipeline stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Views of all components with `units` counted from 0; see
    /// [`Group::views`](crate::deployment::Group::views) for those of a rank.
    pub(crate) views: Vec<ComponentView>,
    /// How many allocations the group has on each rank.
    pub allocations: u64,
    /// Bytes that each allocation needs, from its start.
    pub allocation_bytes: u64,
}

/// Why a group has no placement.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// The order does not suit the spec.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// Heads or groups do not go into the TP size.
    #[error("{component}: {error}")]
    Partition {
        /// The component.
        component: &'static str,
        /// What does not divide.
        error: PartitionError,
    },
    /// `block_size` is no multiple of the tokens of one state.
    #[error("block_size {block_size} is no multiple of tokens_per_state {tokens_per_state}")]
    RaggedState {
        /// Tokens per block.
        block_size: u64,
        /// Tokens per state.
        tokens_per_state: u64,
    },
    /// A size that does not fit.
    #[error("{what} exceeds {limit} bytes (16 TiB in one allocation)")]
    TooLarge {
        /// What was computed.
        what: &'static str,
        /// The largest size there may be.
        limit: u64,
    },
    /// Strides that make positions share bytes.
    #[error("a stride of {stride} bytes along {letter} is too small: at least {needed} are in use")]
    Overlap {
        /// The axis.
        letter: Letter,
        /// Its stride.
        stride: u64,
        /// The least it may be.
        needed: u64,
    },
    /// `layer_stride` where there is nothing that it could be the stride of.
    #[error("layer_stride has no meaning where each layer is an allocation of its own")]
    LayerStridePerLayer,
    /// One stride without the other.
    #[error("with B outside L, block_stride and layer_stride are given both or not at all")]
    OneStrideOnly,
}

impl PlacementError {
    /// The field of a group that the error is about, with a leading dot; empty for the group.
    pub(crate) fn field(&self) -> &'static str {
        match self {
            PlacementError::Order(_) => ".order",
            PlacementError::Partition { .. } => ".spec",
            PlacementError::RaggedState { .. } => ".block_size",
            PlacementError::LayerStridePerLayer => ".layer_stride",
            PlacementError::Overlap {
                letter: Letter::L, ..
            } => ".layer_stride",
            PlacementError::Overlap { .. } => ".block_stride",
            PlacementError::OneStrideOnly => ".block_stride",
            PlacementError::TooLarge { .. } => "",
        }
    }
}

const LIMIT: u64 = 1 << ALLOCATION_BITS;

fn product(a: u64, b: u64, what: &'static str) -> Result<u64, PlacementError> {
    a.checked_mul(b)
        .filter(|p| *p <= LIMIT)
        .ok_or(PlacementError::TooLarge { what, limit: LIMIT })
}

fn sum(a: u64, b: u64, what: &'static str) -> Result<u64, PlacementError> {
    a.checked_add(b)
        .filter(|s| *s <= LIMIT)
        .ok_or(PlacementError::TooLarge { what, limit: LIMIT })
}

impl Shape<'_> {
    /// Computes the strides of every component.
    pub(crate) fn place(&self) -> Result<Placement, PlacementError> {
        let per_layer = self.allocation == Allocation::PerLayer;
        if per_layer && self.layer_stride.is_some() {
            return Err(PlacementError::LayerStridePerLayer);
        }
        let (mut views, bytes) = match self.specs {
            [spec] => self.place_single(spec)?,
            specs => self.place_pages(specs)?,
        };
        for component in &mut views {
            component.view.offset = sum(component.view.offset, self.offset, "offset")?;
            if per_layer {
                component.view.dims.retain(|dim| dim.axis != Axis::Layer);
                component.view.dims.insert(
                    0,
                    Dim {
                        axis: Axis::Layer,
                        extent: self.layer_slots,
                        stride: 1 << ALLOCATION_BITS,
                    },
                );
            }
        }
        Ok(Placement {
            views,
            allocations: if per_layer { self.layer_slots } else { 1 },
            allocation_bytes: sum(bytes, self.offset, "offset")?,
        })
    }

    fn place_single(&self, spec: &Spec) -> Result<(Vec<ComponentView>, u64), PlacementError> {
        let geometry = spec.geometry();
        let default;
        let order = match self.order {
            Some(order) => order,
            None if geometry.components_apart => {
                default = Order::components_apart(geometry.components.len());
                &default
            }
            None => {
                default = Order::nhd();
                &default
            }
        };
        let placer = self.placer(0, spec, &geometry)?;
        let placed = placer.place(order)?;
        Ok((placed.components, placed.span))
    }

    /// A page of several specs for each layer and block; inside, each spec is heads, states, content.
    fn place_pages(&self, specs: &[Spec]) -> Result<(Vec<ComponentView>, u64), PlacementError> {
        use Letter::{B, C, D, H, L, S};
        if let Some(order) = self.order
            && (!order.shared.starts_with(&[L, B]) || order.apart.is_some())
        {
            return Err(OrderError::NotPages.into());
        }
        let mut components = Vec::new();
        let mut page = 0;
        for (index, spec) in specs.iter().enumerate() {
            let geometry = spec.geometry();
            let placer = self.placer(index, spec, &geometry)?;
            let mut placed = if geometry.components_apart {
                let own: Letters = [H, S, D].as_slice().into();
                placer.apart(&vec![own; geometry.components.len()])?
            } else {
                placer.together(&[H, S, C], None)?
            };
            placed.shift(page)?;
            page = sum(page, placed.size, "the page of a block")?;
            components.append(&mut placed.components);
        }
        let outer = self.level(&[L, B], page, |letter| self.outer_extent(letter))?;
        for component in &mut components {
            outer.wrap(&mut component.view);
        }
        Ok((components, outer.span))
    }

    fn outer_extent(&self, letter: Letter) -> u64 {
        match letter {
            // Layers with an allocation of their own do not count inside one.
            Letter::L if self.allocation == Allocation::PerLayer => 1,
            Letter::L => self.layer_slots,
            Letter::B => self.num_blocks,
            _ => 1,
        }
    }

    fn placer<'a>(
        &'a self,
        index: usize,
        spec: &'a Spec,
        geometry: &'a Geometry,
    ) -> Result<Placer<'a>, PlacementError> {
        let states = match geometry.states {
            States::Sequence => 1,
            States::PerTokens(tokens) if self.block_size.is_multiple_of(tokens) => {
                self.block_size / tokens
            }
            States::PerTokens(tokens_per_state) => {
                return Err(PlacementError::RaggedState {
                    block_size: self.block_size,
                    tokens_per_state,
                });
            }
        };
        let mut units = SmallVec::new();
        for component in &geometry.components {
            let owned = component.partition.per_rank(self.tp);
            units.push(owned.map_err(|error| PlacementError::Partition {
                component: component.name,
                error,
            })?);
        }
        let heads = match geometry.arrangement {
            Arrangement::HeadsFirst => units.first().copied().unwrap_or(1),
            Arrangement::ChannelsFirst | Arrangement::TapsFirst => 1,
        };
        Ok(Placer {
            shape: self,
            index,
            spec,
            geometry,
            units,
            states,
            heads,
        })
    }

    /// Strides of `letters` around a bundle of `bundle` bytes.
    fn level(
        &self,
        letters: &[Letter],
        bundle: u64,
        extent: impl Fn(Letter) -> u64,
    ) -> Result<Level, PlacementError> {
        let given = |letter| match letter {
            Letter::B => self.block_stride,
            Letter::L => self.layer_stride,
            _ => None,
        };
        let mut axes: SmallVec<[_; 6]> = SmallVec::new();
        let mut size = bundle;
        for letter in letters.iter().rev().copied() {
            let stride = given(letter).unwrap_or(size);
            axes.push((letter, extent(letter), stride));
            size = product(stride, extent(letter), "the allocation")?;
        }
        // Positions never share bytes if, from the smallest stride up, each stride steps over all that
        // the smaller ones span.
        let mut by_stride = axes.clone();
        by_stride.sort_by_key(|(_, _, stride)| *stride);
        let mut span = bundle;
        for (letter, extent, stride) in by_stride {
            if extent > 1 {
                if stride < span {
                    return Err(PlacementError::Overlap {
                        letter,
                        stride,
                        needed: span,
                    });
                }
                let steps = product(stride, extent - 1, "the allocation")?;
                span = sum(span, steps, "the allocation")?;
            } else if given(letter).is_some_and(|stride| stride < bundle) {
                return Err(PlacementError::Overlap {
                    letter,
                    stride,
                    needed: bundle,
                });
            }
        }
        axes.reverse();
        let size = size.max(span);
        Ok(Level { axes, size, span })
    }
}

/// Axes around something, with their strides.
struct Level {
    /// Outermost first: letter, extent, stride.
    axes: SmallVec<[(Letter, u64, u64); 6]>,
    /// What it takes with all its padding.
    size: u64,
    /// From its first byte in use to its last.
    span: u64,
}

impl Level {
    /// Adds the level's axes to a view of what it wraps.
    fn wrap(&self, view: &mut View) {
        for (letter, extent, stride) in &self.axes {
            let axis = match letter {
                Letter::L => Axis::Layer,
                Letter::B => Axis::Block,
                Letter::S => Axis::State,
                Letter::H => Axis::Unit,
                Letter::C | Letter::K | Letter::D => continue,
            };
            // Where the units lie inside the content, H is an axis of extent 1 beside them.
            if view.dims.iter().all(|dim| dim.axis != axis) {
                view.dims.push(Dim {
                    axis,
                    extent: *extent,
                    stride: *stride,
                });
            }
        }
        view.dims.sort_by_key(|dim| dim.axis);
    }

    fn stride(&self, wanted: Letter) -> u64 {
        self.axes
            .iter()
            .find(|(letter, ..)| *letter == wanted)
            .map_or(0, |(_, _, stride)| *stride)
    }
}

/// Views of a spec's components, and what they take together.
struct Placed {
    components: Vec<ComponentView>,
    size: u64,
    span: u64,
}

impl Placed {
    fn shift(&mut self, bytes: u64) -> Result<(), PlacementError> {
        for component in &mut self.components {
            component.view.offset = sum(component.view.offset, bytes, "the page of a block")?;
        }
        Ok(())
    }
}

/// One component inside the content axis: offset and dims in elements.
struct Part {
    component: usize,
    offset: u64,
    dims: SmallVec<[Dim; 3]>,
}

/// Places one spec.
struct Placer<'a> {
    shape: &'a Shape<'a>,
    index: usize,
    spec: &'a Spec,
    geometry: &'a Geometry,
    /// Units per rank of each component.
    units: SmallVec<[u64; 4]>,
    states: u64,
    heads: u64,
}

impl Placer<'_> {
    fn place(&self, order: &Order) -> Result<Placed, PlacementError> {
        let (block, layer) = (self.shape.block_stride, self.shape.layer_stride);
        let own = order.apart.iter().flatten().next();
        let position = |letter| {
            let mut letters = order.shared.iter().chain(own.into_iter().flatten());
            letters.position(|l| *l == letter)
        };
        let block_outside = match (position(Letter::B), position(Letter::L)) {
            (Some(b), Some(l)) => b < l,
            (Some(_), None) => true,
            _ => false,
        };
        let one_allocation = self.shape.allocation == Allocation::One;
        if block_outside && one_allocation && block.is_some() != layer.is_some() {
            return Err(PlacementError::OneStrideOnly);
        }
        match &order.apart {
            None => {
                self.require_all(&order.shared)?;
                self.flat(&order.shared)
            }
            Some(apart) => {
                let components = self.geometry.components.len();
                if apart.len() != components {
                    return Err(OrderError::ComponentCount {
                        given: apart.len(),
                        kind: self.spec.kind(),
                        components,
                    }
                    .into());
                }
                for own in apart {
                    self.require_all(&order.shared.iter().chain(own).copied().collect())?;
                    if own.contains(&Letter::K) || order.shared.contains(&Letter::K) {
                        return Err(self.no_key_value().into());
                    }
                }
                if order
                    .shared
                    .iter()
                    .any(|l| matches!(l, Letter::C | Letter::D))
                {
                    return Err(OrderError::ContentTwice.into());
                }
                let mut placed = self.apart(apart)?;
                let shared = self.level(&order.shared, placed.size)?;
                for component in &mut placed.components {
                    shared.wrap(&mut component.view);
                }
                Ok(Placed {
                    components: placed.components,
                    size: shared.size,
                    span: shared.span,
                })
            }
        }
    }

    /// An order without brackets: one level, with the content as `C`, `D`, or `K` and `D`.
    fn flat(&self, letters: &[Letter]) -> Result<Placed, PlacementError> {
        use Letter::{C, D, K};
        let Some(k) = letters.iter().position(|l| *l == K) else {
            let joined: Letters = letters
                .iter()
                .map(|l| if *l == D { C } else { *l })
                .collect();
            return self.together(&joined, None);
        };
        let Spec::Attention(attention) = self.spec else {
            return Err(self.no_key_value().into());
        };
        if letters.get(k + 1) == Some(&D) {
            // K right outside D is what C means, whatever the widths.
            let mut joined: Letters = letters.into();
            joined.remove(k);
            joined[k] = C;
            return self.together(&joined, None);
        }
        if attention.head_dim != attention.v_head_dim {
            return Err(OrderError::UnequalWidths {
                head_dim: attention.head_dim,
                v_head_dim: attention.v_head_dim,
            }
            .into());
        }
        self.together(letters, Some(attention.head_dim))
    }

    /// All components along one content axis; or, with `width`, as `K` (component) and `D` (element).
    fn together(&self, letters: &[Letter], width: Option<u64>) -> Result<Placed, PlacementError> {
        let all: SmallVec<[usize; 4]> = (0..self.geometry.components.len()).collect();
        let (elements, parts) = self.content(&all)?;
        let level = self.shape.level(
            letters,
            self.geometry.element_bytes,
            |letter| match letter {
                Letter::C => elements,
                Letter::D => width.unwrap_or(elements),
                Letter::K => 2,
                _ => self.extent(letter),
            },
        )?;
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
        Ok(Placed {
            components,
            size: level.size,
            span: level.span,
        })
    }

    /// Each component in an order of its own, one after another.
    fn apart(&self, orders: &[Letters]) -> Result<Placed, PlacementError> {
        let mut placed = Placed {
            components: Vec::new(),
            size: 0,
            span: 0,
        };
        for (index, own) in orders.iter().enumerate() {
            let (elements, parts) = self.content(&[index])?;
            let level =
                self.shape
                    .level(own, self.geometry.element_bytes, |letter| match letter {
                        Letter::C | Letter::D => elements,
                        _ => self.extent(letter),
                    })?;
            let stride = level.stride(Letter::D).max(level.stride(Letter::C));
            for part in parts {
                let mut view = self.view(part, stride, None, &level);
                view.view.offset = sum(view.view.offset, placed.size, "the allocation")?;
                placed.components.push(view);
            }
            placed.span = sum(placed.size, level.span, "the allocation")?;
            placed.size = sum(placed.size, level.size, "the allocation")?;
        }
        Ok(placed)
    }

    fn level(&self, letters: &[Letter], bundle: u64) -> Result<Level, PlacementError> {
        self.shape
            .level(letters, bundle, |letter| self.extent(letter))
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
            dims: part
                .dims
                .into_iter()
                .map(|dim| Dim {
                    stride: dim.stride * stride,
                    ..dim
                })
                .collect(),
        };
        view.dims.push(Dim {
            axis: Axis::Byte,
            extent: self.geometry.element_bytes,
            stride: 1,
        });
        level.wrap(&mut view);
        let units = 0..self.units[part.component];
        debug_assert!(component.partition.units() >= units.end);
        ComponentView {
            spec: self.index,
            component: part.component,
            units,
            view,
        }
    }

    /// How the given components share the content axis: its length, and each one's place in it.
    fn content(&self, which: &[usize]) -> Result<(u64, SmallVec<[Part; 4]>), PlacementError> {
        const WHAT: &str = "the content of a state";
        let mut parts = SmallVec::new();
        let components = || which.iter().map(|i| (*i, &self.geometry.components[*i]));
        if self.geometry.arrangement == Arrangement::HeadsFirst {
            let mut offset = 0;
            for (index, component) in components() {
                let mut dims: SmallVec<[Dim; 3]> = SmallVec::new();
                let mut stride = 1;
                for (axis, extent) in component.content.iter().enumerate().rev() {
                    dims.push(content_dim(axis, *extent, stride));
                    stride = product(stride, *extent, WHAT)?;
                }
                parts.push(Part {
                    component: index,
                    offset,
                    dims,
                });
                offset = sum(offset, stride, WHAT)?;
            }
            return Ok((offset, parts));
        }
        let per_unit = |component: &Component| component.content.first().copied().unwrap_or(1);
        let taps = components()
            .next()
            .and_then(|(_, component)| component.content.get(1).copied())
            .unwrap_or(1);
        let mut channels = 0;
        for (index, component) in components() {
            channels = sum(
                channels,
                product(self.units[index], per_unit(component), WHAT)?,
                WHAT,
            )?;
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
                offset: product(first_channel, channel_stride, WHAT)?,
                dims: [
                    Dim {
                        axis: Axis::Unit,
                        extent: self.units[index],
                        stride: product(width, channel_stride, WHAT)?,
                    },
                    content_dim(0, width, channel_stride),
                    content_dim(1, taps, tap_stride),
                ]
                .into_iter()
                .collect(),
            });
            first_channel += self.units[index] * width;
        }
        Ok((product(channels, taps, WHAT)?, parts))
    }

    /// Every axis that can have more than one position has to be in the order.
    fn require_all(&self, letters: &Letters) -> Result<(), OrderError> {
        use Letter::{B, C, D, H, L, S};
        let single_head = match self.geometry.arrangement {
            Arrangement::HeadsFirst => self
                .geometry
                .components
                .iter()
                .all(|component| component.partition.units() == 1),
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
        OrderError::NoKeyValue {
            kind: self.spec.kind(),
        }
    }
}

fn content_dim(axis: usize, extent: u64, stride: u64) -> Dim {
    Dim {
        axis: Axis::Content(axis as u8),
        extent,
        stride,
    }
}
