//! Blocks in the memory of a GPU, on the fake driver.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use smallvec::smallvec;
use transload_archive::{Archive, ArchiveError, Cache, Found, Missing, Part, Permit, Prompt, SaveRequest, Staging};
use transload_layout::Rank;
use transload_store::Backend;
use transload_store::backend::MemoryStore;
use transload_tests::fake_cuda::{self, run};
use transload_transfer::Memory;
use transload_transfer::device::{DeviceError, DeviceMemory, Gpu, Mark, copy};
use transload_transfer::memory::copy::CopyOptions;
use transload_transfer::plan::program::{ALLOCATION_BITS, Nest, Placed, Program};

use crate::engines::{Engine, archive};
use crate::models::{attention, mamba, side};

const TOKENS: u64 = 700;

/// Returns a hybrid on two ranks of two stages each, in small blocks.
fn here() -> Value {
    let heads = json!({"heads": 4, "head_dim": 16});
    let groups = [attention("attn", "0-3", heads), mamba("4-5", "DS")];
    side(2, 2, 16, Some("NHD"), &groups)
}

/// Returns the document of one rank with large blocks.
fn there() -> Value {
    let heads = json!({"heads": 4, "head_dim": 16});
    let groups = [attention("attn", "0-3", heads), mamba("4-5", "SD")];
    side(1, 1, 64, Some("HND"), &groups)
}

/// The indices of the groups that an engine has on the GPU.
type On = &'static [usize];

/// Copies all of a memory onto the GPU, or back.
fn whole<'a>(host: &'a Memory, device: &'a DeviceMemory, back: bool) {
    for number in 0..host.allocations() {
        let address = (number as u64) << ALLOCATION_BITS;
        let run = host.allocation(number).unwrap().1 as u64;
        let program = Program {
            nests: vec![Nest { loops: smallvec![], run }],
            placed: vec![Placed { nest: 0, src: address, dst: address }],
        };
        let options = CopyOptions::default();
        match back {
            false => copy(&program, host, device, &options).unwrap(),
            true => copy(&program, device, host, &options).unwrap(),
        };
    }
}

fn lens(host: &Memory) -> Vec<usize> {
    let allocations = 0..host.allocations();
    allocations.map(|number| host.allocation(number).unwrap().1).collect()
}

/// An engine, some of whose groups are on the GPU.
struct OnGpu {
    engine: Engine,
    /// The caches by rank, then group.
    caches: Vec<Vec<Cache>>,
}

impl OnGpu {
    fn new(gpu: &Gpu, engine: Engine, on: On) -> Self {
        let cache = |(group, host): (usize, &Memory)| {
            if !on.contains(&group) {
                return Cache::from(host.clone());
            }
            let device = DeviceMemory::allocate(gpu, &lens(host)).unwrap();
            whole(host, &device, false);
            device.into()
        };
        let ranks = engine.caches.iter();
        let caches = ranks.map(|groups| groups.iter().enumerate().map(cache).collect());
        Self { caches: caches.collect(), engine }
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        for (hosts, caches) in self.engine.caches.iter().zip(&self.caches) {
            for (host, cache) in hosts.iter().zip(caches) {
                if let Cache::Device(device) = cache {
                    whole(host, device, true);
                }
            }
        }
        self.engine.bytes()
    }

    /// Returns the allocations on the GPU: where each begins, and what the host's copy of it holds.
    fn allocations(&self) -> Vec<(u64, Vec<u8>)> {
        let hosts = self.engine.caches.iter().flatten();
        let mut all = Vec::new();
        for (host, cache) in hosts.zip(self.caches.iter().flatten()) {
            let Cache::Device(device) = cache else {
                continue;
            };
            for number in 0..device.allocations() {
                let (start, len) = device.allocation(number).unwrap();
                let mut bytes = vec![0; len as usize];
                host.read((number as u64) << ALLOCATION_BITS, &mut bytes).unwrap();
                all.push((start, bytes));
            }
        }
        all
    }

    /// Saves on one rank, its blocks being touched after a mark, if there is one.
    fn save_rank(
        &self,
        archive: &Archive,
        rank: Rank,
        missing: &Missing,
        mark: Option<Mark>,
    ) -> Result<Part, ArchiveError> {
        let saver = archive.rank(&self.engine.deployment, rank)?;
        let saver = match mark {
            Some(mark) => saver.with_mark(mark),
            None => saver,
        };
        saver.save(missing, &self.caches[rank.0 as usize], &self.engine.tables)
    }

    fn save(&self, archive: &Archive, prompt: &Prompt<'_>, mark: Option<&Mark>) -> Result<(u64, u64), ArchiveError> {
        let missing = archive.missing(prompt, &request())?;
        let ranks = self.engine.deployment.ranks();
        let parts = ranks.map(|rank| self.save_rank(archive, rank, &missing, mark.cloned()));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let written = parts.iter().map(|part| part.written).sum();
        Ok((archive.publish(&missing, &parts)?.roots, written))
    }

