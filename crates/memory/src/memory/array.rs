//! Components of a cache as typed arrays of shape `[L, B, S, H, C]`.
//!
//! A [`View`] says where the bytes of a component are in a [`Memory`]. Here it becomes an array of the crate `ndarray`,
//! with typed elements and strides in elements:
//!
//! | the memory | function |
//! |---|---|
//! | has no other holder yet | [`Memory::array_mut`], which checks that |
//! | is registered with an agent, or is an engine's | [`Memory::to_array`], a copy |
//! | is, but does not change while the array is used | [`Memory::array_view`], [`Memory::array_view_mut`], unsafe |
//!
//! ```
//! use transload_layout::{Deployment, Dtype, Group, Rank, Spec, make_meta_kv_cache};
//! use transload_memory::Memory;
//!
//! let group = Group::builder("attn", "0-3", Spec::attention(2, 64, Dtype::F32));
//! let deployment = Deployment::builder().block_size(16).num_blocks(8).order("HND").group(group).build()?;
//! let keys = &make_meta_kv_cache(&deployment, Rank(0))[0][0].view;
//!
//! let bytes = deployment.groups()[0].placement(0).allocation_bytes;
//! let mut memory = Memory::allocate(&[bytes as usize])?;
//! let mut array = memory.array_mut::<f32>(keys)?;
//! assert_eq!(array.shape(), [4, 8, 16, 2, 64]);
//! array[[3, 5, 0, 1, 63]] = 0.5;
//!
//! // From here on an agent may hold the memory, whose current contents can be copied.
//! let held = memory.clone();
//! assert!(memory.array_mut::<f32>(keys).is_err());
//! assert_eq!(held.to_array::<f32>(keys)?[[3, 5, 0, 1, 63]], 0.5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::sync::Arc;

use bytemuck::Pod;
use ndarray::{Array5, ArrayView5, ArrayViewMut5, Ix5, ShapeBuilder, StrideShape};
use smallvec::SmallVec;
use thiserror::Error;
use transload_layout::{Axis, Dim, View};

use super::{Access, AccessError, Buffer, Memory, Shared};
use transload_plan::program::split_address;

/// The reason why a component cannot be an array of a type.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum ArrayError {
    /// The type is longer or shorter than an element of the component.
    #[error("an element of the component has {expected} bytes, one of the array {actual}")]
    ElementSize { expected: u64, actual: usize },
    /// The address of the first element is not aligned for the type.
    #[error("the array would start at {address:#x}, which is not a multiple of {align}")]
    Misaligned { address: usize, align: usize },
    /// The stride of an axis in bytes is not a multiple of the element's size.
    #[error("a step along {axis:?} is {stride} bytes, not a multiple of an element's {size}")]
    Stride { axis: Axis, stride: u64, size: u64 },
    /// The content axes are not contiguous, as in a convolution with taps outside: the stride of this one differs from
    /// the length of the next.
    #[error("{axis:?} does not follow the next content axis: narrow it to a position, or copy")]
    Content { axis: Axis },
    /// Layers are in separate allocations, so no stride leads from one to the next.
    #[error("allocations {first} to {last} are not a single array: narrow to one layer, or copy")]
    SeveralAllocations { first: usize, last: usize },
    /// Two positions of the view share bytes.
    #[error("a step along {axis:?} is {stride} bytes, shorter than what it steps over")]
    Overlap { axis: Axis, stride: u64 },
    /// Sizes or addresses exceed 64 bits, or the memory.
    #[error("the view has more bytes than the memory")]
    TooLarge,
    /// The view reaches beyond the memory, or the memory is read-only.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The memory has clones, or was not allocated here, so others may write to it.
    #[error("others may hold the memory: borrow it before it is registered, or copy")]
    Shared,
}

impl Memory {
    /// Copies a component into a new array, while agents and an engine may use the memory.
    ///
    /// Their concurrent writes are in the array completely, in part, or not at all; only a lease prevents blocks from
    /// changing. Any alignment is possible, and so are layers in several allocations and content axes in any order.
    ///
    /// # Errors
    /// The [`ArrayError`]s about sizes: of elements, of strides, and of the memory.
    pub fn to_array<T: Pod>(&self, view: &View) -> Result<Array5<T>, ArrayError> {
        let elements = Elements::of::<T>(view)?;
        if elements.bytes > self.bytes() {
            return Err(ArrayError::TooLarge);
        }
        let mut array = Array5::from_elem(elements.shape, T::zeroed());
        if let (Some(out), 1..) = (array.as_slice_mut(), elements.bytes) {
            let out = bytemuck::cast_slice_mut(out);
            self.gather(elements.address, elements.scattered(), out)?;
        }
        Ok(array)
    }

