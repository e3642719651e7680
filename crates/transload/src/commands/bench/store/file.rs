//! Benchmarks of `file`, compared with a program that stores the same bytes in plain files equally durably.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use transload::store::backend::file::{FileOptions, FileStore};
use transload::store::{Backend, ChunkHash, Put};

use super::cold::make_cold;
use super::{Chunks, failed, manifest, name, refused, same};
use crate::commands::bench::measure::Figure;
use crate::commands::bench::schedule::{Schedule, timed};
use crate::failure::Failure;
use crate::show::number::gigabytes_per_second;

/// The number of cases: put, get, warm save, publish.
pub(super) const CASES: usize = 4;

/// A save of the size in llama.cpp's published figures: 96 chunks of 1 MiB.
const COUNT: usize = 96;
const CHUNK: usize = 1 << 20;

pub(super) fn run(schedule: &mut Schedule, dir: &Path) -> Result<(Vec<Figure>, Vec<String>), Failure> {
    let dir = fs::canonicalize(dir).map_err(refused(dir.display()))?;
    let here = tempfile::Builder::new()
        .prefix("transload-bench-")
        .tempdir_in(&dir)
        .map_err(refused(format!("a folder in {}", dir.display())))?;
    let put = "file, put 1 MiB chunks";
    schedule.prepare(put);
    let mut chunks = Chunks::new(COUNT, CHUNK);
    let keys = chunks.keys();
    let store = Stored::new(&here, &keys);
    let plain = Plain::new(&here);
    let rounds = schedule
        .in_turns(put, [&mut || store.put(&chunks), &mut || plain.write(&chunks), &mut || plain.write_one(&chunks)])?;
    let [each, one] = ["a file a chunk, each flushed", "one file, flushed once"];
    let mut figures =
        vec![Figure::new(put, "GB/s", each, &rounds, [0, 1]), Figure::new(put, "GB/s", one, &rounds, [0, 2])];

    let get = "file, get 1 MiB chunks, cold";
    schedule.prepare(get);
    let rounds =
        schedule.in_turns(get, [&mut || store.get(&chunks), &mut || plain.read(), &mut || plain.read_one()])?;
    figures.extend([
        Figure::new(get, "GB/s", "a file a chunk", &rounds, [0, 1]),
        Figure::new(get, "GB/s", "one file", &rounds, [0, 2]),
    ]);
    // The measured reads do not compare bytes.
    store.check(&chunks)?;

    let warm = "file, save 96 MiB that is there";
    schedule.prepare(warm);
    let rounds = schedule.in_turns(warm, [&mut || store.save_again(&chunks), &mut || plain.flush_one(CHUNK)])?;
    let flush = "4 KiB overwritten and flushed";
    figures.push(Figure::new(warm, "ms", flush, &rounds, [0, 1]));

    let publish = "file, publish a manifest";
    schedule.prepare(publish);
    let rounds = schedule
        .in_turns(publish, [&mut || store.publish(), &mut || plain.flush_new(), &mut || plain.flush_one(CHUNK)])?;
    figures.extend([
        Figure::new(publish, "ms", "a new file of 4 KiB, flushed", &rounds, [0, 1]),
        Figure::new(publish, "ms", flush, &rounds, [0, 2]),
    ]);
    let note = format!("file: in {}", dir.display());
    Ok((figures, vec![note]))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A store that is created again in each round of puts.
struct Stored<'a> {
    at: PathBuf,
    keys: &'a [ChunkHash],
    manifest: Vec<u8>,
}

impl<'a> Stored<'a> {
    fn new(here: &TempDir, keys: &'a [ChunkHash]) -> Self {
        Self { at: here.path().join("store"), keys, manifest: manifest(keys) }
    }

    /// Opens the store without the environment's settings, which may set a cap or another backend.
    fn open(&self) -> Result<FileStore, Failure> {
        FileStore::open(&self.at, FileOptions::default()).map_err(failed)
    }

    /// Saves chunks and the manifest that makes them durable. Returns GB/s.
    fn put(&self, chunks: &Chunks) -> Result<f64, Failure> {
        remove(&self.at)?;
        let store = self.open()?;
        let (done, time) = timed(|| self.save(&store, chunks, Put::Stored));
        done?;
        Ok(gigabytes_per_second(chunks.len(), time))
    }

    /// Saves the same chunks again. Returns milliseconds.
    fn save_again(&self, chunks: &Chunks) -> Result<f64, Failure> {
        let store = self.open()?;
        let (done, time) = timed(|| self.save(&store, chunks, Put::AlreadyThere));
        done?;
        Ok(milliseconds(time))
    }

    fn save(&self, store: &FileStore, chunks: &Chunks, expected: Put) -> Result<(), Failure> {
        for (key, chunk) in self.keys.iter().zip(chunks.all()) {
            let put = store.put_chunk(key, chunk).map_err(failed)?;
            if put != expected {
                return Err(crate::commands::engines::broken(format!("put returned {put:?}, expected {expected:?}")));
            }
        }
        let name = name("save")?;
        store.put_manifest(&name, &self.manifest).map_err(failed)
    }

