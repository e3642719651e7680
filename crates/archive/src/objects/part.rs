//! The memory that objects are put from and read into: parts, and their pieces.

use std::marker::PhantomData;

use super::record::PIECE;

/// Memory whose bytes are put. Others may write it meanwhile, as Python and an engine may: it is copied once, through a
/// pointer, so that no reference to it exists, and what is hashed and stored is the copy. Rust knows no copy of memory that is
/// being written; that of the platform is relied on to copy some bytes or others, which nobody looks at before it has ended.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    start: *const u8,
    len: usize,
    memory: PhantomData<&'a [u8]>,
}

/// Memory that is read into. Others may read and write it meanwhile, and see any of the bytes.
#[derive(Debug)]
pub struct PartMut<'a>(Part<'a>);

// SAFETY: as of `&[u8]`, any thread may read the memory; whoever made the part has promised that it is there.
unsafe impl Send for Part<'_> {}
// SAFETY: as above.
unsafe impl Sync for Part<'_> {}

impl<'a> Part<'a> {
    /// Takes memory that is no slice of Rust's.
    ///
    /// # Safety
    /// Until the end of `'a` the memory is there and may be read, if there are any bytes.
    pub unsafe fn from_raw_parts(start: *const u8, len: usize) -> Self {
        let memory = PhantomData;
        Self { start, len, memory }
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len, "a part of {} is cut at {at}", self.len);
        let later = Self { start: self.start.wrapping_add(at), len: self.len - at, ..self };
        (Self { len: at, ..self }, later)
    }

    /// Appends a copy of its bytes.
    pub(super) fn append_to(self, copy: &mut Vec<u8>) {
        copy.reserve(self.len);
        let spare = copy.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: `copy` has room for so many bytes, and as many can be read here, which both constructors have been promised.
        unsafe {
            spare.copy_from_nonoverlapping(self.start, self.len);
            copy.set_len(copy.len() + self.len);
        }
    }
}

impl<'a> PartMut<'a> {
    /// Takes memory that is no slice of Rust's.
    ///
    /// # Safety
    /// Until the end of `'a` the memory is there and may be written, if there are any bytes.
    pub unsafe fn from_raw_parts(start: *mut u8, len: usize) -> Self {
        let memory = PhantomData;
        Self(Part { start, len, memory })
    }

    /// Fills it with as many of these bytes, and gives the others.
    pub(super) fn fill<'b>(&mut self, data: &'b [u8]) -> &'b [u8] {
        let (now, later) = data.split_at(self.0.len);
        // SAFETY: so many bytes can be written here, which both constructors have been promised.
        unsafe { self.0.start.cast_mut().copy_from(now.as_ptr(), now.len()) };
        later
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for Part<'a> {
    fn from(memory: &'a T) -> Self {
        let bytes = memory.as_ref();
        // SAFETY: it is borrowed for so long.
        unsafe { Self::from_raw_parts(bytes.as_ptr(), bytes.len()) }
    }
}

impl<'a, T: AsMut<[u8]> + ?Sized> From<&'a mut T> for PartMut<'a> {
    fn from(memory: &'a mut T) -> Self {
        let bytes = memory.as_mut();
        // SAFETY: it is borrowed for so long, to be written.
        unsafe { Self::from_raw_parts(bytes.as_mut_ptr(), bytes.len()) }
    }
}

/// Cuts parts that make up an object, one behind the other, into its pieces: the parts of each.
pub(super) fn pieces<'a>(parts: impl IntoIterator<Item = Part<'a>>) -> Vec<Vec<Part<'a>>> {
    let mut pieces: Vec<Vec<Part<'a>>> = Vec::new();
    let mut room = 0;
    for mut part in parts {
        while part.len > 0 {
            if room == 0 {
                pieces.push(Vec::new());
                room = PIECE;
            }
            let (now, later) = part.split_at(part.len.min(room));
            room -= now.len;
            pieces.last_mut().expect("one was begun").push(now);
            part = later;
        }
    }
    pieces
}

/// Cuts parts to be filled in the same way.
pub(super) fn pieces_mut<'a>(parts: &'a mut [PartMut<'_>]) -> impl Iterator<Item = Vec<PartMut<'a>>> {
    let pieces = pieces(parts.iter_mut().map(|part| part.0));
    pieces.into_iter().map(|parts| parts.into_iter().map(PartMut).collect())
}

/// How many bytes parts make up.
pub(super) fn total<'a>(parts: impl IntoIterator<Item = &'a Part<'a>>) -> u64 {
    // One memory may be given many times.
    let parts = parts.into_iter().map(|part| part.len as u64);
    parts.fold(0, u64::saturating_add)
}

/// How many bytes parts to be filled make up.
pub(super) fn total_mut(parts: &[PartMut<'_>]) -> u64 {
    total(parts.iter().map(|part| &part.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_full_but_the_last() {
        let bytes = vec![7; 2 * PIECE];
        for (lengths, expected) in [
            (&[][..], &[][..]),
            (&[0, 0], &[]),
            (&[5, 0, 6], &[&[5, 6][..]]),
            (&[PIECE], &[&[PIECE]]),
            (&[PIECE - 1, 3], &[&[PIECE - 1, 1], &[2]]),
            (&[1, 2 * PIECE], &[&[1, PIECE - 1], &[PIECE], &[1]]),
        ] {
            let parts: Vec<Part<'_>> = lengths.iter().map(|len| (&bytes[..*len]).into()).collect();
            let pieces: Vec<Vec<usize>> =
                pieces(parts.iter().copied()).iter().map(|piece| piece.iter().map(|part| part.len).collect()).collect();
            assert_eq!(pieces, expected);
            assert_eq!(total(&parts), lengths.iter().sum::<usize>() as u64);
        }
    }
}
