//! A foreign table, read field by field.

use super::error::TableFault;
use crate::abi::{
    Close, DeleteManifest, GetChunk, GetManifest, Open, PrefetchChunks, PutChunk, PutManifest, VERSION_1, VERSION_2,
    Vtable,
};

// They are called as `extern "C"`, not as `"C-unwind"`. By the contract nothing unwinds, so a C++ exception that leaves
// a library is a fault like a wild pointer, and Rust code cannot catch it and continue. With either ABI the process
// aborts with "Rust cannot catch foreign exceptions". With "C-unwind", however, destructors on the way would first call
// into that library once more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(crate) version: u32,
    pub(crate) open: Open,
    pub(crate) close: Close,
    pub(crate) put_chunk: PutChunk,
    pub(crate) get_chunk: GetChunk,
    pub(crate) put_manifest: PutManifest,
    pub(crate) get_manifest: GetManifest,
    pub(crate) delete_manifest: DeleteManifest,
    /// Read only from a table of version 2, where it may be NULL.
    pub(crate) prefetch_chunks: Option<PrefetchChunks>,
}

impl Table {
    /// Reads a table. A later version begins like version 2 and is used as such. Only the first 4 bytes are read if
    /// they are 0, and only the first 64 if they are 1.
    ///
    /// # Safety
    /// `table` is NULL or points to readable memory: 4 bytes, 64 if they are 1, 72 if they are more.
    pub(crate) unsafe fn read(table: *const Vtable) -> Result<Self, TableFault> {
        if table.is_null() {
            return Err(TableFault::Null);
        }
        // Use raw pointers, since a reference would claim all 72 bytes. Read unaligned, since a foreign table may not
        // be aligned and need not be.
        macro_rules! field {
            ($name:ident) => {
                // SAFETY: the caller promises that the field's memory can be read, for this version.
                unsafe { (&raw const (*table).$name).read_unaligned() }
            };
        }
        macro_rules! function {
            ($name:ident) => {
                field!($name).ok_or(TableFault::NullFunction { function: stringify!($name) })?
            };
        }
        let version = field!(version);
        if version < VERSION_1 {
            return Err(TableFault::Version { found: version });
        }
        Ok(Self {
            version,
            open: function!(open),
            close: function!(close),
            put_chunk: function!(put_chunk),
            get_chunk: function!(get_chunk),
            put_manifest: function!(put_manifest),
            get_manifest: function!(get_manifest),
            delete_manifest: function!(delete_manifest),
            prefetch_chunks: if version >= VERSION_2 { field!(prefetch_chunks) } else { None },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;
    use std::ptr;

    use super::*;
    use crate::abi::VERSION_1_LEN;
    use crate::backend::MemoryStore;
    use crate::export::vtable;

    fn read(table: &Vtable) -> Result<Table, TableFault> {
        // SAFETY: a whole table.
        unsafe { Table::read(table) }
    }

    #[test]
    fn every_function_has_to_be_there() {
        let good = vtable::<MemoryStore>();
        assert_eq!(read(&good).unwrap().version, VERSION_1);
        type Take = fn(&mut Vtable);
        let takes: [(&str, Take); 7] = [
            ("open", |t| t.open = None),
            ("close", |t| t.close = None),
            ("put_chunk", |t| t.put_chunk = None),
            ("get_chunk", |t| t.get_chunk = None),
            ("put_manifest", |t| t.put_manifest = None),
            ("get_manifest", |t| t.get_manifest = None),
            ("delete_manifest", |t| t.delete_manifest = None),
        ];
        for (function, take) in takes {
            let mut table = good;
            take(&mut table);
            assert_eq!(read(&table).unwrap_err(), TableFault::NullFunction { function });
        }
        // SAFETY: NULL may be given.
        let null = unsafe { Table::read(ptr::null()) };
        assert_eq!(null.unwrap_err(), TableFault::Null);
    }

    #[test]
    fn a_later_version_is_used_as_version_2() {
        let mut table = vtable::<MemoryStore>();
        for version in [3, 99, u32::MAX] {
            table.version = version;
            let read = read(&table).unwrap();
            assert_eq!(read.version, version);
            assert_eq!(read.prefetch_chunks.is_some(), table.prefetch_chunks.is_some());
        }
        table.version = 0;
        let fault = read(&table).unwrap_err();
        assert_eq!(fault, TableFault::Version { found: 0 });
    }

    #[test]
    fn prefetch_is_read_from_version_2_on() {
        unsafe extern "C" fn prefetch(_: crate::abi::Handle, _: *const u8, _: usize, _: usize) -> i32 {
            0
        }
        let mut table = vtable::<MemoryStore>();
        table.prefetch_chunks = Some(prefetch);
        assert!(read(&table).unwrap().prefetch_chunks.is_none());
        table.version = VERSION_2;
        assert!(read(&table).unwrap().prefetch_chunks.is_some());
        table.prefetch_chunks = None;
        assert!(read(&table).unwrap().prefetch_chunks.is_none());
    }

    /// Two pages, the second of which cannot be touched; `len` bytes of `table` end where the first one does.
    fn at_the_edge(table: &Vtable, len: usize) -> *const Vtable {
        // SAFETY: a new mapping of two pages, never unmapped. The copy ends at the first one's end, and the
        // table has `len` bytes to read.
        unsafe {
            let page = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).unwrap();
            let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let writable = libc::PROT_READ | libc::PROT_WRITE;
            let pages = libc::mmap(ptr::null_mut(), 2 * page, writable, anonymous, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            let at = pages.cast::<u8>().add(page - len);
            at.copy_from_nonoverlapping(ptr::from_ref(table).cast(), len);
            assert_eq!(libc::mprotect(pages, page, libc::PROT_READ), 0);
            let behind = pages.cast::<u8>().add(page);
            assert_eq!(libc::mprotect(behind.cast(), page, libc::PROT_NONE), 0);
            at.cast()
        }
    }

    #[test]
    fn a_table_in_read_only_memory_may_end_where_its_version_does() {
        let mut table = vtable::<MemoryStore>();
        let end = at_the_edge(&table, VERSION_1_LEN);
        // SAFETY: 64 bytes of version 1.
        assert_eq!(unsafe { Table::read(end) }.unwrap().version, VERSION_1);
        table.version = VERSION_2;
        let end = at_the_edge(&table, size_of::<Vtable>());
        // SAFETY: 72 bytes of version 2.
        assert_eq!(unsafe { Table::read(end) }.unwrap().version, VERSION_2);
        table.version = 0;
        let end = at_the_edge(&table, 4);
        // SAFETY: 4 bytes of another version; they are not aligned for a table.
        let fault = unsafe { Table::read(end) }.unwrap_err();
        assert_eq!(fault, TableFault::Version { found: 0 });
    }
}
