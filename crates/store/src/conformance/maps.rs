//! What lies where in this process, as Linux tells it.

use std::fs;

/// A stretch of memory of one kind.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) writable: bool,
    /// A file, `[heap]`, `[stack]`, or empty.
    pub(super) name: String,
}

impl Mapping {
    /// The one that an address lies in.
    pub(super) fn of(address: usize) -> Option<Self> {
        let maps = fs::read_to_string("/proc/self/maps").ok()?;
        maps.lines()
            .filter_map(Self::parse)
            .find(|mapping| (mapping.start..mapping.end).contains(&address))
    }

    /// Whether malloc may have it: it belongs to no file and to no stack.
    pub(super) fn is_anonymous(&self) -> bool {
        self.name.is_empty() || self.name == "[heap]" || self.name.starts_with("[anon")
    }

    /// `7f1c8a000000-7f1c8a021000 rw-p 00000000 00:00 0    [heap]`
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.split_ascii_whitespace();
        let (start, end) = parts.next()?.split_once('-')?;
        let rights = parts.next()?;
        Some(Self {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            writable: rights.as_bytes().get(1) == Some(&b'w'),
            name: parts.skip(3).collect::<Vec<_>>().join(" "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_the_heap_from_code_and_stack() {
        let (boxed, local) = (Box::new(7_u8), 7_u8);
        let heap = Mapping::of((&raw const *boxed).addr()).unwrap();
        assert!(heap.is_anonymous() && heap.writable, "{heap:?}");
        static TEXT: &str = "constant";
        let file = Mapping::of(TEXT.as_ptr().addr()).unwrap();
        assert!(!file.is_anonymous() && !file.writable, "{file:?}");
        assert!(Mapping::of((&raw const local).addr()).is_some());
        assert!(Mapping::of(8).is_none());
    }
}
