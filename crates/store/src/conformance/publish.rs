//! Items about publishing: what put_manifest makes visible, and when.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::context::{Context, Handle};
use super::item::{Item, must, ours};
use super::outcome::{Outcome, Stop, broken, ensure};
use crate::backend::Put;
use crate::hash::ChunkHash;

pub(super) const ITEMS: &[Item] = &[
    must(
        "publish",
        "once put_manifest has returned, every chunk put before on that handle can be read on any handle",
        publish,
    ),
    must(
        "publish-together",
        "a reader that sees a manifest can read every chunk that was put before it on that handle",
        together,
    ),
    must(
        "publish-already-there",
        "the same holds for a chunk whose put_chunk returned 1 because another handle had put it",
        already_there,
    ),
    must(
        "manifest-atomic",
        "a reader sees the complete old or new manifest: never a mixture, a part, nothing, or an older one",
        atomic,
    ),
    ours("read-own-puts", "a chunk can be read on the handle that put it before put_manifest", own_puts),
    must("reopen", "published values are still there after all handles were closed", reopen),
];

fn publish(context: &Context<'_>) -> Outcome {
    let (writer, before) = (context.open()?, context.open()?);
    let mut random = context.random();
    let mut chunks = Vec::new();
    for len in [1, 1000, 300_000].into_iter().chain([64; 60]) {
        let chunk = (context.hash(32)?, random.bytes(len));
        // A read that comes too early must not make the store remember the chunk as missing.
        before.get(&chunk.0)?;
        writer.put(&chunk.0, &chunk.1)?;
        chunks.push(chunk);
    }
    writer.put_manifest(&context.name("/publish")?, b"a manifest that names none of them")?;
    let after = context.open()?;
    for (hash, data) in &chunks {
        before.expect(hash, data, "after put_manifest, on a handle that was open before")?;
        after.expect(hash, data, "after put_manifest, on a handle that was opened afterwards")?;
    }
    drop(writer);
    for (hash, data) in &chunks {
        after.expect(hash, data, "after put_manifest and close")?;
    }
    Ok(format!("{} chunks could be read on two other handles", chunks.len()))
}