    fn restore(
        &self,
        archive: &Archive,
        found: &Found,
        mark: Option<&Mark>,
        permit: &Permit,
    ) -> Result<(), ArchiveError> {
        for rank in self.engine.deployment.ranks() {
            let reader = archive.rank(&self.engine.deployment, rank)?;
            let reader = reader.with_permit(permit.clone());
            let reader = match mark {
                Some(mark) => reader.with_mark(mark.clone()),
                None => reader,
            };
            let caches = &self.caches[rank.0 as usize];
            reader.restore(found, 0, caches, &self.engine.tables)?;
        }
        Ok(())
    }
}

fn request() -> SaveRequest {
    SaveRequest::tokens(TOKENS).with_state(TOKENS / 256 * 256)
}

fn tokens() -> Vec<u32> {
    (0..TOKENS as u32).map(|i| i * 7).collect()
}

/// Restored bytes equal those of a direct transfer, with either side on a GPU. A host that saves the same tokens finds
/// them already stored.
#[test]
fn what_one_kind_of_memory_saved_the_other_restores() {
    const NAME: &str = "device::what_one_kind_of_memory_saved_the_other_restores";
    run(NAME, &[("FAKE_CUDA_DELAY_US", "5")], |_| {
        let gpu = Gpu::open(0).unwrap();
        let tokens = tokens();
        let prompt = Prompt::new(&tokens);
        let cases: [(On, On); 4] = [(&[0, 1], &[]), (&[], &[0, 1]), (&[0, 1], &[0, 1]), (&[0], &[1])];
        for (from, to) in cases {
            let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
            let source = OnGpu::new(&gpu, Engine::computed(&here(), TOKENS, 5), from);
            let (roots, written) = source.save(&archive(&store, &here()), &prompt, None).unwrap();
            assert!(roots == 2 && written > 0);
            let host = Engine::computed(&here(), TOKENS, 5);
            let again = host.save(&archive(&store, &here()), &prompt, &request());
            assert_eq!(again.unwrap(), (0, 0));

            let reader = archive(&store, &there());
            let found = reader.find(&prompt).unwrap();
            assert_eq!(found.tokens(), 512);
            let restored = OnGpu::new(&gpu, Engine::new(&there(), TOKENS), to);
            restored.restore(&reader, &found, None, &Permit::new()).unwrap();
            let expected = Engine::new(&there(), TOKENS);
            host.transfer_needed(&expected, 0, 512);
            assert!(restored.bytes() == expected.bytes(), "{from:?} to {to:?}");
        }
    });
}

fn wait(mark: &Mark) {
    let (tell, told) = std::sync::mpsc::channel();
    mark.when_done(move |done| tell.send(done).unwrap());
    told.recv().unwrap().unwrap();
}

/// Blocks that the GPU still computes are saved once they are computed, and blocks that it still reads are
/// restored once they are read, where a mark says so; without it they are not.
#[test]
fn nothing_is_saved_or_restored_before_its_mark() {
    const NAME: &str = "device::nothing_is_saved_or_restored_before_its_mark";
    run(NAME, &[("FAKE_CUDA_DELAY_US", "5")], |fake| {
        let gpu = Gpu::open(0).unwrap();
        let engine = fake_cuda::Engine::new(&fake);
        // SAFETY: the stream is there until this process ends.
        let mark = || unsafe { Mark::new(&gpu, engine.stream()).unwrap() };
        let tokens = tokens();
        let prompt = Prompt::new(&tokens);
        for marked in [true, false] {
            let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
            let source = OnGpu::new(&gpu, Engine::computed(&here(), TOKENS, 5), &[0, 1]);
            for (start, computed) in source.allocations() {
                engine.write(start, &vec![0; computed.len()]);
            }
            wait(&mark());
            // Without a mark the engine comes to its work when all is over; with one it is what is waited for.
            let late = |on| fake.hold_stream(engine.stream() as usize, on && !marked);
            late(true);
            for (start, computed) in source.allocations() {
                engine.spin(20_000);
                engine.write(start, &computed);
            }
            let mark_of_save = mark();
            let writer = archive(&store, &here());
            source.save(&writer, &prompt, marked.then_some(&mark_of_save)).unwrap();
            late(false);

            let reader = archive(&store, &there());
            let found = reader.find(&prompt).unwrap();
            let restored = OnGpu::new(&gpu, Engine::new(&there(), TOKENS), &[0, 1]);
            let before = restored.bytes();
            late(true);
            engine.spin(200_000);
            let allocations = restored.allocations().into_iter();
            let read: Vec<&[u8]> = allocations.map(|(start, bytes)| engine.read(start, bytes.len())).collect();
            let mark_of_restore = mark();
            restored.restore(&reader, &found, marked.then_some(&mark_of_restore), &Permit::new()).unwrap();
            late(false);
            wait(&mark_of_restore);
            assert_eq!(read.concat() == before.concat(), marked, "what was read before");
            let expected = Engine::new(&there(), TOKENS);
            Engine::computed(&here(), TOKENS, 5).transfer_needed(&expected, 0, 512);
            assert_eq!(restored.bytes() == expected.bytes(), marked, "what was saved");
        }
    });
}