    /// Reads all chunks from the disk through a new handle. Returns GB/s.
    fn get(&self, chunks: &Chunks) -> Result<f64, Failure> {
        let store = self.open()?;
        make_cold(&self.at).map_err(refused("emptying the page cache"))?;
        let (done, time) = timed(|| {
            self.keys.iter().try_for_each(|key| {
                let chunk = store.get_chunk(key).map_err(failed)?;
                match chunk.is_some_and(|chunk| chunk.len() == CHUNK) {
                    true => Ok(()),
                    false => same(None, &[]),
                }
            })
        });
        done?;
        Ok(gigabytes_per_second(chunks.len(), time))
    }

    fn check(&self, chunks: &Chunks) -> Result<(), Failure> {
        let store = self.open()?;
        for (key, stored) in self.keys.iter().zip(chunks.all()) {
            let chunk = store.get_chunk(key).map_err(failed)?;
            same(chunk.as_deref(), stored)?;
        }
        Ok(())
    }

    /// Publishes a small manifest without new chunks. Returns milliseconds.
    fn publish(&self) -> Result<f64, Failure> {
        let store = self.open()?;
        let name = name("small")?;
        // The first manifest of a handle may set up state for later ones.
        store.put_manifest(&name, b"first").map_err(failed)?;
        let (done, time) = timed(|| store.put_manifest(&name, &self.manifest));
        done.map_err(failed)?;
        Ok(milliseconds(time))
    }
}

/// Writes the same bytes to plain files, as a baseline.
struct Plain {
    each: PathBuf,
    one: PathBuf,
}

impl Plain {
    fn new(here: &TempDir) -> Self {
        Self { each: here.path().join("each"), one: here.path().join("one") }
    }

    /// Writes a file for each chunk and flushes each, then their folder. Returns GB/s.
    fn write(&self, chunks: &Chunks) -> Result<f64, Failure> {
        remove(&self.each)?;
        fs::create_dir(&self.each).map_err(refused("a folder"))?;
        let (done, time) = timed(|| {
            for (i, chunk) in chunks.all().enumerate() {
                let mut file = File::create_new(self.each.join(i.to_string()))?;
                file.write_all(chunk)?;
                file.sync_data()?;
            }
            File::open(&self.each)?.sync_all()
        });
        done.map_err(refused("plain files"))?;
        Ok(gigabytes_per_second(chunks.len(), time))
    }

    /// Writes everything into one file and flushes it once, then its folder: the least work for durable data. Returns
    /// GB/s.
    fn write_one(&self, chunks: &Chunks) -> Result<f64, Failure> {
        remove(&self.one)?;
        fs::create_dir(&self.one).map_err(refused("a folder"))?;
        let (done, time) = timed(|| {
            let mut file = File::create_new(self.one.join("all"))?;
            for chunk in chunks.all() {
                file.write_all(chunk)?;
            }
            file.sync_data()?;
            File::open(&self.one)?.sync_all()
        });
        done.map_err(refused("a plain file"))?;
        Ok(gigabytes_per_second(chunks.len(), time))
    }

    /// Reads each file into its own memory, as a store returns chunks. Returns GB/s.
    fn read(&self) -> Result<f64, Failure> {
        make_cold(&self.each).map_err(refused("emptying the page cache"))?;
        let (read, time) = timed(|| {
            (0..COUNT).try_fold(0, |read, i| {
                let file = fs::read(self.each.join(i.to_string()))?;
                io::Result::Ok(read + std::hint::black_box(file).len() as u64)
            })
        });
        Ok(gigabytes_per_second(read.map_err(refused("plain files"))?, time))
    }

    fn read_one(&self) -> Result<f64, Failure> {
        make_cold(&self.one).map_err(refused("emptying the page cache"))?;
        let (read, time) = timed(|| {
            let mut file = File::open(self.one.join("all"))?;
            (0..COUNT).try_fold(0, |read, _| {
                let mut chunk = vec![0; CHUNK];
                file.read_exact(&mut chunk)?;
                io::Result::Ok(read + std::hint::black_box(chunk).len() as u64)
            })
        });
        Ok(gigabytes_per_second(read.map_err(refused("a plain file"))?, time))
    }

    /// Writes and flushes a new file of 4 KiB: one fsync that includes the file system's own records. Returns
    /// milliseconds.
    fn flush_new(&self) -> Result<f64, Failure> {
        let path = self.one.join("new");
        let (done, time) = timed(|| {
            let mut file = File::create_new(&path)?;
            file.write_all(&[7; 4096])?;
            file.sync_all()
        });
        done.and_then(|()| fs::remove_file(&path)).map_err(refused("a plain file"))?;
        Ok(milliseconds(time))
    }

    /// Overwrites and flushes 4 KiB of a file at `at`: the shortest possible fsync. Returns milliseconds.
    fn flush_one(&self, at: usize) -> Result<f64, Failure> {
        let all = OpenOptions::new().write(true).open(self.one.join("all"));
        let file = all.map_err(refused("a plain file"))?;
        let (done, time) = timed(|| {
            file.write_all_at(&[7; 4096], at as u64)?;
            file.sync_all()
        });
        done.map_err(refused("a plain file"))?;
        Ok(milliseconds(time))
    }
}

/// Removes the folder of an earlier round, if there is one.
fn remove(folder: &Path) -> Result<(), Failure> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(refused(folder.display())(error)),
        _ => Ok(()),
    }
}
