//! The memory that objects are put from and read into.

use std::marker::PhantomData;

use super::record::PIECE;

/// Memory whose bytes are put. Other code, such as Python or an engine, may write to it meanwhile. So it is copied
/// once, through a pointer and without a Rust reference, and the copy is hashed and stored. Rust has no defined copy of
/// memory that is being written. This relies on the platform's copy to yield some bytes, which are not used before it
/// has ended.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    start: *const u8,
    len: usize,
    memory: PhantomData<&'a [u8]>,
}

/// Memory that is read into. Other code may read and write it meanwhile, and see any of the bytes.
#[derive(Debug)]
pub struct PartMut<'a>(Part<'a>);

// SAFETY: as for `&[u8]`, any thread may read the memory, whose existence the constructor's caller has promised.
unsafe impl Send for Part<'_> {}
// SAFETY: as above.
unsafe impl Sync for Part<'_> {}

impl<'a> Part<'a> {
    /// Takes memory that is not a Rust slice.
    ///
    /// # Safety
    /// The memory exists and can be read until the end of `'a`, unless `len` is 0.
    pub unsafe fn from_raw_parts(start: *const u8, len: usize) -> Self {
        let memory = PhantomData;
        Self { start, len, memory }
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len, "a part of {} is cut at {at}", self.len);
        let later = Self { start: self.start.wrapping_add(at), len: self.len - at, ..self };
        (Self { len: at, ..self }, later)
    }

    pub(super) fn append_to(self, copy: &mut Vec<u8>) {
        copy.reserve(self.len);
        let spare = copy.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: `copy` has room for this many bytes, and both constructors' callers promised that as many can be read
        // here.
        unsafe {
            spare.copy_from_nonoverlapping(self.start, self.len);
            copy.set_len(copy.len() + self.len);
        }
    }
}

impl<'a> PartMut<'a> {
    /// Takes memory that is not a Rust slice.
    ///
    /// # Safety
    /// The memory exists and can be written until the end of `'a`, unless `len` is 0.
    pub unsafe fn from_raw_parts(start: *mut u8, len: usize) -> Self {
        let memory = PhantomData;
        Self(Part { start, len, memory })
    }

    pub(super) fn fill<'b>(&mut self, data: &'b [u8]) -> &'b [u8] {
        let (now, later) = data.split_at(self.0.len);
        // SAFETY: both constructors' callers promised that this many bytes can be written here.
        unsafe { self.0.start.cast_mut().copy_from(now.as_ptr(), now.len()) };
        later
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for Part<'a> {
    fn from(memory: &'a T) -> Self {
        let bytes = memory.as_ref();
        // SAFETY: the slice is borrowed for `'a`.
        unsafe { Self::from_raw_parts(bytes.as_ptr(), bytes.len()) }
    }
}

impl<'a, T: AsMut<[u8]> + ?Sized> From<&'a mut T> for PartMut<'a> {
    fn from(memory: &'a mut T) -> Self {
        let bytes = memory.as_mut();
        // SAFETY: the slice is borrowed mutably for `'a`.
        unsafe { Self::from_raw_parts(bytes.as_mut_ptr(), bytes.len()) }
    }
}

/// Divides the consecutive parts of an object into pieces, each of which is a list of parts.
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

pub(super) fn pieces_mut<'a>(parts: &'a mut [PartMut<'_>]) -> impl Iterator<Item = Vec<PartMut<'a>>> {
    let pieces = pieces(parts.iter_mut().map(|part| part.0));
    pieces.into_iter().map(|parts| parts.into_iter().map(PartMut).collect())
}

pub(super) fn total<'a>(parts: impl IntoIterator<Item = &'a Part<'a>>) -> u64 {
    // The sum may exceed memory, because the same memory may be passed many times.
    let parts = parts.into_iter().map(|part| part.len as u64);
    parts.fold(0, u64::saturating_add)
}

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