/// A save and a restore that wait for a mark end when they are cancelled, and touch nothing.
#[test]
fn a_wait_for_a_mark_is_given_up() {
    run("device::a_wait_for_a_mark_is_given_up", &[], |fake| {
        let gpu = Gpu::open(0).unwrap();
        let engine = fake_cuda::Engine::new(&fake);
        let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
        let tokens = tokens();
        let prompt = Prompt::new(&tokens);
        let source = OnGpu::new(&gpu, Engine::computed(&here(), TOKENS, 5), &[0, 1]);
        let there_ = OnGpu::new(&gpu, Engine::new(&there(), TOKENS), &[0, 1]);
        source.save(&archive(&store, &here()), &prompt, None).unwrap();
        let reader = archive(&store, &there());
        let found = reader.find(&prompt).unwrap();
        fake.hold(true);
        // SAFETY: the stream is there until this process ends.
        let never = unsafe { Mark::new(&gpu, engine.stream()).unwrap() };
        let permit = Permit::new();
        std::thread::scope(|scope| {
            let restoring = scope.spawn(|| there_.restore(&reader, &found, Some(&never), &permit));
            permit.revoke();
            let error = restoring.join().unwrap().unwrap_err();
            assert!(matches!(error, ArchiveError::Revoked), "{error}");
        });
        let saver = archive(&store, &here());
        let other: Vec<u32> = tokens.iter().map(|token| token + 1).collect();
        let missing = saver.missing(&Prompt::new(&other), &request()).unwrap();
        let rank = saver.rank(&source.engine.deployment, Rank(0)).unwrap();
        let rank = rank.with_permit(permit).with_mark(never);
        let (caches, tables) = (&source.caches[0], &source.engine.tables);
        let error = rank.stage(&missing, caches, tables, &Staging::new(1 << 30)).unwrap_err();
        assert!(matches!(error, ArchiveError::Revoked), "{error}");
        fake.hold(false);
        let untouched = Engine::new(&there(), TOKENS);
        assert!(there_.bytes() == untouched.bytes());
    });
}

/// Revoking a permission does not wait for a copy on the GPU, and nothing is written once the permission has ended.
#[test]
fn a_copy_under_way_is_not_waited_for() {
    const NAME: &str = "device::a_copy_under_way_is_not_waited_for";
    run(NAME, &[], |fake| {
        let gpu = Gpu::open(0).unwrap();
        let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
        let tokens = tokens();
        let prompt = Prompt::new(&tokens);
        Engine::computed(&here(), TOKENS, 5).save(&archive(&store, &here()), &prompt, &request()).unwrap();
        let restored = OnGpu::new(&gpu, Engine::new(&there(), TOKENS), &[0, 1]);
        let before = restored.bytes();
        let reader = archive(&store, &there()).with_threads(1);
        let found = reader.find(&prompt).unwrap();
        let permit = Permit::new();
        let copies = || fake.calls("cuMemcpyHtoDAsync_v2");
        let so_far = copies();
        fake.hold(true);
        std::thread::scope(|scope| {
            let restoring = scope.spawn(|| restored.restore(&reader, &found, None, &permit));
            until("a copy is under way", || copies() > so_far);
            permit.revoke();
            assert!(!permit.is_quiet() && !restoring.is_finished());
            fake.hold(false);
            until("the copy is over", || permit.is_quiet());
            let then = restored.bytes();
            let error = restoring.join().unwrap().unwrap_err();
            assert!(matches!(error, ArchiveError::Revoked), "{error}");
            assert!(then != before, "the copy was a copy into these blocks");
            assert!(then == restored.bytes(), "written after it was quiet");
        });
    });
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within 30 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A lost device has its own kind of error, and nothing is published before or after it.
#[test]
fn a_lost_device_is_told() {
    run("device::a_lost_device_is_told", &[], |fake| {
        let gpu = Gpu::open(0).unwrap();
        let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
        let tokens = tokens();
        let prompt = Prompt::new(&tokens);
        let source = OnGpu::new(&gpu, Engine::computed(&here(), TOKENS, 5), &[0, 1]);
        let destination = OnGpu::new(&gpu, Engine::new(&there(), TOKENS), &[0, 1]);
        let host = Engine::computed(&here(), TOKENS, 5);
        let (writer, reader) = (archive(&store, &here()), archive(&store, &there()));
        const LAUNCH_FAILED: u32 = 719;
        fake.fail("cuLaunchKernel", 1, LAUNCH_FAILED);
        let lost = |error: ArchiveError| {
            let lost = matches!(&error, ArchiveError::Device(DeviceError::Lost { ordinal: 0, .. }));
            assert!(lost, "{error}");
        };
        lost(source.save(&writer, &prompt, None).unwrap_err());
        assert_eq!(reader.find(&prompt).unwrap().tokens(), 0);
        // The host's memory goes on.
        host.save(&writer, &prompt, &request()).unwrap();
        let found = reader.find(&prompt).unwrap();
        assert_eq!(found.tokens(), 512);
        let permit = Permit::new();
        lost(destination.restore(&reader, &found, None, &permit).unwrap_err());
    });
}
