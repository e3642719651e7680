//! Computes where the bytes of one rank and group are: axes inside axes, parts after parts.

use std::ops::Range;

use super::document::{Group, Stated};
use super::order::{Axis, Order};
use super::spec::{Component, Content, Spec};
use super::{Address, Fault, Name};

/// The memory of one rank and group.
pub(super) struct Place {
    offset: u64,
    per_layer: bool,
    layers: Vec<u64>,
    held: Vec<Vec<Held>>,
    /// Whether a bracket puts each component in its own place.
    apart: bool,
    layout: Layout,
}

/// The share that a rank holds of one component of one spec.
struct Held {
    units: Range<u64>,
    extents: [u64; 2],
    /// Elements of this state and head, or channels of this convolution, that come before.
    before: u64,
    /// Whether units are heads. Units of a convolution are inside its content.
    per_head: bool,
}

/// A stretch of memory.
enum Layout {
    /// An axis of `extent` equal parts, `stride` bytes apart.
    Axis {
        axis: Axis,
        extent: u64,
        stride: u64,
        inner: Box<Layout>,
    },
    /// One part for each spec of the page, in order.
    Specs(Vec<Layout>),
    /// One part for each component of the spec, in order.
    Components(Vec<Layout>),
    Element(u64),
}

impl Place {
    pub(super) fn new(
        group: &Group,
        stated: &Stated,
        layers: Vec<u64>,
        units: impl Fn(&Component) -> Result<Range<u64>, Fault>,
    ) -> Result<Self, Fault> {
        let mut held = Vec::new();
        for spec in &group.specs {
            let mut of_spec = Vec::new();
            let mut before = 0;
            for component in &spec.components {
                let units = units(component)?;
                let [i, j] = component.extents;
                let here = Held {
                    units: units.clone(),
                    extents: component.extents,
                    before,
                    per_head: spec.content == Content::PerHead,
                };
                of_spec.push(here);
                before += match spec.content {
                    Content::PerHead => i * j,
                    Content::Conv { .. } => (units.end - units.start) * i,
                };
            }
            held.push(of_spec);
        }
        let outer_extents = Outer { group, stated, layers: layers.len() as u64 };
        let layout = match &group.order {
            Some(order) => {
                let (spec, held) = (&group.specs[0], &held[0]);
                let all = (0..spec.components.len()).collect::<Vec<_>>();
                let inner = if order.bracket.is_empty() {
                    Layout::Element(spec.components[0].element)
                } else {
                    if order.bracket.len() != all.len() {
                        return Err(format!("order: a bracket for {} components", all.len()));
                    }
                    let mut parts = Vec::new();
                    for (component, axes) in all.iter().zip(&order.bracket) {
                        let element = Layout::Element(spec.components[*component].element);
                        parts.push(outer_extents.wrap(axes, spec, held, &[*component], element)?);
                    }
                    Layout::Components(parts)
                };
                check_complete(order, spec)?;
                outer_extents.wrap(&order.outer, spec, held, &all, inner)?
            }
            None => {
                let mut pages = Vec::new();
                for (spec, held) in group.specs.iter().zip(&held) {
                    pages.push(outer_extents.page_part(spec, held)?);
                }
                let page = Layout::Specs(pages);
                let (spec, held) = (&group.specs[0], &held[0]);
                outer_extents.wrap(&[Axis::Layer, Axis::Block], spec, held, &[], page)?
            }
        };
        Ok(Self {
            offset: stated.offset,
            per_layer: group.per_layer,
            layers,
            held,
            apart: (group.order.as_ref()).is_some_and(|order| !order.bracket.is_empty()),
            layout,
        })
    }

    /// Returns the least number of bytes of an allocation.
    pub(super) fn size(&self) -> u64 {
        self.offset + self.layout.size()
    }

    /// Returns the bytes from one block (`B`) or layer (`L`) to the next.
    pub(super) fn stride_of(&self, axis: char) -> Option<u64> {
        let wanted = if axis == 'B' { Axis::Block } else { Axis::Layer };
        let mut layout = &self.layout;
        loop {
            match layout {
                Layout::Axis { axis, stride, .. } if *axis == wanted => return Some(*stride),
                Layout::Axis { inner, .. } => layout = inner,
                _ => return None,
            }
        }
    }

    /// Returns the address of one byte of state `state` of block `block`.
    pub(super) fn address(&self, name: &Name, block: u64, state: u64) -> Result<Address, Fault> {
        let slot = self.layers.iter().position(|&l| l == name.layer);
        let slot = slot.ok_or_else(|| format!("layer {} is not here", name.layer))? as u64;
        let held = &self.held[name.spec][name.component];
        if !held.units.contains(&name.unit) {
            return Err(format!("unit {} is not here", name.unit));
        }
        let local_unit = name.unit - held.units.start;
        let index = |axis| match axis {
            Axis::Layer => slot,
            Axis::Block => block,
            Axis::State => state,
            Axis::Head if held.per_head => local_unit,
            Axis::Head => 0,
            Axis::Content => held.before + name.i * held.extents[1] + name.j,
            Axis::Half => name.component as u64,
            Axis::Width => name.i * held.extents[1] + name.j,
            Axis::Channel if self.apart => local_unit * held.extents[0] + name.i,
            Axis::Channel => held.before + local_unit * held.extents[0] + name.i,
            Axis::ConvState => name.j,
        };
        let inside = self.layout.offset(name, &index)?;
        Ok(Address { allocation: if self.per_layer { slot } else { 0 }, offset: self.offset + inside })
    }
}

impl Layout {
    fn size(&self) -> u64 {
        match self {
            Self::Axis { extent, stride, .. } => extent * stride,
            Self::Specs(parts) | Self::Components(parts) => parts.iter().map(Self::size).sum(),
            Self::Element(bytes) => *bytes,
        }
    }

