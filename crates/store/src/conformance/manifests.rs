//! Items about single manifests.

use super::context::Context;
use super::item::{Item, must, ours};
use super::outcome::{Outcome, broken, ensure};
use crate::backend::Put;
use crate::hash::ChunkHash;

pub(super) const ITEMS: &[Item] = &[
    must(
        "manifest-replace",
        "put_manifest replaces the whole manifest, by shorter or longer bytes, and get_manifest returns the last",
        replace,
    ),
    must(
        "manifest-missing",
        "get_manifest of a name that was never put returns a negative code, not an empty value",
        missing,
    ),
    ours("manifest-empty", "an empty manifest is not missing (oMLX publishes with one)", empty),
    must(
        "manifest-delete",
        "delete_manifest removes a manifest and returns 0, even if there was none; it can be put again",
        delete,
    ),
    ours("delete-keeps-chunks", "delete_manifest leaves the chunks to a later collection", delete_keeps_chunks),
    must(
        "two-namespaces",
        "chunks and manifests have separate names: a manifest named by the hex of a chunk's hash is not that chunk",
        two_namespaces,
    ),
    must("two-handles", "another handle sees at once that a manifest was put, replaced or deleted", two_handles),
];

fn replace(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    let name = context.name("/replace")?;
    let mut random = context.random();
    let lengths = [10, 100_000, 3, 4096, 4095, 1, 70_000];
    for len in lengths {
        let data = random.bytes(len);
        store.put_manifest(&name, &data)?;
        store.expect_manifest(&name, &data, "after put_manifest")?;
        context.open()?.expect_manifest(&name, &data, "on another handle")?;
    }
    Ok(format!("{} versions came back whole", lengths.len()))
}

fn missing(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    if let Some(value) = store.get_manifest(&context.name("/missing")?)? {
        broken!("get_manifest of a name that was never put returned 0 and {} bytes", value.len());
    }
    Ok("get_manifest of a name that was never put returned a negative code".into())
}

fn empty(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    let (name, hash) = (context.name("/empty")?, context.hash(32)?);
    store.put(&hash, b"flushed")?;
    store.put_manifest(&name, b"")?;
    let other = context.open()?;
    other.expect_manifest(&name, b"", "after put_manifest of no bytes")?;
    other.expect(&hash, b"flushed", "after put_manifest of no bytes")?;
    store.put_manifest(&name, b"text")?;
    store.put_manifest(&name, b"")?;
    other.expect_manifest(&name, b"", "after it replaced a longer one")?;
    Ok("a manifest of no bytes is there, and published its chunk".into())
}

fn delete(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    let (name, kept) = (context.name("/delete")?, context.name("/delete/kept")?);
    store.delete_manifest(&name)?;
    store.put_manifest(&name, b"text")?;
    store.put_manifest(&kept, b"kept")?;
    store.delete_manifest(&name)?;
    store.expect_no_manifest(&name, "after delete_manifest")?;
    context.open()?.expect_no_manifest(&name, "after delete_manifest, on another handle")?;
    store.delete_manifest(&name)?;
    store.expect_no_manifest(&name, "after a second delete_manifest")?;
    store.expect_manifest(&kept, b"kept", "after another one was deleted")?;
    store.put_manifest(&name, b"again")?;
    store.expect_manifest(&name, b"again", "put again")?;
    Ok("deleted, deleted again, put again".into())
}

fn delete_keeps_chunks(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    let (name, hash) = (context.name("/keeps")?, context.hash(32)?);
    store.put(&hash, b"chunk")?;
    store.put_manifest(&name, hash.as_bytes())?;
    store.delete_manifest(&name)?;
    store.expect(&hash, b"chunk", "after its manifest was deleted")?;
    context.open()?.expect(&hash, b"chunk", "on another handle, after its manifest was deleted")?;
    Ok("the chunk stayed".into())
}

fn two_namespaces(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    let hash = context.hash(16)?;
    let name = context.exact_name(hash.to_string())?;
    store.put_manifest(&name, b"manifest")?;
    ensure!(store.get(&hash)?.is_none(), "a manifest can be read as a chunk");
    let put = store.put(&hash, b"chunk")?;
    ensure!(put == Put::Stored, "put_chunk returned 1 where only a manifest was");
    // The other way round: a hash that equals the bytes of a manifest's name.
    let other = context.name("")?;
    let named = ChunkHash::new(other.as_str().as_bytes())?;
    store.put(&named, b"named")?;
    store.put_manifest(&other, b"other")?;
    store.expect(&hash, b"chunk", "beside a manifest named like it")?;
    store.expect(&named, b"named", "beside a manifest named like it")?;
    store.expect_manifest(&name, b"manifest", "beside a chunk of its name")?;
    store.expect_manifest(&other, b"other", "beside a chunk of its name")?;
    store.delete_manifest(&name)?;
    // The store decides whether a chunk outlives its manifest.
    if store.get(&hash)?.is_some() {
        let when = "after the manifest named like it was deleted";
        store.expect(&hash, b"chunk", when)?;
    }
    store.expect_manifest(&other, b"other", "after another one was deleted")?;
    Ok("chunks and manifests of the same name are apart".into())
}

fn two_handles(context: &Context<'_>) -> Outcome {
    let (one, two) = (context.open()?, context.open()?);
    let name = context.name("/two")?;
    for round in 0..10 {
        let (from, to) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let data = format!("round {round}");
        from.put_manifest(&name, data.as_bytes())?;
        to.expect_manifest(&name, data.as_bytes(), "after put_manifest on another handle")?;
        if round % 3 == 2 {
            from.delete_manifest(&name)?;
            to.expect_no_manifest(&name, "after delete_manifest on another handle")?;
        }
    }
    Ok("each handle saw at once what the other did".into())
}