    /// Borrows a component of memory without other holders, to fill it or to read it.
    ///
    /// # Errors
    /// [`ArrayError::Shared`] unless it was [allocated](Self::allocate) here and has no clone, as before it is
    /// registered; or any other [`ArrayError`].
    pub fn array_mut<T: Pod>(&mut self, view: &View) -> Result<ArrayViewMut5<'_, T>, ArrayError> {
        let ours = |shared: &mut Shared| {
            let keeper = shared._keeper.as_ref();
            keeper.is_some_and(|keeper| (**keeper).is::<Vec<Buffer>>())
        };
        if !Arc::get_mut(&mut self.shared).is_some_and(ours) {
            return Err(ArrayError::Shared);
        }
        // SAFETY: only this value refers to the buffers, and it is borrowed for as long as the array is.
        unsafe { self.array_view_mut(view) }
    }

    /// Borrows a component of any memory, to read it in place.
    ///
    /// # Safety
    /// The view's own bytes are initialized, and are not written to while the array exists: by no agent (their blocks
    /// are leased, or in no transfer), no engine, no other process, no device. Bytes between them that are not the
    /// view's may be written to.
    ///
    /// # Errors
    /// Any [`ArrayError`] but [`Shared`](ArrayError::Shared).
    pub unsafe fn array_view<T: Pod>(&self, view: &View) -> Result<ArrayView5<'_, T>, ArrayError> {
        let (shape, start) = self.place(view)?;
        // SAFETY: `place` proved that all elements are aligned and inside one allocation, which `Shared` keeps while
        // `self` is borrowed; the caller vouches for all others.
        Ok(unsafe { ArrayView5::from_shape_ptr(shape, start) })
    }

    /// Borrows a component of any memory, to write to it in place.
    ///
    /// # Safety
    /// As for [`array_view`](Self::array_view). While the array exists, the view's own bytes are not read by others
    /// either, and there is no other array of them.
    ///
    /// # Errors
    /// Any [`ArrayError`] but [`Shared`](ArrayError::Shared).
    pub unsafe fn array_view_mut<T: Pod>(&self, view: &View) -> Result<ArrayViewMut5<'_, T>, ArrayError> {
        if self.access() == Access::Read {
            return Err(AccessError::ReadOnly.into());
        }
        let (shape, start) = self.place(view)?;
        // SAFETY: as in `array_view`; that elements do not overlap is proved too.
        Ok(unsafe { ArrayViewMut5::from_shape_ptr(shape, start) })
    }

    /// Checks that a view is an array of `T` inside one allocation.
    fn place<T: Pod>(&self, view: &View) -> Result<(StrideShape<Ix5>, *mut T), ArrayError> {
        let elements = Elements::of::<T>(view)?;
        let shape = elements.strided()?;
        let start = self.locate(elements.address, elements.span as usize)?;
        let start = start.cast::<T>();
        if !start.is_aligned() {
            return Err(ArrayError::Misaligned { address: start.addr().get(), align: align_of::<T>() });
        }
        Ok((shape, start.as_ptr()))
    }

    /// Copies the bytes at `address`, with dims outermost first, into `out` without gaps.
    fn gather(&self, address: u64, dims: &[Dim], out: &mut [u8]) -> Result<(), AccessError> {
        let Some((dim, inner)) = dims.split_first() else {
            return self.read(address, out);
        };
        let len = out.len() / dim.extent as usize;
        for (position, out) in (0..dim.extent).zip(out.chunks_exact_mut(len)) {
            self.gather(address + position * dim.stride, inner, out)?;
        }
        Ok(())
    }
}

/// A view in elements, independent of a memory.
struct Elements {
    address: u64,
    /// Bytes of an element.
    size: u64,
    /// `L`, `B`, `S`, `H` and each content axis, outermost first, with strides in bytes.
    dims: SmallVec<[Dim; 8]>,
    /// `[L, B, S, H, C]`, where `C` is all content axes together.
    shape: [usize; 5],
    bytes: u64,
    /// Bytes from the first element to the end of the last one, including gaps; 0 if there are no elements.
    span: u64,
}