    fn offset(&self, name: &Name, index: &impl Fn(Axis) -> u64) -> Result<u64, Fault> {
        let part = |parts: &[Self], n: usize| -> Result<u64, Fault> {
            let before = parts[..n].iter().map(Self::size).sum::<u64>();
            Ok(before + parts[n].offset(name, index)?)
        };
        match self {
            Self::Axis { axis, extent, stride, inner } => {
                let at = index(*axis);
                if at >= *extent {
                    return Err(format!("{axis:?} {at} is outside of {extent}: {name:?}"));
                }
                Ok(at * stride + inner.offset(name, index)?)
            }
            Self::Specs(parts) => part(parts, name.spec),
            Self::Components(parts) => part(parts, name.component),
            Self::Element(_) => Ok(name.byte),
        }
    }
}

/// The values that determine every extent.
struct Outer<'a> {
    group: &'a Group,
    stated: &'a Stated,
    layers: u64,
}

impl Outer<'_> {
    /// Puts `axes`, outermost first, around `inner`; `components` are those that lie in it.
    fn wrap(
        &self,
        axes: &[Axis],
        spec: &Spec,
        held: &[Held],
        components: &[usize],
        inner: Layout,
    ) -> Result<Layout, Fault> {
        let mut layout = inner;
        for axis in axes.iter().rev() {
            if matches!(axis, Axis::Content | Axis::Width)
                && let Content::Conv { channels_outside } = spec.content
            {
                let pair = match channels_outside {
                    true => [Axis::Channel, Axis::ConvState],
                    false => [Axis::ConvState, Axis::Channel],
                };
                layout = self.wrap(&pair, spec, held, components, layout)?;
                continue;
            }
            if *axis == Axis::Layer && self.group.per_layer {
                continue;
            }
            let stated = match axis {
                Axis::Block => self.stated.block_stride,
                Axis::Layer => self.stated.layer_stride,
                _ => None,
            };
            layout = Layout::Axis {
                axis: *axis,
                extent: self.extent(*axis, spec, held, components)?,
                stride: stated.unwrap_or(layout.size()),
                inner: Box::new(layout),
            };
        }
        Ok(layout)
    }

    fn extent(&self, axis: Axis, spec: &Spec, held: &[Held], components: &[usize]) -> Result<u64, Fault> {
        let widths = components.iter().map(|&c| held[c].extents[0] * held[c].extents[1]);
        Ok(match axis {
            Axis::Layer => self.layers,
            Axis::Block => self.group.num_blocks,
            Axis::State => spec.states(self.group.block_size)?,
            Axis::Head => match spec.content {
                Content::PerHead => held[0].units.end - held[0].units.start,
                Content::Conv { .. } => 1,
            },
            Axis::Content => widths.sum(),
            Axis::Half => components.len() as u64,
            Axis::Width => {
                let widths = widths.collect::<Vec<_>>();
                if widths.iter().any(|w| *w != widths[0]) {
                    return Err("order: K outside C needs equal K and V widths".into());
                }
                widths[0]
            }
            Axis::Channel => {
                components.iter().map(|&c| (held[c].units.end - held[c].units.start) * held[c].extents[0]).sum()
            }
            Axis::ConvState => held[0].extents[1],
        })
    }

    /// Returns one spec's part of a page: its components one after another, heads outermost in each. K and V of an
    /// attention are one component, and so is everything along a convolution's channels.
    fn page_part(&self, spec: &Spec, held: &[Held]) -> Result<Layout, Fault> {
        let all = (0..spec.components.len()).collect::<Vec<_>>();
        let apart = matches!(spec.kind.as_str(), "compressed" | "indexer");
        let axes = [Axis::Head, Axis::State, Axis::Content];
        let tensor = |components: &[usize]| {
            let element = Layout::Element(spec.components[components[0]].element);
            match spec.content {
                Content::PerHead => self.wrap(&axes, spec, held, components, element),
                Content::Conv { .. } => self.wrap(&axes[2..], spec, held, components, element),
            }
        };
        if !apart {
            return tensor(&all);
        }
        let element = || Layout::Element(1);
        let axes = [Axis::Head, Axis::State, Axis::Width];
        let parts = all.iter().map(|&c| self.wrap(&axes, spec, held, &[c], element()));
        Ok(Layout::Components(parts.collect::<Result<_, _>>()?))
    }
}

/// Checks that every axis is there once, for each component. `H` may be missing where a kind has no heads.
fn check_complete(order: &Order, spec: &Spec) -> Result<(), Fault> {
    let paths = match order.bracket.is_empty() {
        true => vec![order.outer.clone()],
        false => order.bracket.iter().map(|inner| [&order.outer[..], inner].concat()).collect(),
    };
    let conv = matches!(spec.content, Content::Conv { .. });
    let headless = conv || matches!(spec.kind.as_str(), "mla" | "compressed" | "indexer");
    for path in paths {
        let count = |axis| path.iter().filter(|a| **a == axis).count();
        let heads_fit = count(Axis::Head) == 1 || (headless && count(Axis::Head) == 0);
        let content_fits = match (count(Axis::Content), count(Axis::Half), count(Axis::Width)) {
            (1, 0, 0) => order.bracket.is_empty(),
            (0, 1, 1) => order.bracket.is_empty() && spec.kind == "attention",
            (0, 0, 1) => !order.bracket.is_empty(),
            _ => false,
        };
        let once = [Axis::Layer, Axis::Block, Axis::State].iter().all(|axis| count(*axis) == 1);
        if !(heads_fit && content_fits && once) {
            return Err(format!("order: {order:?} does not fit {}", spec.kind));
        }
    }
    Ok(())
}
