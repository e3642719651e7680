//! Items about chunks: immutable bytes of any kind, stored by hash.

use super::context::Context;
use super::item::{Item, must, ours};
use super::outcome::{Outcome, broken, ensure};
use crate::backend::Put;
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::loader::CallError;

pub(super) const ITEMS: &[Item] = &[
    must("chunk-put-get", "get_chunk returns the bytes that put_chunk stored", put_get),
    must(
        "chunk-again",
        "the first put of a chunk returns 0 (stored); another one changes nothing and returns 1",
        again,
    ),
    ours("chunk-first-stays", "putting other bytes under an existing hash changes nothing and returns 1", first_stays),
    must(
        "chunk-missing",
        "get_chunk of a chunk that was never put returns a negative code, not an empty value",
        missing,
    ),
    ours("chunk-empty", "an empty chunk is not missing", empty),
    must("chunk-any-bytes", "values may be any bytes: NUL, 0xff, text, and every length near powers of two", any_bytes),
    must(
        "chunk-inputs-borrowed",
        "inputs are borrowed only during the call: the consumer may overwrite them before put_manifest",
        inputs_borrowed,
    ),
    must("hash-8-16-32", "the consumer chooses its hashes; those of 8, 16 and 32 bytes are in use", usual_hashes),
    ours("hash-any-length", "hashes may have 1 to 64 bytes, and every byte distinguishes them", all_hashes),
    must(
        "hash-whole",
        "hashes that share their beginning or end, or contain NUL or `/`, are different keys",
        whole_hashes,
    ),
    must("chunk-prefetch", "prefetch_chunks is a hint: it changes nothing, even for missing chunks", prefetch),
];

fn put_get(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    let mut random = context.random();
    for len in [1, 100, 4096, 100_000] {
        let (hash, data) = (context.hash(32)?, random.bytes(len));
        store.put(&hash, &data)?;
        store.put_manifest(&context.name("/put-get")?, b"")?;
        store.expect(&hash, &data, "after put_chunk and put_manifest")?;
        store.expect(&hash, &data, "read once more")?;
    }
    Ok("values of 1 to 100,000 bytes came back".into())
}

fn again(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    let name = context.name("/again")?;
    let (hash, data) = (context.hash(32)?, context.fresh(1000));
    let first = store.put(&hash, &data)?;
    ensure!(first == Put::Stored, "the first put_chunk returned 1");
    let second = store.put(&hash, &data)?;
    ensure!(second == Put::AlreadyThere, "the second put_chunk on a handle returned 0");
    store.put_manifest(&name, b"")?;
    let third = store.put(&hash, &data)?;
    ensure!(third == Put::AlreadyThere, "put_chunk after put_manifest returned 0");
    let other = context.open()?.put(&hash, &data)?;
    ensure!(other == Put::AlreadyThere, "put_chunk on another handle, after put_manifest, returned 0");
    store.expect(&hash, &data, "after four put_chunk")?;
    Ok("put_chunk returned 0, then 1, 1 and 1".into())
}

fn first_stays(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    let name = context.name("/first-stays")?;
    for (first, other) in [
        (&b"the first"[..], &b"the other"[..]),
        (b"long, and then", b"short"),
        (b"short", b"long, and then"),
        (b"something", b""),
    ] {
        let hash = context.hash(32)?;
        store.put(&hash, first)?;
        store.put(&hash, other)?;
        store.put_manifest(&name, b"")?;
        store.expect(&hash, first, "after other bytes were put under its hash")?;
        let put = store.put(&hash, other)?;
        ensure!(put == Put::AlreadyThere, "put_chunk of other bytes returned 0");
        store.put_manifest(&name, b"")?;
        store.expect(&hash, first, "after other bytes were put again")?;
    }
    Ok("the first bytes stayed".into())
}

fn missing(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    for len in [8, 16, 32] {
        let hash = context.hash(len)?;
        if let Some(value) = store.get(&hash)? {
            broken!("get_chunk of a hash that was never put returned 0 and {} bytes", value.len());
        }
        // The failed read must not have created it.
        let put = store.put(&hash, b"now")?;
        ensure!(put == Put::Stored, "put_chunk after a get_chunk that found nothing returned 1");
    }
    store.put_manifest(&context.name("/missing")?, b"")?;
    Ok("get_chunk of 3 hashes that were never put returned a negative code".into())
}

fn empty(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    let hash = context.hash(32)?;
    let put = store.put(&hash, b"")?;
    ensure!(put == Put::Stored, "put_chunk of no bytes returned 1 at first");
    store.put_manifest(&context.name("/empty")?, b"")?;
    store.expect(&hash, b"", "after put_chunk of no bytes")?;
    context.open()?.expect(&hash, b"", "on another handle")?;
    let put = store.put(&hash, b"")?;
    ensure!(put == Put::AlreadyThere, "put_chunk of no bytes returned 0 again");
    Ok("a chunk of no bytes is there".into())
}