impl Elements {
    fn of<T>(view: &View) -> Result<Self, ArrayError> {
        let byte = view.dim(Axis::Byte);
        let (size, actual) = (byte.extent, size_of::<T>());
        if size != actual as u64 || size == 0 {
            let expected = size;
            return Err(ArrayError::ElementSize { expected, actual });
        }
        if size > 1 && byte.stride != 1 {
            let Dim { axis, stride, .. } = byte;
            return Err(ArrayError::Stride { axis, stride, size });
        }
        let axes = [Axis::Layer, Axis::Block, Axis::State, Axis::Unit];
        let [l, b, s, h] = axes.map(|axis| view.dim(axis));
        let content = view.dims.iter().copied();
        let content = content.filter(|dim| matches!(dim.axis, Axis::Content(_)));
        let dims: SmallVec<[Dim; 8]> = [l, b, s, h].into_iter().chain(content).collect();

        // The sizes of an empty view matter too, since an array multiplies them.
        let bytes = product(dims.iter().map(|dim| dim.extent.max(1)), size)?;
        let empty = dims.iter().any(|dim| dim.extent == 0);
        let (bytes, span) = if empty { (0, 0) } else { (bytes, span(&dims, size)?) };
        if view.offset.checked_add(span).is_none() {
            return Err(ArrayError::TooLarge);
        }
        let c = product(dims[4..].iter().map(|dim| dim.extent), 1)?;
        Ok(Self {
            address: view.offset,
            size,
            shape: [l.extent, b.extent, s.extent, h.extent, c].map(|extent| extent as usize),
            dims,
            bytes,
            span,
        })
    }

    /// Returns the shape with strides in elements, if each axis has one.
    fn strided(&self) -> Result<StrideShape<Ix5>, ArrayError> {
        if self.bytes == 0 {
            return Ok(self.shape.into());
        }
        let (first, _) = split_address(self.address);
        let (last, _) = split_address(self.address + self.span - 1);
        if first != last {
            return Err(ArrayError::SeveralAllocations { first, last });
        }
        let mut strides = [0; 5];
        let content = self.content()?;
        let axes = self.dims.iter().take(4).chain(&content);
        let steps = strides.iter_mut().zip(axes);
        for (step, &dim) in steps.filter(|(_, dim)| dim.extent > 1) {
            *step = self.elements_per_step(dim)?;
        }
        Ok(self.shape.strides(strides))
    }

    fn elements_per_step(&self, dim: Dim) -> Result<usize, ArrayError> {
        let Dim { axis, stride, .. } = dim;
        let size = self.size;
        match stride.is_multiple_of(size) {
            true => Ok((stride / size) as usize),
            false => Err(ArrayError::Stride { axis, stride, size }),
        }
    }

    /// Returns the content axes merged into one, or `None` if there is only one position.
    fn content(&self) -> Result<Option<Dim>, ArrayError> {
        let mut axes = self.dims[4..].iter().rev().filter(|dim| dim.extent > 1);
        let mut content = axes.next().copied();
        if let Some(content) = &mut content {
            for dim in axes {
                if content.extent.checked_mul(content.stride) != Some(dim.stride) {
                    return Err(ArrayError::Content { axis: dim.axis });
                }
                content.extent *= dim.extent;
            }
        }
        Ok(content)
    }

    /// Returns the dims outside of those that are contiguous in memory, as in an array without gaps.
    fn scattered(&self) -> &[Dim] {
        let mut run = self.size;
        let inner = self.dims.iter().rev().take_while(|dim| {
            let follows = dim.extent == 1 || dim.stride == run;
            run *= dim.extent;
            follows
        });
        &self.dims[..self.dims.len() - inner.count()]
    }
}

fn product(mut extents: impl Iterator<Item = u64>, size: u64) -> Result<u64, ArrayError> {
    let product = extents.try_fold(size, u64::checked_mul);
    let fits = product.filter(|&product| isize::try_from(product).is_ok());
    fits.ok_or(ArrayError::TooLarge)
}

/// Returns the bytes from the first element to the end of the last one, if no two of them overlap.
fn span(dims: &[Dim], size: u64) -> Result<u64, ArrayError> {
    let steps = dims.iter().filter(|dim| dim.extent > 1);
    let mut steps: SmallVec<[&Dim; 8]> = steps.collect();
    steps.sort_by_key(|dim| dim.stride);
    let mut span = size;
    for dim in steps {
        let &Dim { axis, stride, .. } = dim;
        if stride < span {
            return Err(ArrayError::Overlap { axis, stride });
        }
        let reach = stride.checked_mul(dim.extent - 1);
        let reach = reach.and_then(|reach| span.checked_add(reach));
        span = reach.ok_or(ArrayError::TooLarge)?;
    }
    Ok(span)
}

#[cfg(test)]
mod tests;
