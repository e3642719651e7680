//! What the file store costs, beside a plain program that does as much for the same bytes.
//!
//! `cargo bench -p transload-benches --bench store`. Everything is measured in turn, round after round, and
//! the median round counts. It works in `TMPDIR`, which should be on the disk in question; `ROUNDS=n` does
//! more rounds than 7.
//!
//! The plain program writes each chunk as a file, flushes each of them and then their folder, and reads them
//! back after the cache has been told to forget them.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};
use transload_store::backend::Backend;
use transload_store::backend::file::{FileOptions, FileStore};
use transload_store::{ChunkHash, ManifestName};

const CHUNKS: usize = 96;
const CHUNK: usize = 1 << 20;

fn main() {
    // `cargo test` runs benches as well, without meaning it.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let rounds = std::env::var("ROUNDS").map_or(7, |text| text.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    println!(
        "{CHUNKS} chunks of 1 MiB, {rounds} rounds, in {}",
        folder.path().display()
    );
    let mut times = Times::default();
    for round in 0..rounds {
        times.round(folder.path(), round);
    }
    times.print();
}

/// Of each round, what everything took.
#[derive(Default)]
struct Times {
    plain_write: Vec<Duration>,
    plain_stream: Vec<Duration>,
    put: Vec<Duration>,
    plain_read: Vec<Duration>,
    get: Vec<Duration>,
    warm: Vec<Duration>,
    warm_opened: Vec<Duration>,
    publish: Vec<Duration>,
    fsync: Vec<Duration>,
}

impl Times {
    fn round(&mut self, folder: &Path, round: u64) {
        let chunks: Vec<(ChunkHash, Vec<u8>)> = (0..CHUNKS as u64)
            .map(|n| {
                let mut data = vec![0; CHUNK];
                let mut hasher = blake3::Hasher::new();
                hasher.update(&[round.to_le_bytes(), n.to_le_bytes()].concat());
                hasher.finalize_xof().fill(&mut data);
                (blake3::hash(&data).into(), data)
            })
            .collect();
        let plain = folder.join(format!("plain {round}"));
        self.plain_write.push(time(|| write_files(&plain, &chunks)));
        let stream = folder.join(format!("stream {round}"));
        self.plain_stream
            .push(time(|| write_stream(&stream, &chunks)));

        let root = folder.join("store");
        let store = FileStore::open(&root, FileOptions::new()).unwrap();
        let name = ManifestName::new(format!("save {round}")).unwrap();
        let manifest: Vec<u8> = chunks
            .iter()
            .flat_map(|c| c.0.as_bytes())
            .copied()
            .collect();
        let save = |store: &FileStore| {
            for (hash, data) in &chunks {
                store.put_chunk(hash, data).unwrap();
            }
            store.put_manifest(&name, &manifest).unwrap();
        };
        self.put.push(time(|| save(&store)));
        self.warm.push(time(|| save(&store)));

        forget(&plain);
        self.plain_read.push(time(|| {
            for n in 0..CHUNKS {
                let mut data = Vec::with_capacity(CHUNK);
                let mut file = File::open(plain.join(n.to_string())).unwrap();
                file.read_to_end(&mut data).unwrap();
                assert_eq!(data.len(), CHUNK);
            }
        }));
        let opened = FileStore::open(&root, FileOptions::new()).unwrap();
        forget(&root);
        self.get.push(time(|| {
            for (hash, _) in &chunks {
                assert_eq!(opened.get_chunk(hash).unwrap().unwrap().len(), CHUNK);
            }
        }));
        self.warm_opened.push(time(|| save(&opened)));

        let one = File::create(folder.join("one")).unwrap();
        for n in 0..10 {
            self.fsync.push(time(|| {
                one.write_all_at(&[7; 4096], n * 4096).unwrap();
                one.sync_all().unwrap();
            }));
            let name = ManifestName::new(format!("publish {round} {n}")).unwrap();
            self.publish
                .push(time(|| store.put_manifest(&name, &manifest).unwrap()));
        }
        std::fs::remove_dir_all(&plain).unwrap();
        std::fs::remove_file(&stream).unwrap();
    }

    fn print(mut self) {
        let megabytes = (CHUNKS * CHUNK) as f64 / 1e6;
        let speed = |time: Duration| megabytes / time.as_secs_f64();
        let (put, get) = (median(&mut self.put), median(&mut self.get));
        let (files, stream) = (
            median(&mut self.plain_write),
            median(&mut self.plain_stream),
        );
        let read = median(&mut self.plain_read);
        println!("put        {:8.0} MB/s", speed(put));
        println!(
            "  files    {:8.0} MB/s, ratio {:.2}",
            speed(files),
            ratio(files, put)
        );
        println!(
            "  one file {:8.0} MB/s, ratio {:.2}",
            speed(stream),
            ratio(stream, put)
        );
        println!("get, cold  {:8.0} MB/s", speed(get));
        println!(
            "  files    {:8.0} MB/s, ratio {:.2}",
            speed(read),
            ratio(read, get)
        );
        println!("warm save  {:8.3} ms", ms(median(&mut self.warm)));
        println!(
            "  on a handle just opened {:.3} ms",
            ms(median(&mut self.warm_opened))
        );
        let (publish, fsync) = (median(&mut self.publish), median(&mut self.fsync));
        println!(
            "publish    {:8.3} ms, one fsync {:.3} ms, {:.2} times",
            ms(publish),
            ms(fsync),
            ratio(publish, fsync)
        );
    }
}

fn write_files(folder: &Path, chunks: &[(ChunkHash, Vec<u8>)]) {
    std::fs::create_dir(folder).unwrap();
    let files = chunks.iter().enumerate().map(|(n, (_, data))| {
        let mut file = File::create(folder.join(n.to_string())).unwrap();
        file.write_all(data).unwrap();
        file
    });
    // First all writes, then all flushes: so the disk has most to do at once.
    let files: Vec<File> = files.collect();
    files.iter().for_each(|file| file.sync_all().unwrap());
    File::open(folder).unwrap().sync_all().unwrap();
}

fn write_stream(path: &Path, chunks: &[(ChunkHash, Vec<u8>)]) {
    let mut file = File::create(path).unwrap();
    chunks
        .iter()
        .for_each(|(_, data)| file.write_all(data).unwrap());
    file.sync_all().unwrap();
    File::open(path.parent().unwrap())
        .unwrap()
        .sync_all()
        .unwrap();
}

/// Takes all files below a folder out of the page cache.
fn forget(folder: &Path) {
    let mut todo: Vec<PathBuf> = vec![folder.to_owned()];
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(
                std::fs::read_dir(path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else {
            let file = File::open(path).unwrap();
            file.sync_all().unwrap();
            fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        }
    }
}

fn time(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn ratio(of: Duration, to: Duration) -> f64 {
    of.as_secs_f64() / to.as_secs_f64()
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
