//! Placement: combines orders and specs into the byte strides of every component on one rank.

mod error;
mod level;
mod placer;
mod shape;

pub(crate) use error::{Field, PlacementError};
pub use shape::Allocation;
pub(crate) use shape::Shape;

use crate::order::{Letter, Order, OrderError};
use crate::spec::Spec;
use crate::view::{ALLOCATION_BITS, Axis, ComponentView, Dim};
use error::sum;
use level::Level;
use placer::Placer;

/// The location of a group's bytes on the ranks of one pipeline stage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Placement {
    /// The views of all components, with `units` counted from 0. [`Group::views`](crate::deployment::Group::views)
    /// returns those of a rank.
    pub(crate) views: Vec<ComponentView>,
    /// The number of allocations of the group on each rank.
    pub allocations: u64,
    /// The bytes that each allocation needs, from its start.
    pub allocation_bytes: u64,
}

impl Shape<'_> {
    pub(crate) fn place(&self) -> Result<Placement, PlacementError> {
        let per_layer = self.allocation == Allocation::PerLayer;
        if per_layer && self.layer_stride.is_some() {
            return Err(PlacementError::LayerStridePerLayer);
        }
        let (mut views, bytes) = match self.specs {
            [spec] => self.place_single(spec)?,
            specs => self.place_pages(specs)?,
        };
        let offset = || PlacementError::TooLarge { field: Field::Offset, what: "offset plus what the group takes" };
        for component in &mut views {
            component.view.offset = sum(component.view.offset, self.offset).ok_or_else(offset)?;
            if per_layer {
                component.view.dims.retain(|dim| dim.axis != Axis::Layer);
                component
                    .view
                    .dims
                    .insert(0, Dim { axis: Axis::Layer, extent: self.layer_slots, stride: 1 << ALLOCATION_BITS });
            }
        }
        Ok(Placement {
            views,
            allocations: if per_layer { self.layer_slots } else { 1 },
            allocation_bytes: sum(bytes, self.offset).ok_or_else(offset)?,
        })
    }

    fn place_single(&self, spec: &Spec) -> Result<(Vec<ComponentView>, u64), PlacementError> {
        let geometry = spec.geometry();
        let order = self.order.cloned();
        let order = order.unwrap_or_else(|| Order::of_kind(&geometry));
        let placer = Placer::new(self, 0, spec, &geometry)?;
        let placed = placer.place(&order)?;
        Ok((placed.components, placed.span))
    }

    fn place_pages(&self, specs: &[Spec]) -> Result<(Vec<ComponentView>, u64), PlacementError> {
        use Letter::{B, L};
        if self.order.is_some_and(|order| *order != Order::pages()) {
            return Err(OrderError::NotPages.into());
        }
        let mut components = Vec::new();
        let mut page = 0;
        for (index, spec) in specs.iter().enumerate() {
            let geometry = spec.geometry();
            let placer = Placer::new(self, index, spec, &geometry)?;
            let mut placed = placer.place_in_page()?;
            placed.shift(page)?;
            page = sum(page, placed.size)
                .ok_or(PlacementError::TooLarge { field: Field::Spec(index, None), what: "the page of a block" })?;
            components.append(&mut placed.components);
        }
        let outer = Level::new(self, &[L, B], page, None, |letter| self.outer_extent(letter))?;
        for component in &mut components {
            outer.wrap(&mut component.view);
        }
        Ok((components, outer.span))
    }

    fn outer_extent(&self, letter: Letter) -> u64 {
        match letter {
            // A layer with its own allocation is not an axis inside it.
            Letter::L if self.allocation == Allocation::PerLayer => 1,
            Letter::L => self.layer_slots,
            Letter::B => self.num_blocks,
            _ => 1,
        }
    }
}
