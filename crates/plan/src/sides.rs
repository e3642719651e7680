//! Pairs of values, one for each end of a transfer.

use std::ops::{Index, IndexMut};

use transload_layout::Side;

pub(crate) const SIDES: [Side; 2] = [Side::Source, Side::Destination];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Sides<T> {
    pub(crate) src: T,
    pub(crate) dst: T,
}

impl<T> Sides<T> {
    pub(crate) fn of(mut make: impl FnMut(Side) -> T) -> Self {
        Self { src: make(Side::Source), dst: make(Side::Destination) }
    }

    /// Makes both values. If both fail, it returns the source's error.
    pub(crate) fn try_of<E>(mut make: impl FnMut(Side) -> Result<T, E>) -> Result<Self, E> {
        Ok(Self { src: make(Side::Source)?, dst: make(Side::Destination)? })
    }

    pub(crate) fn map<U>(self, mut of: impl FnMut(T) -> U) -> Sides<U> {
        Sides { src: of(self.src), dst: of(self.dst) }
    }
}

impl<T> Index<Side> for Sides<T> {
    type Output = T;

    fn index(&self, side: Side) -> &T {
        match side {
            Side::Source => &self.src,
            Side::Destination => &self.dst,
        }
    }
}

impl<T> IndexMut<Side> for Sides<T> {
    fn index_mut(&mut self, side: Side) -> &mut T {
        match side {
            Side::Source => &mut self.src,
            Side::Destination => &mut self.dst,
        }
    }
}

pub(crate) fn both(holds: impl FnMut(Side) -> bool) -> bool {
    SIDES.into_iter().all(holds)
}
