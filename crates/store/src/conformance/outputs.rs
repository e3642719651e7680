//! Items about outputs: buffers from C's malloc that belong to the caller.

use std::ptr;

use super::border::opened;
use super::context::Context;
use super::item::{Item, at_border, must, ours};
use super::outcome::{Outcome, Stop, broken, ensure};
use crate::loader::Loaded;

pub(super) const ITEMS: &[Item] = &[
    at_border(must(
        "outputs-malloc",
        "output buffers come from C malloc: the caller may write to them and frees them, and nothing of them remains",
        malloced,
    )),
    at_border(must(
        "outputs-own",
        "each output is a separate buffer: changing or freeing one does not affect another",
        own,
    )),
    at_border(ours(
        "outputs-empty",
        "an empty output is a buffer, too, and not NULL: consumers follow the pointer (oMLX does)",
        empty,
    )),
];

/// An output as the library returned it. It is not freed automatically.
struct Raw {
    start: *mut u8,
    len: usize,
}

impl Raw {
    /// Examines the buffer before anything is written to it. Memory from malloc is aligned for any type, and malloc
    /// knows its size. For other memory, asking for the size returns nonsense or crashes, which is a finding if the
    /// item runs in a process of its own.
    fn examine(&self) -> Result<(), Stop> {
        let Self { start, len } = *self;
        ensure!(!start.is_null(), "an output of {len} bytes is NULL");
        ensure!(
            start.addr().is_multiple_of(align_of::<libc::max_align_t>()),
            "the buffer at {start:p} is not aligned as malloc aligns"
        );
        #[cfg(target_os = "linux")]
        {
            // SAFETY: the contract says that malloc made the buffer. If not, this reads memory in front of it, which
            // may end the process: callers who must avoid that check libraries in separate processes.
            let usable = unsafe { libc::malloc_usable_size(start.cast()) };
            // malloc rounds up by less than a page. A much larger size comes from unrelated bytes.
            ensure!(
                usable >= len && usable - len <= 1 << 16,
                "malloc knows {usable} bytes at {start:p}, where the output of {len} bytes is"
            );
        }
        Ok(())
    }

    fn write_and_free(self) {
        // SAFETY: `examine` has found it to be malloc's, and by the contract the caller owns it.
        unsafe {
            self.start.write_bytes(0xee, self.len);
            libc::free(self.start.cast());
        }
    }
}

fn get(store: &Loaded, hash: &[u8]) -> Result<Raw, Stop> {
    let (mut start, mut len) = (ptr::null_mut(), 0);
    let get = store.library().table().get_chunk;
    // SAFETY: the handle is open, the hash is valid for its length, and the outputs are valid for writes.
    let code = unsafe { get(store.handle(), hash.as_ptr(), hash.len(), &raw mut start, &raw mut len) };
    ensure!(code == 0, "get_chunk of a chunk that is there returned {code}");
    Ok(Raw { start, len })
}

fn put(store: &Loaded, hash: &[u8], data: &[u8]) -> Result<(), Stop> {
    let put = store.library().table().put_chunk;
    // SAFETY: the handle is open, and both slices are valid for their lengths.
    let code = unsafe { put(store.handle(), hash.as_ptr(), hash.len(), data.as_ptr(), data.len()) };
    ensure!(code == 0, "put_chunk of a new chunk returned {code}");
    Ok(())
}

fn stored(context: &Context<'_>, store: &Loaded, data: &[u8]) -> Result<Vec<u8>, Stop> {
    let hash = context.fresh(32);
    put(store, &hash, data)?;
    let name = context.name("/outputs")?;
    crate::Backend::put_manifest(store, &name, b"")?;
    Ok(hash)
}

fn malloced(context: &Context<'_>) -> Outcome {
    let store = opened(context)?;
    let mut seen = Vec::new();
    for len in [1, 24, 1000, 100_000, 1 << 20] {
        let hash = stored(context, &store, &context.fresh(len))?;
        let raw = get(&store, &hash)?;
        ensure!(raw.len == len, "get_chunk gave {} bytes, not {len}", raw.len);
        raw.examine()?;
        raw.write_and_free();
        seen.push(len);
    }
    let (mut start, mut len) = (ptr::null_mut(), 0);
    let name = context.name("/outputs/manifest")?;
    crate::Backend::put_manifest(&store, &name, b"text")?;
    let text = std::ffi::CString::new(name.as_str()).unwrap_or_default();
    let get_manifest = store.library().table().get_manifest;
    // SAFETY: the handle is open, the name is a C string, and the outputs are valid for writes.
    let code = unsafe { get_manifest(store.handle(), text.as_ptr(), &raw mut start, &raw mut len) };
    ensure!(code == 0, "get_manifest of a manifest that is there returned {code}");
    let raw = Raw { start, len };
    raw.examine()?;
    raw.write_and_free();
    let kept = is_all_freed(context, &store)?;
    Ok(format!("buffers of {seen:?} bytes and a manifest's were written to and freed{kept}"))
}

/// Checks that reading and freeing a chunk many times does not take more and more memory.
fn is_all_freed(context: &Context<'_>, store: &Loaded) -> Result<&'static str, Stop> {
    const BYTES: usize = 64 << 10;
    const TIMES: usize = 256;
    let hash = stored(context, store, &context.fresh(BYTES))?;
    let read = || -> Result<Option<u64>, Stop> {
        for _ in 0..TIMES {
            let raw = get(store, &hash)?;
            raw.examine()?;
            raw.write_and_free();
        }
        Ok(anonymous_memory())
    };
    // The first reads may fill caches.
    let mut before = read()?;
    for _ in 0..3 {
        let now = read()?;
        let (Some(was), Some(is)) = (before, now) else {
            return Ok("; what they left cannot be seen here");
        };
        if is.saturating_sub(was) < (TIMES * BYTES / 2) as u64 {
            return Ok(", and nothing was left of them");
        }
        before = now;
    }
    broken!("reading a chunk of {BYTES} bytes {TIMES} times took up that memory for good, three times over")
}

/// Returns the resident memory of this process that belongs to no file, in bytes.
fn anonymous_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn own(context: &Context<'_>) -> Outcome {
    let store = opened(context)?;
    let data = context.fresh(5000);
    let hash = stored(context, &store, &data)?;
    let (one, two) = (get(&store, &hash)?, get(&store, &hash)?);
    ensure!(one.start != two.start, "two outputs are the same buffer, {:p}", one.start);
    one.examine()?;
    two.examine()?;
    one.write_and_free();
    // SAFETY: `examine` has found that it holds `len` bytes.
    let second = unsafe { std::slice::from_raw_parts(two.start, two.len) };
    ensure!(second == data, "writing to one output changed another");
    two.write_and_free();
    let three = get(&store, &hash)?;
    three.examine()?;
    // SAFETY: as above.
    let third = unsafe { std::slice::from_raw_parts(three.start, three.len) };
    ensure!(third == data, "writing to an output changed the store");
    three.write_and_free();
    Ok("three outputs of one chunk are three buffers".into())
}

fn empty(context: &Context<'_>) -> Outcome {
    let store = opened(context)?;
    let hash = stored(context, &store, b"")?;
    let raw = get(&store, &hash)?;
    ensure!(raw.len == 0, "an output of no bytes has {}", raw.len);
    raw.examine()?;
    raw.write_and_free();
    Ok("an output of no bytes is a buffer".into())
}