fn any_bytes(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    let every: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
    let mut values = vec![every, vec![0; 5000], vec![0xff; 5000], b"\r\n\x1a\0text".to_vec()];
    let mut random = context.random();
    for power in [4, 8, 12, 16, 20] {
        for len in [(1 << power) - 1, 1 << power, (1 << power) + 1] {
            values.push(random.bytes(len));
        }
    }
    let mut put = Vec::new();
    for value in &values {
        let hash = context.hash(32)?;
        store.put(&hash, value)?;
        put.push((hash, value));
    }
    store.put_manifest(&context.name("/any-bytes")?, b"")?;
    let other = context.open()?;
    for (hash, value) in put {
        other.expect(&hash, value, "on another handle")?;
    }
    Ok(format!("{} values came back", values.len()))
}

fn inputs_borrowed(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    let mut buffer = vec![0; 50_000];
    let mut put = Vec::new();
    for n in 1..=5 {
        buffer.fill(n);
        let hash = context.hash(32)?;
        store.put(&hash, &buffer)?;
        put.push((hash, n));
    }
    buffer.fill(0xee);
    let name = context.name("/borrowed")?;
    let mut manifest = b"manifest".to_vec();
    store.put_manifest(&name, &manifest)?;
    manifest.fill(0xee);
    for (hash, n) in put {
        store.expect(&hash, &[n; 50_000], "after its buffer was used for something else")?;
    }
    store.expect_manifest(&name, b"manifest", "after its buffer was used for something else")?;
    Ok("values stayed when their buffers were overwritten".into())
}

fn round_trip(context: &Context<'_>, hashes: &[ChunkHash]) -> Result<(), super::outcome::Stop> {
    let store = context.open()?;
    for (n, hash) in hashes.iter().enumerate() {
        store.put(hash, format!("value {n} of {hash}").as_bytes())?;
    }
    store.put_manifest(&context.name("/hashes")?, b"")?;
    let other = context.open()?;
    for (n, hash) in hashes.iter().enumerate() {
        let when = format!("under a hash of {} bytes ({hash})", hash.as_bytes().len());
        other.expect(hash, format!("value {n} of {hash}").as_bytes(), &when)?;
    }
    Ok(())
}

fn usual_hashes(context: &Context<'_>) -> Outcome {
    let hashes: Result<Vec<_>, _> = [8, 16, 32].map(|len| context.hash(len)).into_iter().collect();
    round_trip(context, &hashes?)?;
    Ok("hashes of 8, 16 and 32 bytes work".into())
}

fn all_hashes(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    let mut hashes = Vec::new();
    let mut taken = 0;
    let shortest = if context.options().scratch { 1 } else { 4 };
    for len in shortest..=ChunkHash::MAX {
        let mut bytes = context.fresh(len);
        for _ in 0..2 {
            let hash = ChunkHash::new(&bytes)?;
            // In a store in use, a short hash may exist.
            if store.get(&hash)?.is_none() {
                hashes.push(hash);
            } else {
                taken += 1;
            }
            // Also try one that differs in its last byte.
            bytes[len - 1] ^= 1;
        }
    }
    drop(store);
    round_trip(context, &hashes)?;
    Ok(format!("{} hashes of {shortest} to 64 bytes work ({taken} were taken)", hashes.len()))
}

fn whole_hashes(context: &Context<'_>) -> Outcome {
    let mut hashes = Vec::new();
    let start = context.fresh(32);
    // Prefixes of each other, and one that ends in zeros.
    for len in [8, 16, 31, 32] {
        hashes.push(ChunkHash::new(&start[..len])?);
    }
    let mut zeroes = start[..16].to_vec();
    zeroes.resize(32, 0);
    hashes.push(ChunkHash::new(&zeroes)?);
    // Hashes that differ in one byte: the first, one in the middle, the last.
    for at in [0, 15, 16, 31] {
        let mut other = start.clone();
        other[at] ^= 0x80;
        hashes.push(ChunkHash::new(&other)?);
    }
    // Bytes with a special meaning elsewhere, and ASCII hex digits in both cases.
    for byte in [0, b'/', b'.', b'%', b':', b'*', 0xff] {
        let mut other = context.fresh(32);
        other[..8].fill(byte);
        other[24..].fill(byte);
        hashes.push(ChunkHash::new(&other)?);
    }
    let mut letters = context.fresh(32);
    letters[..8].copy_from_slice(b"abcdefab");
    hashes.push(ChunkHash::new(&letters)?);
    letters[..8].copy_from_slice(b"ABCDEFAB");
    hashes.push(ChunkHash::new(&letters)?);
    round_trip(context, &hashes)?;
    Ok(format!("{} hashes that are alike are different keys", hashes.len()))
}

fn prefetch(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    let (there, absent) = (context.hash(32)?, context.hash(32)?);
    store.put(&there, b"there")?;
    store.put_manifest(&context.name("/prefetch")?, b"")?;
    let mut failed = 0_u32;
    for hashes in [&[][..], &[there], &[absent], &[there, absent, there]] {
        // An error is allowed, but a successful call must return 0.
        if let Err(error) = store.0.prefetch_chunks(hashes) {
            if let StoreError::Remote { source, .. } = &error
                && let Some(CallError::Code { code }) = source.downcast_ref()
            {
                broken!("prefetch_chunks returned {code}: it is 0, or negative");
            }
            failed += 1;
        }
    }
    store.expect(&there, b"there", "after prefetch_chunks")?;
    ensure!(store.get(&absent)?.is_none(), "a missing chunk is there after prefetch_chunks");
    Ok(format!("chunks are as before; {failed} of 4 calls returned an error, which is allowed"))
}