fn together(context: &Context<'_>) -> Outcome {
    let name = context.name("/together")?;
    let checked = AtomicUsize::new(0);
    let writer = context.open()?;
    let read = |reader: &Handle| -> Result<(), Stop> {
        let Some(manifest) = reader.get_manifest(&name)? else {
            return Ok(());
        };
        for hash in manifest.chunks(32) {
            let hash = ChunkHash::new(hash)?;
            reader.expect(&hash, hash.as_bytes(), "in a reader that had just seen the manifest")?;
            checked.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let write = |_: usize| -> Result<(), Stop> {
        let mut manifest = Vec::new();
        for _ in 0..4 {
            let hash = context.hash(32)?;
            writer.put(&hash, hash.as_bytes())?;
            manifest.extend(hash.as_bytes());
        }
        writer.put_manifest(&name, &manifest)
    };
    let rounds = context.options().rounds / 4 + 2;
    let rounds = write_with_readers(context, &writer, rounds, &read, &write)?;
    Ok(format!("{rounds} manifests of 4 chunks; readers checked {} chunks", checked.into_inner()))
}

fn already_there(context: &Context<'_>) -> Outcome {
    let (first, second) = (context.open()?, context.open()?);
    let (hash, data) = (context.hash(32)?, context.fresh(5000));
    first.put(&hash, &data)?;
    let put = second.put(&hash, &data)?;
    second.put_manifest(&context.name("/already-there")?, hash.as_bytes())?;
    let reader = context.open()?;
    reader.expect(&hash, &data, "after the second handle's put_manifest")?;
    drop((first, second));
    reader.expect(&hash, &data, "after both handles were closed")?;
    let code = i32::from(put == Put::AlreadyThere);
    Ok(format!("the second put_chunk returned {code}, and its chunk was published"))
}

fn own_puts(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    for len in [10, 100_000] {
        let (hash, data) = (context.hash(32)?, context.fresh(len));
        store.put(&hash, &data)?;
        store.expect(&hash, &data, "before put_manifest, on its own handle")?;
    }
    store.put_manifest(&context.name("/own")?, b"")?;
    Ok("chunks could be read on their own handle at once".into())
}

fn reopen(context: &Context<'_>) -> Outcome {
    let name = context.name("/reopen")?;
    let (hash, data) = (context.hash(32)?, context.fresh(40_000));
    let store = context.open()?;
    store.put(&hash, &data)?;
    store.put_manifest(&name, b"first")?;
    drop(store);
    for round in 0..3 {
        let store = context.open()?;
        store.expect(&hash, &data, "after close and open")?;
        let expected = if round == 0 { "first".into() } else { format!("round {}", round - 1) };
        store.expect_manifest(&name, expected.as_bytes(), "after close and open")?;
        let put = store.put(&hash, &data)?;
        ensure!(put == Put::AlreadyThere, "after close and open, put_chunk of the same returned 0");
        store.put_manifest(&name, format!("round {round}").as_bytes())?;
    }
    Ok("chunk and manifest were there after each of 3 re-opens".into())
}

/// Returns a manifest whose integrity can be checked: version, filling, checksum. Lengths go up and down.
fn version(number: u64) -> Vec<u8> {
    let len = (number.wrapping_mul(2_654_435_761) % 40_000) as usize;
    let mut manifest = number.to_le_bytes().to_vec();
    manifest.resize(8 + len, number as u8);
    let sum = blake3::hash(&manifest);
    manifest.extend(sum.as_bytes());
    manifest
}

fn read_version(manifest: &[u8]) -> Result<u64, Stop> {
    let number = manifest.first_chunk().map(|number| u64::from_le_bytes(*number));
    match number {
        Some(number) if manifest == version(number) => Ok(number),
        _ => Err(Stop::Broken(format!(
            "a reader got {} bytes that are no version of the manifest that was ever put",
            manifest.len()
        ))),
    }
}

fn atomic(context: &Context<'_>) -> Outcome {
    let name = context.name("/atomic")?;
    let writer = context.open()?;
    writer.put_manifest(&name, &version(0))?;
    // The last version whose put has started, and the last whose put has returned.
    let (begun, returned) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let reads = AtomicUsize::new(0);
    let read = |reader: &Handle| -> Result<(), Stop> {
        let oldest = returned.load(Ordering::SeqCst);
        let Some(manifest) = reader.get_manifest(&name)? else {
            broken!("a reader found nothing while the manifest was being replaced");
        };
        let newest = begun.load(Ordering::SeqCst);
        let number = read_version(&manifest)? as usize;
        ensure!(number >= oldest, "a reader got version {number} after put_manifest of version {oldest} had returned");
        ensure!(number <= newest, "a reader got version {number}, which was not put yet");
        reads.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    let write = |number: usize| -> Result<(), Stop> {
        begun.store(number, Ordering::SeqCst);
        writer.put_manifest(&name, &version(number as u64))?;
        returned.store(number, Ordering::SeqCst);
        Ok(())
    };
    let rounds = write_with_readers(context, &writer, context.options().rounds, &read, &write)?;
    Ok(format!(
        "{} reads by {} threads of {rounds} versions, all whole and current",
        reads.into_inner(),
        context.options().threads
    ))
}

/// Calls `write` with 1, 2 and so on, while threads call `read` repeatedly: half of them on handles of their own, the
/// others on the writer's. Stops after `rounds` writes if there were as many reads, and otherwise continues for a
/// while, because a writer that finishes before any read shows nothing.
/// Returns how many times `write` was called.
fn write_with_readers(
    context: &Context<'_>,
    writer: &Handle,
    rounds: usize,
    read: &(dyn Fn(&Handle) -> Result<(), Stop> + Sync),
    write: &dyn Fn(usize) -> Result<(), Stop>,
) -> Result<usize, Stop> {
    let (done, failed) = (AtomicBool::new(false), AtomicBool::new(false));
    let (ready, reads) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let threads = context.options().threads;
    let reader = |n: usize| -> Result<(), Stop> {
        let first = CountWhenDropped(&ready);
        let handle = match n % 2 {
            0 => context.open()?,
            _ => writer.clone(),
        };
        read(&handle)?;
        drop(first);
        while !done.load(Ordering::Acquire) {
            read(&handle)?;
            reads.fetch_add(1, Ordering::Relaxed);
        }
        read(&handle)
    };
    thread::scope(|scope| {
        let (reader, failed) = (&reader, &failed);
        let readers: Vec<_> = (0..threads)
            .map(|n| scope.spawn(move || reader(n).inspect_err(|_| failed.store(true, Ordering::Relaxed))))
            .collect();
        let written = (|| {
            let _done = SetWhenDropped(&done);
            while ready.load(Ordering::Acquire) < threads {
                thread::sleep(Duration::from_micros(100));
            }
            let mut number = 0;
            while !failed.load(Ordering::Relaxed)
                && (number < rounds || (reads.load(Ordering::Relaxed) < rounds && number < 5 * rounds))
            {
                number += 1;
                write(number)?;
            }
            Ok(number)
        })();
        let read = readers.into_iter().map(joined).collect::<Result<Vec<_>, _>>();
        // A reader's error says more than the writer's.
        read.and(written)
    })
}

/// Counts a reader as ready when dropped, even if it fails or panics before. Otherwise the writer would wait for ever.
struct CountWhenDropped<'a>(&'a AtomicUsize);

impl Drop for CountWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Tells the readers that the writer is done when dropped, even if it panics. Otherwise they would run for ever.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

pub(super) fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    match thread.join() {
        Ok(found) => found,
        Err(payload) => std::panic::resume_unwind(payload),
    }
}
